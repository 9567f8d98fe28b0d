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

// How often the node is read. On 1,000 nodes that is 67 requests a second, which the API server
// answers from its cache with some kilobytes each. A node whose requests fail is read less and less
// often.
const (
	// DefaultInterval is the time between two readings of the node.
	DefaultInterval = 15 * time.Second

	longestInterval = 5 * time.Minute
)

// keepStatus is how long the last status is reported while the node cannot be read. A restart of
// the API server ends no alert.
const keepStatus = 5 * time.Minute

// How often a failure that can go away by itself is tried again.
const (
	firstRetry   = time.Minute
	longestRetry = 15 * time.Minute
)

// Options configures a Follower.
type Options struct {
	Cluster Cluster
	// Engine applies layouts; if it is nil, the follower only reports. Apply is set if the engine
	// may change GPUs.
	Engine Engine
	Apply  bool
	Boot   string // the id of this boot
	// Namespace and ConfigMap name mig-manager's layouts.
	Namespace, ConfigMap string
	// Layout returns the rules of a layout, nil if none has the name, and whether they are from the
	// operator's file, which counts before the ConfigMap. SetLayouts receives the layouts of the
	// ConfigMap, which Layout knows afterwards.
	Layout     func(name string) (rules []api.LayoutRule, fromFile bool)
	SetLayouts func(map[string][]api.LayoutRule)
	// ReadGPUs reads the layouts of all GPUs; Current returns the last Snapshot.
	ReadGPUs func(context.Context) ([]mig.GPULayout, error)
	Current  func() *gpu.Snapshot
	// KeepsPlugin is set if the engine restarts the device plugin, which then need not be paused.
	KeepsPlugin bool
	// Reboot starts the command that reboots the node; nil if there is none.
	Reboot func(context.Context) error
	// Audit writes the audit log. If the line before a change cannot be written, there is none.
	Audit func(AuditEntry) error
	// Report receives the status whenever the node was read, and that it is not known once the node
	// could not be read for a while.
	Report   func(Status)
	Interval time.Duration
	Now      func() time.Time
	Logger   log.Logger
}

// AuditEntry is a line of the audit log: Err is why a change was refused, or nil.
type AuditEntry struct {
	Began     time.Time
	Ended     bool
	Actor     string
	Request   string
	Plan      string
	Operation string
	Err       error
}

// Status is what is reported of the node.
type Status struct {
	Read   bool   // the node could be read; otherwise the rest is not known
	Config string // the layout that its label names; empty if there is none
	State  State
	// Applied is whether the layout stands; absent if it is not known.
	Applied gpu.Opt[bool]
	Paused  []string // the labels of the clients that are paused
}

// Follower follows the label of one node. Call Run once.
type Follower struct {
	o        Options
	layouts  layouts
	standing standing
	began    time.Time

	// retry spaces the attempts after a failure that can go away by itself: those of retried.
	retry   retry.Backoff
	retried attempt
	// planned is the attempt that was only planned, with --control.mode=plan, and when.
	planned   attempt
	plannedAt time.Time
	// unwritten is the result of the last attempt if it could not be written to the node.
	unwritten *result
	// state is the node's, as it was read or written last.
	state    State
	reported time.Time // when the node was read last

	// How often we look at first whether pods have ended, and whether an operation has; and how long
	// we await the end of an operation once the program stops.
	firstLook, awaitEvery, stopWait time.Duration

	mu         sync.Mutex // guards what follows
	note       string     // why the layout is not applied
	pausedNote string     // that clients are paused, and by no change under way
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

// Run follows the label until ctx ends. A change of the label during an operation is taken up after
// it.
func (f *Follower) Run(ctx context.Context) error {
	wait := f.o.Interval

	for {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the program stops
		}

		f.setSource(err) // who reads the source logs it

		if err == nil {
			wait = f.o.Interval
		} else {
			wait = min(2*wait, longestInterval)
		}

		// Exporters that a rollout has started together do not ask together for ever.
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
// has left, before clients that were paused for that are restored nevertheless.
const startWait = 2 * time.Minute

// isFree reports whether no operation is under way that clients may be paused for.
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

	// What we act on is not from the cache: that may not have our own last change yet.
	n, err := f.o.Cluster.Node(ctx, true)
	if err != nil {
		return err
	}

	if n.Labels[configLabel] != a.Config || !f.isDue(n, a) {
		return nil // the next reading has it
	}

	return f.attempt(ctx, n, w)
}

// isDue reports whether there is something to do for an attempt.
func (f *Follower) isDue(n Node, a attempt) bool {
	if !f.o.Apply {
		return f.planned != a || f.o.Now().Sub(f.plannedAt) >= longestRetry
	}

	state := State(n.Labels[stateLabel])
	r := recordOf(n)

	if r.attempt != a || state != Success && state != Failed {
		return f.retried != a || f.retry.IsDue(f.o.Now())
	}

	if state == Success {
		f.setNote("")
		return false
	}

	f.setNote(n.Annotations[reasonAnnotation])

	return r.Again && (f.retried != a || f.retry.IsDue(f.o.Now()))
}

// postpone spaces the attempts to apply the same.
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

// setPausedNote sets the note about clients that are left paused, unless this follower restores them.
func (f *Follower) setPausedNote(n Node) {
	if f.o.Engine != nil {
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

// actor is who asks for a change: the manager that wrote the label last, by the API server's word.
func actor(n Node) control.Actor {
	name := "label:" + configLabel
	if manager := n.Managers[configLabel]; manager != "" {
		name += " by " + manager
	}

	return control.Actor{
		Name:   name,
		Rights: control.Rights{Read: true, Plan: true, Apply: true, Mode: true},
	}
}
