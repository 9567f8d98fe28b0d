package mig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// mixedNode has GPUs of every model, empty.
func mixedNode(tb testing.TB, count int) []GPULayout {
	models := modelsWithPlacements(tb)

	var gpus []GPULayout
	for i := range count {
		gpus = append(gpus, unexplored(models[i%len(models)]).nodeGPU(i, nil))
	}

	return gpus
}

// unexplored is a GPU whose layouts are not known to the oracle.
func unexplored(m Model) *naiveGPU { return &naiveGPU{profiles: m.Profiles} }

// Kinds of needs that only some GPUs tell apart are met each by instances that are enough for it,
// and as often as asked for.
func TestDemandOverAMixedNode(t *testing.T) {
	gpus := mixedNode(t, 16)
	rng := rand.New(rand.NewPCG(3, 4))
	feasible := 0

	for range 40 {
		var needs []Need

		for range 1 + rng.IntN(8) {
			g := gpus[rng.IntN(len(gpus))]
			p := g.Profiles[rng.IntN(len(g.Profiles))]
			needs = append(needs, Need{MemoryBytes: p.MemoryBytes * uint64(rng.IntN(2)), SMs: p.SMs * rng.IntN(2),
				Count: 1 + rng.IntN(2)})
		}

		plan, err := PlanNode(t.Context(), gpus, Spec{Demand: needs})
		if err != nil {
			continue
		}

		feasible++
		met := make([]int, len(needs))

		for _, planned := range plan.GPUs {
			profiles := gpus[planned.GPU].Profiles
			for _, a := range planned.After {
				need := needs[a.Need.Or(-1)]
				met[a.Need.Or(-1)]++

				p := profiles[slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.ID == a.ProfileID })]
				if p.MemoryBytes < need.MemoryBytes || p.SMs < need.SMs {
					t.Fatalf("%+v is too small for %+v", a, need)
				}

				if !slices.Contains(p.Placements, a.Placement) {
					t.Fatalf("%+v: not a placement of %s", a, p.Name)
				}
			}
		}

		for i, n := range needs {
			if met[i] != n.Count {
				t.Fatalf("needs %+v, met %v", needs, met)
			}
		}
	}

	if feasible < 20 {
		t.Errorf("only %d demands can be met", feasible)
	}
}

// On a GPU that cannot distinguish two kinds they are one group: an order of their instances is
// tried once.
func TestKindsThatAreAlikeOnAGPU(t *testing.T) {
	gpus := []GPULayout{unexplored(model(t, "A30-24GB")).nodeGPU(0, nil),
		unexplored(model(t, "H100-80GB")).nodeGPU(1, nil)}

	d := newDemand(&cancelCheck{}, gpus, []Need{{Count: 2}, {MemoryBytes: 8 << 30, Count: 1}, {SMs: 99, Count: 1}})
	if got := fmt.Sprint(d.groups(0), d.groups(1)); got != "[[0] [1] [2]] [[0 1] [2]]" {
		t.Errorf("groups %s", got)
	}

	items, counts := d.items(1, d.groups(1), d.parts-1)
	_, same := d.items(1, d.groups(1), d.kinds[0].base*2+d.kinds[1].base+d.kinds[2].base)
	_, fewer := d.items(1, d.groups(1), d.kinds[0].base*2)

	_, asMany := d.items(1, d.groups(1), d.kinds[0].base+d.kinds[1].base)
	if len(items) != 4 {
		t.Fatalf("items %+v, want 4", items)
	}

	cmptest.Equal(t, "group of the third item", items[2].group, 0)
	cmptest.Equal(t, "kind of the third item", items[2].kind, 1)
	cmptest.Equal(t, "counts of instances that are alike", counts, same)
	cmptest.Equal(t, "counts of fewer instances", fewer, asMany)
}

// What exists can exist, also if the profiles that the driver reports suggest that there is no room
// for it: such a GPU takes nothing away from what others can do.
func TestInstancesThatTheProfilesDoNotExplain(t *testing.T) {
	a := unexplored(model(t, "A100-40GB"))
	b := unexplored(model(t, "A100-40GB"))
	strange := a.nodeGPU(0, nil)

	strange.Profiles = slices.DeleteFunc(slices.Clone(a.profiles), func(p gpu.Profile) bool { return p.ComputeSlices > 3 })
	for i, start := range []int{0, 4} {
		strange.Instances = append(strange.Instances, Instance{
			ID:     gpu.InstanceID(1 + i),
			Placed: Placed{ProfileID: 9, Profile: "3g.20gb", Placement: gpu.Placement{Start: start, Size: 4}},
		})
	}

	plan, err := PlanNode(t.Context(), []GPULayout{strange, b.nodeGPU(1, nil)}, Spec{Demand: []Need{{SMs: 98, Count: 1}}})
	if err != nil {
		t.Fatal(err)
	}

	if len(plan.GPUs) != 1 || plan.GPUs[0].GPU != 1 {
		t.Errorf("%+v, want GPU 1 alone", plan.GPUs)
	}
}

// manySelectors is more than a document of 256 KiB can name without aliases.
func manySelectors() []Rule {
	return slices.Repeat([]Rule{{Enabled: true, PCIDevices: []uint32{1},
		GPUs: slices.Repeat([]string{"00000000:0f:00.0"}, 256)}}, 256)
}

func BenchmarkManySelectors(b *testing.B) {
	gpus := mixedNode(b, 16)
	rules := manySelectors()

	for i := range gpus {
		gpus[i].PCIBusID = fmt.Sprintf("00000000:%02X:00.0", i)
	}

	for b.Loop() {
		if _, err := PlanNode(b.Context(), gpus, Spec{Rules: rules}); err == nil ||
			!strings.Contains(err.Error(), "for no GPU") {
			b.Fatal(err)
		}
	}
}

func BenchmarkDemandOverAMixedNode(b *testing.B) {
	gpus := mixedNode(b, 16)

	needs := []Need{
		{Count: 2}, {MemoryBytes: 5100273664, SMs: 14, Count: 1}, {MemoryBytes: 6241124352, SMs: 14, Count: 1},
		{MemoryBytes: 12549357568, Count: 2},
		{SMs: 32, Count: 1}, {SMs: 26, Count: 1}, {SMs: 16, Count: 1}, {SMs: 46, Count: 1},
		{MemoryBytes: 10200547328, SMs: 14, Count: 2},
	}
	for b.Loop() {
		if _, err := PlanNode(b.Context(), gpus, Spec{Demand: needs}); err != nil {
			b.Fatal(err)
		}
	}
}

// A caller that has gone away does not wait for a search that takes long, and gets no plan that is
// not the best.
func TestPlanNodeStopsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	many := []Need{
		{MemoryBytes: 8 << 30, Count: 7}, {MemoryBytes: 12 << 30, Count: 7}, {MemoryBytes: 12 << 30, SMs: 30, Count: 7},
		{MemoryBytes: 30 << 30, Count: 6},
	}

	rules := []Rule{{GPUs: []string{AllGPUs}, Enabled: true, Want: []Want{{Profile: "1g.24gb", Count: 1}}}}
	for _, spec := range []Spec{{Demand: many}, {Rules: rules}} {
		gpus := mixedNode(t, 16)
		if spec.Rules != nil { // as many small searches as one large one
			gpus = slices.Repeat([]GPULayout{unexplored(model(t, "RTX PRO 6000")).nodeGPU(0, nil)}, stepsPerCheck)
		}

		plan, err := PlanNode(ctx, gpus, spec)
		cmptest.Equal(t, "error", err, context.Canceled)
		cmptest.Equal(t, "plan", plan, NodePlan{})

		if _, err := PlanNode(t.Context(), gpus, spec); errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
