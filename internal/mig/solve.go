package mig

import (
	"fmt"
	"slices"
	"strings"
)

// busyPolicy says which of the existing instances a search may destroy.
type busyPolicy int

const (
	keepBusy    busyPolicy = iota // idle ones; it must not create an equal one in the same place
	replaceBusy                   // all; it may create an equal one only in the place of a busy one
	ignoreBusy                    // all: we ask whether there is a way on empty GPUs, not for the best one
)

// seenBy returns a GPU as a search with a policy sees it.
func (d *demand) seenBy(p busyPolicy, at int) *GPULayout {
	g := &d.gpus[d.inMIG[at]]
	if p != ignoreBusy {
		return g
	}

	empty := *g
	empty.Instances = nil

	return &empty
}

// weight is a cost that we can add and compare in few operations: it has two fields of the cost in
// one number. Each is a count of instances or GPUs of one node, far below 2^32.
type weight struct {
	busyInstances   uint64
	computesTouched uint64
	left            int32
}

func (c cost) weight() weight {
	return weight{
		busyInstances:   uint64(c.busy)<<32 | uint64(c.instances),           //nolint:gosec // see weight
		computesTouched: uint64(c.computeInstances)<<32 | uint64(c.touched), //nolint:gosec // see weight
		left:            int32(c.left),                                      //nolint:gosec // minus a rank
	}
}

func (w weight) plus(v weight) weight {
	return weight{
		w.busyInstances + v.busyInstances,
		w.computesTouched + v.computesTouched,
		min(w.left, v.left),
	}
}

// isLess reports whether w is the weight of a better cost.
func (w *weight) isLess(v *weight) bool {
	if w.busyInstances != v.busyInstances {
		return w.busyInstances < v.busyInstances
	}

	if w.computesTouched != v.computesTouched {
		return w.computesTouched < v.computesTouched
	}

	return w.left < v.left
}

// way says how the GPUs so far meet a part of the demand.
type way struct {
	weight
	met int32 // the part that the GPUs before the last one meet; -1 if there is no way
	own int32 // the part that the last one meets
}

// ways has the best way to meet each part with the GPUs so far.
type ways struct {
	list []way // by part
	met  []int // the parts that they can meet, ascending
}

func (d *demand) newWays() ways {
	w := ways{list: make([]way, d.parts)}
	for part := range w.list {
		w.list[part].met = -1
	}

	return w
}

// listMet fills met, after all ways have been added.
func (w *ways) listMet() {
	for part := range w.list {
		if w.list[part].met >= 0 {
			w.met = append(w.met, part)
		}
	}
}

// solve returns the option of each GPU in the best way to meet the whole demand; nil if there is no
// way.
func (d *demand) solve(p busyPolicy) []*option {
	whole := d.parts - 1
	before := d.newWays()
	before.list[0] = way{}
	before.listMet()

	var layers []ways

	options := make([][]*option, len(d.inMIG))
	for b := range d.inMIG {
		list := d.knownOptions(b, p)
		last := b == len(d.inMIG)-1
		options[b] = list
		before = d.join(before, list, last)
		layers = append(layers, before)

		if p == ignoreBusy && before.list[whole].met >= 0 {
			break // the other GPUs can do nothing better
		}
	}

	if before.list[whole].met < 0 {
		return nil
	}

	// We go back from the last GPU: each way says which part the GPUs before it meet.
	best := make([]*option, len(d.inMIG))
	part := whole

	for b := len(layers) - 1; b >= 0; b-- {
		w := layers[b].list[part]
		best[b] = options[b][w.own]
		part = int(w.met)
	}

	return best
}

// knownOptions returns the options of a GPU, which it looks for once in all GPUs that are alike.
func (d *demand) knownOptions(at int, p busyPolicy) []*option {
	key := d.likeness(p, at)

	list, ok := d.known[key]
	if !ok {
		list = d.options(at, p)
		d.known[key] = list
	}

	return list
}

// likeness returns a key that is the same for GPUs with the same options. The policy is in it only
// if something is in use: otherwise all give the same options.
func (d *demand) likeness(p busyPolicy, at int) string {
	g := d.seenBy(p, at)

	var key strings.Builder
	if slices.ContainsFunc(g.Instances, func(i Instance) bool { return i.inUse() }) {
		fmt.Fprint(&key, p)
	}

	fmt.Fprint(&key, g.Profiles)

	for i := range g.Instances {
		instance := &g.Instances[i]
		fmt.Fprint(&key, instance.Placed, instance.inUse(), len(instance.ComputeInstances))
	}

	return key.String()
}

// join returns the best ways with one more GPU, whose options are given. Of equally good ways it
// takes the one in which the GPUs before meet more. For the last GPU it looks only for ways to meet
// the whole demand.
func (d *demand) join(before ways, options []*option, last bool) ways {
	next := d.newWays()

	for own, o := range options {
		if o == nil {
			continue
		}

		more := o.cost.weight()
		met := before.met

		if last {
			at, found := slices.BinarySearch(met, d.parts-1-own)
			if !found {
				continue
			}

			met = met[at : at+1]
		}

		if d.watch.count(len(met)) {
			return next
		}

		for _, part := range met {
			if part+own >= d.parts {
				break
			}

			if !d.addable(part, own) {
				continue
			}

			sum := before.list[part].plus(more)
			if old := &next.list[part+own]; old.met < 0 || sum.isLess(&old.weight) {
				*old = way{
					weight: sum,
					met:    int32(part),
					own:    int32(own),
				} //nolint:gosec // fewer than maxParts
			}
		}
	}

	next.listMet()

	return next
}

// addable reports whether two parts together are no more than the whole. We subtract all digits at
// once: if one would be negative, its spare bit is gone.
func (d *demand) addable(a, b int) bool {
	whole := d.packed[d.parts-1]
	return ((whole|d.spare)-d.packed[a]-d.packed[b])&d.spare == d.spare
}
