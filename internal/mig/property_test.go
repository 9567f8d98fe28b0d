package mig

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Every layout that a GPU can have, of every model: capacity says what trying everything says.
func TestCapacityAgreesWithBruteForceOnEveryReachableLayout(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			g := newNaiveGPU(m)

			empty := CapacityOf(m.Profiles, nil)
			for _, layout := range g.reachable {
				got := CapacityOf(m.Profiles, g.placed(layout))

				want := g.capacity(layout)
				for i := range want.Profiles {
					want.Profiles[i].Max = empty.Profiles[i].Available
				}

				if !equalCapacity(got, want) {
					t.Fatalf("%v: %+v, want %+v", g.placed(layout), got, want)
				}
			}
		})
	}
}

func (g *naiveGPU) capacity(layout []naiveInstance) gpu.Capacity {
	c := gpu.Capacity{Memory: g.memory(layout)}
	c.Compute.Used = g.compute(layout)
	c.Compute.Free = g.bestCompute(layout) - c.Compute.Used

	c.Compute.Stranded = g.slices - c.Compute.Used - c.Compute.Free
	for i, p := range g.profiles {
		c.Profiles = append(c.Profiles, gpu.ProfileCapacity{Name: p.Name, Available: g.available(layout, i)})
	}

	return c
}

func equalCapacity(a, b gpu.Capacity) bool {
	return a.Compute == b.Compute && a.Memory == b.Memory && slices.Equal(a.Profiles, b.Profiles)
}

func TestFreePlacementsAgreeWithBruteForce(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()

			g := newNaiveGPU(m)
			for _, layout := range g.reachable {
				for i, p := range m.Profiles {
					var want []gpu.Placement

					for j, placement := range p.Placements {
						if g.canAdd(layout, naiveInstance{i, j}) {
							want = append(want, placement)
						}
					}

					if got := FreePlacements(m.Profiles, g.placed(layout), p); !slices.Equal(got, want) {
						t.Fatalf("%v: %s fits at %v, want %v", g.placed(layout), p.Name, got, want)
					}
				}
			}
		})
	}
}

// Tables that no known GPU has: random profiles on axes of up to 12 units, some of them with media
// extensions, some with engines, some with placements that overlap each other. The order in which
// instances and placements are listed must not matter.
func TestCapacityAgreesWithBruteForceOnRandomTables(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		m := randomModel(random)

		g := newNaiveGPU(m)
		for range 20 {
			layout := g.reachable[random.IntN(len(g.reachable))]

			want := g.capacity(layout)
			for i := range want.Profiles {
				want.Profiles[i].Max = g.available(nil, i)
			}

			placed := g.placed(layout)
			random.Shuffle(len(placed), func(i, j int) { placed[i], placed[j] = placed[j], placed[i] })

			if got := CapacityOf(m.Profiles, placed); !equalCapacity(got, want) {
				t.Fatalf("%+v\nwith %v: %+v, want %+v", m.Profiles, placed, got, want)
			}
		}
	}
}

// randomModel has a profile of the whole GPU and a few smaller ones.
func randomModel(random *rand.Rand) Model {
	axis := []int{4, 8, 12}[random.IntN(3)]
	m := Model{AxisUnits: axis, ComputeSlices: 1 + random.IntN(axis)}

	m.Profiles = append(m.Profiles, gpu.Profile{
		Name: "whole", ComputeSlices: m.ComputeSlices, MemorySlices: axis,
		Placements: []gpu.Placement{{Start: 0, Size: axis}},
	})
	if random.IntN(4) > 0 {
		m.Profiles[0].Engines = gpu.Some(gpu.Engines{Copy: random.IntN(6), Decoder: random.IntN(6), Encoder: random.IntN(4),
			JPEG: random.IntN(4), OFA: 1})
	}

	for id := range uint32(2 + random.IntN(3)) {
		p := gpu.Profile{ID: id + 1, ComputeSlices: 1 + random.IntN((m.ComputeSlices+1)/2)}

		n := Name{Slices: p.ComputeSlices, MemoryGB: int(id) + 1}
		if random.IntN(2) == 0 {
			n.Attributes = []string{"+me", "+me.all"}[random.IntN(2)]
		}

		p.Name = n.String()

		size := 1 + random.IntN(axis/2)
		for start := 0; start+size <= axis && len(p.Placements) < 5; start += 1 + random.IntN(size) {
			p.Placements = append(p.Placements, gpu.Placement{Start: start, Size: size})
		}

		random.Shuffle(len(p.Placements), func(i, j int) {
			p.Placements[i], p.Placements[j] = p.Placements[j], p.Placements[i]
		})

		if random.IntN(3) > 0 {
			p.Engines = gpu.Some(gpu.Engines{Copy: random.IntN(3), Decoder: random.IntN(3), Encoder: random.IntN(2),
				JPEG: random.IntN(2), OFA: random.IntN(2)})
			p.MaxInstances = random.IntN(4)
		}

		m.Profiles = append(m.Profiles, p)
	}

	return m
}
