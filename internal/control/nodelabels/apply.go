package nodelabels

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// failure is why a layout is not applied.
type failure struct {
	reason string
	again  bool // the reason can go away by itself, so we try again
}

func (e *failure) Error() string { return e.reason }

// failureOf returns the failure for an error of the engine, or of a request to the API server, which
// can go away by itself.
func failureOf(err error) *failure {
	var known *failure
	if errors.As(err, &known) {
		return known
	}

	var p *api.Problem
	if !errors.As(err, &p) {
		return &failure{reason: err.Error(), again: true}
	}

	f := &failure{reason: p.Error()}

	switch p.Type {
	case api.Busy, api.InProgress, api.StalePlan, api.ForeignOwner, api.Unavailable, api.ReadOnly,
		api.DegradedNode, api.StuckNode, api.RateLimited:
		f.again = true
	case api.Infeasible:
		f.again = len(p.Blocking) > 0 // busy instances are in the way
	}

	return f
}

// attempt applies the layout of a label and writes the result to the node.
func (f *Follower) attempt(ctx context.Context, n Node, w wanted) error {
	a := w.attempt

	// While mig-manager runs, it owns the state label, and may have applied the layout. It may also run
	// while we cannot know.
	pods, err := f.o.Cluster.MIGManager(ctx)

	switch {
	case err != nil:
		backoff := f.retry // of attempts that failed, which pause clients
		f.leaveAlone(a, fmt.Sprintf("whether mig-manager runs on this node is not known: %v", err))

		if f.o.Apply {
			f.retry = backoff
			f.retry.Next = f.o.Now().Add(unknownRetry)
		}

		return nil
	case len(pods) > 0:
		f.leaveAlone(a, fmt.Sprintf("mig-manager follows the label (pod %s): this exporter leaves it alone",
			strings.Join(pods, ", ")))

		return nil
	}

	by := actorOf(n)
	if !f.o.Apply {
		f.planOnly(ctx, by, w)
		return nil
	}

	rebooted := recordOf(n).hasRebooted(a)

	reason, err := f.apply(ctx, by, w, rebooted)
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // the next process goes on
	}

	if err != nil {
		return f.fail(ctx, a, failureOf(err))
	}

	if f.state == Rebooting {
		return nil
	}

	return f.succeed(ctx, a, reason)
}

// leaveAlone says why we neither apply the layout nor write to the node, and looks again later.
func (f *Follower) leaveAlone(a attempt, why string) {
	f.postpone(a)
	f.planned = a
	f.plannedAt = f.o.Now()
	f.say("%s", why)
}

// say sets the note, and logs it if it is new.
func (f *Follower) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !f.setNote(text) {
		return
	}

	level.Warn(f.o.Logger).Log("msg", "the layout that the node's label names is not applied", "reason", text)
}

// planOnly plans the layout and reports what would be done. It changes nothing, not even the node's
// labels: it has tried nothing, so nothing has failed.
func (f *Follower) planOnly(ctx context.Context, by control.Actor, w wanted) {
	f.planned = w.attempt
	f.plannedAt = f.o.Now()

	plan, err := f.plan(ctx, by, w)

	switch {
	case err != nil:
		f.say("%s=%s: %v (--control.mode=plan changes nothing)", configLabel, w.Config, err)
	case len(plan.Steps) == 0:
		f.setNote("")
	default:
		f.say("%s=%s: %d steps would be done on %d GPUs (--control.mode=plan changes nothing)",
			configLabel, w.Config, len(plan.Steps), len(plan.GPUs))
	}
}

// plan plans the layout. It returns a failure if the layout or a GPU cannot be read: the engine would
// plan for the other GPUs, but the label asks for a layout of the whole node.
func (f *Follower) plan(ctx context.Context, by control.Actor, w wanted) (*api.Plan, error) {
	if w.unread != nil {
		return nil, &failure{reason: w.unread.Error(), again: true}
	}

	if _, err := f.readGPUs(ctx); err != nil {
		return nil, &failure{reason: fmt.Sprintf("the layouts of the GPUs: %v", err), again: true}
	}

	return f.o.Engine.Plan(ctx, by, api.PlanRequest{Spec: api.Spec{Layout: w.Config}})
}

// fail writes the failure of an attempt to the node.
func (f *Follower) fail(ctx context.Context, a attempt, why *failure) error {
	f.say("%s", why.reason)

	if why.again {
		f.postpone(a)
	}

	return f.end(ctx, result{attempt: a, state: Failed, reason: why.reason, again: why.again})
}

// succeed writes the success of an attempt to the node. reason says what is left to do; empty if
// nothing is.
func (f *Follower) succeed(ctx context.Context, a attempt, reason string) error {
	f.setNote("")

	if reason == "" {
		level.Info(f.o.Logger).Log("msg", "the layout that the node's label names stands", "layout", a.Config)
	}

	return f.end(ctx, result{attempt: a, state: Success, reason: reason})
}

// maxReason bounds the annotation with the reason, in bytes.
const maxReason = 1024

// result is the result of an attempt.
type result struct {
	attempt
	state  State  // Success or Failed
	reason string // see reasonAnnotation
	again  bool   // see failure
}

// end writes the result of an attempt to the node, unless the label has changed meanwhile: then the
// state label is for the next attempt. If it cannot write the result, act calls it again: we must
// not repeat a failed attempt just because the node does not say that it has failed.
func (f *Follower) end(ctx context.Context, r result) error {
	if len(r.reason) > maxReason {
		r.reason = strings.ToValidUTF8(r.reason[:maxReason], "")
	}

	ctx, cancel := outlive(ctx, lastWrite)
	defer cancel()

	f.unwritten = nil
	state := f.state

	err := f.o.Cluster.ChangeNode(ctx, func(n Node) Change {
		state = State(n.Labels[stateLabel])

		if n.Labels[configLabel] != r.Config {
			return Change{}
		}

		state = r.state
		written := record{attempt: r.attempt, Again: r.again}
		written.Rebooted = r.state == Failed && recordOf(n).hasRebooted(r.attempt)

		return Change{
			Labels:      map[string]string{stateLabel: string(r.state)},
			Annotations: map[string]string{attemptAnnotation: written.text(), reasonAnnotation: r.reason},
		}
	})
	if err != nil {
		f.unwritten = &r
		return fmt.Errorf("write the state of the layout to the node: %w", err)
	}

	f.state = state

	return nil
}

// maxPlans is how often we plan a layout if the node changes between a plan and its start.
const maxPlans = 3

// apply applies the layout. reason says what is left to do after a success. rebooted is set if the
// reboot command was started for this layout.
func (f *Follower) apply(
	ctx context.Context,
	by control.Actor,
	w wanted,
	rebooted bool,
) (reason string, err error) {
	plan, err := f.plan(ctx, by, w)
	if err == nil && len(plan.Steps) == 0 {
		return "", nil
	}

	modes := isProblem(err, api.ModeDiffers)
	if err != nil && !modes {
		return "", err
	}

	if modes {
		if err := f.checkModesFree(ctx, w.rules); err != nil {
			return "", err
		}
	}

	// From here on clients may be paused. If we leave the operation to the next process, they stay
	// paused: they would hold the devices that it still has to destroy.
	defer func() {
		if !errors.Is(err, errUnfinished) {
			f.mustRestoreClients(ctx)
		}
	}()

	if err := f.pauseClients(ctx, record{attempt: w.attempt, Rebooted: rebooted}); err != nil {
		return "", err
	}

	if modes {
		if err := f.setModes(ctx, by, w, rebooted); err != nil || f.state == Rebooting {
			return "", err
		}
	}

	request := api.PlanRequest{Spec: api.Spec{Layout: w.Config}}

	for try := 1; ; try++ {
		reason, err := f.planAndRun(ctx, by, request)
		if !isProblem(err, api.StalePlan) || try == maxPlans {
			return reason, err
		}
	}
}

func isProblem(err error, t api.ProblemType) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Type == t
}

// planAndRun plans, executes the plan and waits for the end. It returns what is left to do after a
// success.
func (f *Follower) planAndRun(ctx context.Context, by control.Actor, r api.PlanRequest) (string, error) {
	plan, err := f.o.Engine.Plan(ctx, by, r)
	if err != nil {
		return "", err
	}

	if len(plan.Steps) == 0 {
		return "", nil
	}

	entry := AuditEntry{Actor: by.Name, Request: "apply " + r.Spec.Layout, Plan: plan.ID}

	o, err := f.begin(entry, func() (*api.Operation, error) {
		return f.o.Engine.Start(ctx, by, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
	})
	if err != nil {
		return "", err
	}

	o, err = f.await(ctx, o.ID)
	if err != nil {
		return "", err
	}

	return outcome(o)
}

// begin starts an operation between two lines of the audit log.
func (f *Follower) begin(entry AuditEntry, start func() (*api.Operation, error)) (*api.Operation, error) {
	entry.Began = f.o.Now()

	if err := f.o.Audit(entry); err != nil {
		return nil, &failure{reason: "the audit log cannot be written, and nothing was done", again: true}
	}

	o, err := start()
	entry.Ended = true
	entry.Err = err

	if o != nil {
		entry.Operation = o.ID
	}

	_ = f.o.Audit(entry) // if it fails, partition control's state says so

	return o, err
}

// outlive returns a context that ends some time after ctx.
func outlive(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = retry.Sleep(longer, by)

		cancel()
	})

	return longer, func() { stop(); cancel() }
}

const (
	// awaitEvery is how often we look how far an operation is.
	awaitEvery = 500 * time.Millisecond
	// stopWait is how long we wait for an operation when the program stops: the grace period of the
	// engine.
	stopWait = 7 * time.Second
	// lastWrite is how long we still write to the node when the program stops.
	lastWrite = 3 * time.Second
)

// errUnfinished means that the program stops in the middle of an operation.
var errUnfinished = errors.New("the operation is left to the next start")

// await blocks until an operation has ended, or needs an operator. Once its steps are done, it
// restores the clients: the kubelet offers the new devices only after the device plugin runs again.
// When ctx ends, await still waits for steps as long as the engine goes on with them.
func (f *Follower) await(ctx context.Context, id string) (*api.Operation, error) {
	graceCtx, cancel := outlive(ctx, f.stopWait)
	defer cancel()

	restored := false

	for {
		o, err := f.o.Engine.Operation(id)
		if err != nil {
			return nil, err
		}

		if o.State.Final() || o.State == api.Degraded || o.State == api.Stuck {
			return o, nil
		}

		if o.State == api.Settling {
			if ctx.Err() != nil {
				return nil, ctx.Err() // the caller restores the clients
			}

			if !restored {
				f.mustRestoreClients(ctx)

				restored = true
			}
		}

		if retry.Sleep(graceCtx, f.awaitEvery) != nil {
			return nil, fmt.Errorf("operation %s: %w", id, errUnfinished)
		}
	}
}

// outcome returns what is left to do after an operation that has committed its layout, or a failure
// that says why it has not.
func outcome(o *api.Operation) (string, error) {
	if o.State == api.Succeeded {
		return "", nil
	}

	why := fmt.Sprintf("operation %s is %s", o.ID, o.State)
	if o.Error != nil {
		why += ": " + o.Error.Error()
	}

	if o.State.Committed() {
		return why + "; it waits for " + strings.Join(o.WaitsFor, ", "), nil
	}

	again := o.Error != nil && failureOf(o.Error).again

	return "", &failure{reason: why, again: again}
}

// setModes sets the MIG modes that the layout is for, GPU by GPU. If a mode comes into force only
// after a reset, it reboots the node.
func (f *Follower) setModes(
	ctx context.Context,
	by control.Actor,
	w wanted,
	rebooted bool,
) error {
	set := map[gpu.UUID]bool{}

	for {
		_, err := f.planIdle(ctx, w.rules)

		var differs *mig.ModeError
		if !errors.As(err, &differs) {
			return nil // the modes are right; the next plan shows any other error
		}

		if !differs.Current.Present() {
			return &failure{reason: differs.Error()}
		}

		// We try each GPU once, even if its mode is pending already: now that the clients are paused,
		// it can come into force.
		if set[differs.UUID] {
			return f.reboot(ctx, w.attempt, differs, rebooted)
		}

		set[differs.UUID] = true

		if err := f.setMode(ctx, by, differs); err != nil {
			return err
		}
	}
}

// checkModesFree returns a failure if the last poll has found a container or a batch job on a GPU
// whose MIG mode has to change: we must not pause clients for a change that the engine would refuse.
func (f *Follower) checkModesFree(ctx context.Context, rules []api.LayoutRule) error {
	_, err := f.planIdle(ctx, rules)

	var differs *mig.ModeError

	s := f.o.Current()
	if s == nil || !errors.As(err, &differs) {
		return nil
	}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if !slices.Contains(differs.Indexes, g.Index) {
			continue
		}

		held := len(g.Holders) > 0 || len(g.Jobs) > 0
		for n := range g.Instances {
			held = held || len(g.Instances[n].Holders) > 0 || len(g.Instances[n].Jobs) > 0
		}

		if held {
			return &failure{reason: fmt.Sprintf("%v, and GPU %d is in use", differs, g.Index), again: true}
		}
	}

	return nil
}

// setMode sets the mode of one GPU. Before it turns MIG off, it destroys the GPU's instances.
func (f *Follower) setMode(ctx context.Context, by control.Actor, differs *mig.ModeError) error {
	if !differs.Wanted {
		empty := api.Spec{
			GPUs:    []api.Selector{api.Selector(differs.UUID)},
			Devices: map[string]api.DeviceRequest{},
		}
		if _, err := f.planAndRun(ctx, by, api.PlanRequest{Spec: empty}); err != nil {
			return err
		}
	}

	entry := AuditEntry{
		Actor:   by.Name,
		Request: fmt.Sprintf("mig-mode %s %s", differs.UUID, mig.OnOff(differs.Wanted)),
	}

	o, err := f.begin(entry, func() (*api.Operation, error) {
		return f.o.Engine.SetMode(ctx, by, differs.UUID, api.ModeRequest{Enabled: differs.Wanted})
	})
	if err != nil {
		return err
	}

	o, err = f.await(ctx, o.ID)
	if err != nil {
		return err
	}

	if _, err := outcome(o); err != nil {
		return err
	}

	return nil
}

// rebootWait is how long we wait for the reboot before we try again, and fail.
const rebootWait = 15 * time.Minute

// reboot starts the command that reboots the node, so that a pending mode comes into force. It
// returns a failure if there is no command, or if it was started for this layout before.
func (f *Follower) reboot(ctx context.Context, a attempt, differs *mig.ModeError, rebooted bool) error {
	switch {
	case rebooted:
		return &failure{reason: "the command that reboots the node was started before, and " + differs.Error()}
	case f.o.Reboot == nil:
		return &failure{reason: differs.Error() + "; reset the GPU or reboot the node"}
	}

	// We write this to the node before the command starts, so that the next process does not start
	// it again.
	r := record{attempt: a, Rebooted: true}

	err := f.o.Cluster.ChangeNode(ctx, func(Node) Change {
		return Change{Annotations: map[string]string{attemptAnnotation: r.text()}}
	})
	if err != nil {
		return fmt.Errorf("before a reboot: %w", err)
	}

	if err := f.o.Reboot(ctx); err != nil {
		return &failure{reason: fmt.Sprintf("the command that reboots the node: %v", err)}
	}

	level.Warn(f.o.Logger).Log("msg", "the command that reboots the node was started", "reason", differs)
	f.retried = a
	f.retry = retry.Backoff{Next: f.o.Now().Add(rebootWait)}
	f.state = Rebooting

	err = f.o.Cluster.ChangeNode(ctx, func(Node) Change {
		return Change{Labels: map[string]string{stateLabel: string(Rebooting)}}
	})
	if err != nil { // the node reboots nevertheless
		level.Warn(f.o.Logger).Log(
			"msg", "cannot write the state of the layout to the node", "state", Rebooting, "err", err,
		)
	}

	return nil
}
