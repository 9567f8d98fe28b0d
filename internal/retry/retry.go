// Package retry says when to try again.
package retry

import (
	"context"
	"time"
)

// Backoff says when to try again. The wait doubles with each failure. The zero Backoff is due.
type Backoff struct {
	Next time.Time     // time of the next attempt
	wait time.Duration // after the last failure
}

// IsDue reports whether it is time for an attempt.
func (b *Backoff) IsDue(now time.Time) bool { return !now.Before(b.Next) }

// Postpone records a failure at now. first and longest bound the wait; they must be the same in all
// calls.
func (b *Backoff) Postpone(now time.Time, first, longest time.Duration) {
	b.wait = min(max(2*b.wait, first), longest)
	b.Next = now.Add(b.wait)
}

// Sleep blocks for a time and returns nil. If ctx ends before, it returns the context's error.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
