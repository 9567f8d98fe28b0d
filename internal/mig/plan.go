package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Standing is a GPU instance that exists. A busy one is never destroyed: what could not be checked counts as busy.
type Standing struct {
	Placed
	Busy bool
}

// Count is a number of instances of one profile, by its name or its id ("9").
type Count struct {
	Profile string
	Count   int
}

// Change leads from the instances of one GPU to others.
type Change struct {
	Keep, Destroy []int    // indexes of the standing instances
	Create        []Placed // by placement
	// Left is the largest profile that could still be created afterwards, by memory slices and then by compute slices;
	// empty where nothing could.
	Left string
}

// InfeasibleError says why a GPU cannot have what is wanted. It has not been touched.
type InfeasibleError struct {
	Reason string
	// Blocking are the indexes of busy instances that would have to go; nil where it does not fit on an empty GPU either.
	Blocking []int
}

func (e *InfeasibleError) Error() string { return e.Reason }

// PlanExact finds the change after which the GPU has exactly the wanted instances. Of all layouts that have them, and every
// busy instance at its place, it takes the one that destroys the fewest instances, then the one that leaves room for the
// largest profile, then the one whose instances stand lowest on the axis. An *InfeasibleError says that there is none; other
// errors that the request names what the GPU does not offer.
func PlanExact(profiles []gpu.Profile, standing []Standing, want []Count) (Change, error) {
	wanted, err := resolve(profiles, want)
	if err != nil {
		return Change{}, err
	}
	s := newSearch(profiles, standing, wanted, true)
	s.run()
	if s.best != nil {
		return s.change(), nil
	}
	without := newSearch(profiles, standing, wanted, false)
	without.run()
	if without.best == nil {
		return Change{}, &InfeasibleError{Reason: fmt.Sprintf("%s do not fit on this GPU together", describe(want))}
	}
	e := &InfeasibleError{}
	for _, i := range without.change().Destroy {
		if standing[i].Busy {
			e.Blocking = append(e.Blocking, i)
		}
	}
	e.Reason = fmt.Sprintf("%s fit only where %s stand, which are busy", describe(want), places(standing, e.Blocking))
	return Change{}, e
}

// resolve finds the wanted profiles, the largest first, each as often as it is wanted.
func resolve(profiles []gpu.Profile, want []Count) ([]gpu.Profile, error) {
	var list []gpu.Profile
	for _, w := range want {
		at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == w.Profile || fmt.Sprint(p.ID) == w.Profile })
		switch {
		case w.Count < 0:
			return nil, fmt.Errorf("%d of profile %q: expected 0 or more", w.Count, w.Profile)
		case at < 0:
			return nil, fmt.Errorf("profile %q: this GPU offers %s", w.Profile, offered(profiles))
		case w.Count > maxUnits:
			return nil, fmt.Errorf("%d of profile %q: expected at most %d", w.Count, w.Profile, maxUnits)
		}
		for range w.Count {
			list = append(list, profiles[at])
		}
	}
	slices.SortStableFunc(list, func(a, b gpu.Profile) int {
		return cmp.Or(cmp.Compare(b.MemorySlices, a.MemorySlices), cmp.Compare(b.ComputeSlices, a.ComputeSlices), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

func offered(profiles []gpu.Profile) string {
	var names []string
	for _, p := range profiles {
		names = append(names, fmt.Sprintf("%s (%d)", p.Name, p.ID))
	}
	return strings.Join(names, ", ")
}

func describe(want []Count) string {
	var parts []string
	for _, w := range want {
		if w.Count > 0 {
			parts = append(parts, fmt.Sprintf("%d x %s", w.Count, w.Profile))
		}
	}
	return strings.Join(parts, ", ")
}

func places(standing []Standing, indexes []int) string {
	var parts []string
	for _, i := range indexes {
		parts = append(parts, fmt.Sprintf("%s@%s", standing[i].Profile, standing[i].Placement))
	}
	return strings.Join(parts, ", ")
}

// search goes through all layouts of the wanted instances.
type search struct {
	profiles []gpu.Profile
	standing []Standing
	wanted   []gpu.Profile
	busy     int // instances that must be kept; 0 where nobody minds

	empty     occupancy
	chosen    []gpu.Placement // of the wanted, so far
	best      []gpu.Placement
	bestScore score
}

// score of a layout; less is better.
type score struct {
	destroyed int
	left      int // minus the rank of the largest profile left
}

func newSearch(profiles []gpu.Profile, standing []Standing, wanted []gpu.Profile, minding bool) *search {
	s := &search{profiles: profiles, standing: standing, wanted: wanted, empty: newOccupancy(shapeOf(profiles), profiles, nil)}
	for _, instance := range standing {
		if minding && instance.Busy {
			s.busy++
		}
	}
	return s
}

func (s *search) run() { s.place(s.empty) }

// place gives the next wanted instance each of its free placements in turn. Of equal instances the later one stands
// higher: their order makes no difference.
func (s *search) place(o occupancy) {
	n := len(s.chosen)
	if n == len(s.wanted) {
		s.judge(o)
		return
	}
	p := s.wanted[n]
	from := 0
	if n > 0 && s.wanted[n-1].ID == p.ID {
		from = s.chosen[n-1].End()
	}
	for _, at := range o.free(p) {
		if at.Start < from {
			continue
		}
		s.chosen = append(s.chosen, at)
		s.place(o.with(p, at))
		s.chosen = s.chosen[:n]
	}
}

// judge keeps a layout that is better than the best so far; of equal ones the first, whose instances stand lowest.
func (s *search) judge(o occupancy) {
	kept, busy := 0, 0
	for i := range s.standing {
		if s.keeps(s.chosen, i) >= 0 {
			kept++
			if s.standing[i].Busy {
				busy++
			}
		}
	}
	if busy < s.busy {
		return
	}
	_, rank := o.largest(s.profiles)
	sc := score{destroyed: len(s.standing) - kept, left: -rank}
	if s.best == nil || sc.destroyed < s.bestScore.destroyed || sc.destroyed == s.bestScore.destroyed && sc.left < s.bestScore.left {
		s.best, s.bestScore = append([]gpu.Placement{}, s.chosen...), sc
	}
}

// keeps finds the wanted instance that a standing one is, -1 for none.
func (s *search) keeps(layout []gpu.Placement, standing int) int {
	instance := s.standing[standing]
	own := profileOf(s.profiles, instance.Placed)
	for k, at := range layout {
		if at == instance.Placement && s.wanted[k].ID == own.ID && s.wanted[k].Name == own.Name {
			return k
		}
	}
	return -1
}

// with is the occupancy with one more instance.
func (o occupancy) with(p gpu.Profile, at gpu.Placement) occupancy {
	o.units |= units(at)
	o.compute -= p.ComputeSlices
	o.media = o.media || hasMediaExtensions(p)
	return o
}

// largest is the largest profile that could still be created, by memory slices and then by compute slices, and its rank.
func (o occupancy) largest(profiles []gpu.Profile) (name string, rank int) {
	for _, p := range profiles {
		if size := p.MemorySlices*maxUnits + p.ComputeSlices; size > rank && len(o.free(p)) > 0 {
			name, rank = p.Name, size
		}
	}
	return name, rank
}

// change is what leads to the best layout.
func (s *search) change() Change {
	var c Change
	stays := make([]bool, len(s.best))
	o := s.empty
	for i := range s.standing {
		if k := s.keeps(s.best, i); k >= 0 {
			stays[k] = true
			c.Keep = append(c.Keep, i)
		} else {
			c.Destroy = append(c.Destroy, i)
		}
	}
	for k, at := range s.best {
		p := s.wanted[k]
		o = o.with(p, at)
		if !stays[k] {
			c.Create = append(c.Create, Placed{ProfileID: p.ID, Profile: p.Name, Placement: at})
		}
	}
	slices.SortFunc(c.Create, func(a, b Placed) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) })
	c.Left, _ = o.largest(s.profiles)
	return c
}
