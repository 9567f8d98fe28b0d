package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestBackoff: the wait doubles from the first to the longest.
func TestBackoff(t *testing.T) {
	var b Backoff

	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cmptest.Equal(t, "at first", b.IsDue(now), true)

	for _, wait := range []time.Duration{1, 2, 4, 5, 5} {
		b.Postpone(now, time.Second, 5*time.Second)
		cmptest.Equal(t, "too early", b.IsDue(now.Add(wait*time.Second-1)), false)

		now = now.Add(wait * time.Second)
		cmptest.Equal(t, "in time", b.IsDue(now), true)
	}
}

// TestPostponeApart: the waits double, and each is varied by up to a share.
func TestPostponeApart(t *testing.T) {
	var b Backoff

	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	waits := map[time.Duration]bool{}

	for _, seconds := range []time.Duration{1, 2, 4, 5, 5} {
		b.PostponeApart(now, time.Second, 5*time.Second, 0.2)
		wait := seconds * time.Second
		cmptest.Equal(t, "wait", b.Wait, wait)

		varied := b.Next.Sub(now)
		if varied < wait*8/10 || varied > wait*12/10 {
			t.Errorf("%s, want %s or a fifth more or less", varied, wait)
		}

		waits[varied-wait] = true
	}

	if len(waits) == 1 {
		t.Errorf("all waits are varied by the same: %v", waits)
	}
}

// TestSleep: it lasts for the time, or until the context ends.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		cmptest.Equal(t, "error", Sleep(t.Context(), time.Minute), nil)
		cmptest.Equal(t, "time", time.Since(began), time.Minute)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		if err := Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}

		cmptest.Equal(t, "time of both", time.Since(began), time.Minute+time.Second)
	})
}
