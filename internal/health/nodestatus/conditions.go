package nodestatus

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// heartbeat is how often we write the conditions if they do not change; tick is how often we look
// whether they have changed.
const (
	heartbeat = time.Minute
	tick      = time.Second
)

// maxMessage bounds a message, in bytes.
const maxMessage = 1024

func shorten(message string) string {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}

	return message
}

// ConditionOptions configure a Conditions.
type ConditionOptions struct {
	API  API
	Node string // its name
	// Read returns the current conditions, or false as long as it is too early to say. It must not
	// block.
	Read func() ([]Condition, bool)
	// Earlier, if not nil, is called once with each condition that an earlier run has left on the
	// node, as it was before that run stopped. since is the time that the node shows for it.
	Earlier func(was Condition, since time.Time)
	// Written, if not nil, is called with the time of each heartbeat that the API server has
	// accepted.
	Written func(time.Time)
	Now     func() time.Time // the node's clock, for the times in conditions
	Logger  log.Logger
}

// Conditions keeps conditions of the node current.
type Conditions struct {
	opts      ConditionOptions
	flushes   chan chan struct{} // requests of Flush; Run closes each when it is done
	tracks    []*track
	nodeRead  bool      // readNode has succeeded
	due       bool      // a status has changed and is not written yet
	lastWrite time.Time // zero before the first
	retry     retry.Backoff
	lastError string // the error that we have logged last; empty once we can write again
}

// NewConditions returns a Conditions, which does nothing until Run is called.
func NewConditions(opts ConditionOptions) *Conditions {
	return &Conditions{opts: opts, flushes: make(chan chan struct{})}
}

// Run writes the conditions until ctx ends. Then it writes that they are unknown. It returns nil.
func (c *Conditions) Run(ctx context.Context) error {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()

	for {
		c.update(ctx)

		select {
		case <-ticks.C:
		case done := <-c.flushes:
			c.update(ctx)
			close(done)
		case <-ctx.Done():
			c.stop(ctx)
			return nil
		}
	}
}

// Flush makes Run read the current conditions and write them if that is due. It blocks until this
// is done or ctx ends.
func (c *Conditions) Flush(ctx context.Context) {
	done := make(chan struct{})

	select {
	case c.flushes <- done:
	case <-ctx.Done():
		return
	}

	select {
	case <-done:
	case <-ctx.Done():
	}
}

// update writes the conditions if the status of one has changed or a heartbeat is due.
func (c *Conditions) update(ctx context.Context) {
	now := c.opts.Now()

	list, ok := c.opts.Read()
	if !ok {
		return
	}

	// First we need what an earlier run has left on the node: we go on from there.
	if !c.nodeRead {
		if !c.retry.IsDue(time.Now()) || !c.readNode(ctx) {
			return
		}
	}

	for _, current := range list {
		c.due = c.trackOf(current.Type).update(current, now) || c.due
	}

	age := now.Sub(c.lastWrite) // negative if the clock was set back
	isFresh := age >= 0 && age < heartbeat

	if !c.due && isFresh || !c.retry.IsDue(time.Now()) {
		return
	}

	if c.write(ctx, now) {
		c.due = false
		c.lastWrite = now

		if c.opts.Written != nil {
			c.opts.Written(now)
		}
	}
}

// stop writes that the conditions are unknown, and what they were. If we could not read the node,
// it leaves what the node shows.
func (c *Conditions) stop(ctx context.Context) {
	if !c.nodeRead {
		return
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()

	now := c.opts.Now()
	for _, t := range c.tracks {
		t.show(stopped(t.Condition), now)
	}

	c.write(ctx, now)
}

// trackOf returns the track of a type of condition, and creates it if there is none.
func (c *Conditions) trackOf(conditionType string) *track {
	for _, t := range c.tracks {
		if t.Type == conditionType {
			return t
		}
	}

	t := &track{Condition: Condition{Type: conditionType}}
	c.tracks = append(c.tracks, t)

	return t
}

// nodeCondition is a condition in a Node.
type nodeCondition struct {
	Type       string    `json:"type"`
	Status     Status    `json:"status"`
	Reason     string    `json:"reason"`
	Message    string    `json:"message"`
	Heartbeat  time.Time `json:"lastHeartbeatTime"`
	Transition time.Time `json:"lastTransitionTime"`
}

// nodeStatus is the part of a Node that we write. The API server merges conditions by type: our
// patch leaves the conditions of other programs unchanged.
type nodeStatus struct {
	Status struct {
		Conditions []nodeCondition `json:"conditions,omitempty"`
	} `json:"status"`
}

// readNode reads the conditions that the node shows. It sends an empty patch, because the API
// server answers that with the Node: so we need no other permission than for our patches.
func (c *Conditions) readNode(ctx context.Context) bool {
	var n nodeStatus

	if !c.patch(ctx, nodeStatus{}, &n) {
		return false
	}

	for _, shown := range n.Status.Conditions {
		if rank(shown.Status) < 0 { // not a status that we know
			continue
		}

		t := &track{
			Condition: Condition{Type: shown.Type, Status: shown.Status, Reason: shown.Reason,
				Message: shown.Message},
			transition: shown.Transition,
		}

		// We go on from the condition before the exporter stopped: to replace the exporter, as a
		// rollout does, is no fault of the node.
		if was, ok := beforeStop(t.Condition); ok {
			t.Condition = was
			t.resumed = true
			c.due = true
		}

		c.tracks = append(c.tracks, t)
	}

	c.dropForeign()
	c.nodeRead = true

	for _, t := range c.tracks {
		if c.opts.Earlier != nil && t.Status != "" {
			c.opts.Earlier(t.Condition, t.transition)
		}
	}

	return true
}

// dropForeign drops the tracks of conditions that other programs write.
func (c *Conditions) dropForeign() {
	list, _ := c.opts.Read()
	own := make([]*track, 0, len(list))

	for _, current := range list {
		own = append(own, c.trackOf(current.Type))
	}

	c.tracks = own
}

// write writes all conditions with a heartbeat at now, and reports whether it could.
func (c *Conditions) write(ctx context.Context, now time.Time) (ok bool) {
	var n nodeStatus

	for _, t := range c.tracks {
		n.Status.Conditions = append(n.Status.Conditions, nodeCondition{
			Type: t.Type, Status: t.Status, Reason: t.Reason, Message: shorten(t.Message),
			Heartbeat:  now.UTC().Truncate(time.Second),
			Transition: t.transition.UTC().Truncate(time.Second),
		})
	}

	return c.patch(ctx, n, nil)
}

// patch patches the node's status, decodes the Node into answer unless that is nil, and reports
// whether the API server has accepted the patch. It logs each new error, and when writing works
// again.
func (c *Conditions) patch(ctx context.Context, body nodeStatus, answer any) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()

	err := c.opts.API.Do(ctx, kubeapi.Request{
		Method:      http.MethodPatch,
		Path:        fmt.Sprintf("/api/v1/nodes/%s/status", url.PathEscape(c.opts.Node)),
		Query:       url.Values{"fieldManager": {manager}},
		Body:        body,
		ContentType: "application/strategic-merge-patch+json",
	}, answer)
	if err != nil {
		c.retry.Postpone(time.Now(), minRetry, maxRetry)

		if text := err.Error(); text != c.lastError {
			level.Warn(c.opts.Logger).Log(
				"msg", "cannot write the conditions of the node; trying again", "node", c.opts.Node, "err", err,
			)

			c.lastError = text
		}

		return false
	}

	if c.lastError != "" {
		level.Info(c.opts.Logger).Log("msg", "the conditions of the node are written again", "node", c.opts.Node)
	}

	c.lastError = ""
	c.retry = retry.Backoff{}

	return true
}
