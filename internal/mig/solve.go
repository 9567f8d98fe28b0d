package mig

import (
	"fmt"
	"slices"
	"strings"
)

// busyPolicy says which existing instances a search may destroy.
type busyPolicy int

const (
	// keepBusy lets the search destroy idle instances only. Plans are made with it; the other
	// policies only explain why there is no plan.
	keepBusy busyPolicy = iota
	// replaceBusy lets the search destroy busy instances, too. It answers which of them are in the way.
	// The search may create an instance like the destroyed one in the same place only if that one was
	// busy.
	replaceBusy
	// ignoreBusy lets the search take every GPU as empty, and end with the first way that it finds. It
	// answers whether the demand would fit at all.
	ignoreBusy
)

// seenBy returns a GPU as a search with a policy sees it.
func (d *demand) seenBy(p busyPolicy, nth int) *GPULayout {
	g := &d.gpus[d.inMIG[nth]]
	if p != ignoreBusy {
		return g
	}

	empty := *g
	empty.Instances = nil

	return &empty
}

// weight is a cost that we can add and compare in few operations: two numbers hold two counts each,
// the more important one in the upper half. They count instances or GPUs of one node, so each is far
// below 2^32.
type weight struct {
	busyInstances  uint64 // busy, instances
	computeTouched uint64 // computeInstances, touched
	left           int32
}

func (c cost) weight() weight {
	return weight{
		busyInstances:  uint64(c.busy)<<32 | uint64(c.instances),           //nolint:gosec // see weight
		computeTouched: uint64(c.computeInstances)<<32 | uint64(c.touched), //nolint:gosec // see weight
		left:           int32(c.left),                                      //nolint:gosec // minus a rank
	}
}

func (w weight) plus(v weight) weight {
	return weight{
		w.busyInstances + v.busyInstances,
		w.computeTouched + v.computeTouched,
		min(w.left, v.left),
	}
}

// isLess reports whether w is the weight of a better cost.
func (w *weight) isLess(v *weight) bool {
	if w.busyInstances != v.busyInstances {
		return w.busyInstances < v.busyInstances
	}

	if w.computeTouched != v.computeTouched {
		return w.computeTouched < v.computeTouched
	}

	return w.left < v.left
}

// way says how the GPUs so far meet a part of the demand together: the last of these GPUs meets one
// part, and the GPUs before it meet another. The two numbers add up to the number of the whole part.
type way struct {
	weight
	before int32 // the part that the GPUs before the last one meet; -1 if there is no way
	last   int32 // the part that the last GPU meets
}

// exists reports whether there is a way.
func (w *way) exists() bool { return w.before >= 0 }

// ways has the best way to meet each part with the GPUs so far.
type ways struct {
	byPart  []way
	metable []int // the parts for which a way exists, ascending
}

func (d *demand) newWays() ways {
	w := ways{byPart: make([]way, d.parts)}
	for part := range w.byPart {
		w.byPart[part].before = -1
	}

	return w
}

// listMetable fills metable, after all ways have been added.
func (w *ways) listMetable() {
	for part := range w.byPart {
		if w.byPart[part].exists() {
			w.metable = append(w.metable, part)
		}
	}
}

// solve returns the option of each GPU in the best way to meet the whole demand; nil if there is no
// way.
func (d *demand) solve(p busyPolicy) []*option {
	whole := d.parts - 1

	// We begin with no GPUs: these meet the empty part, and no other.
	soFar := d.newWays()
	soFar.byPart[0] = way{}
	soFar.listMetable()

	options := make([][]*option, len(d.inMIG))
	var layers []ways // layers[nth] has the ways with the GPUs up to nth

	for nth := range d.inMIG {
		options[nth] = d.cachedOptions(nth, p)
		isLast := nth == len(d.inMIG)-1
		soFar = d.addGPU(soFar, options[nth], isLast)
		layers = append(layers, soFar)

		if p == ignoreBusy && soFar.byPart[whole].exists() {
			break // any way will do
		}
	}

	if !soFar.byPart[whole].exists() {
		return nil
	}

	// Go back from the last GPU: its way says which part the GPUs before it have to meet.
	best := make([]*option, len(d.inMIG))
	part := whole

	for nth := len(layers) - 1; nth >= 0; nth-- {
		w := layers[nth].byPart[part]
		best[nth] = options[nth][w.last]
		part = int(w.before)
	}

	return best
}

// cachedOptions returns the options of a GPU. It searches once for all GPUs with the same key.
func (d *demand) cachedOptions(nth int, p busyPolicy) []*option {
	key := d.optionsKey(p, nth)

	list, ok := d.optionsByKey[key]
	if !ok {
		list = d.options(nth, p)
		d.optionsByKey[key] = list
	}

	return list
}

// optionsKey returns a key that is the same for GPUs with the same options. The policy is in it only
// if something is in use: otherwise all give the same options.
func (d *demand) optionsKey(p busyPolicy, nth int) string {
	g := d.seenBy(p, nth)

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

// addGPU returns the best ways with one more GPU, whose options are given. Of equally good ways it
// takes the one in which the GPUs before meet more. With the last GPU it looks only for ways to meet
// the whole demand.
func (d *demand) addGPU(before ways, options []*option, isLast bool) ways {
	next := d.newWays()

	for own, o := range options { // own is the part that the GPU meets
		if o == nil {
			continue
		}

		ownWeight := o.cost.weight()
		candidates := before.metable

		if isLast {
			rest := d.parts - 1 - own // what the GPUs before must meet
			i, found := slices.BinarySearch(candidates, rest)

			if !found {
				continue
			}

			candidates = candidates[i : i+1]
		}

		if d.check.count(len(candidates)) {
			return next
		}

		for _, part := range candidates {
			if part+own >= d.parts { // metable is sorted: the rest is too large as well
				break
			}

			if !d.addable(part, own) {
				continue
			}

			sum := before.byPart[part].plus(ownWeight)
			if old := &next.byPart[part+own]; !old.exists() || sum.isLess(&old.weight) {
				//nolint:gosec // fewer than maxParts
				*old = way{weight: sum, before: int32(part), last: int32(own)}
			}
		}
	}

	next.listMetable()

	return next
}

// addable reports whether two parts together ask for no more instances of any kind than the whole
// demand does. We subtract all digits of both parts from those of the whole at once. Each digit has a
// spare bit above it, which is set before; a digit that would become negative borrows it.
func (d *demand) addable(a, b int) bool {
	whole := d.packed[d.parts-1]
	return ((whole|d.spare)-d.packed[a]-d.packed[b])&d.spare == d.spare
}
