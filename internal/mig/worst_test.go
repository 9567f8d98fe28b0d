package mig

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A climb looks for a demand that is as dear as possible to plan: it changes a node of 16 GPUs of
// all models, partly in use, and the demand on it, and keeps what makes the search longer.
type climb struct {
	rng    *rand.Rand
	models []*naiveGPU
	gpus   []GPULayout
	needs  []Need
	steps  int // of the search
}

// The climbs are few and short, so that the test is quick.
const (
	climbs     = 8
	climbTries = 40
)

// worstPlans returns where each climb has ended.
func worstPlans(tb testing.TB) []climb {
	tb.Helper()

	var models []*naiveGPU
	for _, m := range modelsWithPlacements(tb) {
		models = append(models, newNaiveGPU(m))
	}

	var list []climb

	for seed := range uint64(climbs) {
		c := climb{rng: rand.New(rand.NewPCG(seed, 7)), models: models}
		for i := range 16 {
			c.gpus = append(c.gpus, c.randomGPU(i))
		}

		for range 2 + c.rng.IntN(5) {
			c.needs = append(c.needs, c.randomNeed())
		}

		c.steps = c.search()
		for range climbTries {
			c.try()
		}

		list = append(list, c)
	}

	return list
}

func (c *climb) randomGPU(index int) GPULayout {
	g := c.models[c.rng.IntN(len(c.models))]
	if c.rng.IntN(4) == 0 {
		return g.nodeGPU(index, nil)
	}

	return g.nodeGPU(index, g.randomExisting(c.rng, g.reachable[c.rng.IntN(len(g.reachable))], true))
}

func (c *climb) randomNeed() Need {
	g := &c.gpus[c.rng.IntN(len(c.gpus))]
	p := g.Profiles[c.rng.IntN(len(g.Profiles))]

	return Need{MemoryBytes: p.MemoryBytes * uint64(min(c.rng.IntN(3), 1)), SMs: p.SMs * min(c.rng.IntN(3), 1),
		Count: 1 + c.rng.IntN(8)}
}

// try changes one thing, and takes it back unless the search gets longer.
func (c *climb) try() {
	before := *c
	c.gpus, c.needs = slices.Clone(c.gpus), slices.Clone(c.needs)

	at := c.rng.IntN(len(c.needs))
	switch c.rng.IntN(4) {
	case 0:
		c.needs = append(c.needs, c.randomNeed())
	case 1:
		c.needs[at] = c.randomNeed()
	case 2:
		c.needs[at].Count = 1 + c.rng.IntN(16)
	case 3:
		i := c.rng.IntN(len(c.gpus))
		c.gpus[i] = c.randomGPU(i)
	}

	if c.steps = c.search(); c.steps <= before.steps {
		*c = before
	}
}

// search returns how many steps planning takes. Whether there is a plan doesn't matter.
func (c *climb) search() int {
	w := &cancelCheck{}
	_, _ = planDemand(w, c.gpus, c.needs)

	return w.steps
}

// mostSteps is how many steps the dearest of these demands may take: some 40 ms of a processor.
// Climbs of hundreds of tries find demands of twice as many.
const mostSteps = 5_000_000

// TestPlanningIsShort: no demand takes longer than a caller of the API waits for.
func TestPlanningIsShort(t *testing.T) {
	for _, c := range worstPlans(t) {
		if c.steps > mostSteps {
			t.Errorf("%d steps, want at most %d: %+v", c.steps, mostSteps, c.needs)
		}
	}
}

// BenchmarkPlanWorst plans the dearest of these demands, and reports the time of the processor.
func BenchmarkPlanWorst(b *testing.B) {
	list := worstPlans(b)
	worst := slices.MaxFunc(list, func(x, y climb) int { return x.steps - y.steps })
	b.ReportAllocs()
	b.ResetTimer()

	before := cpuTime(b)
	for range b.N {
		worst.search()
	}

	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns")
	b.ReportMetric(float64(worst.steps), "steps")
}

// cpuTime is what this process has used of the processors so far.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()

	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
