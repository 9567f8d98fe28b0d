package poll

import (
	"context"
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// profilerState is the call to the profiler, and the status of the profiler as a source.
type profilerState struct {
	sourceStatus
	call asyncCall[map[gpu.UUID]gpu.Profiling]
}

// requestProfiling asks the profiler for the activity of the GPUs in the last Snapshot. We call it
// before all readings of the cycle, so that these show whether the Snapshot's layout is still
// current. It waits for at most half of Grace; we use a later result in the next cycle.
func (p *Poller) requestProfiling(ctx context.Context, now time.Time) {
	before := p.current.Load()
	if p.opts.Profiler == nil || before == nil {
		return
	}

	expired, stop := closedAfter(ctx, p.opts.Grace/2)
	defer stop()
	s := &p.profiling
	p.receiveProfiling(now, nil) // the result of an earlier cycle's call

	ask := func() (map[gpu.UUID]gpu.Profiling, error) { return p.opts.Profiler.Profile(before) }
	if !s.call.start(now, ask) {
		if s.call.isHung(p.opts.Now(), p.opts.Timeout) {
			s.err = fmt.Errorf(
				"ask for activity: %w: a call has not returned, as while a GPU hangs, which blocks a host "+
					"engine for all GPUs",
				gpu.ErrTimeout,
			)
		}

		return
	}

	p.receiveProfiling(now, expired)
}

// receiveProfiling stores the result, if there is one. It waits like asyncCall.receive.
func (p *Poller) receiveProfiling(now time.Time, expired <-chan struct{}) {
	s := &p.profiling

	r, ok := s.call.receive(expired)
	if !ok {
		return
	}

	s.err = r.err
	if r.err == nil {
		s.success = r.started
	}

	for id, t := range p.gpus {
		if r.err != nil {
			t.completeSince = time.Time{}
			continue
		}

		answer, ok := r.value[id]
		t.recordProfiling(answer, ok, r.started, now)
	}
}

// recordProfiling records the profiler's answer for the GPU, which we requested at requested and
// received at now. ok is false if the answer omits the GPU.
func (t *trackedGPU) recordProfiling(answer gpu.Profiling, ok bool, requested, now time.Time) {
	complete := ok && (answer.Paused || reportsAll(&answer, &t.last))

	// A profiler that has just resumed or come back reports only a part, or nothing, in its first
	// samples. We keep the last complete answer for maxGap, as if there were no new one, unless the
	// layout has changed.
	last := &t.profiling

	keep := last.complete && last.LayoutGeneration == t.last.MIG.LayoutGeneration &&
		now.Sub(last.requestedAt) < t.maxGap
	if complete || !keep {
		t.profiling = profilerReading{}
		if ok {
			t.profiling = profilerReading{
				Profiling:   answer,
				requestedAt: requested,
				complete:    complete && !answer.Paused,
			}
		}
	}

	// We count from now, not from the request: the call may have hung in between.
	switch {
	case !complete:
		t.completeSince = time.Time{}
	case t.completeSince.IsZero():
		t.completeSince = now
	}

	if complete {
		t.lastReportedAll = requested
	}

	if complete || !answer.Time.IsZero() {
		t.lastReported = requested
	}
}

// incompleteLimit is how long a profiler may omit instances of a GPU before we call it failed.
// After a layout change it needs about 5 s.
const incompleteLimit = 10 * time.Second

// completeFor is how long a profiler that has failed must report a GPU completely before we use it
// again: if it answers in part every few seconds, the activity would come and go.
const completeFor = 5 * time.Second

// reportsAll reports whether an answer has the activity of the GPU, or of all its instances on
// which something can run.
func reportsAll(answer *gpu.Profiling, g *gpu.GPU) bool {
	if answer.LayoutGeneration != g.MIG.LayoutGeneration {
		return false
	}

	if !g.MIG.Enabled.Or(false) || !hasComputeInstances(g) {
		return answer.GPU.GraphicsEngine.Present()
	}

	for i := range g.Instances {
		gi := &g.Instances[i]
		if !gi.IsEmpty() && !answer.Instances[gi.ID].GraphicsEngine.Present() {
			return false
		}
	}

	return true
}

// chooseActivitySources decides, before we read the GPUs, for which of them we ask the driver for
// activity. For each GPU we do from when the profiler's last values expire until it has reported
// all of the GPU for completeFor. While the profiler is paused we do not: the driver's own
// profiling would disturb the program for which it is paused.
func (p *Poller) chooseActivitySources(now time.Time) {
	if p.opts.Profiler == nil {
		return
	}

	for _, t := range p.gpus {
		switch {
		case now.Sub(laterOf(t.lastReported, t.firstSeen)) >= t.maxGap ||
			now.Sub(laterOf(t.lastReportedAll, t.firstSeen)) >= incompleteLimit:
			t.activityFromDriver = true
			t.completeSince = time.Time{}
		case t.profiling.Paused ||
			!t.completeSince.IsZero() && t.lastReportedAll.Sub(t.completeSince) >= completeFor:
			t.activityFromDriver = false
		}
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}

	return a
}
