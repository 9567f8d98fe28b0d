package nodestatus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// cluster is an API server with one node. It merges conditions by their type, as a strategic merge
// patch does.
type cluster struct {
	mu         sync.Mutex
	conditions []nodeCondition
	events     []eventBody
	requests   int
	err        error // of all requests
	hangs      bool
}

func (c *cluster) Do(ctx context.Context, r kubeapi.Request, answer any) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.requests++

	if c.hangs {
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()

		return fmt.Errorf("%w: %w", context.Cause(ctx), gpu.ErrUnavailable)
	}

	if c.err != nil {
		return c.err
	}

	switch r.Method + " " + r.Path {
	case "PATCH /api/v1/nodes/node-1/status":
		c.merge(r.Body.(nodeStatus))
	case "POST /api/v1/namespaces/default/events":
		body := r.Body.(eventBody)
		isSame := func(known eventBody) bool { return known.Metadata["name"] == body.Metadata["name"] }

		if slices.ContainsFunc(c.events, isSame) {
			return fmt.Errorf("the API server says 409: %w", kubeapi.ErrConflict)
		}

		c.events = append(c.events, body)
	default:
		return errors.New("unexpected " + r.Method + " " + r.Path)
	}

	if n, ok := answer.(*nodeStatus); ok {
		n.Status.Conditions = slices.Clone(c.conditions)
	}

	return nil
}

func (c *cluster) merge(n nodeStatus) {
	for _, written := range n.Status.Conditions {
		at := slices.IndexFunc(c.conditions, func(known nodeCondition) bool { return known.Type == written.Type })
		if at < 0 {
			c.conditions = append(c.conditions, written)
		} else {
			c.conditions[at] = written
		}
	}
}

// change changes the cluster while writers run.
func (c *cluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	f()
}

// shown returns the conditions as "GPUHealthy=True GPUsHealthy".
func (c *cluster) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()

	texts := make([]string, 0, len(c.conditions))
	for _, known := range c.conditions {
		texts = append(texts, fmt.Sprintf("%s=%s %s", known.Type, known.Status, known.Reason))
	}

	return strings.Join(texts, ", ")
}

// rig runs a Conditions whose one condition a test sets.
type rig struct {
	*cluster
	t     *testing.T
	is    Condition
	early bool
	log   bytes.Buffer
	beats []time.Time
	// earlier are the conditions of an earlier run.
	earlier []string

	writer *Conditions
	cancel context.CancelFunc
	ended  chan error
}

func (r *rig) read() ([]Condition, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return []Condition{r.is}, !r.early
}

func healthy() Condition {
	return Condition{Type: "GPUHealthy", Status: True, Reason: "GPUsHealthy", Message: "fine"}
}

func unhealthy() Condition {
	return Condition{Type: "GPUHealthy", Status: False, Reason: "GPULost", Message: "GPU 0: lost"}
}

func unknown() Condition {
	return Condition{Type: "GPUHealthy", Status: Unknown, Reason: "ReadingsStale", Message: "old"}
}

func startRig(t *testing.T, c *cluster) *rig {
	t.Helper()

	return startRigOf(t, c, healthy())
}

// startRigOf runs a Conditions whose condition begins as it is.
func startRigOf(t *testing.T, c *cluster, is Condition) *rig {
	t.Helper()

	r := &rig{cluster: c, t: t, is: is, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	r.writer = NewConditions(ConditionOptions{
		API: c, Node: "node-1", Read: r.read, Now: time.Now, Logger: log.NewLogfmtLogger(&r.log),
		Written: func(at time.Time) { r.beats = append(r.beats, at) },
		Earlier: func(was Condition, since time.Time) {
			r.earlier = append(r.earlier, fmt.Sprint(was.Status, " ", was.Reason, " ", since.Format(time.TimeOnly)))
		},
	})

	go func() { r.ended <- r.writer.Run(ctx) }()

	synctest.Wait()

	return r
}

// become sets the condition.
func (r *rig) become(is Condition) { r.change(func() { r.is = is }) }

// after lets time pass, then compares what the node shows.
func (r *rig) after(d time.Duration, want string) {
	r.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	cmptest.Equal(r.t, "shown", r.shown(), want)
}

// stop ends the writer, and returns how long that took.
func (r *rig) stop() time.Duration {
	r.t.Helper()

	began := time.Now()

	r.cancel()
	cmptest.Equal(r.t, "end", <-r.ended, nil)

	return time.Since(began)
}

func text(t *testing.T, v any) string {
	t.Helper()

	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}

// condition returns the condition at a place of the node's list.
func (c *cluster) condition(at int) nodeCondition {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.conditions[at]
}
