package mig

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Of the layouts to which nothing can be added by placement alone, those that need more engines
// than the whole GPU has, by adding up the table's numbers. Only RTX PRO 6000 has any, and always
// too few decoders: the others' engines never run out.
func TestMaximalLayoutsThatNeedMoreEnginesThanThereAre(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		g := newNaiveGPU(withoutEngines(m))

		whole, ok := m.Profiles[slices.IndexFunc(m.Profiles, func(p gpu.Profile) bool {
			return p.ComputeSlices == m.ComputeSlices
		})].Engines.Get()
		if !ok {
			t.Errorf("%s: the engines of the whole GPU are not known", m.Name)
		}

		tooFew := 0
		tooFewDecoders := 0

		for _, layout := range g.reachable {
			var sum gpu.Engines

			for _, x := range layout {
				e := m.Profiles[x.profile].Engines.Or(gpu.Engines{})
				sum.Copy = sum.Copy + e.Copy
				sum.Decoder = sum.Decoder + e.Decoder
				sum.Encoder = sum.Encoder + e.Encoder
				sum.JPEG = sum.JPEG + e.JPEG
				sum.OFA = sum.OFA + e.OFA
			}

			decoders := sum.Decoder > whole.Decoder
			if !g.maximal(layout) || !decoders && sum.Copy <= whole.Copy && sum.Encoder <= whole.Encoder &&
				sum.JPEG <= whole.JPEG && sum.OFA <= whole.OFA {
				continue
			}

			tooFew++

			if decoders {
				tooFewDecoders++
			}
		}

		want := map[string]int{"RTX PRO 6000 Blackwell 96GB": 156}[m.Name]
		if tooFew != want || tooFewDecoders != want {
			t.Errorf("%s: %d layouts need too many engines, %d of them decoders, want %d", m.Name, tooFew, tooFewDecoders, want)
		}
	}
}

// Every profile's engines are known if its placements are, and every layout that NVIDIA's guide
// draws is possible: those of the base profiles.
func TestEnginesForbidNoBaseLayout(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		for _, p := range m.Profiles {
			if !p.Engines.Present() {
				t.Errorf("%s %s: engines are not known", m.Name, p.Name)
			}
		}

		base := m
		base.Profiles = slices.DeleteFunc(slices.Clone(m.Profiles), func(p gpu.Profile) bool {
			return strings.ContainsAny(p.Name, "+-")
		})

		with := newNaiveGPU(base)

		without := newNaiveGPU(withoutEngines(base))
		if len(with.reachable) != len(without.reachable) || len(with.reachable) < 10 {
			t.Errorf("%s: %d layouts, without engines %d", m.Name, len(with.reachable), len(without.reachable))
		}

		for _, layout := range without.reachable {
			placed := without.placed(layout)
			for i, p := range placed {
				others := slices.Delete(slices.Clone(placed), i, i+1)
				if !slices.Contains(FreePlacements(base.Profiles, others, base.Profiles[layout[i].profile]), p.Placement) {
					t.Fatalf("%s: %+v is not possible beside %+v", m.Name, p, others)
				}
			}
		}
	}
}

// A second 2g.48gb has no decoders left beside 2g.48gb+me.all, which has all four. Nothing idle
// goes for a layout that the driver would refuse.
func TestPlansDoNotOverdrawEngines(t *testing.T) {
	m := model(t, "RTX PRO 6000")
	g := newNaiveGPU(m)

	existing := []naiveExisting{}
	for _, x := range []naiveInstance{{0, 0}, {0, 1}, {0, 2}} { // 1g.24gb
		existing = append(existing, naiveExisting{naiveInstance: x})
	}

	node := []GPULayout{g.nodeGPU(0, existing)}
	both := []Want{{Profile: "2g.48gb", Count: 1}, {Profile: "2g.48gb+me.all", Count: 1}}
	rule := func(want []Want) Spec { return Spec{Rules: []Rule{{GPUs: []string{"all"}, Enabled: true, Want: want}}} }
	_, err := PlanNode(t.Context(), node, rule(both))
	var infeasible *InfeasibleError

	const says = "GPU 0: 1 x 2g.48gb, 1 x 2g.48gb+me.all do not fit on an empty model: they need 6 decoders, " +
		"and it has 4"
	if !errors.As(err, &infeasible) || err.Error() != says {
		t.Errorf("%v, want %q", err, says)
	}

	both[0].Profile = "2g.48gb-me"

	plan, err := PlanNode(t.Context(), node, rule(both))
	if err != nil || len(plan.GPUs[0].After) != 2 {
		t.Errorf("%+v, %v", plan, err)
	}

	// What the driver reports wins over any table: without engines they are not counted.
	node[0].Profiles = withoutEngines(m).Profiles

	both[0].Profile = "2g.48gb"
	if plan, err := PlanNode(t.Context(), node, rule(both)); err != nil || len(plan.GPUs[0].After) != 2 {
		t.Errorf("%+v, %v", plan, err)
	}
}

// What is left beside 2g.48gb+me.all is a profile without media engines.
func TestLargestProfileLeftCountsEngines(t *testing.T) {
	node := []GPULayout{unexplored(model(t, "RTX PRO 6000")).nodeGPU(0, nil)}

	plan, err := PlanNode(t.Context(), node,
		Spec{Rules: []Rule{{GPUs: []string{"0"}, Enabled: true, Want: []Want{{Profile: "2g.48gb+me.all", Count: 1}}}}})
	if err != nil || plan.GPUs[0].Left != "2g.48gb-me" {
		t.Errorf("%+v, %v", plan, err)
	}
}

// Numbers that contradict each other forbid nothing: a table of NVIDIA's gives B200 one decoder,
// and each of seven 1g.23gb one.
func TestEnginesThatProfilesContradictAreNotCounted(t *testing.T) {
	engines := func(decoders, ofa int) gpu.Opt[gpu.Engines] {
		return gpu.Some(gpu.Engines{Copy: 2, Decoder: decoders, OFA: ofa})
	}

	small := gpu.Profile{ID: 1, Name: "1g.23gb", ComputeSlices: 1, MemorySlices: 1, MaxInstances: 7,
		Engines: engines(1, 0)}
	for start := range 7 {
		small.Placements = append(small.Placements, gpu.Placement{Start: start, Size: 1})
	}

	media := small
	media.ID, media.Name, media.MaxInstances, media.Engines = 2, "1g.23gb+x", 1, engines(1, 1)
	whole := gpu.Profile{ID: 3, Name: "7g.180gb", ComputeSlices: 7, MemorySlices: 8, MaxInstances: 1,
		Placements: []gpu.Placement{{Size: 8}},
		Engines:    gpu.Some(gpu.Engines{Copy: 16, Decoder: 1, OFA: 1})}
	profiles := []gpu.Profile{small, media, whole}

	got := CapacityOf(profiles, []Placed{{ProfileID: 2, Profile: "1g.23gb+x", Placement: small.Placements[6]}})
	if want := []int{6, 0, 0}; !slices.EqualFunc(got.Profiles, want,
		func(p gpu.ProfileCapacity, n int) bool { return p.Available == n }) {
		t.Errorf("%+v, want %v available: decoders are not counted, OFA engines are", got.Profiles, want)
	}

	// With a driver that allows three, seven decoders are too many.
	profiles[0].MaxInstances, profiles[2].Engines = 3, gpu.Some(gpu.Engines{Copy: 16, Decoder: 3, OFA: 1})
	if got := CapacityOf(profiles, nil); got.Profiles[0].Max != 3 || got.Compute.Free != 7 {
		t.Errorf("%+v, want 3 of the first", got)
	}
}
