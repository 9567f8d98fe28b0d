// Package retry says when to try again.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff says when to try again. The wait doubles with each failure. The zero Backoff is due.
type Backoff struct {
	Next time.Time     // time of the next attempt
	Wait time.Duration // after the last failure, without Spread; 0 if none was recorded
}

// IsDue reports whether it is time for an attempt.
func (b *Backoff) IsDue(now time.Time) bool { return !now.Before(b.Next) }

// Postpone records a failure at now. first and longest bound the wait; they must be the same in all
// calls.
func (b *Backoff) Postpone(now time.Time, first, longest time.Duration) {
	b.Wait = min(max(2*b.Wait, first), longest)
	b.Next = now.Add(b.Wait)
}

// PostponeApart is Postpone with a wait that is varied by Spread.
func (b *Backoff) PostponeApart(now time.Time, first, longest time.Duration, share float64) {
	b.Postpone(now, first, longest)
	b.Next = now.Add(Spread(b.Wait, share))
}

// Spread lengthens or shortens d randomly by up to share of it, so that the programs of a cluster do
// not all try at the same time: with a share of 0.1, 30 s become 27 to 33 s.
func Spread(d time.Duration, share float64) time.Duration {
	return time.Duration(float64(d) * (1 - share + 2*share*rand.Float64()))
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
