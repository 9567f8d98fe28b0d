package nodelabels

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

const (
	// DefaultInterval is the time between two readings of the node. With 1,000 nodes that is 67
	// requests a second, which the API server answers from its cache with some kilobytes each.
	DefaultInterval = 15 * time.Second
	// longestInterval is the longest time between two readings while requests fail.
	longestInterval = 5 * time.Minute
)

// keepStatus is how long we stand by the last status while the node cannot be read: a restart of the
// API server must not end an alert.
const keepStatus = 5 * time.Minute

// The waits before we try again after a failure that can go away by itself grow from firstRetry to
// longestRetry.
const (
	firstRetry   = time.Minute
	longestRetry = 15 * time.Minute
)

// unknownRetry is the wait before we ask again whether mig-manager runs, if the API server has not said.
// It does not grow: nothing has failed on the node, and an operator who has cordoned it for the layout
// waits for us once the API server is back. It costs one request a minute.
const unknownRetry = time.Minute

// Options configures a Follower.
type Options struct {
	Cluster Cluster
	// Engine applies layouts; if it is nil, the follower only reports.
	Engine Engine
	Apply  bool   // the engine may change GPUs
	Boot   string // the id of this boot
	// Namespace and ConfigMap name the ConfigMap with mig-manager's layouts.
	Namespace, ConfigMap string
	// Layout returns the rules of a layout, nil if none has the name. fromFile says that they are
	// from the operator's file, which takes precedence over the ConfigMap.
	Layout func(name string) (rules []api.LayoutRule, fromFile bool)
	// SetLayouts receives the layouts of the ConfigMap. Afterwards, Layout must know them.
	SetLayouts func(map[string][]api.LayoutRule)
	ReadGPUs   func(context.Context) ([]mig.GPULayout, error) // reads all GPUs
	Current    func() *gpu.Snapshot                           // returns the last Snapshot
	// KeepsPlugin is set if the engine restarts the device plugin, which then need not be paused.
	KeepsPlugin bool
	// Reboot starts the command that reboots the node; nil if there is none.
	Reboot func(context.Context) error
	// Audit writes a line of the audit log. If it cannot write the line before a change, we don't
	// make the change.
	Audit func(AuditEntry) error
	// Report receives the status whenever the node was read. Once the node could not be read for
	// keepStatus, it receives a Status that says so.
	Report   func(Status)
	Interval time.Duration
	Now      func() time.Time
	Logger   log.Logger
}

// AuditEntry is a line of the audit log.
type AuditEntry struct {
	Began     time.Time // when the change began
	Ended     bool      // the line after the change; else the line before it
	Actor     string
	Request   string
	Plan      string // id
	Operation string // id
	Err       error  // why the change was refused, or nil
}

// Status says whether the node has the layout that its label names.
type Status struct {
	Read   bool   // the node could be read; if not, the other fields are empty
	Config string // the layout that its label names; empty if there is none
	State  State
	// Applied says whether the node has that layout; absent if we don't know.
	Applied gpu.Opt[bool]
	Paused  []string // the labels of the clients that are paused
}

// Follower follows the label of one node. Call Run once.
type Follower struct {
	o        Options
	layouts  layouts
	standing standing
	began    time.Time // when this process began to follow

	// retried is the attempt that failed last, but may succeed later. retry says when we try it
	// again.
	retried attempt
	retry   retry.Backoff
	// planned is the attempt that we have only planned, with --control.mode=plan, or left to
	// mig-manager. plannedAt is when.
	planned   attempt
	plannedAt time.Time
	// unwritten is the result of the last attempt, if we could not write it to the node; else nil.
	unwritten *result
	state     State     // the value of the node's state label, as we have read or written it last
	reported  time.Time // when the node was read last

	// The constants of these names. Tests make them shorter.
	firstLook, awaitEvery, stopWait time.Duration

	mu         sync.Mutex // guards the fields below
	note       string     // why the layout is not applied; empty if it is
	pausedNote string     // clients are paused although no change is under way; else empty
	source     gpu.SourceState
}

// New returns a Follower.
func New(o Options) *Follower {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}

	if o.Now == nil {
		o.Now = time.Now
	}

	if o.Logger == nil {
		o.Logger = log.NewNopLogger()
	}

	return &Follower{
		o:          o,
		began:      o.Now(),
		firstLook:  firstLook,
		awaitEvery: awaitEvery,
		stopWait:   stopWait,
		source:     gpu.SourceState{Name: gpu.SourceNodeLabels, Up: true},
	}
}

// Notes returns, for people, why the layout that the label names is not applied, and which clients
// are paused though no change is under way.
func (f *Follower) Notes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	var notes []string

	if f.note != "" {
		notes = append(notes, "the layout of the node's label is not applied: "+f.note)
	}

	if f.pausedNote != "" {
		notes = append(notes, f.pausedNote)
	}

	return notes
}

// Source returns whether the node could be read, and changed, the last time.
func (f *Follower) Source() gpu.SourceState {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.source
}

func (f *Follower) setSource(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.source.Up = err == nil
	f.source.Err = err

	if err == nil {
		f.source.LastSuccess = f.o.Now()
	}
}

// setNote sets why the layout is not applied, and reports whether that is news.
func (f *Follower) setNote(note string) (isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	isNew = f.note != note
	f.note = note

	return isNew
}

// Run follows the label until ctx ends. If the label changes during an operation, it follows after
// the operation.
func (f *Follower) Run(ctx context.Context) error {
	wait := f.o.Interval

	for {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the program stops
		}

		f.setSource(err) // readers of Source log it

		if err == nil {
			wait = f.o.Interval
		} else {
			wait = min(2*wait, longestInterval)
		}

		// A rollout starts many exporters at once. We vary the wait by 10% either way, so that they
		// do not ask the API server at once for ever.
		spread := time.Duration(rand.Int64N(int64(wait)/5 + 1))
		if retry.Sleep(ctx, wait*9/10+spread) != nil {
			return nil //nolint:nilerr // the program stops
		}
	}
}

// follow reads the node once and does what it asks for.
func (f *Follower) follow(ctx context.Context) error {
	n, err := f.o.Cluster.Node(ctx, false)
	if err != nil {
		if now := f.o.Now(); now.Sub(f.reported) >= keepStatus || now.Before(f.reported) {
			f.o.Report(Status{})
		}

		return err
	}

	w := f.findLayout(ctx, n.Labels[configLabel])
	f.state = State(n.Labels[stateLabel])

	if f.o.Engine != nil && f.isFree() {
		err = f.act(ctx, n, w)
	}

	f.report(ctx, n, w)

	return err
}

// startWait is how long we wait at the start for partition control to finish what the last process
// has left. Then we restore clients that were paused for that, nevertheless.
const startWait = 2 * time.Minute

// isFree reports whether no operation is under way, for which clients may be paused.
func (f *Follower) isFree() bool {
	if f.o.Engine.Operations().Recovering {
		return f.o.Now().Sub(f.began) > startWait
	}

	return !f.hasOperation(api.Pending, api.Running, api.RollingBack)
}

// hasOperation reports whether an operation is in one of the states.
func (f *Follower) hasOperation(states ...api.OperationState) bool {
	return slices.ContainsFunc(f.o.Engine.Operations().Operations, func(o api.Operation) bool {
		return slices.Contains(states, o.State)
	})
}

// act restores clients that another process has paused, and applies the layout unless that was done
// or has failed.
func (f *Follower) act(ctx context.Context, n Node, w wanted) error {
	if err := f.restoreLeft(ctx, n); err != nil {
		return err
	}

	a := w.attempt
	if a.Config == "" {
		f.setNote("")
		return nil
	}

	if r := f.unwritten; r != nil && r.attempt == a {
		return f.end(ctx, *r)
	}

	if !f.isDue(n, a) || f.o.Engine.Operations().Recovering || f.hasOperation(api.Settling) {
		return nil
	}

	// The API server's cache may not have our own last change yet: before we act, we read exactly.
	n, err := f.o.Cluster.Node(ctx, true)
	if err != nil {
		return err
	}

	if n.Labels[configLabel] != a.Config || !f.isDue(n, a) {
		return nil // follow the newer label after the next reading
	}

	return f.attempt(ctx, n, w)
}

// isDue reports whether to make an attempt now. It also sets the note for an attempt that the node
// has the result of.
func (f *Follower) isDue(n Node, a attempt) bool {
	if !f.o.Apply {
		return f.planned != a || f.o.Now().Sub(f.plannedAt) >= longestRetry
	}

	state := State(n.Labels[stateLabel])
	r := recordOf(n)
	hasWaited := f.retried != a || f.retry.IsDue(f.o.Now())

	if r.attempt != a || state != Success && state != Failed {
		return hasWaited // the attempt was not made yet, or has not ended
	}

	if state == Success {
		f.setNote("")
		return false
	}

	f.setNote(n.Annotations[reasonAnnotation])

	return r.Again && hasWaited
}

// postpone records a failure of an attempt, so that isDue waits before the next try.
func (f *Follower) postpone(a attempt) {
	if f.retried != a {
		f.retry = retry.Backoff{}
		f.retried = a
	}

	f.retry.Postpone(f.o.Now(), firstRetry, longestRetry)
}

// report reports the status of the node.
func (f *Follower) report(ctx context.Context, n Node, w wanted) {
	s := Status{Read: true, Config: w.Config, State: f.state, Paused: pausedClients(n)}

	if w.Config != "" {
		f.updateStanding(ctx, w)

		if f.standing.known {
			s.Applied = gpu.Some(f.standing.stands)
		}
	}

	f.setPausedNote(n)
	f.reported = f.o.Now()
	f.o.Report(s)
}

// setPausedNote sets the note about clients that are left paused. A follower that applies layouts
// needs none, since it restores them.
func (f *Follower) setPausedNote(n Node) {
	if f.o.Engine != nil && f.o.Apply {
		return
	}

	note := leftPaused(n)

	f.mu.Lock()
	defer f.mu.Unlock()

	if note != "" && note != f.pausedNote {
		level.Warn(f.o.Logger).Log("msg", note)
	}

	f.pausedNote = note
}

// actorOf returns the actor of a change: the field manager that wrote the label last, as the API
// server reports it.
func actorOf(n Node) control.Actor {
	name := "label:" + configLabel
	if manager := n.Managers[configLabel]; manager != "" {
		name += " by " + manager
	}

	return control.Actor{
		Name:   name,
		Rights: control.Rights{Read: true, Plan: true, Apply: true, Mode: true},
	}
}
