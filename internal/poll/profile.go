package poll

import (
	"context"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// profileState is the asking of the profiler, and what came of it last.
type profileState struct {
	ask     call[map[gpu.UUID]gpu.Profiling]
	success time.Time // of the last answer; zero before the first
	err     error
}

// profile asks for the activity of the GPUs of the last Snapshot before anything else is read: the readings that follow
// tell whether the layout that it was asked for still stands. It waits for half of the cycle's time at most; what comes
// later serves the next cycle.
func (p *Poller) profile(ctx context.Context, now time.Time) {
	before := p.current.Load()
	if p.opts.Profiler == nil || before == nil {
		return
	}
	expired, stop := after(ctx, p.opts.Grace/2)
	defer stop()
	s := &p.profiling
	p.takeProfile(nil) // one that ended after its cycle
	if !s.ask.start(now, func() (map[gpu.UUID]gpu.Profiling, error) { return p.opts.Profiler.Profile(before) }) {
		if s.ask.hung(p.opts.Now(), p.opts.Timeout) {
			s.err = gpu.ErrTimeout
		}
		return
	}
	p.takeProfile(expired)
}

// takeProfile takes an answer if there is one, waiting for it until expired is closed.
func (p *Poller) takeProfile(expired <-chan struct{}) {
	s := &p.profiling
	r, ok := s.ask.take(expired)
	if !ok {
		return
	}
	s.err = r.err
	if r.err != nil {
		return
	}
	s.success = r.started
	for id, t := range p.gpus {
		if answer, ok := r.value[id]; ok {
			t.profiled = profiled{Profiling: answer, asked: r.started}
		} else {
			t.profiled = profiled{}
		}
	}
}

// state is nothing where there is no profiler, or it has not been asked yet.
func (s *profileState) state() (gpu.SourceState, bool) {
	if s.success.IsZero() && s.err == nil {
		return gpu.SourceState{}, false
	}
	return gpu.SourceState{Name: gpu.SourceDCGM, Up: s.err == nil, LastSuccess: s.success, Err: s.err}, true
}
