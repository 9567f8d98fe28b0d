package mig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// naiveOptions is every cost of a GPU for each part of two needs, by looking at all layouts that
// there are.
func (g *naiveGPU) naiveOptions(existing []naiveExisting, needs []Need, minding bool) map[[2]int]map[naiveCost]bool {
	options := map[[2]int]map[naiveCost]bool{}

	for _, layout := range g.reachable {
		var c naiveCost
		allowed := true

		for _, s := range existing {
			if !slices.Contains(layout, s.naiveInstance) {
				c[0]++
				c[1] += len(s.computeInstances)
				busy := s.busy || slices.ContainsFunc(s.computeInstances, func(c naiveCompute) bool { return c.busy })
				allowed = allowed && (!busy || !minding)
			}
		}

		var added []gpu.Profile

		for _, x := range layout {
			if !slices.ContainsFunc(existing, func(s naiveExisting) bool { return s.naiveInstance == x }) {
				added = append(added, g.profiles[x.profile])
			}
		}

		if !allowed || len(added) == 0 && c[0] > 0 || len(added) > needs[0].Count+needs[1].Count {
			continue // nothing is destroyed for nothing
		}

		c[2], c[3] = min(len(added), 1), -g.naiveLeft(layout)
		for first := 0; first <= len(added); first++ {
			part := [2]int{first, len(added) - first}
			if assignable(added, needs, part) {
				if options[part] == nil {
					options[part] = map[naiveCost]bool{}
				}

				options[part][c] = true
			}
		}
	}

	return options
}

// assignable tries all ways to give instances to two needs.
func assignable(added []gpu.Profile, needs []Need, part [2]int) bool {
	for subset := range 1 << len(added) {
		var counts [2]int
		ok := true

		for i, p := range added {
			need := subset >> i & 1
			counts[need]++
			ok = ok && p.MemoryBytes >= needs[need].MemoryBytes && p.SMs >= needs[need].SMs
		}

		if ok && counts == part {
			return true
		}
	}

	return false
}

// combined is every cost of several GPUs together.
func combined(a, b map[[2]int]map[naiveCost]bool) map[[2]int]map[naiveCost]bool {
	sum := map[[2]int]map[naiveCost]bool{}

	for p, costs := range a {
		for q, others := range b {
			part := [2]int{p[0] + q[0], p[1] + q[1]}
			if sum[part] == nil {
				sum[part] = map[naiveCost]bool{}
			}

			for c := range costs {
				for d := range others {
					sum[part][naiveCost{c[0] + d[0], c[1] + d[1], c[2] + d[2], min(c[3], d[3])}] = true
				}
			}
		}
	}

	return sum
}

// TestDemandsAreMetAsBruteForceWould: two needs, two GPUs of every model, three of the smallest.
func TestDemandsAreMetAsBruteForceWould(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			g := newNaiveGPU(m)
			rng := rand.New(rand.NewPCG(11, uint64(len(m.Name))))

			rounds := 60
			gpus := 2
			feasible := 0

			if len(g.reachable) < 100 {
				rounds = 400
				gpus = 3
			}

			for range rounds {
				needs := []Need{g.randomNeed(rng), g.randomNeed(rng)}

				layouts := make([][]naiveExisting, gpus)
				for b := range layouts {
					layouts[b] = g.randomExisting(rng, g.reachable[rng.IntN(len(g.reachable))], rng.IntN(2) == 0)
				}

				if g.compareDemand(t, layouts, needs) {
					feasible++
				}
			}

			if feasible < rounds/4 {
				t.Errorf("only %d of %d demands can be met", feasible, rounds)
			}
		})
	}
}

func (g *naiveGPU) randomNeed(rng *rand.Rand) Need {
	p := g.profiles[rng.IntN(len(g.profiles))]
	return Need{MemoryBytes: p.MemoryBytes - uint64(rng.IntN(1<<20)), SMs: p.SMs - rng.IntN(2), Count: rng.IntN(3)}
}

// naiveDemand is the best cost of several GPUs.
func (g *naiveGPU) naiveDemand(layouts [][]naiveExisting, needs []Need, minding bool) (best naiveCost, ok bool) {
	var all map[[2]int]map[naiveCost]bool

	for _, existing := range layouts {
		options := g.naiveOptions(existing, needs, minding)
		if all == nil {
			all = options
		} else {
			all = combined(all, options)
		}
	}

	for c := range all[[2]int{needs[0].Count, needs[1].Count}] {
		if !ok || c.less(best) {
			best = c
			ok = true
		}
	}

	return best, ok
}

func (g *naiveGPU) compareDemand(t *testing.T, layouts [][]naiveExisting, needs []Need) bool {
	t.Helper()
	var nodes []GPULayout

	empty := make([][]naiveExisting, len(layouts))
	for b, existing := range layouts {
		nodes = append(nodes, g.nodeGPU(b, existing))
	}

	best, ok := g.naiveDemand(layouts, needs, true)
	plan, err := PlanNode(t.Context(), nodes, Spec{Demand: needs})

	var infeasible *InfeasibleError
	if (err == nil) != ok || err != nil && !errors.As(err, &infeasible) {
		t.Fatalf("%+v on %+v: %v; brute force: %v", needs, layouts, err, ok)
	}

	if err != nil {
		_, fits := g.naiveDemand(empty, needs, true)
		if infeasible.GPU != -1 || fits != infeasible.FitsEmpty {
			t.Fatalf("%+v on %+v: %+v, want GPU -1, FitsEmpty %t", needs, layouts, infeasible, fits)
		}

		blocked := len(infeasible.Blocking) > 0
		if blocked && !fits {
			t.Fatalf("%+v on %+v: %+v, but it does not fit on empty ones", needs, layouts, infeasible)
		}

		if blocked != strings.Contains(err.Error(), "busy") {
			t.Fatalf("%+v on %+v: %v, with %d busy instances in the way", needs, layouts, err, len(infeasible.Blocking))
		}

		for _, b := range infeasible.Blocking {
			g.checkBlocking(t, nodes[b.GPU], &InfeasibleError{Blocking: []Blocking{b}})
		}

		return false
	}

	var got naiveCost
	met := make([]int, len(needs))

	for b := range nodes {
		var planned *PlannedGPU
		if i := slices.IndexFunc(plan.GPUs, func(p PlannedGPU) bool { return p.GPU == b }); i >= 0 {
			planned = &plan.GPUs[i]
			g.checkNeeds(t, planned, needs, met)
		}

		c := replay(t, g, nodes[b], layouts[b], plan, planned)
		got = naiveCost{got[0] + c[0], got[1] + c[1], got[2] + c[2], min(got[3], c[3])}
	}

	if got != best {
		t.Fatalf("%+v on %+v: cost %+v, brute force %+v", needs, layouts, got, best)
	}

	if want := []int{needs[0].Count, needs[1].Count}; !slices.Equal(met, want) {
		t.Fatalf("%+v on %+v: %v instances for the needs, want %v", needs, layouts, met, want)
	}

	return true
}

// checkNeeds: each new instance is enough for its need and has one compute instance; the others are
// as they were.
func (g *naiveGPU) checkNeeds(t *testing.T, planned *PlannedGPU, needs []Need, met []int) {
	t.Helper()

	for _, a := range planned.After {
		need, ok := a.Need.Get()
		if ok != a.New {
			t.Fatalf("%+v", a)
		}

		if !ok {
			continue
		}

		met[need]++

		p := g.profiles[slices.IndexFunc(g.profiles, func(p gpu.Profile) bool {
			return p.Name == a.Profile && p.ID == a.ProfileID
		})]
		if p.MemoryBytes < needs[need].MemoryBytes || p.SMs < needs[need].SMs {
			t.Fatalf("%+v for %+v", a, needs[need])
		}

		if len(a.ComputeInstances) != 1 ||
			a.ComputeInstances[0].Placement != gpu.Some(gpu.Placement{Start: 0, Size: p.ComputeSlices}) {
			t.Fatalf("%+v: want one whole compute instance", a)
		}
	}
}

func TestDemandThatCannotBe(t *testing.T) {
	g := newNaiveGPU(model(t, "A100-40GB"))
	off := g.nodeGPU(0, nil)
	pendingOff := g.nodeGPU(0, nil)
	off.MIG, off.Pending = gpu.Some(false), gpu.Some(true)
	pendingOff.Pending = gpu.Some(false)
	on := []GPULayout{g.nodeGPU(0, nil)}

	var different []Need
	for i := range 30 { // the same profiles meet them all: one kind
		different = append(different, Need{MemoryBytes: uint64(i), Count: 1})
	}

	for _, tt := range []struct {
		gpus       []GPULayout
		needs      []Need
		infeasible bool
		says       string
	}{
		{on, []Need{{MemoryBytes: 80 << 30, Count: 1}}, true,
			"demand 1: no GPU with MIG on offers a profile with 80 GiB; the largest is 7g.40gb with 39.5 GiB and 98 SMs"},
		{on, []Need{{Count: 8}}, true, "8 more instances do not fit on the GPUs with MIG on, not even if they were empty: at most 7 fit"},
		{on, different, true, "30 more instances do not fit on the GPUs with MIG on, not even if they were empty: at most 7 fit"},
		{[]GPULayout{off, pendingOff}, []Need{{Count: 1}}, true, "no GPU of this node has MIG on"},
		{on, []Need{{Count: -1}}, false, "demand 1: count -1, SMs 0: expected 0 or more"},
		{on, []Need{{Count: 1 << 30}}, false, "expected at most 64 in one demand"},
	} {
		_, err := PlanNode(t.Context(), tt.gpus, Spec{Demand: tt.needs})
		var infeasible *InfeasibleError

		var spec *SpecError
		if errors.As(err, &infeasible) != tt.infeasible || errors.As(err, &spec) == tt.infeasible {
			t.Errorf("%+v: error of type %T, infeasible should be %t", tt.needs, err, tt.infeasible)
		}

		if !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%+v: %v, want %q", tt.needs, err, tt.says)
		}
	}
}

// TestDemandOfTooManyKinds: what would take too long is refused.
func TestDemandOfTooManyKinds(t *testing.T) {
	g := newNaiveGPU(model(t, "A100-40GB"))

	var needs []Need
	for _, p := range g.profiles {
		needs = append(needs, Need{MemoryBytes: p.MemoryBytes, SMs: p.SMs, Count: 9})
	}

	_, err := PlanNode(t.Context(), []GPULayout{g.nodeGPU(0, nil)}, Spec{Demand: needs})

	var spec *SpecError
	if !errors.As(err, &spec) || !strings.Contains(spec.Reason, "too many ways") {
		t.Errorf("%v", err)
	}
}

// TestDemandTakesTheFirstGPUs: of equally good ones.
func TestDemandTakesTheFirstGPUs(t *testing.T) {
	g := newNaiveGPU(model(t, "A100-40GB"))

	var gpus []GPULayout
	for i := range 4 {
		gpus = append(gpus, g.nodeGPU(i, nil))
	}

	plan, err := PlanNode(t.Context(), gpus, Spec{Demand: []Need{{SMs: 98, Count: 2}}})
	if err != nil {
		t.Fatal(err)
	}

	var used []int
	for _, p := range plan.GPUs {
		used = append(used, p.GPU)
	}

	cmptest.Equal(t, "GPUs used", used, []int{0, 1})
}

func BenchmarkDemand(b *testing.B) {
	for _, bench := range []struct {
		name  string
		needs []Need
	}{
		{"ThreeNeeds", []Need{{MemoryBytes: 12 << 30, SMs: 20, Count: 3}, {MemoryBytes: 30 << 30, SMs: 40, Count: 2},
			{MemoryBytes: 8 << 30, Count: 2}}},
		{"FullNode", []Need{{MemoryBytes: 8 << 30, Count: 60}}},
		{"ManyKinds", []Need{
			{MemoryBytes: 8 << 30, Count: 7}, {MemoryBytes: 12 << 30, Count: 7}, {MemoryBytes: 12 << 30, SMs: 30, Count: 7},
			{MemoryBytes: 30 << 30, Count: 6},
		}},
		{"Infeasible", []Need{{MemoryBytes: 60 << 30, Count: 12}, {MemoryBytes: 12 << 30, Count: 8},
			{MemoryBytes: 30 << 30, Count: 8}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			gpus := sixteen(b)
			var infeasible *InfeasibleError
			b.ReportAllocs()

			for b.Loop() {
				if _, err := PlanNode(b.Context(), gpus, Spec{Demand: bench.needs}); err != nil && !errors.As(err, &infeasible) {
					b.Fatal(err)
				}
			}
		})
	}
}

// sixteen GPUs that are partly in use, no two alike: the target for a demand over them is 100 ms.
func sixteen(tb testing.TB) []GPULayout {
	g := newNaiveGPU(model(tb, "H100-80GB"))
	rng := rand.New(rand.NewPCG(5, 5))

	var gpus []GPULayout
	for i := range 16 {
		gpus = append(gpus, g.nodeGPU(i, g.randomExisting(rng, g.reachable[rng.IntN(len(g.reachable))], true)))
	}

	return gpus
}
