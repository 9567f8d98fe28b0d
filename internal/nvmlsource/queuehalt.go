package nvmlsource

import "time"

// haltQueue ends the queue's goroutine, and returns once no call of the queue is under way and it
// can be started again. If a call hangs, it returns an error while the halt goes on: a later
// haltQueue joins it, or Discover starts the queue again when the call has returned (resumeQueue).
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

// beginHalt stops the queue unless a halt is under way. halted is closed once no call of the queue
// is under way.
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
	done := make(chan struct{})
	q.halted = done
	q.haltedAt = time.Now()
	go func() {
		defer s.leave()
		defer close(done)
		<-ended
		q.registering.Wait()
	}()

	return done, nil
}

// resumeQueue starts the queue again when a halt that took too long has ended. The caller makes
// sure that no change of the session is under way.
func (s *Source) resumeQueue() {
	if halts, ended := s.queue.isHalting(); !halts || !ended {
		return
	}

	s.queue.reset()
	var gpus []*gpuState

	for _, sl := range s.slots {
		if sl.state != nil {
			gpus = append(gpus, sl.state)
		}
	}

	s.queue.startRegistering(gpus)
}

// isHalting reports whether haltQueue has stopped the queue, and whether the queue's last call has
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

// reset makes a halted queue ready to be started again. It keeps the watcher; events in the queue
// are lost. No call of the queue is under way.
func (q *eventQueue) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.quit = nil
	q.ended = make(chan struct{})
	q.halted = nil
	q.running = false
	q.stopped = false
	q.lostGPU = false
	q.setErr = nil
	q.gpus = nil
	q.registrations = map[Device]*registration{}
}
