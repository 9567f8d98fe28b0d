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
	sets    []uint64 // the units of each of Placements as a bitSet; 0 for a placement off the axis
}

func newSearchProfile(p gpu.Profile, s shape) *searchProfile {
	sp := &searchProfile{Profile: p, media: hasMediaExtensions(p), engines: countsOf(p)}

	sp.Placements = preferred(p, s)
	for _, at := range sp.Placements {
		sp.sets = append(sp.sets, bitSet(at))
	}

	return sp
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

// item is a GPU instance to find room for. Items of one group are equal, since the same profiles will
// do for them; they stand side by side in the list of items.
type item struct {
	group int
	kind  int              // index in demand.kinds; unused for rules
	fits  []*searchProfile // any of these will do
}

// fitted is the profile and placement that the search has chosen for an item.
type fitted struct {
	item    int // index in the search's items
	profile *searchProfile
	at      gpu.Placement
	// choice numbers the placements of all profiles that the item can have, in the order in which
	// the search tries them: if the first profile has 7 placements, choice 7 is the first placement
	// of the second profile.
	choice int
}

// cancelCheck ends a search when its context ends. A step is so short that we look at the context
// only once in stepsPerCheck steps.
type cancelCheck struct {
	done    <-chan struct{} // of the context
	steps   int             // so far
	stopped bool            // the context has ended
}

const stepsPerCheck = 4096

// step counts a step and reports whether the search has to stop.
func (c *cancelCheck) step() bool { return c.count(1) }

// count counts steps and reports whether the search has to stop.
func (c *cancelCheck) count(steps int) bool {
	checksBefore := c.steps / stepsPerCheck
	c.steps += steps

	if c.steps/stepsPerCheck != checksBefore && !c.stopped {
		select {
		case <-c.done:
			c.stopped = true
		default:
		}
	}

	return c.stopped
}

// search goes through all layouts of some items on one GPU.
type search struct {
	check *cancelCheck
	items []item
	// isHopeless reports whether no layout that begins with the chosen instances can be the best.
	// It may be nil.
	isHopeless func(occupancy) bool
	// judgeLayout is called with each layout and its resulting occupancy. The order is fixed: the
	// first item's first profile at its most preferred placement comes first, and the last item
	// changes fastest. judgeLayout must not keep the list.
	judgeLayout func(occupancy, []fitted)

	chosen []fitted    // the choices for items[:len(chosen)], which placeItems extends and shortens
	least  []leastNeed // least[n] is for items[n:]; placeItems sets it
}

// leastNeed is what some items need together even if each gets its smallest profile.
type leastNeed struct{ units, compute int }

// leastNeeds returns at each n what items[n:] need.
func leastNeeds(items []item) []leastNeed {
	list := make([]leastNeed, len(items)+1)
	for n := len(items) - 1; n >= 0; n-- {
		least := leastNeed{units: maxUnits, compute: maxUnits}
		for _, p := range items[n].fits {
			least.compute = min(least.compute, p.ComputeSlices)
			for _, at := range p.Placements {
				least.units = min(least.units, at.Size)
			}
		}

		list[n] = leastNeed{
			units:   list[n+1].units + least.units,
			compute: list[n+1].compute + least.compute,
		}
	}

	return list
}

// placeItems gives the next item each of its free placements in turn, and calls itself for the
// items after it. o is the occupancy with the items placed so far. Of two equal items the second
// gets later choices only, since swapping them makes no other layout.
func (s *search) placeItems(o occupancy) {
	if s.check.step() {
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

	if s.least[n].compute > o.computeLeft || s.least[n].units > o.unitsLeft() {
		return
	}

	if s.isHopeless != nil && s.isHopeless(o) {
		return
	}

	minChoice := 0
	if n > 0 && s.items[n-1].group == s.items[n].group {
		minChoice = s.chosen[n-1].choice + 1
	}

	first := 0 // the choice that stands for p's first placement

	for _, p := range s.items[n].fits {
		if o.leavesEnoughFor(p) {
			for i := max(minChoice-first, 0); i < len(p.Placements); i++ {
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

// leavesEnoughFor reports whether compute slices and engines are left for an instance of p. It
// doesn't look at placements.
func (o *occupancy) leavesEnoughFor(p *searchProfile) bool {
	return p.ComputeSlices <= o.computeLeft && !(o.media && p.media) &&
		o.enginesLeft.cover(p.engines)
}

// unitsLeft returns how many units of the axis are free.
func (o *occupancy) unitsLeft() int { return o.axis - bits.OnesCount64(o.units&(1<<o.axis-1)) }

func (o *occupancy) isFree(set uint64) bool { return set != 0 && set&o.units == 0 }

// with returns the occupancy with one more instance, on a set of units.
func (o occupancy) with(p *searchProfile, set uint64) occupancy {
	o.units |= set
	o.computeLeft -= p.ComputeSlices
	o.media = o.media || p.media
	o.enginesLeft = o.enginesLeft.without(p.engines)

	return o
}

// rank orders profiles by memory slices and then by compute slices, of which there are fewer than
// maxUnits.
func (p *searchProfile) rank() int { return p.MemorySlices*maxUnits + p.ComputeSlices }

// largest returns the name and rank of the largest of the ranked profiles that could still be
// created; "" and 0 if none could.
func (o *occupancy) largest(ranked []*searchProfile) (name string, rank int) {
	for _, p := range ranked {
		if !o.leavesEnoughFor(p) {
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

// same reports whether p and q are the same profile.
func (p *searchProfile) same(q *searchProfile) bool { return p.ID == q.ID && p.Name == q.Name }

// cost says how bad a plan is. Less is better, and earlier fields count first: to destroy one busy
// instance is worse than to destroy many idle ones. plus returns the cost of a plan for several GPUs: it
// adds the counts and takes the least left. So the best plan for all GPUs consists of the best plans
// for each.
type cost struct {
	busy             int // busy instances destroyed
	instances        int // GPU instances destroyed
	computeInstances int // compute instances destroyed
	touched          int // GPUs changed
	left             int // minus the rank of the largest profile that could still be created
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
