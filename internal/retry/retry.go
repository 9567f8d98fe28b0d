// Package retry spaces attempts.
package retry

import (
	"context"
	"time"
)

// Backoff is when something is tried again. The wait doubles with each failure. A zero Backoff is
// due.
type Backoff struct {
	Next time.Time // of the next attempt
	wait time.Duration
}

// IsDue reports whether it is time for an attempt.
func (b *Backoff) IsDue(now time.Time) bool { return !now.Before(b.Next) }

// Postpone records a failure. The first wait and the longest one are the same for all failures.
func (b *Backoff) Postpone(now time.Time, first, longest time.Duration) {
	b.wait = min(max(2*b.wait, first), longest)
	b.Next = now.Add(b.wait)
}

// Sleep returns after a time, or with the context's error when that ends before.
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
