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

// heartbeat is how often the conditions are written if they do not change; tick is how often we look
// whether they have.
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
	// Read returns the conditions as they are, or false as long as it is too early to say. It must
	// not block.
	Read func() ([]Condition, bool)
	// Earlier, if not nil, is called once with each condition that an earlier run has left on the
	// node, as it was before it stopped, and since when the node shows it.
	Earlier func(was Condition, since time.Time)
	// Written, if not nil, is called with the time of each heartbeat that the API server has
	// accepted.
	Written func(time.Time)
	Now     func() time.Time // of the node
	Logger  log.Logger
}

// Conditions keeps conditions of the node current.
type Conditions struct {
	opts   ConditionOptions
	looks  chan chan struct{} // each is closed once we have looked
	tracks []*track
	read   bool      // those on the node from an earlier run are in tracks
	due    bool      // a status has changed and is not written
	beat   time.Time // of the last that was written
	retry  retry.Backoff
	failed string // the last error that we have logged
}

// NewConditions returns a Conditions, which does nothing until Run is called.
func NewConditions(opts ConditionOptions) *Conditions {
	return &Conditions{opts: opts, looks: make(chan chan struct{})}
}

// Run writes the conditions until ctx ends, then that they are unknown. It returns nil.
func (c *Conditions) Run(ctx context.Context) error {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()

	for {
		c.step(ctx)

		select {
		case <-ticks.C:
		case done := <-c.looks:
			c.step(ctx)
			close(done)
		case <-ctx.Done():
			c.stop(ctx)
			return nil
		}
	}
}

// Flush blocks until the conditions as they are now have been looked at, and written if that is due,
// or until ctx ends.
func (c *Conditions) Flush(ctx context.Context) {
	done := make(chan struct{})

	select {
	case c.looks <- done:
	case <-ctx.Done():
		return
	}

	select {
	case <-done:
	case <-ctx.Done():
	}
}

// step writes the conditions if one of them has another status, or a heartbeat is due.
func (c *Conditions) step(ctx context.Context) {
	now := c.opts.Now()

	list, ok := c.opts.Read()
	if !ok {
		return
	}

	// What an earlier run has shown decides what is better, and since when it is so.
	if !c.read {
		if !c.retry.IsDue(time.Now()) || !c.readNode(ctx) {
			return
		}
	}

	for _, is := range list {
		c.due = c.trackOf(is.Type).update(is, now) || c.due
	}

	quiet := now.Sub(c.beat)
	if !c.due && quiet >= 0 && quiet < heartbeat || !c.retry.IsDue(time.Now()) {
		return
	}

	if c.write(ctx, now) {
		c.due = false
		c.beat = now

		if c.opts.Written != nil {
			c.opts.Written(now)
		}
	}
}

// stop writes that the conditions are unknown, and what they were, unless we never came to know the
// node.
func (c *Conditions) stop(ctx context.Context) {
	if !c.read {
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

func (c *Conditions) trackOf(kind string) *track {
	for _, t := range c.tracks {
		if t.Type == kind {
			return t
		}
	}

	t := &track{Condition: Condition{Type: kind}}
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

// nodeStatus is the part of a Node that we write. Its conditions are merged by type: a patch leaves
// those of others as they are.
type nodeStatus struct {
	Status struct {
		Conditions []nodeCondition `json:"conditions,omitempty"`
	} `json:"status"`
}

// readNode reads the conditions that are on the node. A patch that changes nothing answers with the
// Node, and needs no other right than the patches to come.
func (c *Conditions) readNode(ctx context.Context) bool {
	var n nodeStatus

	if !c.patch(ctx, nodeStatus{}, &n) {
		return false
	}

	for _, known := range n.Status.Conditions {
		if rank(known.Status) < 0 {
			continue
		}

		t := &track{
			Condition: Condition{Type: known.Type, Status: known.Status, Reason: known.Reason,
				Message: known.Message},
			transition: known.Transition,
		}

		// It goes on from what it was before the exporter stopped: a rollout is no fault.
		if was, ok := beforeStop(t.Condition); ok {
			t.Condition = was
			t.resumed = true
			c.due = true
		}

		c.tracks = append(c.tracks, t)
	}

	c.keepOwn()
	c.read = true

	for _, t := range c.tracks {
		if c.opts.Earlier != nil && t.Status != "" {
			c.opts.Earlier(t.Condition, t.transition)
		}
	}

	return true
}

// keepOwn forgets the conditions of others.
func (c *Conditions) keepOwn() {
	list, _ := c.opts.Read()
	own := make([]*track, 0, len(list))

	for _, is := range list {
		own = append(own, c.trackOf(is.Type))
	}

	c.tracks = own
}

func (c *Conditions) write(ctx context.Context, now time.Time) bool {
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

// patch patches the node's status. It logs a failure if it is another than the last one.
func (c *Conditions) patch(ctx context.Context, body nodeStatus, answer any) bool {
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

		if text := err.Error(); text != c.failed {
			level.Warn(c.opts.Logger).Log(
				"msg", "cannot write the conditions of the node; trying again", "node", c.opts.Node, "err", err,
			)

			c.failed = text
		}

		return false
	}

	if c.failed != "" {
		level.Info(c.opts.Logger).Log("msg", "the conditions of the node are written again", "node", c.opts.Node)
	}

	c.failed = ""
	c.retry = retry.Backoff{}

	return true
}
