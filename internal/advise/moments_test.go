package advise

import (
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// show observes a GPU every minute of a time, with what it does at each moment, and returns the
// last Snapshot.
func show(a *Advisor, from time.Time, duration time.Duration, g gpu.GPU, at func(time.Time, *gpu.GPU)) *gpu.Snapshot {
	var s *gpu.Snapshot

	if a.now.IsZero() {
		a.Observe(&gpu.Snapshot{Time: from.Add(-time.Minute), Hostname: "node-a", GPUs: unheld([]gpu.GPU{g})})
	}

	for now := from; now.Before(from.Add(duration)); now = now.Add(time.Minute) {
		at(now, &g)
		s = &gpu.Snapshot{Time: now, Hostname: "node-a", GPUs: []gpu.GPU{g}}
		a.Observe(s)
	}

	return s
}

// setActivity sets what a whole GPU shows.
func setActivity(g *gpu.GPU, busy, sm, dram float64) {
	g.Activity = gpu.Activity{GraphicsEngine: gpu.Some(busy), SM: gpu.Some(sm), DRAM: gpu.Some(dram)}
}

// TestKernelsOfAnyDayAndHourCount: wide kernels that run for a part of the day, or on one day of
// the week, are a part of the busy time whenever the answer is asked for.
func TestKernelsOfAnyDayAndHourCount(t *testing.T) {
	for _, c := range []struct {
		about string
		wide  func(time.Time) bool
	}{
		{"7 % of each day, in the morning", func(at time.Time) bool { return at.Hour()*60+at.Minute() < 100 }},
		{"every Tuesday", func(at time.Time) bool { return at.Weekday() == time.Tuesday }},
	} {
		for _, hours := range []int{14 * 24, 14*24 - 6, 13 * 24} {
			a := New(fastOptions())
			g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))

			s := show(a, start(), time.Duration(hours)*time.Hour, g, func(at time.Time, g *gpu.GPU) {
				setActivity(g, 0.2, 0.01, 0.01)

				if c.wide(at) {
					setActivity(g, 0.2, 0.19, 0.01)
				}
			})
			if r := a.Recommend(s).Devices[0]; r.Action == ActionSlice {
				t.Errorf("%s, after %d hours: %s (%s)", c.about, hours, r.Recommended, r.Explanation)
			}
		}
	}
}

// TestWidthAndBandwidthAtOtherTimes: 4 % of the busy time is wide and another 4 % draws all
// bandwidth: 8 % of it is stretched, although the p95 of each alone does not show it.
func TestWidthAndBandwidthAtOtherTimes(t *testing.T) {
	a := New(fastOptions())
	g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))

	s := show(a, start(), 14*24*time.Hour, g, func(at time.Time, g *gpu.GPU) {
		switch at.Minute() % 25 {
		case 0:
			setActivity(g, 0.2, 0.2, 0.01)
		case 1:
			setActivity(g, 0.2, 0.01, 0.18)
		default:
			setActivity(g, 0.2, 0.01, 0.01)
		}
	})
	if r := a.Recommend(s).Devices[0]; r.Action == ActionSlice {
		t.Errorf("%s (%s)", r.Recommended, r.Explanation)
	}
}

// movedCase is a workload that was moved from a whole H100 to a slice, and what is advised there.
type movedCase struct {
	about, profile string
	before, after  [3]float64 // busy time, SM activity, DRAM activity of the device
	want           answer
}

func movedCases() []movedCase {
	return []movedCase{
		{
			// A tenth of the busy time at 132 SMs and the rest at 4, always busy: stretched by 1.32
			// on 32 SMs.
			about: "mixed kernels that are stretched, and no time is left", profile: "2g.20gb",
			before: [3]float64{0.95, 0.95 * 16.8 / 132, 0.05}, after: [3]float64{1, 16.8 / 1.32 / 32, 0.15},
			want: answer{Action: ActionGrow, Reason: ReasonSaturated, Profile: "3g.40gb"},
		},
		{
			about: "the same kernels with time left", profile: "2g.20gb",
			before: [3]float64{0.5, 0.5 * 16.8 / 132, 0.03}, after: [3]float64{0.66, 0.66 * 16.8 / 1.32 / 32, 0.12},
			want: answer{Action: ActionKeep, Reason: ReasonLittleEvidence},
		},
		{
			about: "always busy, and as fast as before", profile: "2g.20gb",
			before: [3]float64{0.99, 0.99 * 5 / 132, 0.05}, after: [3]float64{1, 5. / 32, 0.2},
			want: answer{Action: ActionKeep, Reason: ReasonLittleEvidence},
		},
		{
			about: "stretched by 2.5, seldom busy", profile: "1g.10gb",
			before: [3]float64{0.1, 0.1 * 0.4, 0.001}, after: [3]float64{0.25, 0.25 * 0.4 / 2.5 * 132 / 16, 0.008},
			want: answer{Action: ActionGrow, Reason: ReasonStretch, Profile: "1g.20gb"},
		},
		{
			about: "all the bandwidth that can be reached", profile: "3g.40gb",
			before: [3]float64{0.9, 0.1, 0.6}, after: [3]float64{1, 0.15, 0.899},
			want: answer{Action: ActionGrow, Reason: ReasonBandwidth, Profile: "7g.80gb"},
		},
	}
}

// TestStretchedInASlice: what was seen on the whole GPU shows how far kernels are stretched in a
// slice, whatever their mix.
func TestStretchedInASlice(t *testing.T) {
	for _, c := range movedCases() {
		a := New(fastOptions())
		whole := wholeGPU(t, "H100-80GB", 0, load{c.before[0], c.before[1], c.before[2], 4}, pod("ml", "Deployment/a"))
		moved := slicedGPU(t, "H100-80GB", c.profile, load{c.after[0], c.after[1], c.after[2], 4}, pod("ml", "Deployment/a"))
		s := observeFor(a, start(), 48*time.Hour, whole)
		s = observeFor(a, s.Time.Add(time.Minute), 15*time.Minute, moved)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, c.about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended},
			c.want)

		if r.Explanation == "" {
			t.Errorf("%s: no explanation", c.about)
		}
	}
}

// TestLeakThatBeganLate: memory that has grown for two days goes on growing, whatever it did
// before, and whatever the hour is.
func TestLeakThatBeganLate(t *testing.T) {
	const perDay = 1.5 // GiB

	for _, hours := range []int{0, 6, 12, 23} {
		a := New(fastOptions())
		g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.2, sm: 0.01}, pod("ml", "Deployment/a"))
		began := start().Add(12 * 24 * time.Hour)
		s := show(a, start(), time.Duration(14*24+hours)*time.Hour, g, func(at time.Time, g *gpu.GPU) {
			used := 4 + perDay*max(0, at.Sub(began).Hours()/24)
			g.Readings.Memory.Used = gpu.Some(uint64(used * (1 << 30)))
		})

		e := a.Recommend(s).Devices[0].Evidence
		if got := e.MemoryTrend / (1 << 30); got < 0.95*perDay || got > 1.3*perDay {
			t.Errorf("%d hours into the day: %.2f GiB a day, want %v", hours, got, perDay)
		}
	}
}

// TestNoShrinkOfAStretchedSlice: a slice that already stretches its kernels is not made smaller,
// although they are not wide in it.
func TestNoShrinkOfAStretchedSlice(t *testing.T) {
	for _, c := range []struct {
		about  string
		before [3]float64 // on the whole GPU: busy time, SM and DRAM activity
		want   answer
	}{
		{"as fast as before", [3]float64{0.1, 0.1 * 9 / 132, 0.002}, answer{Action: ActionShrink, Profile: "1g.10gb"}},
		{"stretched by 1.7", [3]float64{0.1 / 1.7, 0.1 * 9 / 132, 0.002}, answer{Action: ActionKeep, Reason: ReasonStretch}},
	} {
		a := New(fastOptions())
		whole := wholeGPU(t, "H100-80GB", 0, load{c.before[0], c.before[1], c.before[2], 4}, pod("ml", "Deployment/a"))
		moved := slicedGPU(t, "H100-80GB", "3g.40gb", load{0.1, 0.1 * 9 / 60, 0.004, 4}, pod("ml", "Deployment/a"))
		s := observeFor(a, start(), 48*time.Hour, whole)
		s = observeFor(a, s.Time.Add(time.Minute), 48*time.Hour, moved)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, c.about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended},
			c.want)
	}
}

// TestComparedWithTheWholeGPUForLong: what kernels used on the whole GPU is known for as long as
// the workload runs in its slice, whenever its pod is replaced: the days on the whole GPU fade
// before the workload there is forgotten.
func TestComparedWithTheWholeGPUForLong(t *testing.T) {
	for _, drawn := range []float64{0, 0.3} { // with the bandwidth unknown or known
		for _, after := range []time.Duration{day, 6 * day, 7*day + 18*time.Hour, 9 * day} {
			a := New(fastOptions())
			h := pod("ml", "CronJob/a")
			whole := wholeGPU(t, "H100-80GB", 0, load{busy: 0.3, sm: 0.3 * 0.4, dram: 0.3 * drawn, gib: 4}, h)
			s := observeFor(a, start().Add(9*time.Hour), 8*day+9*time.Hour, whole) // until six in the evening
			l := load{busy: 0.9, sm: 0.9 * 0.99, dram: 0.1, gib: 4}
			s = observeFor(a, s.Time.Add(time.Minute), after, slicedGPU(t, "H100-80GB", "1g.10gb", l, h))
			h.PodUID = "uid-2"
			h.Pod = "a-1"
			s = observeFor(a, s.Time.Add(time.Minute), time.Hour, slicedGPU(t, "H100-80GB", "1g.10gb", l, h))
			r := recommend(a, s).Devices[0]
			cmptest.Equal(t, after.String(), answer{r.Action, r.Reason, r.Recommended},
				answer{ActionGrow, ReasonStretch, "1g.20gb"})

			for key, w := range a.workloads {
				if key.Profile == "" || key.Owner != "CronJob/a" {
					continue
				}

				if math.Abs(float64(w.Before.Width)-0.4) > 1e-6 || math.Abs(float64(w.Before.Bandwidth)-drawn) > 1e-6 {
					t.Errorf("%v: used %v of the whole GPU, want 0.4 and %v", after, w.Before, drawn)
				}
			}
		}
	}
}

// TestStretchOnAverageMakesRequestsWait: for twenty minutes of each day kernels are so narrow that
// a slice would not stretch them. The others it stretches as before, and requests wait too long for
// them: the narrowest kernels on the whole GPU do not hide it.
func TestStretchOnAverageMakesRequestsWait(t *testing.T) {
	for _, c := range []struct {
		busy float64 // on the whole GPU
		want answer
	}{
		{0.1, answer{Action: ActionKeep, Reason: ReasonLittleEvidence}},
		{0.4, answer{Action: ActionGrow, Reason: ReasonLatency, Profile: "4g.40gb"}},
	} {
		const share, width = 60. / 132, 0.7
		h := pod("ml", "Deployment/a")
		a := New(fastOptions())
		whole := wholeGPU(t, "H100-80GB", 0, load{busy: c.busy, sm: c.busy * width, gib: 4}, h)
		s := show(a, start(), 8*day, whole, func(at time.Time, g *gpu.GPU) {
			g.Activity.SM = gpu.Some(c.busy * width)
			if at.Hour() == 3 && at.Minute() < 20 {
				g.Activity.SM = gpu.Some(c.busy * 0.1)
			}
		})
		busy := c.busy * width / share
		moved := slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: busy, sm: busy * 0.94, gib: 4}, h)
		s = observeFor(a, s.Time.Add(time.Minute), time.Hour, moved)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}
