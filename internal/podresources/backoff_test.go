package podresources

import (
	"errors"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	var b backoff

	now := time.Unix(1000, 0)
	if err := b.pendingError(now); err != nil {
		t.Fatalf("a fresh backoff waits: %v", err)
	}

	failure := errors.New("refused")
	want := firstDelay

	for range 10 {
		b.recordFailure(now, failure)

		if err := b.pendingError(now.Add(time.Duration(float64(want)*(1-jitterShare)) - 1)); !errors.Is(err, failure) {
			t.Errorf("after %v it tries again too early (%v)", want, err)
		}

		now = now.Add(time.Duration(float64(want)*(1+jitterShare)) + 1)
		if err := b.pendingError(now); err != nil {
			t.Errorf("after more than %v it still waits", want)
		}

		want = min(2*want, longestDelay)
	}

	b.recordFailure(now, failure)
	b.reset()

	if err := b.pendingError(now); err != nil {
		t.Errorf("it waits after a reset: %v", err)
	}

	b.recordFailure(now, failure)

	if b.retry.Wait != firstDelay {
		t.Errorf("the first delay after a reset is %v", b.retry.Wait)
	}
}
