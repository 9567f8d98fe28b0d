package mig

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// naiveBest is the least that has to be destroyed for exactly the wanted instances, and the largest profile left then, by
// looking at every layout there is; ok is false where none will do.
func (g *naiveGPU) naiveBest(standing []naiveInstance, busy []bool, want []int) (destroyed, left int, ok bool) {
	for _, layout := range g.reachable {
		counts := make([]int, len(g.profiles))
		for _, x := range layout {
			counts[x.profile]++
		}
		if !slices.Equal(counts, want) {
			continue
		}
		gone, allowed := 0, true
		for i, x := range standing {
			if !slices.Contains(layout, x) {
				gone++
				allowed = allowed && !busy[i]
			}
		}
		if !allowed {
			continue
		}
		rank := 0
		for _, x := range g.all {
			if g.canAdd(layout, x) {
				p := g.profiles[x.profile]
				rank = max(rank, p.MemorySlices*1000+p.ComputeSlices)
			}
		}
		if !ok || gone < destroyed || gone == destroyed && rank > left {
			destroyed, left, ok = gone, rank, true
		}
	}
	return destroyed, left, ok
}

// TestPlansAreAsGoodAsBruteForce: for layouts of every model with known placements, with instances that are busy or not, and
// requests that fit and such as do not.
func TestPlansAreAsGoodAsBruteForce(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			g := newNaiveGPU(m)
			rng := rand.New(rand.NewPCG(7, uint64(len(m.Name))))
			feasible := 0
			for range 1500 {
				current := g.reachable[rng.IntN(len(g.reachable))]
				target := g.reachable[rng.IntN(len(g.reachable))]
				want := make([]int, len(g.profiles))
				for _, x := range target {
					want[x.profile]++
				}
				if rng.IntN(5) == 0 {
					want[rng.IntN(len(want))]++ // often one too many
				}
				busy := make([]bool, len(current))
				for i := range busy {
					busy[i] = rng.IntN(4) == 0
				}
				if g.comparePlan(t, current, busy, want) {
					feasible++
				}
			}
			if feasible < 300 {
				t.Errorf("only %d of the requests can be met", feasible)
			}
		})
	}
}

// comparePlan holds one plan to the oracle and to what a change must be; it tells whether there is one.
func (g *naiveGPU) comparePlan(t *testing.T, current []naiveInstance, busy []bool, want []int) bool {
	t.Helper()
	var standing []Standing
	for i, p := range g.placed(current) {
		standing = append(standing, Standing{Placed: p, Busy: busy[i]})
	}
	var counts []Count
	for i, n := range want {
		counts = append(counts, Count{Profile: g.profiles[i].Name, Count: n})
	}
	destroyed, left, ok := g.naiveBest(current, busy, want)
	change, err := PlanExact(g.profiles, standing, counts)
	var infeasible *InfeasibleError
	if (err == nil) != ok || err != nil && !errors.As(err, &infeasible) {
		t.Fatalf("%v of %+v: %v; brute force finds one: %v", counts, standing, err, ok)
	}
	if err != nil {
		g.checkInfeasible(t, infeasible, current, want)
		return false
	}
	if len(change.Destroy) != destroyed {
		t.Fatalf("%v of %+v: destroys %v, brute force %d", counts, standing, change.Destroy, destroyed)
	}
	rank := 0
	for _, p := range g.profiles {
		if p.Name == change.Left {
			rank = p.MemorySlices*1000 + p.ComputeSlices
		}
	}
	if rank != left {
		t.Fatalf("%v of %+v: leaves room for %q (%d), brute force for %d", counts, standing, change.Left, rank, left)
	}
	g.checkChange(t, change, standing, want)
	return true
}

// checkChange: what is kept and what is made are what is wanted, nothing overlaps, nothing busy goes.
func (g *naiveGPU) checkChange(t *testing.T, c Change, standing []Standing, want []int) {
	t.Helper()
	var layout []naiveInstance
	add := func(p Placed) {
		for i, known := range g.profiles {
			if j := slices.Index(known.Placements, p.Placement); known.ID == p.ProfileID && known.Name == p.Profile && j >= 0 {
				layout = append(layout, naiveInstance{i, j})
				return
			}
		}
		t.Fatalf("%+v is no instance of this GPU", p)
	}
	for _, i := range c.Keep {
		add(standing[i].Placed)
	}
	for _, p := range c.Create {
		add(p)
	}
	for _, i := range c.Destroy {
		if standing[i].Busy || slices.Contains(c.Keep, i) {
			t.Fatalf("destroys %+v", standing[i])
		}
	}
	counts := make([]int, len(g.profiles))
	for _, x := range layout {
		counts[x.profile]++
	}
	if !g.allowed(layout) || !slices.Equal(counts, want) || len(c.Keep)+len(c.Destroy) != len(standing) {
		t.Fatalf("%+v is not what is wanted, %v", c, want)
	}
}

// checkInfeasible: blockers are named where the request would fit without them, and only there.
func (g *naiveGPU) checkInfeasible(t *testing.T, e *InfeasibleError, current []naiveInstance, want []int) {
	t.Helper()
	_, _, fits := g.naiveBest(current, make([]bool, len(current)), want)
	if fits != (len(e.Blocking) > 0) || fits != strings.Contains(e.Reason, "busy") {
		t.Fatalf("%v (blocking %v); it fits where nothing is busy: %v", e, e.Blocking, fits)
	}
}

func a100(t *testing.T) []gpu.Profile {
	t.Helper()
	m, ok := FindModel("A100-40GB")
	if !ok {
		t.Fatal("no A100-40GB")
	}
	return m.Profiles
}

func TestPlanSaysWhatIsWrong(t *testing.T) {
	profiles := a100(t)
	standing := []Standing{{Placed: Placed{ProfileID: 19, Profile: "1g.5gb", Placement: gpu.Placement{Start: 4, Size: 1}}, Busy: true}}
	for _, tt := range []struct {
		want []Count
		says string
	}{
		{[]Count{{"1g.10gb.fast", 1}}, `profile "1g.10gb.fast": this GPU offers 1g.5gb (19)`},
		{[]Count{{"1g.5gb", -1}}, "expected 0 or more"},
		{[]Count{{"1g.5gb", 1 << 20}}, "at most"},
		{[]Count{{"4g.20gb", 2}}, "2 x 4g.20gb do not fit on this GPU together"},
		{[]Count{{"3g.20gb", 2}}, "2 x 3g.20gb fit only where 1g.5gb@4:1 stand, which are busy"},
	} {
		if _, err := PlanExact(profiles, standing, tt.want); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v: %v, want %q", tt.want, err, tt.says)
		}
	}
}

// TestPlanByIDKeepsWhatStands: the odd couple 4g and 3g, with the 3g where it is.
func TestPlanByIDKeepsWhatStands(t *testing.T) {
	standing := []Standing{
		{Placed: Placed{ProfileID: 9, Profile: "3g.20gb", Placement: gpu.Placement{Start: 4, Size: 4}}, Busy: true},
		{Placed: Placed{ProfileID: 14, Profile: "2g.10gb", Placement: gpu.Placement{Start: 0, Size: 2}}},
	}
	c, err := PlanExact(a100(t), standing, []Count{{"5", 1}, {"9", 1}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Keep, []int{0}) || !slices.Equal(c.Destroy, []int{1}) || len(c.Create) != 1 ||
		c.Create[0] != (Placed{ProfileID: 5, Profile: "4g.20gb", Placement: gpu.Placement{Start: 0, Size: 4}}) || c.Left != "" {
		t.Errorf("%+v", c)
	}
	if c, err = PlanExact(a100(t), nil, nil); err != nil || len(c.Create) > 0 || c.Left != "7g.40gb" {
		t.Errorf("nothing of nothing: %+v, %v", c, err)
	}
}

func BenchmarkPlanExact(b *testing.B) {
	m, ok := FindModel("RTX PRO 6000")
	if !ok {
		b.Fatal("no RTX PRO 6000")
	}
	want := []Count{{m.Profiles[0].Name, 2}, {m.Profiles[len(m.Profiles)-1].Name, 0}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := PlanExact(m.Profiles, nil, want); err != nil {
			b.Fatal(err)
		}
	}
}
