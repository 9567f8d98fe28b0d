package podresources

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/retry"
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
	retry retry.Backoff
	err   error // of the last call; nil if it has not failed
}

func (b *backoff) reset() { *b = backoff{} }

// pendingError returns the last error while it is too early to try again.
func (b *backoff) pendingError(now time.Time) error {
	if b.err != nil && !b.retry.IsDue(now) {
		return b.err
	}

	return nil
}

func (b *backoff) recordFailure(now time.Time, err error) {
	b.retry.PostponeApart(now, firstDelay, longestDelay, jitterShare)
	b.err = err
}
