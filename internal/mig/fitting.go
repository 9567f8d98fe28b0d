package mig

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// option is the best way of one GPU to have some further instances.
type option struct {
	cost
	fits []kindFitted
	gone uint64 // existing instances that are destroyed
}

// kindFitted is an instance that meets a need of a kind.
type kindFitted struct {
	fitted
	kind int
}

// of is the option for items of the same groups, which may be of other kinds; nil stays nil.
func (o *option) of(items []item) *option {
	if o == nil {
		return nil
	}
	same := *o
	same.fits = slices.Clone(o.fits)
	for i := range same.fits {
		same.fits[i].kind = items[same.fits[i].item].kind
	}
	return &same
}

// fitting looks for room on one GPU for some further instances.
type fitting struct {
	watch  *watch
	gpu    *GPULayout
	policy busyPolicy
	items  []item
	own    []*searchProfile // profiles of the existing instances
	all    []*searchProfile
	best   *option
}

func (f *fitting) findBest() *option {
	o := newOccupancy(shapeOf(f.gpu.Profiles), f.gpu.Profiles, nil)
	s := search{watch: f.watch, items: f.items, judgeLayout: f.judgeLayout}
	if f.policy != ignoreBusy {
		s.taken = f.exists
	}
	if f.policy == keepBusy { // what is busy stays
		for i := range f.gpu.Instances {
			if f.gpu.Instances[i].inUse() {
				o = o.with(f.own[i], f.gpu.Instances[i].Placement)
			}
		}
	}
	s.placeItems(o)
	return f.best
}

// exists reports whether there is such an instance already: destroyed and created again it would be no further one.
func (f *fitting) exists(p *searchProfile, at gpu.Placement) bool {
	for i := range f.gpu.Instances {
		if f.gpu.Instances[i].Placement == at && f.own[i].same(p) {
			return f.policy == keepBusy || !f.gpu.Instances[i].inUse()
		}
	}
	return false
}

// judgeLayout tries which instances can stay beside those that were chosen.
func (f *fitting) judgeLayout(o occupancy, chosen []fitted) {
	start := cost{touched: min(len(chosen), 1)}
	var gone uint64
	var may []int
	for i := range f.gpu.Instances {
		switch instance := &f.gpu.Instances[i]; {
		case f.policy == keepBusy && instance.inUse(): // exists already
		case units(instance.Placement)&o.units != 0:
			gone |= 1 << i
			start = start.plus(f.costOf(i))
		default:
			may = append(may, i)
		}
	}
	f.tryKeeping(o, chosen, may, start, gone)
}

func (f *fitting) costOf(i int) cost {
	instance := &f.gpu.Instances[i]
	c := cost{instances: 1, computes: len(instance.ComputeInstances)}
	if instance.inUse() {
		c.busy = 1
	}
	return c
}

// tryKeeping tries both to keep and to destroy each of the instances that may stay.
func (f *fitting) tryKeeping(o occupancy, chosen []fitted, may []int, c cost, gone uint64) {
	if f.watch.step() {
		return
	}
	if f.best != nil {
		if bound := f.best.cost; c.compare(cost{busy: bound.busy, instances: bound.instances, computes: bound.computes,
			touched: bound.touched}) > 0 {
			return
		}
	}
	if len(may) > 0 {
		i, rest := may[0], may[1:]
		if len(chosen) == 0 || o.has(f.own[i]) { // what exists can exist, whatever the profiles suggest
			f.tryKeeping(o.with(f.own[i], f.gpu.Instances[i].Placement), chosen, rest, c, gone)
		}
		if len(chosen) > 0 { // nothing goes for nothing
			f.tryKeeping(o, chosen, rest, c.plus(f.costOf(i)), gone|1<<i)
		}
		return
	}
	_, rank := o.largest(f.all)
	c.left = -rank
	if f.best == nil || c.compare(f.best.cost) < 0 {
		f.best = &option{cost: c, gone: gone}
		for _, x := range chosen {
			f.best.fits = append(f.best.fits, kindFitted{fitted: x, kind: f.items[x.item].kind})
		}
	}
}
