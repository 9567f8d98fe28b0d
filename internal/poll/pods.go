package poll

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// podState is the last answer about the holders of devices.
type podState struct {
	call      asyncCall[gpu.Assignments]
	cancel    context.CancelFunc
	requested bool // in this cycle
	last      gpu.Assignments
	known     bool      // last is set, and the node has a kubelet
	success   time.Time // of the last answer; zero before the first
	stale     bool      // the kubelet does not answer, and its last answer is still in use
	err       error     // of the last call; wraps gpu.ErrNoKubelet if the node has no kubelet
}

// request starts to list the holders, unless an earlier call has not returned.
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

// collect receives the result, waiting until expired is closed. Even with an error the result has the holders that are
// known.
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

// sourceState returns the state of the kubelet; false if it is not asked, or the node has none.
func (s *podState) sourceState() (gpu.SourceState, bool) {
	if s.success.IsZero() && s.err == nil || errors.Is(s.err, gpu.ErrNoKubelet) {
		return gpu.SourceState{}, false
	}
	return gpu.SourceState{Name: gpu.SourceKubelet, Up: s.err == nil, Stale: s.stale, LastSuccess: s.success, Err: s.err}, true
}

// cancelAndWait cancels the call under way and waits for its end.
func (s *podState) cancelAndWait() {
	if s.call.running {
		s.cancel()
		<-s.call.done
		s.call.running = false
	}
}
