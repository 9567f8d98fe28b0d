package podresources

import (
	"math/rand/v2"
	"time"
)

// The delay doubles with each failure, from firstDelay to longestDelay. It varies by jitterShare,
// so that the exporters of a cluster do not retry at the same time.
const (
	firstDelay   = 500 * time.Millisecond
	longestDelay = 30 * time.Second
	jitterShare  = 0.2
)

// backoff keeps the error of a failed call until it is time to retry. The zero backoff has no
// error.
type backoff struct {
	delay time.Duration // after the last failure, without the random variation
	until time.Time     // when to retry
	err   error
}

func (b *backoff) reset() { *b = backoff{} }

// pendingError returns the last error while it is too early to try again.
func (b *backoff) pendingError(now time.Time) error {
	if b.err != nil && now.Before(b.until) {
		return b.err
	}

	return nil
}

func (b *backoff) recordFailure(now time.Time, err error) {
	b.delay = min(max(2*b.delay, firstDelay), longestDelay)
	factor := 1 - jitterShare + 2*jitterShare*rand.Float64()
	b.until = now.Add(time.Duration(float64(b.delay) * factor))
	b.err = err
}
