package poll

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// podState is what is known of who holds which device, and how old it is.
type podState struct {
	list    call[gpu.Assignments]
	cancel  context.CancelFunc
	fresh   bool // asked in this cycle
	last    gpu.Assignments
	known   bool      // last is something
	success time.Time // of the last answer; zero before the first
	stale   bool      // what the kubelet said last still counts although it does not answer
	err     error     // why the kubelet did not answer last; gpu.ErrNoKubelet if there is none
}

// start asks who holds what, unless an earlier question has not been answered.
func (s *podState) start(ctx context.Context, now time.Time, opts *Options) {
	if s.list.running {
		s.fresh = false
		return
	}
	// The deadline is real time: a hung kubelet hangs for real, whatever the simulated clock says.
	ctx, cancel := context.WithTimeout(ctx, max(opts.Timeout, opts.Grace))
	s.cancel = cancel
	s.fresh = s.list.start(now, func() (gpu.Assignments, error) {
		defer cancel()
		return opts.Pods.List(ctx)
	})
}

// finish takes the answer if it comes before expired is closed: what is known, whether the kubelet has answered or not.
func (s *podState) finish(now time.Time, expired <-chan struct{}, staleAfter time.Duration) {
	if !s.fresh {
		expired = nil
	}
	r, ok := s.list.take(expired)
	if !ok {
		return
	}
	s.err = r.err
	if r.err == nil {
		s.success = r.started
	}
	s.stale = r.err != nil && !s.success.IsZero() && now.Sub(s.success) <= staleAfter
	s.last, s.known = r.value, !errors.Is(r.err, gpu.ErrNoKubelet)
}

// state is nothing if no source is configured, and if there is no kubelet on this node.
func (s *podState) state() (gpu.SourceState, bool) {
	if s.success.IsZero() && s.err == nil || errors.Is(s.err, gpu.ErrNoKubelet) {
		return gpu.SourceState{}, false
	}
	return gpu.SourceState{Name: gpu.SourceKubelet, Up: s.err == nil, Stale: s.stale, LastSuccess: s.success, Err: s.err}, true
}

// join ends the question under way.
func (s *podState) join() {
	if s.list.running {
		s.cancel()
		<-s.list.done
		s.list.running = false
	}
}
