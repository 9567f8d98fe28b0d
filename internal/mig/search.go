package mig

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// searchProfile is a profile made ready for the search: its placements are in the order of preference.
type searchProfile struct {
	gpu.Profile
	media   bool // of which a GPU can have one
	engines engineCounts
	sets    []uint64 // units of each of its placements; none for one that is not on an axis
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

// profilesOfInstances are those of the existing instances.
func (g *GPULayout) profilesOfInstances() []*searchProfile {
	var list []*searchProfile

	s := shapeOf(g.Profiles)
	for _, existing := range g.Instances {
		list = append(list, newSearchProfile(profileOf(g.Profiles, existing.Placed), s))
	}

	return list
}

// item is a GPU instance to find room for, of any one of some profiles. Items that are equal on the GPU have the same
// group and are adjacent in a list of them.
type item struct {
	group int
	kind  int // of a demand
	fits  []*searchProfile
}

// fitted is where an item went.
type fitted struct {
	item    int
	profile *searchProfile
	at      gpu.Placement
	choice  int // position of the profile and placement among those that the item can have
}

// watch ends a search when its context ends. It looks once in stepsPerCheck steps, since a step takes far less time
// than that.
type watch struct {
	gone    <-chan struct{}
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
		case <-w.gone:
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
	// isHopeless reports whether no layout that begins with the chosen instances can matter; nil: each may.
	isHopeless func(occupancy) bool
	// judgeLayout is called with each layout, in a fixed order: that of the items' profiles and of the preference for
	// their placements, for the first item first. It must not keep the list.
	judgeLayout func(occupancy, []fitted)

	chosen []fitted
	least  []atLeast // of the items from each on; placeItems sets it
}

// atLeast is what some items take at least, whichever of their profiles they get.
type atLeast struct{ units, compute int }

// leastNeeds returns what the items from each on need, and nothing for the end of the list.
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

// placeItems gives each item in turn each of its free placements. Of equal items the later one has the later choice:
// their order makes no difference.
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

	if s.least[n].compute > o.compute || s.least[n].units > o.unitsLeft() ||
		s.isHopeless != nil && s.isHopeless(o) {
		return
	}

	from := 0
	if n > 0 && s.items[n-1].group == s.items[n].group {
		from = s.chosen[n-1].choice + 1
	}

	first := 0 // choice of the profile

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

// has reports whether one more instance is possible, at any placement.
func (o *occupancy) has(p *searchProfile) bool {
	return p.ComputeSlices <= o.compute && !(o.media && p.media) && o.left.cover(p.engines)
}

// unitsLeft is how many units of the axis are not occupied.
func (o *occupancy) unitsLeft() int { return o.axis - bits.OnesCount64(o.units&(1<<o.axis-1)) }

func (o *occupancy) isFree(set uint64) bool { return set != 0 && set&o.units == 0 }

// with is the occupancy with one more instance, on a set of units.
func (o occupancy) with(p *searchProfile, set uint64) occupancy {
	o.units |= set
	o.compute -= p.ComputeSlices
	o.media = o.media || p.media
	o.left = o.left.without(p.engines)

	return o
}

// rank orders profiles by memory slices and then by compute slices.
func (c *searchProfile) rank() int { return c.MemorySlices*maxUnits + c.ComputeSlices }

// byRank sorts profiles, the largest first.
func byRank(profiles []*searchProfile) []*searchProfile {
	slices.SortStableFunc(profiles, func(a, b *searchProfile) int { return b.rank() - a.rank() })
	return profiles
}

// rankLeft is the rank of the largest profile that could still be created, of profiles by rank; 0 if none could.
func (o *occupancy) rankLeft(ranked []*searchProfile) int {
	for _, p := range ranked {
		if !o.has(p) {
			continue
		}

		for _, set := range p.sets {
			if o.isFree(set) {
				return p.rank()
			}
		}
	}

	return 0
}

// largest is the largest profile that could still be created, by memory slices and then by compute slices, and its
// rank.
func (o occupancy) largest(profiles []*searchProfile) (name string, rank int) {
	for _, p := range profiles {
		if size := p.rank(); size > rank && o.has(p) &&
			slices.ContainsFunc(p.sets, o.isFree) {
			name = p.Name
			rank = size
		}
	}

	return name, rank
}

// same reports whether two profiles are one.
func (c *searchProfile) same(d *searchProfile) bool { return c.ID == d.ID && c.Name == d.Name }

// cost of a way to get what is wanted, in the order in which its fields count; less is better. That of several GPUs
// together adds up, but for left, of which the least counts: so the best way of a whole is made of best ways of its
// parts.
type cost struct {
	busy      int // instances that may not go
	instances int // GPU instances destroyed
	computes  int // compute instances destroyed
	touched   int // GPUs
	left      int // minus the rank of the largest profile that can be placed afterwards
}

func (c cost) compare(d cost) int {
	return cmp.Or(
		cmp.Compare(c.busy, d.busy),
		cmp.Compare(c.instances, d.instances),
		cmp.Compare(c.computes, d.computes),
		cmp.Compare(c.touched, d.touched),
		cmp.Compare(c.left, d.left),
	)
}

func (c cost) plus(d cost) cost {
	return cost{
		busy:      c.busy + d.busy,
		instances: c.instances + d.instances,
		computes:  c.computes + d.computes,
		touched:   c.touched + d.touched,
		left:      min(c.left, d.left),
	}
}
