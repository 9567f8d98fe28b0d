package mig

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// naiveOption is what one board comes to with some layout.
type naiveOption struct{ destroyed, touched, left int }

// naiveOptions is every outcome of a board for each part of the needs, by looking at all layouts that there are.
func (g *naiveGPU) naiveOptions(standing []naiveInstance, busy []bool, needs []Need) map[[2]int]map[naiveOption]bool {
	options := map[[2]int]map[naiveOption]bool{}
	for _, layout := range g.reachable {
		var o naiveOption
		allowed := true
		for i, x := range standing {
			if !slices.Contains(layout, x) {
				o.destroyed++
				allowed = allowed && !busy[i]
			}
		}
		var added []gpu.Profile
		for _, x := range layout {
			if !slices.Contains(standing, x) {
				added = append(added, g.profiles[x.profile])
			}
		}
		if !allowed || len(added) == 0 && o.destroyed > 0 {
			continue // nothing is destroyed for nothing
		}
		for _, x := range g.all {
			if g.canAdd(layout, x) {
				p := g.profiles[x.profile]
				o.left = max(o.left, p.MemorySlices*maxUnits+p.ComputeSlices)
			}
		}
		o.touched = min(len(added), 1)
		for first := 0; first <= len(added); first++ {
			part := [2]int{first, len(added) - first}
			if assignable(added, needs, part) {
				if options[part] == nil {
					options[part] = map[naiveOption]bool{}
				}
				options[part][o] = true
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

// TestDemandsAreMetAsBruteForceWould: two boards, two needs, every pair of outcomes compared.
func TestDemandsAreMetAsBruteForceWould(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			g := newNaiveGPU(m)
			rng := rand.New(rand.NewPCG(11, uint64(len(m.Name))))
			rounds, feasible := 60, 0
			if len(g.reachable) > 2000 {
				rounds = 8 // the oracle looks at everything
			}
			for range rounds {
				needs := []Need{g.randomNeed(rng), g.randomNeed(rng)}
				var boards []Board
				options := make([]map[[2]int]map[naiveOption]bool, 2)
				for b := range 2 {
					current := g.reachable[rng.IntN(len(g.reachable))]
					busy := make([]bool, len(current))
					var standing []Standing
					for i, p := range g.placed(current) {
						busy[i] = rng.IntN(3) == 0
						standing = append(standing, Standing{Placed: p, Busy: busy[i]})
					}
					boards = append(boards, Board{Profiles: g.profiles, Standing: standing})
					options[b] = g.naiveOptions(current, busy, needs)
				}
				if g.compareDemand(t, boards, needs, options) {
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

func (g *naiveGPU) compareDemand(t *testing.T, boards []Board, needs []Need, options []map[[2]int]map[naiveOption]bool) bool {
	t.Helper()
	var best *naiveOption
	for part, outcomes := range options[0] {
		rest := [2]int{needs[0].Count - part[0], needs[1].Count - part[1]}
		for a := range outcomes {
			for b := range options[1][rest] {
				o := naiveOption{a.destroyed + b.destroyed, a.touched + b.touched, max(a.left, b.left)}
				if best == nil || o.destroyed < best.destroyed || o.destroyed == best.destroyed &&
					(o.touched < best.touched || o.touched == best.touched && o.left > best.left) {
					best = &o
				}
			}
		}
	}
	changes, err := PlanDemand(boards, needs)
	var infeasible *InfeasibleError
	if (err == nil) != (best != nil) || err != nil && !errors.As(err, &infeasible) {
		t.Fatalf("%+v on %+v: %v; brute force: %+v", needs, boards, err, best)
	}
	if err != nil {
		return false
	}
	var got naiveOption
	met := make([]int, len(needs))
	touched := map[int]bool{}
	for _, c := range changes {
		touched[c.Board] = true
		got.destroyed, got.touched = got.destroyed+len(c.Destroy), got.touched+1
		got.left = max(got.left, rankOf(g.profiles, c.Left))
		g.checkFits(t, boards[c.Board], c, needs, met)
	}
	for b := range boards {
		if !touched[b] {
			var all []Placed
			for _, s := range boards[b].Standing {
				all = append(all, s.Placed)
			}
			_, rank := newOccupancy(shapeOf(g.profiles), g.profiles, all).largest(g.profiles)
			got.left = max(got.left, rank)
		}
	}
	if got != *best || met[0] != needs[0].Count || met[1] != needs[1].Count {
		t.Fatalf("%+v on %+v: %+v, brute force %+v; met %v", needs, boards, got, *best, met)
	}
	return true
}

func rankOf(profiles []gpu.Profile, name string) int {
	for _, p := range profiles {
		if p.Name == name {
			return p.MemorySlices*maxUnits + p.ComputeSlices
		}
	}
	return 0
}

// checkFits: the board after the change is one that there can be, and each new instance is enough for its need.
func (g *naiveGPU) checkFits(t *testing.T, b Board, c BoardChange, needs []Need, met []int) {
	t.Helper()
	want := make([]int, len(g.profiles))
	count := func(p Placed) {
		want[slices.IndexFunc(g.profiles, func(f gpu.Profile) bool { return f.ID == p.ProfileID && f.Name == p.Profile })]++
	}
	for _, i := range c.Keep {
		count(b.Standing[i].Placed)
	}
	for k, p := range c.Create {
		count(p)
		met[c.For[k]]++
		f := g.profiles[slices.IndexFunc(g.profiles, func(f gpu.Profile) bool { return f.ID == p.ProfileID && f.Name == p.Profile })]
		if n := needs[c.For[k]]; f.MemoryBytes < n.MemoryBytes || f.SMs < n.SMs {
			t.Fatalf("%+v for %+v", p, n)
		}
	}
	g.checkChange(t, c.Change, b.Standing, want)
}

func TestDemandThatCannotBe(t *testing.T) {
	profiles := a100(t)
	var infeasible *InfeasibleError
	if _, err := PlanDemand([]Board{{Profiles: profiles}}, []Need{{MemoryBytes: 80 << 30, Count: 1}}); !errors.As(err, &infeasible) {
		t.Errorf("more memory than there is: %v", err)
	}
	if _, err := PlanDemand([]Board{{Profiles: profiles}}, []Need{{Count: 8}}); !errors.As(err, &infeasible) {
		t.Errorf("eight instances of anything: %v", err)
	}
	for _, n := range []Need{{Count: -1}, {Count: 1 << 30}} {
		if _, err := PlanDemand([]Board{{Profiles: profiles}}, []Need{n}); err == nil || errors.As(err, &infeasible) {
			t.Errorf("%+v: %v, want an error of the request", n, err)
		}
	}
}

// BenchmarkPlanDemand is a demand over 16 GPUs that are partly in use: the target is 100 ms.
func BenchmarkPlanDemand(b *testing.B) {
	m, ok := FindModel("H100-80GB")
	if !ok {
		b.Fatal("no H100-80GB")
	}
	var boards []Board
	for i := range 16 {
		board := Board{Profiles: m.Profiles}
		for start := range i % 4 {
			p := m.Profiles[slices.IndexFunc(m.Profiles, func(p gpu.Profile) bool { return p.Name == "1g.10gb" })]
			board.Standing = append(board.Standing, Standing{
				Placed: Placed{ProfileID: p.ID, Profile: p.Name, Placement: gpu.Placement{Start: start, Size: 1}}, Busy: start%2 == 0,
			})
		}
		boards = append(boards, board)
	}
	needs := []Need{{MemoryBytes: 12 << 30, SMs: 20, Count: 3}, {MemoryBytes: 30 << 30, SMs: 40, Count: 2}, {MemoryBytes: 8 << 30, Count: 2}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := PlanDemand(boards, needs); err != nil {
			b.Fatal(err)
		}
	}
}
