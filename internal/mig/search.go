package mig

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// searchProfile is a profile as the search needs it, with its placements in the order of
// preference.
type searchProfile struct {
	gpu.Profile
	media   bool // with media extensions: only one instance on a GPU can have them
	engines engineCounts
	sets    []uint64 // the units of each placement, see units; 0 for a placement off the axis
}

func newSearchProfile(p gpu.Profile, s shape) *searchProfile {
	c := &searchProfile{Profile: p, media: hasMediaExtensions(p), engines: countsOf(p)}

	c.Placements = preferred(p, s)
	for _, at := range c.Placements {
		c.sets = append(c.sets, units(at))
	}

	return c
}

func searchProfiles(profiles []gpu.Profile) []*searchProfile {
	var list []*searchProfile

	s := shapeOf(profiles)
	for _, p := range profiles {
		list = append(list, newSearchProfile(p, s))
	}

	return list
}

// rankedProfiles returns the profiles of a GPU, the largest first.
func rankedProfiles(profiles []gpu.Profile) []*searchProfile {
	list := searchProfiles(profiles)
	slices.SortStableFunc(list, func(a, b *searchProfile) int { return b.rank() - a.rank() })

	return list
}

// profilesOfInstances returns the profile of each existing instance.
func (g *GPULayout) profilesOfInstances() []*searchProfile {
	var list []*searchProfile

	s := shapeOf(g.Profiles)
	for _, existing := range g.Instances {
		list = append(list, newSearchProfile(profileOf(g.Profiles, existing.Placed), s))
	}

	return list
}

// item is a GPU instance to find room for. Items that are equal on the GPU have the same group and
// are adjacent in their list.
type item struct {
	group int
	kind  int              // index of the kind of need in a demand
	fits  []*searchProfile // any of these will do
}

// fitted is the profile and placement that the search has chosen for an item.
type fitted struct {
	item    int
	profile *searchProfile
	at      gpu.Placement
	choice  int // the number of the profile and placement among all that the item can have
}

// watch ends a search when its context ends. A step is so short that we look at the context only
// once in stepsPerCheck steps.
type watch struct {
	done    <-chan struct{} // of the context
	steps   int
	stopped bool
}

const stepsPerCheck = 4096

// step counts a step and reports whether the search is to stop.
func (w *watch) step() bool { return w.count(1) }

// count counts steps and reports whether the search is to stop.
func (w *watch) count(steps int) bool {
	checks := w.steps / stepsPerCheck

	w.steps += steps
	if w.steps/stepsPerCheck != checks && !w.stopped {
		select {
		case <-w.done:
			w.stopped = true
		default:
		}
	}

	return w.stopped
}

// search goes through all layouts of some items on one GPU.
type search struct {
	watch *watch
	items []item
	// isHopeless reports whether no layout that begins with the chosen instances can be the best.
	// It may be nil.
	isHopeless func(occupancy) bool
	// judgeLayout is called with each layout. The order is fixed: the first item's first profile at
	// its most preferred placement comes first, and the last item changes fastest. judgeLayout must
	// not keep the list.
	judgeLayout func(occupancy, []fitted)

	chosen []fitted  // of the first items
	least  []atLeast // at n, what items[n:] need; placeItems sets it
}

// atLeast is what some items take at least, whichever of their profiles they get.
type atLeast struct{ units, compute int }

// leastNeeds returns at each n what items[n:] need.
func leastNeeds(items []item) []atLeast {
	list := make([]atLeast, len(items)+1)
	for n := len(items) - 1; n >= 0; n-- {
		least := atLeast{units: maxUnits, compute: maxUnits}
		for _, p := range items[n].fits {
			least.compute = min(least.compute, p.ComputeSlices)
			for _, at := range p.Placements {
				least.units = min(least.units, at.Size)
			}
		}

		list[n] = atLeast{
			units:   list[n+1].units + least.units,
			compute: list[n+1].compute + least.compute,
		}
	}

	return list
}

// placeItems gives the next item each of its free placements in turn, and calls itself for the
// items after it. Of two equal items the second gets later choices only, since swapping them makes
// no other layout.
func (s *search) placeItems(o occupancy) {
	if s.watch.step() {
		return
	}

	if s.least == nil {
		s.least = leastNeeds(s.items)
	}

	n := len(s.chosen)
	if n == len(s.items) {
		s.judgeLayout(o, s.chosen)
		return
	}

	if s.least[n].compute > o.computeLeft || s.least[n].units > o.unitsLeft() ||
		s.isHopeless != nil && s.isHopeless(o) {
		return
	}

	from := 0
	if n > 0 && s.items[n-1].group == s.items[n].group {
		from = s.chosen[n-1].choice + 1
	}

	first := 0 // the choice of p's first placement

	for _, p := range s.items[n].fits {
		if o.has(p) {
			for i := max(from-first, 0); i < len(p.Placements); i++ {
				if !o.isFree(p.sets[i]) {
					continue
				}

				at := p.Placements[i]
				s.chosen = append(s.chosen, fitted{item: n, profile: p, at: at, choice: first + i})
				s.placeItems(o.with(p, p.sets[i]))
				s.chosen = s.chosen[:n]
			}
		}

		first += len(p.Placements)
	}
}

// has reports whether compute slices and engines are left for an instance of p. It doesn't look at
// placements.
func (o *occupancy) has(p *searchProfile) bool {
	return p.ComputeSlices <= o.computeLeft && !(o.media && p.media) && o.left.cover(p.engines)
}

// unitsLeft returns how many units of the axis are free.
func (o *occupancy) unitsLeft() int { return o.axis - bits.OnesCount64(o.units&(1<<o.axis-1)) }

func (o *occupancy) isFree(set uint64) bool { return set != 0 && set&o.units == 0 }

// with returns the occupancy with one more instance, on a set of units.
func (o occupancy) with(p *searchProfile, set uint64) occupancy {
	o.units |= set
	o.computeLeft -= p.ComputeSlices
	o.media = o.media || p.media
	o.left = o.left.without(p.engines)

	return o
}

// rank orders profiles by memory slices and then by compute slices.
func (c *searchProfile) rank() int { return c.MemorySlices*maxUnits + c.ComputeSlices }

// largest returns the name and rank of the largest of the ranked profiles that could still be
// created; "" and 0 if none could.
func (o *occupancy) largest(ranked []*searchProfile) (name string, rank int) {
	for _, p := range ranked {
		if !o.has(p) {
			continue
		}

		for _, set := range p.sets {
			if o.isFree(set) {
				return p.Name, p.rank()
			}
		}
	}

	return "", 0
}

// same reports whether c and d are the same profile.
func (c *searchProfile) same(d *searchProfile) bool { return c.ID == d.ID && c.Name == d.Name }

// cost tells how bad a plan is; less is better, and earlier fields count first. The cost of several
// GPUs is the sum, and the least left. So the best plan for all GPUs consists of the best plans for
// each.
type cost struct {
	busy             int // busy instances destroyed
	instances        int // GPU instances destroyed
	computeInstances int // compute instances destroyed
	touched          int // GPUs changed
	left             int // minus the rank of the largest profile that can be placed afterwards
}

func (c cost) compare(d cost) int {
	return cmp.Or(
		cmp.Compare(c.busy, d.busy),
		cmp.Compare(c.instances, d.instances),
		cmp.Compare(c.computeInstances, d.computeInstances),
		cmp.Compare(c.touched, d.touched),
		cmp.Compare(c.left, d.left),
	)
}

func (c cost) plus(d cost) cost {
	return cost{
		busy:             c.busy + d.busy,
		instances:        c.instances + d.instances,
		computeInstances: c.computeInstances + d.computeInstances,
		touched:          c.touched + d.touched,
		left:             min(c.left, d.left),
	}
}
