package mig

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fitting looks for room on one board for some further instances.
type fitting struct {
	board  *Board
	wanted []int // needs by index, one entry for each instance
	fit    map[int][]gpu.Profile
	empty  occupancy
	own    []gpu.Profile // of the standing instances

	chosen []fitted
	best   []fitted
	gone   uint64 // standing instances that the best way destroys
	left   int
}

// fitted is an instance that meets a need.
type fitted struct {
	need    int
	profile gpu.Profile
	at      gpu.Placement
}

func newFitting(b *Board, needs []Need, counts []int) *fitting {
	f := &fitting{board: b, fit: map[int][]gpu.Profile{}, empty: newOccupancy(shapeOf(b.Profiles), b.Profiles, nil)}
	for i, count := range counts {
		for range count {
			f.wanted = append(f.wanted, i)
		}
		for _, p := range b.Profiles {
			if needs[i].met(p) {
				f.fit[i] = append(f.fit[i], p)
			}
		}
	}
	for _, s := range b.Standing {
		f.own = append(f.own, profileOf(b.Profiles, s.Placed))
	}
	return f
}

func (f *fitting) run() {
	o := f.empty
	for i, s := range f.board.Standing { // what is busy stands
		if s.Busy {
			o = o.with(f.own[i], s.Placement)
		}
	}
	f.place(o)
}

// place gives the next instance each profile and placement that what is busy and the ones before leave. Of instances for the
// same need the later one stands higher.
func (f *fitting) place(o occupancy) {
	n := len(f.chosen)
	if n == len(f.wanted) {
		f.judge(o)
		return
	}
	need := f.wanted[n]
	from := 0
	if n > 0 && f.wanted[n-1] == need {
		from = f.chosen[n-1].at.End()
	}
	for _, p := range f.fit[need] {
		for _, at := range o.free(p) {
			if at.Start < from || f.stands(p, at) {
				continue
			}
			f.chosen = append(f.chosen, fitted{need: need, profile: p, at: at})
			f.place(o.with(p, at))
			f.chosen = f.chosen[:n]
		}
	}
}

// stands tells whether there is such an instance already: destroyed and made anew it would be no further one.
func (f *fitting) stands(p gpu.Profile, at gpu.Placement) bool {
	for i, s := range f.board.Standing {
		if s.Placement == at && f.own[i].ID == p.ID && f.own[i].Name == p.Name {
			return true
		}
	}
	return false
}

// judge tries which idle instances can stay beside those that were chosen: as many as possible, and of as many the ones
// that leave room for the largest profile.
func (f *fitting) judge(o occupancy) {
	var idle []int
	for i, s := range f.board.Standing {
		if !s.Busy {
			idle = append(idle, i)
		}
	}
	for stay := range uint64(1) << len(idle) {
		count := bits.OnesCount64(stay)
		if f.best != nil && len(idle)-count > bits.OnesCount64(f.gone) {
			continue
		}
		after, gone, ok := f.beside(o, idle, stay)
		if !ok {
			continue
		}
		_, rank := after.largest(f.board.Profiles)
		fewer := cmp.Compare(bits.OnesCount64(gone), bits.OnesCount64(f.gone))
		if f.best == nil || fewer < 0 || fewer == 0 && rank > f.left {
			f.best, f.gone, f.left = append([]fitted{}, f.chosen...), gone, rank
		}
	}
}

// beside adds those idle instances that stay; false where they cannot.
func (f *fitting) beside(o occupancy, idle []int, stay uint64) (after occupancy, gone uint64, ok bool) {
	for k, i := range idle {
		if stay>>k&1 == 0 {
			gone |= 1 << i
			continue
		}
		set := units(f.board.Standing[i].Placement)
		if set&o.units != 0 || !o.creatable(f.own[i]) {
			return occupancy{}, 0, false
		}
		o = o.with(f.own[i], f.board.Standing[i].Placement)
	}
	return o, gone, true
}

// change is what leads to the best way.
func (f *fitting) change(board int) BoardChange {
	c := BoardChange{Board: board}
	for i := range f.board.Standing {
		if f.gone>>i&1 == 1 {
			c.Destroy = append(c.Destroy, i)
		} else {
			c.Keep = append(c.Keep, i)
		}
	}
	slices.SortFunc(f.best, func(a, b fitted) int { return cmp.Compare(a.at.Start, b.at.Start) })
	o := f.empty
	for _, x := range f.best {
		c.Create = append(c.Create, Placed{ProfileID: x.profile.ID, Profile: x.profile.Name, Placement: x.at})
		c.For = append(c.For, x.need)
		o = o.with(x.profile, x.at)
	}
	for _, i := range c.Keep {
		o = o.with(f.own[i], f.board.Standing[i].Placement)
	}
	c.Left, _ = o.largest(f.board.Profiles)
	return c
}
