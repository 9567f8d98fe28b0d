package poll

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// podState is the call that asks the kubelet for the holders of devices, and its last result.
type podState struct {
	sourceStatus
	call      asyncCall[gpu.Assignments]
	cancel    context.CancelFunc // of the call
	requested bool               // the call was started in this cycle
	last      gpu.Assignments
	known     bool // last is set, and the node has a kubelet, or may have one
	stale     bool // the kubelet does not answer, and we still use its last answer
}

// request starts to list the holders, unless an earlier call has not returned.
func (s *podState) request(ctx context.Context, now time.Time, opts *Options) {
	if s.call.running {
		s.requested = false
		return
	}

	// The deadline is in real time: a simulated clock would not end the call to a hung kubelet.
	ctx, cancel := context.WithTimeout(ctx, max(opts.Timeout, opts.Grace))
	s.cancel = cancel
	s.requested = s.call.start(now, func() (gpu.Assignments, error) {
		defer cancel()
		return opts.Pods.List(ctx)
	})
}

// collect receives the result of the call. It waits until expired is closed, but not for the call
// of an earlier cycle. Even with an error the result has the holders that we know.
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
	s.last = r.value
	s.known = !errors.Is(r.err, gpu.ErrNoKubelet)
}

// sources returns the state of the kubelet in a list of one; an empty list if we do not call it, or
// the node has none.
func (s *podState) sources() []gpu.SourceState {
	if errors.Is(s.err, gpu.ErrNoKubelet) {
		return nil
	}

	states := s.sourceStatus.sources(gpu.SourceKubelet)
	for i := range states {
		states[i].Stale = s.stale
	}

	return states
}

// cancelAndWait cancels the call under way and waits for its end.
func (s *podState) cancelAndWait() {
	if s.call.running {
		s.cancel()
		<-s.call.done
		s.call.running = false
	}
}
