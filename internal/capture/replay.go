package capture

import (
	"context"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// Replay answers as a recorded driver did: during the first poll with what was said in the first moment, and so on; the
// last moment stays.
type Replay struct {
	lib     *library
	rec     *Recording
	stepped bool
	beyond  time.Duration // how far a stepped clock went after the last moment; guarded by the tape's mu
}

// NewReplay opens a recording. Its clock is the recorded one, moved by Advance, where it is stepped; else it is real time.
func NewReplay(rec *Recording, stepped bool) *Replay {
	t := newTape(true)
	l := &library{
		tape: t, node: newEntity(t, rec.node),
		events: &eventQueue{records: rec.events, sets: map[*eventSet]bool{}},
	}
	for _, g := range rec.gpus {
		l.devices = append(l.devices, newDevice(l, g))
	}
	return &Replay{lib: l, rec: rec, stepped: stepped}
}

// Library is the recorded driver.
func (r *Replay) Library() nvmlsrc.Library { return r.lib }

// Now is the time of the present moment on a stepped clock.
func (r *Replay) Now() time.Time {
	if !r.stepped {
		return time.Now()
	}
	r.lib.tape.mu.Lock()
	defer r.lib.tape.mu.Unlock()
	return r.rec.Start.Add(r.rec.Moments[r.lib.tape.moment] + r.beyond)
}

// Next brings on the next moment; the last stays. It is called between two polls.
func (r *Replay) Next() {
	t := r.lib.tape
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moment+1 < len(r.rec.Moments) {
		t.moment++
		t.wake()
	}
}

// Advance brings on the next moment with its time, however far off it is: each poll is answered as a recorded one. After
// the last moment the clock moves as told.
func (r *Replay) Advance(by time.Duration) error {
	switch {
	case !r.stepped:
		return errors.New("advance: the clock moves by itself; only a stepped clock can be advanced")
	case by < 0:
		return errors.New("advance by " + by.String() + ": time does not go back")
	}
	t := r.lib.tape
	t.mu.Lock()
	last := t.moment+1 == len(r.rec.Moments)
	if last {
		r.beyond += by
	}
	t.mu.Unlock()
	if !last {
		r.Next()
	}
	return nil
}

// settleTimeout bounds the wait for a queue of events that never works again.
const settleTimeout = 5 * time.Second

// Settle waits until the events of the present moment have been taken and whoever takes them is back for more, at most
// until the context ends.
func (r *Replay) Settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	ended := make(chan time.Time)
	stop := context.AfterFunc(ctx, func() { close(ended) })
	defer stop()
	t := r.lib.tape
	t.waitUntil(ended, func() bool { return r.lib.events.settled(t.moment) })
}

// Close ends every call that hangs.
func (r *Replay) Close() error {
	t := r.lib.tape
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.wake()
	return nil
}
