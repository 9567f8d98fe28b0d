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

// reasonStopped is the reason of a condition whose exporter has stopped. stoppedMessage begins its
// message; the former condition follows, as "True, GPUsHealthy: MESSAGE". People read that message,
// and beforeStop parses it in the next run.
const (
	reasonStopped  = "ExporterStopped"
	stoppedMessage = "mig-exporter has stopped on this node; before that it was "
)

// stopped returns the condition that we show in place of was while no exporter runs.
func stopped(was Condition) Condition {
	return Condition{
		Type:    was.Type,
		Status:  Unknown,
		Reason:  reasonStopped,
		Message: stoppedMessage + fmt.Sprintf("%s, %s: %s", was.Status, was.Reason, was.Message),
	}
}

// beforeStop returns the condition that stopped has replaced by c; false if c is not a result of
// stopped.
func beforeStop(c Condition) (was Condition, ok bool) {
	text, ours := strings.CutPrefix(c.Message, stoppedMessage)
	status, rest, hasStatus := strings.Cut(text, ", ")
	reason, message, hasReason := strings.Cut(rest, ": ")

	was = Condition{Type: c.Type, Status: Status(status), Reason: reason, Message: message}
	ok = c.Status == Unknown && c.Reason == reasonStopped && ours && hasStatus && hasReason &&
		rank(was.Status) >= 0

	return was, ok
}

// holdFor is how long a condition must be better than the one that we show before we show that. We
// show a worse one at once.
const holdFor = 5 * time.Minute

// track is one condition as we show it.
type track struct {
	Condition            // what we show
	transition time.Time // when its status last changed
	resumed    bool      // the node still shows that the exporter has stopped, instead of Condition

	// better is the worst condition since betterSince, when the condition became better than the
	// one that we show. Both are zero if it is not better.
	better      Condition
	betterSince time.Time
}

// IsWorse reports whether a status is worse than another: False is worse than Unknown, and Unknown
// is worse than True.
func (s Status) IsWorse(than Status) bool { return rank(s) < rank(than) }

// rank orders statuses, the worst first.
func rank(s Status) int { return slices.Index([]Status{False, Unknown, True}, s) }

// update sets what the condition is now, and shows it unless it is better than what we show and has
// not been so for holdFor. It reports whether the status that we show has changed.
func (t *track) update(current Condition, now time.Time) (changed bool) {
	if t.resumed {
		t.transition = now
		t.resumed = false
	}

	if t.Status == "" || rank(current.Status) <= rank(t.Status) {
		return t.show(current, now)
	}

	switch {
	case t.betterSince.IsZero() || now.Before(t.betterSince): // the latter if the clock was set back
		t.better = current
		t.betterSince = now
	case rank(current.Status) <= rank(t.better.Status):
		t.better = current
	}

	if now.Sub(t.betterSince) < holdFor {
		return false
	}

	return t.show(t.better, now)
}

// show makes c the condition that we show, and reports whether the status has changed.
func (t *track) show(c Condition, now time.Time) (changed bool) {
	changed = t.Status != c.Status
	if changed {
		t.transition = now
	}

	t.Condition = c
	t.better = Condition{}
	t.betterSince = time.Time{}

	return changed
}
