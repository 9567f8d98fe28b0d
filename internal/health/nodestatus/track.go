package nodestatus

import (
	"fmt"
	"slices"
	"strings"
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

// reasonStopped is the reason of a condition whose exporter was stopped, and stoppedMessage the
// beginning of its message: what the condition was follows, as "True, GPUsHealthy: MESSAGE". People
// read it, and so does the next run.
const (
	reasonStopped  = "ExporterStopped"
	stoppedMessage = "mig-exporter has stopped on this node; before that it was "
)

// stopped returns a condition as it is shown once the exporter has stopped.
func stopped(was Condition) Condition {
	return Condition{
		Type:    was.Type,
		Status:  Unknown,
		Reason:  reasonStopped,
		Message: stoppedMessage + fmt.Sprintf("%s, %s: %s", was.Status, was.Reason, was.Message),
	}
}

// beforeStop returns what a condition was before the exporter stopped; false if the exporter has not
// stopped, or the message is not ours.
func beforeStop(c Condition) (was Condition, ok bool) {
	text, ours := strings.CutPrefix(c.Message, stoppedMessage)
	status, rest, hasStatus := strings.Cut(text, ", ")
	reason, message, hasReason := strings.Cut(rest, ": ")

	was = Condition{Type: c.Type, Status: Status(status), Reason: reason, Message: message}
	ok = c.Status == Unknown && c.Reason == reasonStopped && ours && hasStatus && hasReason &&
		rank(was.Status) >= 0

	return was, ok
}

// holdFor is how long a condition must have been better than it is shown before it is shown as
// better. It becomes worse at once.
const holdFor = 5 * time.Minute

// track is one condition as we show it.
type track struct {
	Condition
	transition time.Time // when its status last changed
	resumed    bool      // the node shows that the exporter has stopped, and not this

	// better is the worst of what the condition was since it began to be better than it is shown;
	// zero if it is not.
	better      Condition
	betterSince time.Time
}

// IsWorse reports whether a status is worse than another: False is worse than Unknown, and that worse
// than True.
func (s Status) IsWorse(than Status) bool { return rank(s) < rank(than) }

// rank orders statuses, the worst first.
func rank(s Status) int { return slices.Index([]Status{False, Unknown, True}, s) }

// update takes what the condition is at a time. It reports whether its status has changed.
func (t *track) update(is Condition, now time.Time) bool {
	if t.resumed {
		t.transition = now
		t.resumed = false
	}

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
