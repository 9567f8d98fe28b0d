package nvmlsource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// sessionChange shuts NVML down and opens it again without some GPUs.
type sessionChange struct {
	source   *Source
	reason   string
	released map[gpu.UUID]*gpu.ReleasedGPU // which GPUs are released after the change
	skip     map[gpu.UUID]bool             // those of them that the kernel driver has bound
	requests []*releaseRequest             // what it carries out
	reopens  bool                          // NVML is closed, and the change only tries again to open it
}

// run makes the change, or refuses it and leaves everything as it is. It answers the requests.
func (c *sessionChange) run(resume func(all bool)) {
	s := c.source
	began := time.Now()

	// We stop everything in this process that uses a handle, and then wait for the event queue.
	err := s.blockCalls()
	if err == nil {
		err = s.haltQueue()
	}

	if err == nil {
		// NVML is still open here: this is the last chance to see which GPUs it does not list.
		s.noteForeign()
		err = c.shutDown()
	}

	if err != nil {
		s.unblockCalls()
		resume(true)  // this change's pause alone: those of changes before it stand
		c.refuse(err) // if NVML is still open, the next Discover looks up the GPUs

		return
	}

	// From here on NVML is closed. We set the released GPUs before we open it again, so that a
	// request for one of them fails with gpu.ErrReleased.
	s.mu.Lock()
	s.session.released = c.released
	s.mu.Unlock()

	err = c.open()
	took := time.Since(began)

	s.unblockCalls()

	if !c.reopens { // a reopening paused nothing: see pauseOthers
		s.session.resume = append(s.session.resume, resume)
	}

	s.resumeOthers(len(c.skip) == 0)
	c.answer(err, took)
}

// answer logs the result of the change, and answers the requests. err is what open returned.
func (c *sessionChange) answer(err error, took time.Duration) {
	s := c.source
	s.session.loggedRefusal = ""

	couldNotClose := err != nil && s.countInits() > 0 // see closeAgain

	// The next change then tries again to open NVML, or to close it.
	if s.session.failed || couldNotClose {
		s.lengthenRetryWait()
	} else {
		s.session.retryWait = 0
	}

	switch {
	case couldNotClose:
		level.Warn(s.opts.Logger).Log("msg", "NVML may have a released GPU open", "to", c.reason, "err", err)
	case err != nil:
		level.Warn(s.opts.Logger).Log("msg", "NVML stays closed", "to", c.reason, "err", err)
	default:
		level.Info(s.opts.Logger).Log(
			"msg", "NVML was closed and opened again",
			"to", c.reason,
			"seconds", took.Seconds(),
		)
	}

	var unclosed error
	if couldNotClose {
		unclosed = err
	}

	for _, request := range c.requests {
		request.result <- s.resultOf(request, c.skip, unclosed, took)
	}
}

// resultOf returns the answer to a request that was carried out, or that had nothing to change. skip
// are the GPUs that NVML was to be opened without. unclosed is why NVML, which may have one of them
// open, could not be shut down; nil if it did not have to be.
func (s *Source) resultOf(
	r *releaseRequest,
	skip map[gpu.UUID]bool,
	unclosed error,
	took time.Duration,
) Released {
	result := Released{Closed: s.session.down, Took: took}

	// This concerns no GPU that is to be opened, and none that is unbound: no process has it open.
	if r.opens || !skip[r.id] {
		return result
	}

	// The operator unbinds a GPU that is answered as released, so we have to be certain now. The change
	// may have ended before it looked, or after a look that failed.
	result.StillOpen = cmp.Or(unclosed, s.checkClosed(map[gpu.UUID]bool{r.id: true}))

	return result
}

// isRequested reports whether an operator has requested the change.
func (c *sessionChange) isRequested() bool {
	return slices.ContainsFunc(c.requests, (*releaseRequest).isFromOperator)
}

// refuse answers the requests of operators, and keeps those that follow an event of the driver for
// the next change. It logs, once, why the change is not made yet.
func (c *sessionChange) refuse(err error) {
	s := c.source
	s.lengthenRetryWait()

	if text := err.Error(); text != s.session.loggedRefusal {
		s.session.loggedRefusal = text
		level.Warn(s.opts.Logger).Log(
			"msg", "NVML is not opened again yet",
			"to", c.reason,
			"err", err,
		)
	}

	for _, request := range c.requests {
		if request.isFromOperator() {
			request.result <- Released{Err: err}
		}
	}

	c.requests = slices.DeleteFunc(c.requests, (*releaseRequest).isFromOperator)
	c.requeue()
}

// lengthenRetryWait doubles the wait before the next change, after one was refused or has failed.
func (s *Source) lengthenRetryWait() {
	s.session.triedAt = s.opts.Now()
	s.session.retryWait = min(max(2*s.session.retryWait, minRetryWait), maxRetryWait)
}

// requeue keeps the requests for the next change.
func (c *sessionChange) requeue() {
	s := c.source
	s.mu.Lock()
	defer s.mu.Unlock()

	s.session.requests = append(s.session.requests, c.requests...)
}

// resumeOthers resumes other uses of NVML in this process that changes have ended. all says whether
// they may open all GPUs.
func (s *Source) resumeOthers(all bool) {
	for _, resume := range s.session.resume {
		resume(all)
	}

	if all {
		s.session.resume = nil
	}
}

// errInUse is why NVML cannot be shut down: unloading it under a running call would kill the
// process.
var errInUse = errors.New("NVML must not be shut down: calls of the driver have not returned")

// mustWaitToRetry reports whether the last change failed, or was refused, so recently that the next
// one has to wait.
func (s *Source) mustWaitToRetry() bool {
	since := s.opts.Now().Sub(s.session.triedAt)
	return since >= 0 && since < s.session.retryWait // the clock may have been set back
}

// findHang returns an error if a driver call is known to hang, so that NVML cannot be shut down. It
// waits for no call.
func (s *Source) findHang() error {
	if halts, ended := s.queue.isHalting(); halts && !ended {
		return errInUse
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	for use := range s.session.using {
		if use.isHung() {
			return errInUse
		}
	}

	return nil
}

// blockCalls makes calls that use handles of the driver fail from now on, and waits until none is
// under way. A reading ends with its present call.
func (s *Source) blockCalls() error {
	s.mu.Lock()
	unused := make(chan struct{})
	s.session.blocked.Store(true)

	s.session.unused = unused
	if len(s.session.using) == 0 {
		close(unused)
		s.session.unused = nil
	}

	s.mu.Unlock()

	timer := time.NewTimer(maxDrain)
	defer timer.Stop()

	select {
	case <-unused:
		return nil
	case <-timer.C:
	}

	return errInUse
}

// unblockCalls lets calls use handles of the driver again, unless NVML stays closed.
func (s *Source) unblockCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.session.blocked.Store(s.session.down != nil)
	s.session.unused = nil
}

// shutDown frees what was allocated, and shuts NVML down. No call and no wait for events is under
// way. If it fails, NVML is still open.
func (c *sessionChange) shutDown() error {
	s := c.source
	if s.countInits() == 0 {
		return nil
	}

	s.replaceSlots(nil)
	s.freeSamples()

	if err := s.shutDown(); err != nil {
		return err
	}

	s.initialised = false
	s.versionsRead = false
	s.lookups = map[int]lookup{}

	return nil
}

// open opens NVML without the GPUs to skip, and looks up the others. It returns why NVML stays closed,
// which is session.down, or why it could not be shut down again although a GPU to skip may be open: see
// closeAgain.
func (c *sessionChange) open() error {
	s := c.source
	s.session.skipped = c.skip
	s.session.down = nil
	s.session.failed = false
	c.setTargets()

	if err := s.checkClosed(c.skip); err != nil {
		// What keeps the GPU open, or keeps us from looking, can end by itself. Then we open NVML.
		s.session.down = fmt.Errorf("%w: after it was shut down, %w", gpu.ErrLibraryClosed, err)
		s.session.failed = true

		return s.session.down
	}

	if err := s.initialise(); err != nil {
		s.session.down = closedError(err)
		s.session.failed = true

		return s.session.down
	}

	if len(c.skip) == 0 {
		return nil // Discover looks up the GPUs
	}

	// We look up the others now, since a lookup may open a GPU to skip. We ignore a lookup's own
	// error: the next Discover looks again.
	_ = s.listGPUs(attachTimeout)

	if err := s.checkClosed(c.skip); err != nil {
		return c.closeAgain(fmt.Errorf("after only the others were looked up, %w", err))
	}

	return nil
}

// closedError returns the error of an nvmlInit that failed after a change had shut NVML down. It
// wraps gpu.ErrLibraryClosed, since the GPUs may be well, unless the driver is gone or was
// replaced.
func closedError(err error) error {
	if errors.Is(err, gpu.ErrNoDriver) || errors.Is(err, gpu.ErrVersionMismatch) {
		return err
	}

	return fmt.Errorf("%w: %w", gpu.ErrLibraryClosed, err)
}

// closeAgain shuts NVML down, so that it stays closed, and returns the reason: opened says which
// released GPU is open, or that this is unknown. If a call hangs, or nvmlShutdown fails, a later change
// tries again, and if it is unknown which GPUs are open. If a call hangs, the other GPUs are read until
// then.
func (c *sessionChange) closeAgain(opened error) error {
	s := c.source

	err := s.blockCalls()
	if err == nil {
		err = s.haltQueue()
	}

	if err != nil {
		return fmt.Errorf("%w: %w", opened, err)
	}

	// This stands even if nvmlShutdown fails: by then shutDown has forgotten the GPUs, and none is
	// read until a later change has closed NVML (reasonToReopen). We try again only if we could not
	// look: lookups that have opened the GPU would do it again.
	s.session.down = fmt.Errorf("%w: %w", gpu.ErrLibraryClosed, opened)
	s.session.failed = errors.Is(opened, errOpenUnknown)

	if err := c.shutDown(); err != nil {
		s.session.down = fmt.Errorf("%w: %w", s.session.down, err)
	}

	return s.session.down
}

// errOpenUnknown says that we could not look which GPUs are open.
var errOpenUnknown = errors.New("it is not known which GPUs this process has open")

// checkClosed returns an error unless it is certain that this process has none of the GPUs to skip
// open.
func (s *Source) checkClosed(skip map[gpu.UUID]bool) error {
	if len(skip) == 0 {
		return nil
	}

	if s.opts.Opening.OpenMinors == nil {
		return errOpenUnknown
	}

	open, err := s.opts.Opening.OpenMinors()
	if err != nil {
		return fmt.Errorf("%w: %w", errOpenUnknown, err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	for id := range skip {
		if minor, ok := s.session.known[id].Minor.Get(); ok && slices.Contains(open, minor) {
			return fmt.Errorf("this process has the released GPU %s open (/dev/nvidia%d)", id, minor)
		}
	}

	return nil
}
