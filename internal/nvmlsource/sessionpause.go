package nvmlsource

import (
	"context"
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// pendingChange is a change that waits for other uses of the GPUs in this process to end. Meanwhile
// NVML is open and in use.
type pendingChange struct {
	change *sessionChange
	ended  chan struct{}  // closed once resume and err are set
	waited bool           // a Discover has waited for it
	resume func(all bool) // resumes the other uses
	err    error          // why the other uses do not end
}

// beginPausing starts to end other uses of the GPUs in this process, in a goroutine that uses
// nothing of the session. The caller has called enter; the goroutine calls leave.
func (c *sessionChange) beginPausing() *pendingChange {
	p := &pendingChange{change: c, ended: make(chan struct{})}
	mayOpen := c.source.opts.MayOpen

	if !c.source.initialised {
		mayOpen = nil
	}

	go func() {
		defer c.source.leave()
		defer close(p.ended)
		p.resume, p.err = c.pauseOthers(mayOpen)
	}()

	return p
}

// pauseOthers ends other uses of the GPUs in this process, or returns why they go on. mayOpen is
// nil if NVML is closed, so that it need not be shut down.
func (c *sessionChange) pauseOthers(
	mayOpen func(confidential gpu.Opt[bool]) error,
) (resume func(all bool), err error) {
	if c.reopens {
		return func(bool) {}, nil
	}

	if mayOpen != nil {
		// Under confidential computing the GPUs can become unusable when the last process closes
		// them.
		if err := mayOpen(c.source.askConfidential()); err != nil {
			return nil, fmt.Errorf("NVML must not be shut down: %w", err)
		}
	}

	if c.source.opts.Opening.Pause == nil {
		return func(bool) {}, nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), maxPause)
	defer cancel()

	return c.source.opts.Opening.Pause(ctx)
}

// hasEnded reports whether pauseOthers has returned. The first call waits for that, for at most
// lookupTimeout.
func (p *pendingChange) hasEnded() bool {
	if !p.waited {
		timer := time.NewTimer(lookupTimeout)
		defer timer.Stop()

		select {
		case <-p.ended:
		case <-timer.C:
		}
	}

	p.waited = true

	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// endPausing begins the change for which other uses of the GPUs have ended, or refuses it if they
// go on.
func (s *Source) endPausing() {
	p := s.session.pending
	if p == nil || !p.hasEnded() {
		return
	}

	s.session.pending = nil

	if p.err != nil {
		p.change.refuse(p.err)
		return
	}

	if err := s.enter(); err != nil { // Close was called meanwhile
		p.resume(true)
		p.change.refuse(err)

		return
	}

	done := make(chan struct{})
	s.session.change = done
	s.session.began = s.opts.Now()
	go func() {
		defer s.leave()
		defer close(done)
		p.change.run(p.resume)
	}()
}
