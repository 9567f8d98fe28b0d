package nodestatus

import (
	"slices"
	"time"
)

// Status is the status of a condition.
type Status string

// The statuses, as Kubernetes has them.
const (
	True    Status = "True"
	False   Status = "False"
	Unknown Status = "Unknown"
)

// Condition is a condition of the node.
type Condition struct {
	Type, Reason, Message string
	Status                Status
}

// holdFor is how long a condition must have been better than it is shown before it is shown as
// better. It becomes worse at once.
const holdFor = 5 * time.Minute

// track is one condition as we show it.
type track struct {
	Condition
	transition time.Time // when its status last changed

	// better is the worst of what the condition was since it began to be better than it is shown;
	// zero if it is not.
	better      Condition
	betterSince time.Time
}

// rank orders statuses, the worst first.
func rank(s Status) int { return slices.Index([]Status{False, Unknown, True}, s) }

// update takes what the condition is at a time. It reports whether its status has changed.
func (t *track) update(is Condition, now time.Time) bool {
	if t.Status == "" || rank(is.Status) <= rank(t.Status) {
		return t.show(is, now)
	}

	switch {
	case t.betterSince.IsZero() || now.Before(t.betterSince): // the latter if the clock was set back
		t.better = is
		t.betterSince = now
	case rank(is.Status) <= rank(t.better.Status):
		t.better = is
	}

	if now.Sub(t.betterSince) < holdFor {
		return false
	}

	return t.show(t.better, now)
}

// show shows a condition from now on. It reports whether its status has changed.
func (t *track) show(c Condition, now time.Time) bool {
	changed := t.Status != c.Status
	if changed {
		t.transition = now
	}

	t.Condition = c
	t.better = Condition{}
	t.betterSince = time.Time{}

	return changed
}
