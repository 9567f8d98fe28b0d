package mig

import (
	"cmp"
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
func (w *watch) step() bool {
	if w.steps++; w.steps%stepsPerCheck == 0 && !w.stopped {
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
	// taken reports whether a placement must not be used; nil allows all.
	taken func(*searchProfile, gpu.Placement) bool
	// judgeLayout is called with each layout, in a fixed order: that of the items' profiles and of the preference for
	// their placements, for the first item first. It must not keep the list.
	judgeLayout func(occupancy, []fitted)

	chosen []fitted
}

// placeItems gives each item in turn each of its free placements. Of equal items the later one has the later choice:
// their order makes no difference.
func (s *search) placeItems(o occupancy) {
	if s.watch.step() {
		return
	}
	n := len(s.chosen)
	if n == len(s.items) {
		s.judgeLayout(o, s.chosen)
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
				at := p.Placements[i]
				if !o.isFree(p.sets[i]) || s.taken != nil && s.taken(p, at) {
					continue
				}
				s.chosen = append(s.chosen, fitted{item: n, profile: p, at: at, choice: first + i})
				s.placeItems(o.with(p, at))
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

func (o occupancy) isFree(set uint64) bool { return set != 0 && set&o.units == 0 }

// with is the occupancy with one more instance.
func (o occupancy) with(p *searchProfile, at gpu.Placement) occupancy {
	o.units |= units(at)
	o.compute -= p.ComputeSlices
	o.media = o.media || p.media
	o.left = o.left.without(p.engines)
	return o
}

// largest is the largest profile that could still be created, by memory slices and then by compute slices, and its
// rank.
func (o occupancy) largest(profiles []*searchProfile) (name string, rank int) {
	for _, p := range profiles {
		if size := p.MemorySlices*maxUnits + p.ComputeSlices; size > rank && o.has(p) &&
			slices.ContainsFunc(p.sets, o.isFree) {
			name, rank = p.Name, size
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
		busy: c.busy + d.busy, instances: c.instances + d.instances, computes: c.computes + d.computes,
		touched: c.touched + d.touched, left: min(c.left, d.left),
	}
}
