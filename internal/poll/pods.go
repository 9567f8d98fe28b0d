package poll

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// podState is what is known of who holds which device, and how old it is.
type podState struct {
	call      asyncCall[gpu.Assignments]
	cancel    context.CancelFunc
	requested bool // asked in this cycle
	last      gpu.Assignments
	known     bool      // last is something
	success   time.Time // of the last answer; zero before the first
	stale     bool      // what the kubelet said last still counts although it does not answer
	err       error     // why the kubelet did not answer last; gpu.ErrNoKubelet if there is none
}

// request asks who holds what, unless an earlier question has not been answered.
func (s *podState) request(ctx context.Context, now time.Time, opts *Options) {
	if s.call.running {
		s.requested = false
		return
	}
	// The deadline is real time: a hung kubelet hangs for real, whatever the simulated clock says.
	ctx, cancel := context.WithTimeout(ctx, max(opts.Timeout, opts.Grace))
	s.cancel = cancel
	s.requested = s.call.start(now, func() (gpu.Assignments, error) {
		defer cancel()
		return opts.Pods.List(ctx)
	})
}

// collect takes the answer if it comes before expired is closed: what is known, whether the kubelet has answered or not.
func (s *podState) collect(now time.Time, expired <-chan struct{}, staleAfter time.Duration) {
	if !s.requested {
		expired = nil
	}
	r, ok := s.call.receive(expired)
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

// sourceState is nothing if no source is configured, and if there is no kubelet on this node.
func (s *podState) sourceState() (gpu.SourceState, bool) {
	if s.success.IsZero() && s.err == nil || errors.Is(s.err, gpu.ErrNoKubelet) {
		return gpu.SourceState{}, false
	}
	return gpu.SourceState{Name: gpu.SourceKubelet, Up: s.err == nil, Stale: s.stale, LastSuccess: s.success, Err: s.err}, true
}

// cancelAndWait ends the question under way.
func (s *podState) cancelAndWait() {
	if s.call.running {
		s.cancel()
		<-s.call.done
		s.call.running = false
	}
}
