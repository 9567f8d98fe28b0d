package capture

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// Replay answers as a recorded driver did: during the first poll with what it answered in the first that was recorded, and
// so on; the last poll stays.
type Replay struct {
	lib     *library
	stepped bool
	beyond  time.Duration // how far a stepped clock went after the last poll; guarded by the timeline's mu
}

// NewReplay opens a recording. Its clock is the recorded one, moved by Advance, if it is stepped, and real time otherwise.
func NewReplay(rec *Recording, stepped bool) *Replay {
	return &Replay{lib: newLibrary(rec.clone(), nil), stepped: stepped}
}

// Library is the recorded driver.
func (r *Replay) Library() nvmlsource.Library { return r.lib }

// Now is the time of the current poll on a stepped clock.
func (r *Replay) Now() time.Time {
	if !r.stepped {
		return time.Now()
	}
	r.lib.time.mu.Lock()
	defer r.lib.time.mu.Unlock()
	of := &r.lib.rec.Recorded
	return of.Start.Add(of.Polls[r.lib.time.poll] + r.beyond)
}

// Next goes on to the next poll; the last stays. It is called between two polls.
func (r *Replay) Next() { r.next(0) }

// next goes on to the next poll, or moves the clock after the last one.
func (r *Replay) next(beyond time.Duration) {
	t := r.lib.time
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.poll == r.lib.rec.lastPoll() {
		r.beyond += beyond
		return
	}
	t.poll++
	t.wake()
}

// Advance goes on to the next poll and its time, however far off that is: each poll is answered as a recorded one. After
// the last poll the clock moves by the given time.
func (r *Replay) Advance(by time.Duration) error {
	switch {
	case !r.stepped:
		return errors.New("advance: the clock moves by itself; only a stepped clock can be advanced")
	case by < 0:
		return errors.New("advance by " + by.String() + ": time does not go back")
	}
	r.next(by)
	return nil
}

// settleTimeout bounds the wait for a queue of events that never works again.
const settleTimeout = 5 * time.Second

// Settle blocks until the events of the current poll have been delivered and their receiver waits for more, at most until
// the context ends.
func (r *Replay) Settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	r.lib.time.waitUntil(ctx, r.lib.settled)
}

// Close ends every call that hangs.
func (r *Replay) Close() error {
	t := r.lib.time
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.wake()
	return nil
}
