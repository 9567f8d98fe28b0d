package mig

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The oracle of the capacity tests: the rules of MIG written down as plainly as possible, and
// everything else found by trying all subsets. It shares no code with the package.

// naiveInstance is an instance of profile i at the j-th of its placements.
type naiveInstance struct{ profile, placement int }

// naiveGPU is a GPU of a model; a layout is a list of instances in the order of all.
type naiveGPU struct {
	profiles        []gpu.Profile
	slices, axis    int
	engines         []naiveEngines
	all             []naiveInstance
	reachable       [][]naiveInstance
	mostSlicesAbove map[string]int
	byCounts        map[string][][]naiveInstance
	lefts           map[string]int
}

func newNaiveGPU(m Model) *naiveGPU {
	g := &naiveGPU{profiles: m.Profiles, slices: m.ComputeSlices, axis: m.AxisUnits, engines: naiveEnginesOf(m)}
	for i, p := range m.Profiles {
		for j := range p.Placements {
			g.all = append(g.all, naiveInstance{i, j})
		}
	}

	g.enumerate(nil, 0)

	return g
}

// naiveEngines is one kind of engine: how many the GPU has, and how many an instance of each
// profile takes.
type naiveEngines struct {
	has   int
	takes []int
}

// naiveEnginesOf lists the kinds of engines that count: those that the whole GPU's profile, the
// first or the last of all, reports, unless some profile would need more in all of its instances.
func naiveEnginesOf(m Model) []naiveEngines {
	var list []naiveEngines

	for _, kind := range []func(gpu.Engines) int{
		func(e gpu.Engines) int { return e.Copy }, func(e gpu.Engines) int { return e.Decoder }, func(e gpu.Engines) int {
			return e.Encoder
		},
		func(e gpu.Engines) int { return e.JPEG }, func(e gpu.Engines) int { return e.OFA },
	} {
		var k naiveEngines
		told := false
		shared := false

		for _, p := range m.Profiles {
			e, ok := p.Engines.Get()

			k.takes = append(k.takes, kind(e))
			if p.ComputeSlices == m.ComputeSlices && p.Placements[0].Size == m.AxisUnits {
				k.has = kind(e)
				told = ok
			}
		}

		for i, p := range m.Profiles {
			shared = shared || k.takes[i] > k.has || k.takes[i]*p.MaxInstances > k.has
		}

		if told && !shared {
			list = append(list, k)
		}
	}

	return list
}

// enumerate collects every layout that is allowed and begins with the given one.
func (g *naiveGPU) enumerate(layout []naiveInstance, next int) {
	if !g.allowed(layout) {
		return
	}

	if next == len(g.all) {
		g.reachable = append(g.reachable, append([]naiveInstance(nil), layout...))
		return
	}

	g.enumerate(layout, next+1)
	g.enumerate(append(layout[:len(layout):len(layout)], g.all[next]), next+1)
}

// allowed: no unit belongs to two instances, no more compute slices and engines than there are, one
// instance with media extensions.
func (g *naiveGPU) allowed(layout []naiveInstance) bool {
	owned := make([]bool, g.axis)
	compute := 0
	media := 0

	for _, x := range layout {
		p := g.profiles[x.profile]
		for u := p.Placements[x.placement].Start; u < p.Placements[x.placement].Start+p.Placements[x.placement].Size; u++ {
			if owned[u] {
				return false
			}

			owned[u] = true
		}

		compute += p.ComputeSlices
		if strings.Contains(p.Name, "+me") {
			media++
		}
	}

	for _, kind := range g.engines {
		left := kind.has
		for _, x := range layout {
			left -= kind.takes[x.profile]
		}

		if left < 0 {
			return false
		}
	}

	return compute <= g.slices && media <= 1
}

// canAdd reports whether the layout and the further instances are allowed together.
func (g *naiveGPU) canAdd(layout []naiveInstance, more ...naiveInstance) bool {
	return g.allowed(append(layout[:len(layout):len(layout)], more...))
}

func (g *naiveGPU) maximal(layout []naiveInstance) bool {
	for _, x := range g.all {
		if g.canAdd(layout, x) {
			return false
		}
	}

	return true
}

func (g *naiveGPU) compute(layout []naiveInstance) int {
	n := 0
	for _, x := range layout {
		n += g.profiles[x.profile].ComputeSlices
	}

	return n
}

// available is the largest subset of a profile's placements that the layout allows.
func (g *naiveGPU) available(layout []naiveInstance, profile int) int {
	most := 0

	placements := len(g.profiles[profile].Placements)
	for subset := range 1 << placements {
		var more []naiveInstance

		for j := range placements {
			if subset>>j&1 == 1 {
				more = append(more, naiveInstance{profile, j})
			}
		}

		if len(more) > most && g.canAdd(layout, more...) {
			most = len(more)
		}
	}

	return most
}

// memory splits the axis units.
func (g *naiveGPU) memory(layout []naiveInstance) gpu.SliceCount {
	var n gpu.SliceCount

	for u := range g.axis {
		switch {
		case g.covers(layout, u):
			n.Used++
		case g.couldCover(layout, u):
			n.Free++
		default:
			n.Stranded++
		}
	}

	return n
}

func (g *naiveGPU) covers(layout []naiveInstance, unit int) bool {
	for _, x := range layout {
		p := g.profiles[x.profile].Placements[x.placement]
		if p.Start <= unit && unit < p.Start+p.Size {
			return true
		}
	}

	return false
}

func (g *naiveGPU) couldCover(layout []naiveInstance, unit int) bool {
	for _, x := range g.all {
		if g.covers([]naiveInstance{x}, unit) && g.canAdd(layout, x) {
			return true
		}
	}

	return false
}

// bestCompute is the most compute slices of any reachable layout that contains the given one.
func (g *naiveGPU) bestCompute(layout []naiveInstance) int {
	if g.mostSlicesAbove == nil {
		g.fillMostSlicesAbove()
	}

	return g.mostSlicesAbove[naiveKey(layout)]
}

// fillMostSlicesAbove goes through all subsets of every reachable layout.
func (g *naiveGPU) fillMostSlicesAbove() {
	g.mostSlicesAbove = map[string]int{}
	for _, above := range g.reachable {
		compute := g.compute(above)
		for subset := range 1 << len(above) {
			var below []naiveInstance

			for i, x := range above {
				if subset>>i&1 == 1 {
					below = append(below, x)
				}
			}

			key := naiveKey(below)
			g.mostSlicesAbove[key] = max(g.mostSlicesAbove[key], compute)
		}
	}
}

func naiveKey(layout []naiveInstance) string {
	var b strings.Builder
	for _, x := range layout {
		b.WriteByte(byte(x.profile))
		b.WriteByte(byte(x.placement))
	}

	return b.String()
}

// placed is the layout as the package takes it.
func (g *naiveGPU) placed(layout []naiveInstance) []Placed {
	var placed []Placed

	for _, x := range layout {
		p := g.profiles[x.profile]
		placed = append(placed, Placed{ProfileID: p.ID, Profile: p.Name, Placement: p.Placements[x.placement]})
	}

	return placed
}
