package advise

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const day = 24 * time.Hour

// nodeClock is the clock of a node: it runs a minute further with each Snapshot, and is wrong by an
// error.
type nodeClock struct {
	ran, wrong time.Duration
	monotonic  bool
}

// read returns what the clock shows, with a monotonic reading as time.Now has it if the clock has
// one.
func (c *nodeClock) read(t *testing.T) time.Time {
	wall := start().Add(c.ran + c.wrong)
	if !c.monotonic {
		return wall
	}

	return withMonotonic(t, wall, c.ran)
}

// withMonotonic returns what time.Now would return at a wall time, so long after the start of the
// program. Nothing but setting the machine's clock makes the two readings of a time.Time differ.
func withMonotonic(t *testing.T, wall time.Time, ran time.Duration) time.Time {
	t.Helper()
	now := time.Now()
	parts := (*struct { // of a time.Time
		wall      uint64
		monotonic int64
		location  *time.Location
	})(unsafe.Pointer(&now))

	seconds := wall.Unix() - time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	if seconds < 0 || seconds >= 1<<33 {
		t.Fatalf("%v has no form with a monotonic reading", wall)
	}

	const hasMonotonic = 1 << 63

	parts.wall, parts.monotonic = hasMonotonic|uint64(seconds)<<30|uint64(wall.Nanosecond()), int64(day+ran)
	if now.Round(0).Sub(wall) != 0 || now.Sub(withMonotonicOf(now, ran-time.Minute)) != time.Minute {
		t.Fatal("time.Time has other fields than expected")
	}

	return now
}

// withMonotonicOf returns a time with another monotonic reading.
func withMonotonicOf(of time.Time, ran time.Duration) time.Time {
	(*struct {
		wall      uint64
		monotonic int64
		location  *time.Location
	})(unsafe.Pointer(&of)).monotonic = int64(day + ran)

	return of
}

// twoPhases observes minutes of a node. For two hours of each day the kernels of its first GPU are
// wide, else narrow; for two hours of the third day it takes much memory; in its first hour it used
// the motion estimator, and the other GPU was held by a workload that does not come again.
func twoPhases(t *testing.T, a *Advisor, c *nodeClock, minutes int) *gpu.Snapshot {
	holder := pod("ml", "Deployment/a")
	wide := wholeGPU(t, "H100-80GB", 0, load{busy: 0.9, sm: 0.8, gib: 4}, holder)
	narrow := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.02, gib: 4}, holder)
	large := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.02, gib: 30}, holder)
	estimates := wide
	estimates.Readings.Media.OFA = gpu.Some(0.4)
	other := wholeGPU(t, "H100-80GB", 1, load{busy: 0.5, sm: 0.02, gib: 4}, pod("ml", "CronJob/b"))
	idle := wholeGPU(t, "H100-80GB", 1, load{})
	var s *gpu.Snapshot

	for range minutes {
		gpus := []gpu.GPU{narrow, idle}

		minute := int(c.ran / time.Minute)
		switch ofThird := minute - 2*24*60; {
		case minute < 60:
			gpus = []gpu.GPU{estimates, other}
		case minute%(24*60) < 120:
			gpus[0] = wide
		case ofThird >= 180 && ofThird < 300:
			gpus[0] = large
		}

		s = &gpu.Snapshot{Time: c.read(t), Hostname: "node-a", GPUs: gpus}
		a.Observe(s)

		if minute%60 == 0 {
			a.Recommend(s)
		}

		c.ran += time.Minute
	}

	return s
}

// sameEvidence compares what two Advisors know of the first GPU; minutes may be missing in one.
func sameEvidence(t *testing.T, about string, got, want *Evidence) {
	t.Helper()
	cmptest.Equal(t, about+": media engines", got.MediaEngines, want.MediaEngines)

	for _, v := range []struct {
		name                string
		got, want, tolerate float64
	}{
		{"memory", got.MemoryBytes, want.MemoryBytes, 0},
		{"trend of memory", got.MemoryTrend, want.MemoryTrend, 0},
		{"busiest ten minutes", got.Busy10Minutes, want.Busy10Minutes, 1e-6},
		{"mean of busy time", got.BusyMean, want.BusyMean, 0.01},
		{"p99 of busy time", got.BusyP99, want.BusyP99, 1e-6},
		{"width, median", got.Median.Width, want.Median.Width, 1e-6},
		{"width, p95", got.P95.Width, want.P95.Width, 1e-6},
		{"observed hours", got.ObservedHours, want.ObservedHours, 1.2},
		{"hours since it was first seen", 0, want.Since.Sub(got.Since).Hours(), 1.2},
	} {
		if !(math.Abs(v.got-v.want) <= v.tolerate) {
			t.Errorf("%s: %s %v, want %v", about, v.name, v.got, v.want)
		}
	}
}

// wrongClock is a clock that is wrong for some minutes.
type wrongClock struct {
	by        time.Duration
	minutes   int
	monotonic bool
	// The exporter is restarted when the clock becomes wrong, and when it becomes right again.
	before, after bool
}

func wrongClocks() []wrongClock {
	var list []wrongClock

	for _, by := range []time.Duration{-time.Hour, -3 * day, -8 * day, -15 * day, -60 * day, -200 * day, -20_000 * day,
		2 * day, 15 * day, 200 * day, 10_000 * day} {
		for _, minutes := range []int{3, 20} {
			for restarts := range 4 {
				c := wrongClock{by: by, minutes: minutes, before: restarts&1 > 0, after: restarts&2 > 0}

				list = append(list, c)
				if c.monotonic = true; start().Add(by).Year() > 1990 {
					list = append(list, c)
				}
			}
		}
	}

	return list
}

// isGap reports whether the clock leaps ahead at a restart: then the pod can have been held for as
// long.
func (c *wrongClock) isGap() bool {
	return c.before && c.by > farAhead || c.after && c.by < -farAhead
}

// TestClockThatIsWrongForATime: evidence survives a clock that is wrong for a time and then right
// again, in a running exporter and over restarts, and so does the answer. Only a clock that is
// ahead after a restart can be one after a long time without the exporter: then the coverage is low
// for eight days.
func TestClockThatIsWrongForATime(t *testing.T) {
	const begins, soon, later = 9 * 24 * 60, 90, 26 * 60
	through := New(fastOptions())
	right := &nodeClock{}
	twoPhases(t, through, right, begins)

	var saved bytes.Buffer
	if err := through.Checkpoint().Write(&saved); err != nil {
		t.Fatal(err)
	}

	want := [2]Recommendation{recommend(through, twoPhases(t, through, right, soon)).Devices[0]}
	want[1] = recommend(through, twoPhases(t, through, right, later)).Devices[0]
	cmptest.Equal(t, "reason", want[1].Reason, ReasonStretch)

	for _, w := range wrongClocks() {
		about := fmt.Sprintf("%+v", w)

		c, err := ReadCheckpoint(bytes.NewReader(saved.Bytes()))
		if err != nil {
			t.Fatal(err)
		}

		a := New(fastOptions())
		clock := &nodeClock{ran: begins * time.Minute, monotonic: w.monotonic}
		a.Restore(c)

		if !w.before {
			twoPhases(t, a, clock, 1)
		}

		clock.wrong = w.by

		s := twoPhases(t, a, clock, w.minutes)
		if w.after {
			a = restarted(t, a, s)
		}

		clock.wrong = 0
		for i, minutes := range []int{begins + soon - int(clock.ran/time.Minute), later} {
			r := recommend(a, twoPhases(t, a, clock, minutes)).Devices[0]
			sameEvidence(t, about, r.Evidence, want[i].Evidence)
			cmptest.Equal(t, about+": low coverage", r.Reason == ReasonLowCoverage, w.isGap())

			if !w.isGap() {
				cmptest.Equal(t, about, [2]any{r.Action, r.Reason}, [2]any{want[i].Action, want[i].Reason})
			}

			cmptest.Equal(t, about+": provisional", r.Provisional, want[i].Provisional)
		}

		cmptest.Equal(t, about+": workloads", len(a.workloads), len(through.workloads))
	}
}

// TestMemoryOfBeforeTheClockWasSet: the largest use of memory and the busiest minutes of the last
// days count whatever the clock says now, for as long as without.
func TestMemoryOfBeforeTheClockWasSet(t *testing.T) {
	small := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.02, gib: 4}, pod("ml", "Deployment/a"))
	large := wholeGPU(t, "H100-80GB", 0, load{busy: 0.9, sm: 0.02, gib: 30}, pod("ml", "Deployment/a"))

	for _, set := range []time.Duration{-13 * time.Hour, -day, -3 * day, -9 * day, 3 * day, 30 * day} {
		for _, restart := range []bool{false, true} {
			a := New(fastOptions())
			s := observeFor(a, start(), 9*day, small)
			s = observeFor(a, s.Time.Add(time.Minute), 2*time.Hour, large)

			s = observeFor(a, s.Time.Add(time.Minute), 2*time.Hour, small)
			if restart {
				a = restarted(t, a, s)
			}

			s = observeFor(a, s.Time.Add(set), 6*day+12*time.Hour, small)
			e := recommend(a, s).Devices[0].Evidence
			about := fmt.Sprintf("set by %v, restart %v", set, restart)
			cmptest.Equal(t, about+": memory, GiB", e.MemoryBytes/(1<<30), 30)
			cmptest.Equal(t, about+": busiest ten minutes", float32(e.Busy10Minutes), 0.9)
			s = observeFor(a, s.Time.Add(time.Minute), 2*day, small)
			cmptest.Equal(t, about+": memory when it is long ago, GiB",
				recommend(a, s).Devices[0].Evidence.MemoryBytes/(1<<30), 4)
		}
	}
}

// TestClockThatIsSetBackOften: the sums of days move by as much as the clock in all, so that each
// counts for eight days, give or take one.
func TestClockThatIsSetBackOften(t *testing.T) {
	small := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.02, gib: 4}, pod("ml", "Deployment/a"))
	large := wholeGPU(t, "H100-80GB", 0, load{busy: 0.9, sm: 0.02, gib: 30}, pod("ml", "Deployment/a"))

	for _, back := range []time.Duration{time.Hour, 11 * time.Hour, 13 * time.Hour, 35 * time.Hour} {
		for _, restart := range []bool{false, true} {
			about := fmt.Sprintf("set back by %v, restart %v", back, restart)
			a := New(fastOptions())
			s := observeFor(a, start(), 2*time.Hour, small) // its start, in which it needs no more than later

			s = observeFor(a, s.Time.Add(time.Minute), 2*time.Hour, large)
			for range 12 {
				s = observeFor(a, s.Time.Add(-back), time.Hour, small)
				if restart {
					a = restarted(t, a, s)
				}

				for _, w := range a.workloads {
					for _, d := range w.Days {
						if d != (daySums{}) && (d.Day > dayOf(a.now)+1 || d.Day < dayOf(a.now)-2) {
							t.Errorf("%s: the sums of at most 14 hours ago are of day %d, on day %d", about, d.Day, dayOf(a.now))
						}
					}
				}
			}

			s = observeFor(a, s.Time.Add(time.Minute), 6*day, small)
			cmptest.Equal(t, about+": memory after 6 days, GiB",
				recommend(a, s).Devices[0].Evidence.MemoryBytes/(1<<30), 30)
			s = observeFor(a, s.Time.Add(time.Minute), 3*day, small)
			cmptest.Equal(t, about+": memory after 9 days, GiB",
				recommend(a, s).Devices[0].Evidence.MemoryBytes/(1<<30), 4)
		}
	}
}

// TestClockThatWasWrongAtFirst: what was seen before the clock was right is as old as it is.
func TestClockThatWasWrongAtFirst(t *testing.T) {
	g := wholeGPU(t, "A100-40GB", 0, load{busy: 0.5, sm: 0.02, gib: 2}, pod("ml", "Deployment/a"))
	used := g
	used.Readings.Media.OFA = gpu.Some(0.4)
	used.Readings.Processes = gpu.Some([]gpu.Process{{Graphics: true}})

	for _, first := range []time.Time{start().Add(365 * day), time.Unix(0, 0).UTC(), time.Unix(-90_000, 0).UTC()} {
		for _, restart := range []bool{false, true} {
			about := fmt.Sprintf("first %v, restart %v", first, restart)
			a := New(fastOptions())

			s := observeFor(a, first, 70*time.Minute, used) // its start is seen
			if restart {
				a = restarted(t, a, s)
			}

			s = observeFor(a, start(), 4*day+time.Hour, g)
			r := recommend(a, s).Devices[0]
			cmptest.Equal(t, about+": reason", r.Reason == ReasonGraphics || r.Reason == ReasonLowCoverage, true)
			cmptest.Equal(t, about+": provisional", r.Provisional, true)
			cmptest.Equal(t, about+": engines", r.Evidence.MediaEngines, []string{"ofa"})
			s = observeFor(a, s.Time.Add(time.Minute), 5*day, g)
			r = recommend(a, s).Devices[0]
			cmptest.Equal(t, about+": engines, nine days later", len(r.Evidence.MediaEngines), 0)
			r = recommend(a, observeFor(a, s.Time.Add(time.Minute), 25*time.Hour, g)).Devices[0]
			cmptest.Equal(t, about+": ten days later", answer{r.Action, r.Reason, r.Recommended},
				answer{Action: ActionSlice, Profile: "1g.5gb"})
			cmptest.Equal(t, about+": provisional, ten days later", r.Provisional, false)
		}
	}
}

// TestMarkInTheFuture: a time that lies ahead, however it came about, is not recent.
func TestMarkInTheFuture(t *testing.T) {
	cmptest.Equal(t, "recent", isRecent(start().Add(-7*day).Unix(), start()), true)
	cmptest.Equal(t, "long ago", isRecent(start().Add(-8*day).Unix(), start()), false)
	cmptest.Equal(t, "ahead", isRecent(start().Add(time.Hour).Unix(), start()), false)
	cmptest.Equal(t, "never", isRecent(0, time.Unix(1000, 0)), false)
}
