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
	fresh   bool // asked in this cycle
	last    gpu.Assignments
	known   bool      // there is a mapping, fresh or stale
	success time.Time // of the last answer; zero before the first
	err     error
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

// finish takes the answer if it comes before expired is closed, and drops the last mapping once it is too old.
func (s *podState) finish(now time.Time, expired <-chan struct{}, staleAfter time.Duration) {
	if !s.fresh {
		expired = nil
	}
	if r, ok := s.list.take(expired); ok {
		s.err = r.err
		if r.err == nil {
			s.last, s.success, s.known = r.value, r.started, true
		}
	}
	if s.known && now.Sub(s.success) > staleAfter {
		s.last, s.known = gpu.Assignments{}, false
	}
}

// state is nothing where nobody was asked, and where there is no kubelet on this node: its socket has never been there
// and is not expected.
func (s *podState) state(expected bool) (gpu.SourceState, bool) {
	if s.success.IsZero() && (s.err == nil || !expected && errors.Is(s.err, gpu.ErrNotFound)) {
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
