package mig

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// comparePlan holds the plan of one GPU to the oracle and to what steps must be; it reports whether
// there is one.
func (g *naiveGPU) comparePlan(t *testing.T, rng *rand.Rand, existing []naiveExisting, wants []naiveWant) bool {
	t.Helper()
	node := g.nodeGPU(0, existing)
	asked := g.asWants(rng, wants)
	plan, err := PlanNode(t.Context(), []GPULayout{node},
		Spec{Rules: []Rule{{GPUs: []string{"all"}, Enabled: true, Want: asked}}})
	best, ok := g.naiveBest(existing, wants, true)

	var infeasible *InfeasibleError
	if (err == nil) != ok || err != nil && !errors.As(err, &infeasible) {
		t.Fatalf("%v of %+v: %v; brute force finds one: %v", asked, existing, err, ok)
	}

	if err != nil {
		_, fits := g.naiveBest(existing, wants, false)
		if infeasible.FitsEmpty != fits || (len(infeasible.Blocking) > 0) != fits {
			t.Fatalf("%v of %+v: %v, %+v; it fits if nothing is busy: %v", asked, existing, err, infeasible, fits)
		}

		if infeasible.GPU != 0 {
			t.Fatalf("%v of %+v: GPU %d is in the way, want 0", asked, existing, infeasible.GPU)
		}

		if len(plan.Steps)+len(plan.GPUs) > 0 {
			t.Fatalf("%v of %+v: an error with a plan, %+v", asked, existing, plan)
		}

		g.checkBlocking(t, node, infeasible)

		return false
	}

	if len(plan.GPUs) != 1 {
		t.Fatalf("%+v", plan)
	}

	if got := replay(t, g, node, existing, plan, &plan.GPUs[0]); got != best {
		t.Fatalf("%v of %+v: %+v costs %v, brute force %v", asked, existing, plan.Steps, got, best)
	}

	if left := rankByName(g, plan.GPUs[0].Left); left != -best[3] {
		t.Fatalf("%v of %+v: leaves %q, brute force %d", asked, existing, plan.GPUs[0].Left, -best[3])
	}

	return true
}

// checkBlocking: what is in the way is busy.
func (g *naiveGPU) checkBlocking(t *testing.T, node GPULayout, e *InfeasibleError) {
	t.Helper()

	for _, b := range e.Blocking {
		instance := node.Instances[b.Instance]

		busy := instance.Busy
		for _, c := range instance.ComputeInstances {
			busy = busy || c.Busy && !b.Compute.Present()
		}

		if k, ok := b.Compute.Get(); ok {
			busy = busy || instance.ComputeInstances[k].Busy
		}

		if !busy {
			t.Fatalf("%+v is named as in the way of %v", instance, e)
		}
	}
}

func rankByName(g *naiveGPU, name string) int {
	for _, p := range g.profiles {
		if p.Name == name {
			return p.MemorySlices*1000 + p.ComputeSlices
		}
	}

	return 0
}

// requests lists every multiset of profiles that some layout has, and for each one with one more of
// some profile.
func (g *naiveGPU) requests() [][]int {
	var list [][]int
	seen := map[string]bool{}

	add := func(counts []int) {
		if key := string(asBytes(counts)); !seen[key] {
			seen[key] = true
			list = append(list, counts)
		}
	}
	for _, layout := range g.reachable {
		counts := make([]int, len(g.profiles))
		for _, x := range layout {
			counts[x.profile]++
		}

		add(counts)

		for i := range counts {
			if len(layout) < 7 {
				more := append([]int{}, counts...)
				more[i]++
				add(more)
			}
		}
	}

	return list
}

func asBytes(counts []int) []byte {
	b := make([]byte, len(counts))
	for i, n := range counts {
		b[i] = byte(n)
	}

	return b
}

// whole wants so many of each profile, with one compute instance each.
func (g *naiveGPU) whole(counts []int) []naiveWant {
	var wants []naiveWant

	for profile, n := range counts {
		for range n {
			wants = append(wants, naiveWant{profile, []int{g.profiles[profile].ComputeSlices}})
		}
	}

	return wants
}

// TestPlansAreAsGoodAsBruteForce: every layout of every model with known placements, with some
// instances busy, and requests of up to seven instances that fit and such as do not; every request
// meets some layout.
func TestPlansAreAsGoodAsBruteForce(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			g := newNaiveGPU(m)
			rng := rand.New(rand.NewPCG(7, uint64(len(m.Name))))
			requests := g.requests()
			plans := 0
			feasible := 0

			for n := range max(len(g.reachable), len(requests)) {
				layout := g.reachable[n%len(g.reachable)]
				for k := range 2 {
					request := requests[(n+k*(1+rng.IntN(len(requests))))%len(requests)]
					plans++

					if g.comparePlan(t, rng, g.randomExisting(rng, layout, false), g.whole(request)) {
						feasible++
					}
				}
			}

			t.Logf("%d layouts, %d requests: %d plans, %d feasible", len(g.reachable), len(requests), plans, feasible)

			if feasible < plans/15 || feasible > plans*9/10 {
				t.Errorf("only %d of %d requests can be met", feasible, plans)
			}
		})
	}
}

// TestEveryPlanOfASmallGPU: all layouts, all sets of busy instances, all requests.
func TestEveryPlanOfASmallGPU(t *testing.T) {
	g := newNaiveGPU(model(t, "A30-24GB"))
	rng := rand.New(rand.NewPCG(1, 1))

	for _, layout := range g.reachable {
		for busy := range 1 << len(layout) {
			existing := g.randomExisting(rng, layout, false)
			for i := range existing {
				existing[i].busy, existing[i].computeInstances[0].busy = busy>>i&1 == 1, false
			}

			for _, request := range g.requests() {
				g.comparePlan(t, rng, existing, g.whole(request))
			}
		}
	}
}

// TestPlansOfComputeInstancesAreAsGoodAsBruteForce: compute instances of all sizes, some busy, of
// some of which the driver reports no place; wants with different ones for the same profile.
func TestPlansOfComputeInstancesAreAsGoodAsBruteForce(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			g := newNaiveGPU(m)
			rng := rand.New(rand.NewPCG(3, uint64(len(m.Name))))
			feasible := 0

			const rounds = 800
			for range rounds {
				existing := g.randomExisting(rng, g.reachable[rng.IntN(len(g.reachable))], true)

				target := g.reachable[rng.IntN(len(g.reachable))]
				if rng.IntN(2) == 0 { // often the same instances with other compute instances
					target = nil
					for _, s := range existing {
						target = append(target, s.naiveInstance)
					}
				}

				var wants []naiveWant

				for _, x := range target {
					w := naiveWant{x.profile, randomSizes(rng, g.profiles[x.profile].ComputeSlices)}
					if rng.IntN(2) == 0 { // often what some instance has already
						for _, s := range existing {
							if s.profile == x.profile && rng.IntN(2) == 0 {
								w.sizes = []int{}
								for _, c := range s.computeInstances {
									w.sizes = append(w.sizes, c.size)
								}
							}
						}
					}

					wants = append(wants, w)
				}

				if g.comparePlan(t, rng, existing, wants) {
					feasible++
				}
			}

			if feasible < rounds/5 {
				t.Errorf("only %d of %d requests can be met", feasible, rounds)
			}
		})
	}
}
