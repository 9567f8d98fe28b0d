package advise

import (
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// grownFor returns the Evidence on a workload whose memory in GiB follows a function of days, after
// some days.
func grownFor(t *testing.T, days float64, gib func(day float64) float64) *Evidence {
	t.Helper()
	a := New(fastOptions())
	g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.2, sm: 0.01, gib: gib(0)}, pod("ml", "Deployment/a"))
	s := show(a, start(), time.Duration(days*24*float64(time.Hour)), g, func(at time.Time, g *gpu.GPU) {
		g.Readings.Memory.Used = gpu.Some(uint64(gib(at.Sub(start()).Hours()/24) * (1 << 30)))
	})

	return a.Recommend(s).Devices[0].Evidence
}

// TestSteadyGrowth: what grows by a share of itself each day has room for the week after the move,
// at any hour of the day, and without headroom for it.
func TestSteadyGrowth(t *testing.T) {
	for _, perDay := range []float64{0.02, 0.05, 0.08, 0.2} {
		for _, days := range []float64{5.01, 8.3, 14, 14.9} {
			gib := func(day float64) float64 { return 3 * math.Exp(perDay*day) }
			e := grownFor(t, days, gib)

			got := (needBytes(e, 0) - minHeadroomBytes) / (1 << 30)

			want := gib(days + growthDays)
			if got < 0.99*want || got > 1.2*want {
				t.Errorf("%v a day for %v days: needs %.2f GiB in a week, want %.2f", perDay, days, got, want)
			}
		}
	}
}

// TestGrowthOfAFewDays: growth that began lately counts from its third day on.
func TestGrowthOfAFewDays(t *testing.T) {
	gib := func(day float64) float64 { return 3 * math.Exp(0.08*max(0, day-10)) }

	e := grownFor(t, 14, gib)
	if got, want := (needBytes(e, 0)-minHeadroomBytes)/(1<<30), gib(14+growthDays); got < 0.99*want || got > 1.2*want {
		t.Errorf("needs %.2f GiB in a week, want %.2f", got, want)
	}
}

// TestGrowthOfOtherKinds: a leak grows along a line, and what ended, or goes up and down at random,
// has no rate.
func TestGrowthOfOtherKinds(t *testing.T) {
	random := rand.New(rand.NewSource(3))

	levels := make([]float64, 30)
	for i := range levels {
		levels[i] = 2 + 8*random.Float64()
	}

	for about, gib := range map[string]func(day float64) float64{
		"a leak":            func(day float64) float64 { return 4 + 0.3*day },
		"a leak that began": func(day float64) float64 { return 4 + 0.3*max(0, day-9.5) },
		"a fast one":        func(day float64) float64 { return 4 + 2*max(0, day-11.5) },
		"a step each night": func(day float64) float64 { return 4 + 2*math.Floor(max(0, day-9.9)) },
		"flat":              func(float64) float64 { return 4 },
		"ended":             func(day float64) float64 { return 4 * math.Exp(0.08*min(day, 12)) },
		"slower each day":   func(day float64) float64 { return 8 - 5*math.Exp(-day/3) },
		"at random":         func(day float64) float64 { return levels[int(day)] },
	} {
		for _, days := range []float64{13.6, 14, 14.4, 14.7} {
			if e := grownFor(t, days, gib); e.growthRate != 0 {
				t.Errorf("%s, %v days: grows by %v a day, want 0", about, days, e.growthRate)
			}
		}
	}
}

// TestRandomMaximaAreNoGrowth: of daily maxima that are drawn at random, few are taken for growth.
func TestRandomMaximaAreNoGrowth(t *testing.T) {
	random := rand.New(rand.NewSource(5))
	taken := 0

	for range 10_000 {
		var points []dailyMaximum
		for back := range keptDays {
			points = append(points, dailyMaximum{-float64(back), 4000 + 4000*random.Float64()})
		}

		if steadyGrowth(points) > 0 {
			taken++
		}
	}

	if taken > 100 {
		t.Errorf("%d of 10,000 are taken for growth, want 100 at most", taken)
	}
}
