package nodelabels

import (
	"context"
	"errors"
	"fmt"
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
	// refusedInterval is the time between two readings that the API server refuses.
	refusedInterval = time.Hour
)

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
	// Layouts returns the layouts that can be named; SetLayouts receives those of the ConfigMap,
	// which are among them afterwards.
	Layouts    func() map[string][]api.LayoutRule
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
	// Report receives the status whenever the node was read.
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
	Read   bool   // the node could be read
	Config string // the layout that its label names; empty if there is none
	State  State
	// Applied is whether the layout stands; absent if it is not known.
	Applied gpu.Opt[bool]
	Note    string // for people: why the layout is not applied; empty if there is no reason
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
	// state is the node's, as it was read or written last.
	state State

	// How often we look at first whether pods have ended, and whether an operation has.
	firstLook, awaitEvery time.Duration

	mu   sync.Mutex // guards what follows
	note string
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

	return &Follower{o: o, began: o.Now(), firstLook: firstLook, awaitEvery: awaitEvery}
}

// Note returns why the layout that the label names is not applied, for people; empty if it is, or
// if there is no label.
func (f *Follower) Note() string {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.note
}

func (f *Follower) setNote(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.note = fmt.Sprintf(format, args...)
}

// Run follows the label until ctx ends. A change of the label during an operation is taken up after
// it.
func (f *Follower) Run(ctx context.Context) error {
	wait := f.o.Interval
	failed := ""

	for {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the program stops
		}

		switch {
		case err == nil:
			wait = f.o.Interval
			failed = ""
		case errors.Is(err, gpu.ErrNoPermission) && f.o.Engine == nil:
			wait = refusedInterval
		default:
			wait = min(2*wait, longestInterval)
		}

		if err != nil && err.Error() != failed {
			failed = err.Error()
			level.Warn(f.o.Logger).Log("msg", "cannot follow the labels of the node", "err", err, "again_in", wait)
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
		f.o.Report(Status{Note: "the node's labels cannot be read"})
		return err
	}

	config := n.Labels[configLabel]
	f.readLayouts(ctx, config)

	rules := f.o.Layouts()[config]
	a := newAttempt(config, rules, f.o.Boot)

	f.state = State(n.Labels[stateLabel])

	if f.o.Engine != nil && f.isFree() {
		err = f.act(ctx, n, a, rules)
	}

	f.report(ctx, config, a, rules)

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

// act restores clients that a process before this one has paused, and applies the layout unless
// that was done or has failed.
func (f *Follower) act(ctx context.Context, n Node, a attempt, rules []api.LayoutRule) error {
	if n.Annotations[pausedAnnotation] != "" {
		if err := f.restoreClients(ctx); err != nil {
			return err
		}
	}

	if a.Config == "" {
		f.setNote("")
		return nil
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

	return f.attempt(ctx, n, a, rules)
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

	f.setNote("%s", n.Annotations[reasonAnnotation])

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
func (f *Follower) report(ctx context.Context, config string, a attempt, rules []api.LayoutRule) {
	s := Status{Read: true, Config: config, State: f.state, Note: f.Note()}

	if config != "" {
		f.updateStanding(ctx, a, rules)

		if f.standing.known {
			s.Applied = gpu.Some(f.standing.stands)
		}
	}

	f.o.Report(s)
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
