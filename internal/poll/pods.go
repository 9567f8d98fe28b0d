package poll

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// podState is the last mapping of devices to pods and how old it is.
type podState struct {
	list    call[gpu.Assignments]
	cancel  context.CancelFunc
	asked   bool
	fresh   bool // started in this cycle
	last    gpu.Assignments
	known   bool      // there is a mapping, fresh or stale
	success time.Time // of the last answer; zero before the first
	err     error
	stale   time.Duration
}

// start asks who holds what, unless an earlier question has not been answered.
func (s *podState) start(ctx context.Context, now time.Time, opts Options) {
	s.asked, s.stale = true, opts.PodsStaleAfter
	if s.list.running {
		s.fresh = false
		return
	}
	// The deadline is real time: a hung kubelet hangs for real, whatever the simulated clock says.
	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	s.cancel = cancel
	s.fresh = s.list.start(now, func() (gpu.Assignments, error) {
		defer cancel()
		return opts.Pods.List(ctx)
	})
}

// finish takes the answer if it comes before expired is closed, and drops the last mapping once it is too old.
func (s *podState) finish(now time.Time, expired <-chan struct{}) {
	if !s.asked {
		return
	}
	if !s.fresh {
		expired = nil
	}
	if r, ok := s.list.take(expired); ok {
		s.err = r.err
		if r.err == nil {
			s.last, s.success, s.known = r.value, r.started, true
		}
	}
	if s.known && now.Sub(s.success) > s.stale {
		s.last, s.known = gpu.Assignments{}, false
	}
}

// state is nothing where there is no kubelet on this node: nobody was asked, or its socket has never been there.
func (s *podState) state() (gpu.SourceState, bool) {
	if !s.asked || s.success.IsZero() && (s.err == nil || errors.Is(s.err, gpu.ErrNotFound)) {
		return gpu.SourceState{}, false
	}
	return gpu.SourceState{
		Name:        gpu.SourceKubelet,
		Up:          s.err == nil,
		Stale:       s.err != nil && s.known,
		LastSuccess: s.success,
		Err:         s.err,
	}, true
}

// join ends the question under way.
func (s *podState) join() {
	if s.list.running {
		s.cancel()
		<-s.list.done
		s.list.running = false
	}
}
