package capture

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// Replay answers as a recorded driver did: in the first poll with the answers of the first recorded
// poll, and so on. After the last recorded poll its answers remain.
type Replay struct {
	lib     *library
	stepped bool
	beyond  time.Duration // how far a stepped clock went after the last poll; guarded by the timeline's mu
}

// NewReplay returns a replay of a recording. If it is stepped, its clock is the recorded one, which
// Advance moves; otherwise it is real time.
func NewReplay(rec *Recording, stepped bool) *Replay {
	return &Replay{lib: newLibrary(rec.clone(), nil), stepped: stepped}
}

// Library returns the recorded driver.
func (r *Replay) Library() nvmlsource.Library { return r.lib.seam }

// Now returns the time of the current poll on a stepped clock, and real time otherwise.
func (r *Replay) Now() time.Time {
	if !r.stepped {
		return time.Now()
	}

	r.lib.time.mu.Lock()
	defer r.lib.time.mu.Unlock()

	rec := &r.lib.rec.Recorded

	return rec.Start.Add(rec.Polls[r.lib.time.poll] + r.beyond)
}

// Next goes on to the next poll, if there is one. It must be called between two polls.
func (r *Replay) Next() { r.next(0) }

// next goes on to the next poll. After the last poll it moves the clock instead.
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

// Advance goes on to the next poll and its recorded time, however long after the current one that
// is. After the last poll it moves the clock by the given duration.
func (r *Replay) Advance(by time.Duration) error {
	switch {
	case !r.stepped:
		return errors.New(
			"advance: the clock moves by itself; only a stepped clock can be advanced",
		)
	case by < 0:
		return errors.New("advance by " + by.String() + ": time does not go back")
	}

	r.next(by)

	return nil
}

// handledTimeout bounds the wait for a queue of events that does not work any more.
const handledTimeout = 5 * time.Second

// AwaitHandled blocks until the events of the current poll have been delivered and their receiver
// waits for more, at most until the context ends.
func (r *Replay) AwaitHandled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handledTimeout)
	defer cancel()
	r.lib.time.waitUntil(ctx, r.lib.isHandled)
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
