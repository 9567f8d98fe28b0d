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

// failure is why a layout is not applied. again is set if that can go away by itself.
type failure struct {
	reason string
	again  bool
}

func (e *failure) Error() string { return e.reason }

// failureOf returns the failure for an error of the engine, or of another step of a change: those
// of the API server can go away.
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
		f.again = len(p.Blocking) > 0 // instances that are busy now
	}

	return f
}

// attempt applies the layout of a label and writes down what has become of it.
func (f *Follower) attempt(ctx context.Context, n Node, a attempt, rules []api.LayoutRule) error {
	pods, err := f.o.Cluster.MIGManager(ctx)
	if err != nil && f.o.Apply {
		return f.fail(ctx, a, &failure{
			reason: fmt.Sprintf("whether mig-manager runs on this node is not known: %v", err),
			again:  true,
		})
	}

	// The state is mig-manager's while it runs: it may have applied the layout.
	if len(pods) > 0 {
		f.postpone(a)
		f.planned = a
		f.plannedAt = f.o.Now()
		f.say("mig-manager follows the label (pod %s): this exporter leaves it alone",
			strings.Join(pods, ", "))

		return nil
	}

	by := actor(n)
	if !f.o.Apply {
		f.planOnly(ctx, by, a)
		return nil
	}

	rebooted := recordOf(n).hasRebooted(a)

	reason, err := f.apply(ctx, by, a, rules, rebooted)
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

// say sets the note, and logs it if it is new.
func (f *Follower) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if f.Note() == text {
		return
	}

	f.setNote("%s", text)
	level.Warn(f.o.Logger).Log("msg", "the layout that the node's label names is not applied", "reason", text)
}

// planOnly plans the layout and reports what would be done. It changes nothing, the node's labels
// included: nothing was tried, so nothing has failed.
func (f *Follower) planOnly(ctx context.Context, by control.Actor, a attempt) {
	f.planned = a
	f.plannedAt = f.o.Now()

	plan, err := f.o.Engine.Plan(ctx, by, api.PlanRequest{Spec: api.Spec{Layout: a.Config}})

	switch {
	case err != nil:
		f.say("%s=%s: %v (--control.mode=plan changes nothing)", configLabel, a.Config, err)
	case len(plan.Steps) == 0:
		f.setNote("")
	default:
		f.say("%s=%s: %d steps would be done on %d GPUs (--control.mode=plan changes nothing)",
			configLabel, a.Config, len(plan.Steps), len(plan.GPUs))
	}
}

// fail writes the failure of an attempt to the node.
func (f *Follower) fail(ctx context.Context, a attempt, why *failure) error {
	f.say("%s", why.reason)

	if why.again {
		f.postpone(a)
	}

	return f.end(ctx, a, Failed, why.reason, why.again)
}

func (f *Follower) succeed(ctx context.Context, a attempt, reason string) error {
	f.setNote("")

	if reason == "" {
		level.Info(f.o.Logger).Log("msg", "the layout that the node's label names stands", "layout", a.Config)
	}

	return f.end(ctx, a, Success, reason, false)
}

// maxReason bounds the annotation with the reason, in bytes.
const maxReason = 1024

// end writes the state of an attempt to the node. If the label has changed meanwhile, the state is
// that of the next attempt.
func (f *Follower) end(ctx context.Context, a attempt, state State, reason string, again bool) error {
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}

	err := f.o.Cluster.ChangeNode(context.WithoutCancel(ctx), func(n Node) Change {
		if n.Labels[configLabel] != a.Config {
			return Change{}
		}

		r := record{attempt: a, Again: again}
		r.Rebooted = state == Failed && recordOf(n).hasRebooted(a)

		return Change{
			Labels:      map[string]string{stateLabel: string(state)},
			Annotations: map[string]string{attemptAnnotation: r.text(), reasonAnnotation: reason},
		}
	})
	if err != nil {
		return fmt.Errorf("write the state of the layout to the node: %w", err)
	}

	f.state = state

	return nil
}

// maxPlans is how often a layout is planned if the node changes between a plan and its start.
const maxPlans = 3

// apply applies the layout. The text is what is left to be done after a success. rebooted is set if
// the reboot command was started for this layout.
func (f *Follower) apply(
	ctx context.Context,
	by control.Actor,
	a attempt,
	rules []api.LayoutRule,
	rebooted bool,
) (string, error) {
	request := api.PlanRequest{Spec: api.Spec{Layout: a.Config}}

	plan, err := f.o.Engine.Plan(ctx, by, request)
	if err == nil && len(plan.Steps) == 0 {
		return "", nil
	}

	modes := isProblem(err, api.ModeDiffers)
	if err != nil && !modes {
		return "", err
	}

	if modes {
		if err := f.checkModesFree(ctx, rules); err != nil {
			return "", err
		}
	}

	// From here on the clients may be paused.
	defer f.mustRestoreClients(ctx)

	if err := f.pauseClients(ctx, record{attempt: a, Rebooted: rebooted}); err != nil {
		return "", err
	}

	if modes {
		if err := f.setModes(ctx, by, a, rules, rebooted); err != nil || f.state == Rebooting {
			return "", err
		}
	}

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

// planAndRun plans, and executes the plan.
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

	_ = f.o.Audit(entry) // that it cannot be written shows in partition control's state

	return o, err
}

// awaitEvery is how often we look how far an operation is.
const awaitEvery = 500 * time.Millisecond

// await waits until an operation has ended, or needs an operator. The clients are restored once its
// steps are done: the kubelet offers the new devices only after the device plugin runs again.
func (f *Follower) await(ctx context.Context, id string) (*api.Operation, error) {
	restored := false

	for {
		o, err := f.o.Engine.Operation(id)
		if err != nil {
			return nil, err
		}

		if o.State.Final() || o.State == api.Degraded || o.State == api.Stuck {
			return o, nil
		}

		if o.State == api.Settling && !restored {
			f.mustRestoreClients(ctx)

			restored = true
		}

		if err := retry.Sleep(ctx, f.awaitEvery); err != nil {
			return nil, err
		}
	}
}

// outcome returns what is left to do after an operation that has committed its layout, and
// otherwise why it has not.
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

// setModes sets the MIG modes that the layout is for, GPU by GPU. A GPU that is to have none is
// emptied before.
func (f *Follower) setModes(
	ctx context.Context,
	by control.Actor,
	a attempt,
	rules []api.LayoutRule,
	rebooted bool,
) error {
	set := map[gpu.UUID]bool{}

	for {
		_, err := f.planFromScratch(ctx, rules)

		var differs *mig.ModeError
		if !errors.As(err, &differs) {
			return nil // the next plan says what else there is
		}

		if !differs.Current.Present() {
			return &failure{reason: differs.Error()}
		}

		// A mode that was pending can come into force now that the clients are paused.
		if set[differs.UUID] {
			return f.reboot(ctx, a, differs, rebooted)
		}

		set[differs.UUID] = true

		if err := f.setMode(ctx, by, differs); err != nil {
			return err
		}
	}
}

// checkModesFree returns a failure if a container, or a batch job, holds a GPU whose MIG mode
// differs from that of the layout, as the last poll has found it: no client is paused for a change
// that would be refused.
func (f *Follower) checkModesFree(ctx context.Context, rules []api.LayoutRule) error {
	_, err := f.planFromScratch(ctx, rules)

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

// setMode sets the mode of one GPU.
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

// rebootWait is how long a node has to reboot before its attempt counts as failed.
const rebootWait = 15 * time.Minute

// reboot starts the command that reboots the node, for a mode that is pending, once; without a
// command the attempt has failed.
func (f *Follower) reboot(ctx context.Context, a attempt, differs *mig.ModeError, rebooted bool) error {
	switch {
	case rebooted:
		return &failure{reason: "the command that reboots the node was started before, and " + differs.Error()}
	case f.o.Reboot == nil:
		return &failure{reason: differs.Error() + "; reset the GPU or reboot the node"}
	}

	// This is on the node before the command starts: the next process does not start it again.
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

	err = f.o.Cluster.ChangeNode(ctx, func(Node) Change {
		return Change{Labels: map[string]string{stateLabel: string(Rebooting)}}
	})
	f.state = Rebooting

	return err
}
