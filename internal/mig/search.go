package mig

import (
	"cmp"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// item is a GPU instance to find room for, of any one of some profiles. Equal items have the same group and stand side by
// side in a list of them.
type item struct {
	group int
	fits  []gpu.Profile
}

// fitted is where an item went.
type fitted struct {
	item    int
	profile gpu.Profile
	at      gpu.Placement
}

// search goes through all layouts of some items on one GPU.
type search struct {
	items []item
	// taken tells of places that are out of the question; nil is none.
	taken func(gpu.Profile, gpu.Placement) bool
	// judge is called with each layout, in a fixed order: lowest on the axis first. It may not keep the list.
	judge func(occupancy, []fitted)

	chosen []fitted
}

// run gives each item in turn each of its free placements. Of equal items the later one stands higher: their order makes
// no difference.
func (s *search) run(o occupancy) {
	n := len(s.chosen)
	if n == len(s.items) {
		s.judge(o, s.chosen)
		return
	}
	from := 0
	if n > 0 && s.items[n-1].group == s.items[n].group {
		from = s.chosen[n-1].at.End()
	}
	for _, p := range s.items[n].fits {
		for _, at := range o.free(p) {
			if at.Start < from || s.taken != nil && s.taken(p, at) {
				continue
			}
			s.chosen = append(s.chosen, fitted{item: n, profile: p, at: at})
			s.run(o.with(p, at))
			s.chosen = s.chosen[:n]
		}
	}
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

// sameInstance tells whether a standing instance is of a profile and at a place.
func sameInstance(own gpu.Profile, stands gpu.Placement, p gpu.Profile, at gpu.Placement) bool {
	return stands == at && own.ID == p.ID && own.Name == p.Name
}

// cost of a way to get what is wanted, in the order in which its fields count; less is better. That of several GPUs
// together adds up, but for left, of which the least counts: so the best way of a whole is made of best ways of its parts.
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
