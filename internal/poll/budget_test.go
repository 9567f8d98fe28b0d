package poll

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// costedLoop is a pacer with readings of one GPU that cost what the test sets.
type costedLoop struct {
	pacer
	now        time.Time
	costs      gpu.ReadCosts
	fast, slow time.Duration // of one reading
	slowAt     time.Time
}

func newCostedLoop(interval, slowEvery time.Duration) *costedLoop {
	l := &costedLoop{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	l.pacer = newPacer(Budget{Seconds: 0.05, Interval: interval, SlowEvery: slowEvery,
		Costs: func() gpu.ReadCosts { return l.costs }})

	return l
}

// run lets the loop tick for a time, and returns how often the tiers were read at the end and how
// often the stretching has begun or ended.
func (l *costedLoop) run(d time.Duration) (pace gpu.Pace, changes int) {
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(l.budget.Interval) {
		l.skipped++
		if l.skipped >= l.pacer.fast.factor {
			l.skipped = 0
			l.costs.Fast.Readings++

			l.costs.Fast.Took += l.fast
			if l.now.Sub(l.slowAt) >= l.pacer.slow.pace().Now {
				l.slowAt = l.now
				l.costs.Slow.Readings++
				l.costs.Slow.Took += l.slow
			}
		}

		if l.adjust(l.now, 1) {
			changes++
		}
	}

	return l.pace(), changes
}

func paces(fast, slow time.Duration) gpu.Pace {
	return gpu.Pace{Fast: gpu.TierPace{Configured: time.Second, Now: fast},
		Slow: gpu.TierPace{Configured: 15 * time.Second, Now: slow}}
}

func TestTiersAreStretchedByWhatTheyCost(t *testing.T) {
	for name, tt := range map[string]struct {
		fast, slow time.Duration
		want       gpu.Pace
	}{
		"nothing":                 {0, 0, paces(time.Second, 15*time.Second)},
		"just the budget":         {45 * time.Millisecond, 75 * time.Millisecond, paces(time.Second, 15*time.Second)},
		"polls a little dear":     {60 * time.Millisecond, 0, paces(2*time.Second, 15*time.Second)},
		"polls dear":              {180 * time.Millisecond, time.Millisecond, paces(4*time.Second, 15*time.Second)},
		"polls too dear":          {10 * time.Second, time.Second, paces(5*time.Second, 15*time.Second)},
		"the slow tier dear":      {time.Millisecond, 1400 * time.Millisecond, paces(time.Second, 30*time.Second)},
		"the slow tier too dear":  {time.Millisecond, time.Minute, paces(time.Second, 2*time.Minute)},
		"both too dear":           {time.Second, 15 * time.Second, paces(5*time.Second, 2*time.Minute)},
		"both dear, one the more": {60 * time.Millisecond, 450 * time.Millisecond, paces(2*time.Second, 30*time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newCostedLoop(time.Second, 15*time.Second)
			l.fast = tt.fast
			l.slow = tt.slow

			pace, _ := l.run(20 * time.Minute)
			cmptest.Equal(t, "paces", pace, tt.want)

			// It stays so: no pace swings between two steps.
			_, changes := l.run(20 * time.Minute)
			cmptest.Equal(t, "changes afterwards", changes, 0)
			cmptest.Equal(t, "paces afterwards", l.pace(), tt.want)
		})
	}
}

// When calls become cheap again, the loop reads as often as before, within minutes and step by
// step.
func TestPacesComeBack(t *testing.T) {
	l := newCostedLoop(time.Second, 15*time.Second)
	l.fast = time.Second
	l.slow = 10 * time.Second
	_, began := l.run(10 * time.Minute)
	cmptest.Equal(t, "stretched once", began, 1)

	l.fast = time.Millisecond
	l.slow = time.Millisecond
	pace, ended := l.run(8 * time.Minute)
	cmptest.Equal(t, "paces", pace, paces(time.Second, 15*time.Second))
	cmptest.Equal(t, "ended once", ended, 1)
}

// One dear poll among many is no reason to read less often.
func TestOneDearPollStretchesNothing(t *testing.T) {
	l := newCostedLoop(time.Second, 15*time.Second)
	l.fast = time.Millisecond
	l.run(time.Minute)
	l.fast = time.Second
	l.run(time.Second)
	l.fast = time.Millisecond

	pace, changes := l.run(5 * time.Minute)
	cmptest.Equal(t, "paces", pace, paces(time.Second, 15*time.Second))
	cmptest.Equal(t, "changes", changes, 0)
}

// Polls are stretched to 5 s at most, by whole intervals.
func TestLongIntervalsAreHardlyStretched(t *testing.T) {
	for interval, want := range map[time.Duration]time.Duration{
		50 * time.Millisecond: 5 * time.Second, 700 * time.Millisecond: 4900 * time.Millisecond,
		2 * time.Second: 4 * time.Second, 3 * time.Second: 3 * time.Second, time.Minute: time.Minute,
	} {
		l := newCostedLoop(interval, 15*time.Second)
		l.fast = time.Minute
		pace, _ := l.run(20 * time.Minute)
		cmptest.Equal(t, "paced "+interval.String(), pace.Fast.Now, want)
	}
}

// logLines counts the log messages that have a text.
type logLines struct {
	text  string
	count atomic.Int64
}

func (l *logLines) Log(keyvals ...any) error {
	if strings.Contains(fmt.Sprint(keyvals...), l.text) {
		l.count.Add(1)
	}

	return nil
}

var _ log.Logger = (*logLines)(nil)

// stretchedLoop starts a loop whose readings of a GPU cost so much that they are made every 5 s,
// and returns once they are.
func stretchedLoop(t *testing.T, src *fakeSource, logger log.Logger) (h *harness, stop func() error) {
	t.Helper()
	h = newHarness(t, src, func(o *Options) {
		o.Interval = time.Second
		o.Now = time.Now
		o.Logger = logger
		o.Pods = &fakePods{}
		o.Budget = Budget{Seconds: 0.05, Interval: time.Second, SlowEvery: 15 * time.Second,
			Costs: func() gpu.ReadCosts {
				n := src.countReads(uuidA)
				return gpu.ReadCosts{Fast: gpu.TierCost{Readings: uint64(n), Took: time.Duration(n) * 10 * time.Second}}
			}}
	})
	h.opts.Pods.(*fakePods).now = time.Now
	stop = h.startLoop()

	time.Sleep(30*time.Second + time.Millisecond)
	synctest.Wait()
	cmptest.Equal(t, "pace", h.Current().Pace, paces(5*time.Second, 15*time.Second))

	return h, stop
}

func (s *fakeSource) countReads(id gpu.UUID) int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.reads[id]
}

// While polls are stretched, the loop publishes every second who holds the devices, and reads the
// GPUs less often. A reading that control asks for is made at once.
func TestStretchedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		logged := &logLines{text: "driver calls"}
		h, stop := stretchedLoop(t, src, logged)
		cmptest.Equal(t, "messages", logged.count.Load(), int64(1))

		reads := src.countReads(uuidA)
		generation := h.Current().Generation
		between := 0

		for range 20 {
			time.Sleep(time.Second)
			synctest.Wait()

			if h.Current().BetweenPolls {
				between++
			}
		}

		cmptest.Equal(t, "readings in 20 s", src.countReads(uuidA)-reads, 4)
		cmptest.Equal(t, "Snapshots in 20 s", h.Current().Generation-generation, uint64(20))
		cmptest.Equal(t, "Snapshots without readings", between, 16)

		if err := h.PollGPUs(t.Context(), uuidA); err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "last read", h.Current().GPUs[0].LastRead, h.Current().Time)

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The readings of a GPU that fails are kept for as many readings as configured.
func TestStaleAfterFollowsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		h, stop := stretchedLoop(t, src, log.NewNopLogger())

		src.set(func() { src.errs[uuidA] = gpu.ErrDriver })
		kept := 0

		for range 30 {
			time.Sleep(time.Second)
			synctest.Wait()

			if g := &h.Current().GPUs[0]; !g.Up && g.Readings.PowerWatts.Present() {
				kept++
			}
		}

		if kept < 9 || kept > 15 {
			t.Errorf("the readings of a GPU that is down are kept for %d s, want 9 to 15: three readings 5 s apart, less "+
				"the time until it was down", kept)
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A GPU hangs when one call of the driver lasts, not when a reading of many calls does.
func TestProgressKeepsAGPUUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		var calledAt atomic.Pointer[time.Time]
		h := newHarness(t, src, func(o *Options) {
			o.Progress = func(gpu.UUID) time.Time { return *calledAt.Load() }
		})
		call := func() { at := h.clock.Now(); calledAt.Store(&at) }
		call()
		stop := h.startLoop()
		h.pollAfter(time.Second)
		release := make(chan struct{})
		src.set(func() { src.hang[uuidA] = release })
		h.pollAfter(time.Second)

		for second := range 48 { // begun a second ago
			call()

			if s := h.pollAfter(time.Second); !s.GPUs[0].Up {
				t.Fatalf("down after %d s although it makes calls", second+2)
			}
		}

		call()
		s := h.pollAfter(time.Second)
		cmptest.Equal(t, "up after ten times the timeout", s.GPUs[0].Up, true)
		call()
		s = h.pollAfter(time.Second)
		cmptest.Equal(t, "up after more", s.GPUs[0].Up, false)
		cmptest.Equal(t, "hung calls", s.HungCalls, 1)

		src.set(func() { delete(src.hang, uuidA) })
		close(release)
		synctest.Wait()
		h.pollAfter(time.Second)
		again := make(chan struct{})
		src.set(func() { src.hang[uuidA] = again })
		call()
		h.pollAfter(time.Second)
		s = h.pollAfter(4 * time.Second)
		cmptest.Equal(t, "up 4 s into a call", s.GPUs[0].Up, true)
		s = h.pollAfter(time.Second)
		cmptest.Equal(t, "up 5 s into a call", s.GPUs[0].Up, false)

		close(again)

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// What a reading of minutes says is of long ago when it ends: the GPU stays down, and its next
// reading counts.
func TestReadingOfMinutesIsNotFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		h := newHarness(t, src, func(o *Options) {
			o.Interval = time.Second
			o.Now = time.Now
			o.Grace = 500 * time.Millisecond
			o.Progress = func(gpu.UUID) time.Time { return time.Now() }
		})
		release := make(chan struct{})
		src.set(func() { src.hang[uuidA] = release })
		stop := h.startLoop()
		isUp := func() bool {
			synctest.Wait()
			g := findGPU(t, h.Current(), uuidA)

			return g.Up || g.Readings.PowerWatts.Present()
		}
		time.Sleep(5 * time.Minute)
		cmptest.Equal(t, "while it goes on", isUp(), false)

		next := make(chan struct{})
		src.set(func() { src.hang[uuidA] = next })
		close(release)
		time.Sleep(2 * time.Second)
		cmptest.Equal(t, "when it has ended", isUp(), false)
		cmptest.Equal(t, "hangs", errorCount(findGPU(t, h.Current(), uuidA), gpu.ReadingDevice, gpu.ReasonTimeout), 1)

		src.set(func() { delete(src.hang, uuidA) })
		close(next)
		time.Sleep(2 * time.Second)
		cmptest.Equal(t, "after the next reading", isUp(), true)

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
