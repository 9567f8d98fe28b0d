package nvmlsource

import "time"

// haltQueue makes the goroutine end, and returns once no call of the queue is under way and it can
// be started again. If a call hangs, it returns an error; the halt goes on, a later haltQueue joins
// it, and Discover starts the queue again once that call has returned.
func (s *Source) haltQueue() error {
	halted, err := s.beginHalt()
	if err != nil {
		return err
	}

	timer := time.NewTimer(lookupTimeout)
	defer timer.Stop()

	select {
	case <-halted:
		s.queue.reset()
		return nil
	case <-timer.C:
	}

	return errInUse
}

// beginHalt stops the queue unless a halt is under way. The channel is closed once no call of the
// queue is.
func (s *Source) beginHalt() (halted <-chan struct{}, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}

	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.halted != nil {
		s.leave()
		return q.halted, nil
	}

	ended := q.stopLocked()
	closed := make(chan struct{})
	q.halted = closed
	q.haltedAt = time.Now()
	go func() {
		defer s.leave()
		defer close(closed)
		<-ended
		q.registering.Wait()
	}()

	return closed, nil
}

// resumeQueue starts the queue again after a halt that took too long, once it has ended. No change
// of the session is under way.
func (s *Source) resumeQueue() {
	if halts, ended := s.queue.isHalting(); !halts || !ended {
		return
	}

	s.queue.reset()
	var gpus []*gpuState

	for _, at := range s.slots {
		if at.state != nil {
			gpus = append(gpus, at.state)
		}
	}

	s.queue.startRegistering(gpus)
}

// isHalting reports whether the queue is stopped by haltQueue, and whether the last call has
// returned since.
func (q *eventQueue) isHalting() (halts, ended bool) {
	q.mu.Lock()
	halted := q.halted
	q.mu.Unlock()

	if halted == nil {
		return false, false
	}

	select {
	case <-halted:
		return true, true
	default:
		return true, false
	}
}

// reset makes a queue that was halted as good as new, with its watcher. What was in it is lost. No
// call of it is under way.
func (q *eventQueue) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.quit = make(chan struct{})
	q.ended = make(chan struct{})
	q.halted = nil
	q.running = false
	q.stopped = false
	q.lostGPU = false
	q.setErr = nil
	q.gpus = nil
	q.registrations = map[Device]*registration{}
}
