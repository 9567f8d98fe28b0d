package rollout

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// failure is why a node has failed, and what follows from that.
type failure struct {
	err      error
	retry    Phase // see Node.Retry
	unclear  bool  // see Node.Unclear
	cordoned bool  // the node stays cordoned because we could not uncordon it
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// failUnchanged returns a failure of a node that still has its former layout.
func failUnchanged(format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), retry: Waiting}
}

// failUnclear returns a failure of a node that stays cordoned until an operator has looked at it.
func failUnclear(retry Phase, format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), retry: retry, unclear: true}
}

// fail records a failure. If the node still has its former layout, and the run has cordoned it, the
// next phase uncordons it.
func (n *Node) fail(err error) {
	f := &failure{err: err, retry: n.Phase, unclear: true} // if err is no failure
	_ = errors.As(err, &f)

	n.Failure = shorten(cmp.Or(n.Failure, err.Error()))
	n.Retry = cmp.Or(n.Retry, f.retry)
	n.Unclear = n.Unclear || f.unclear
	n.Pods = nil

	if n.Unclear || f.cordoned || n.Cordon != Own {
		n.Phase = Failed
	} else {
		n.Phase = Uncordoning
	}
}

// doPhase does the work of a node's phase, and sets the next phase. If the work has to be repeated,
// it does not change the phase.
func (x *execution) doPhase(ctx context.Context, n *Node) error {
	switch n.Phase {
	case Waiting:
		return x.checkNode(ctx, n)
	case Cordoning:
		return x.cordon(ctx, n)
	case Planning:
		return x.plan(ctx, n)
	case Evicting:
		return x.evict(ctx, n)
	case Starting:
		return x.start(ctx, n)
	case Running:
		return x.awaitOperation(ctx, n)
	case Settling:
		return x.awaitDevices(ctx, n)
	case Uncordoning:
		return x.uncordon(ctx, n)
	}

	return failUnclear(
		n.Phase, "the phase %q is not known: a later kubectl mig has begun this run", n.Phase)
}

// checkNode finds out, before we cordon the node, whether there is anything to do, and whether it can
// be done.
func (x *execution) checkNode(ctx context.Context, n *Node) error {
	n.Phase = Cordoning

	if n.Undo {
		return x.checkUndo(ctx, n)
	}

	plan, err := x.requestPlan(ctx, n)

	switch p := asBusy(err); {
	case p != nil && n.Rounds > 0: // planBusy waits for the processes of pods that we have evicted
	case p != nil:
		return x.checkEvictable(ctx, n, p)
	case err != nil:
		return failUnchanged("%w", err)
	case len(plan.Steps) == 0 && n.Cordon == Own: // a failure before has left it
		n.Phase = Settling
	case len(plan.Steps) == 0:
		n.LeftBy = ""
		n.Unclear = false
		n.Phase = Skipped
	}

	return nil
}

// checkUndo returns a failure if the node's operation has not committed its layout, so that it cannot
// be rolled back.
func (x *execution) checkUndo(ctx context.Context, n *Node) error {
	if n.Operation == "" {
		if err := x.findStarted(ctx, n); err != nil || n.Operation == "" {
			return err
		}
	}

	op, err := x.operation(ctx, n, n.Operation)
	if isUnknown(err) {
		// A run that is resumed leaves the layout as it is.
		id := n.forgetUndone()
		return unknownOperation(id)
	}

	if err != nil {
		return failUnchanged("operation %s: %w", n.Operation, err)
	}

	switch {
	case op.State.Committed():
		n.Before = nil // what the node offers now is before the rollback
		return nil
	case isUndone(op.State): // the exporter has rolled it back itself, after the node had failed
		n.Operation = ""
		n.Phase = Settling

		return nil
	}

	return failUnclear(Waiting, "operation %s is %s%s: it cannot be rolled back as it is",
		op.ID, op.State, reason(op))
}

// findStarted finds the operation that an attempt to start it has begun without an answer. If there
// is none, nothing has to be undone.
func (x *execution) findStarted(ctx context.Context, n *Node) error {
	list, err := x.operations(ctx, n)
	if err != nil {
		return failUnclear(Waiting, "%w", err)
	}

	i := slices.IndexFunc(list, func(op api.Operation) bool { return n.Plan != "" && op.Plan == n.Plan })
	n.Plan = ""
	n.Hash = ""
	n.Key = ""

	switch {
	case i >= 0:
		n.Operation = list[i].ID
	case n.LeftBy != "":
		return failUnclear(Waiting, "operation %s has left the layout as it is, and cannot be rolled back",
			n.LeftBy)
	default:
		n.Phase = Settling
	}

	return nil
}

// isUnknown reports whether the exporter does not know an operation.
func isUnknown(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Type == api.NotFound
}

// unknownOperation is the failure of a node whose exporter does not know its operation. The node
// stays cordoned until an operator has seen that; a resumed run does not ask for it again.
func unknownOperation(id string) error {
	return failUnclear(Waiting, "the exporter does not know operation %s: it has lost its state, or the node "+
		"is another one of this name. A resumed run begins from the layout that it has", id)
}

// isUndone reports whether an operation that has ended has left the layout as it was before.
func isUndone(state api.OperationState) bool {
	return state == api.RolledBack || state == api.Failed
}

// checkEvictable returns a failure unless we may evict the pods in the way, and that would be enough.
func (x *execution) checkEvictable(ctx context.Context, n *Node, p *api.Problem) error {
	b := sortHolders(p.Blocking)
	if !b.isEnough() {
		return failUnchanged("%w", b.obstacle(indexesOf(ctx, x.Exporter, n.Name)))
	}

	if x.run.Options.Eviction == nil {
		return failUnchanged("%w", b.refusal())
	}

	return nil
}

// requestPlan asks the node's exporter for a plan.
func (x *execution) requestPlan(ctx context.Context, n *Node) (*api.Plan, error) {
	var plan *api.Plan

	request := api.PlanRequest{Spec: x.run.Specs[n.Spec], TakeOver: x.run.Options.TakeOver}
	err := x.retry(ctx, func() (err error) {
		plan, err = x.Exporter.Plan(ctx, n.Name, request)
		return err
	})

	return plan, err
}

// operation asks the node's exporter for an operation.
func (x *execution) operation(ctx context.Context, n *Node, id string) (*api.Operation, error) {
	var op *api.Operation

	err := x.retry(ctx, func() (err error) {
		op, err = x.Exporter.Operation(ctx, n.Name, id)
		return err
	})

	return op, err
}

// plan gets the plan for the operation, or the pods to evict.
func (x *execution) plan(ctx context.Context, n *Node) error {
	if n.Undo {
		n.Key = newKey()
		n.Phase = Starting

		return nil
	}

	until := x.Clock.Now().Add(x.run.Options.Timeout)

	for {
		plan, err := x.requestPlan(ctx, n)

		switch p := asBusy(err); {
		case p != nil:
			again, err := x.planBusy(ctx, n, p, until)
			if !again {
				return err
			}

			continue
		case err != nil:
			return failUnchanged("%w", err)
		case len(plan.Steps) == 0: // another client was faster
			n.Phase = Settling
			return nil
		}

		n.Plan = plan.ID
		n.Hash = plan.Hash
		n.Key = newKey()
		n.Phase = Starting

		return nil
	}
}

// planBusy decides what follows if instances in the way are busy: it sets the phase that evicts their
// pods, or returns a failure. If we have evicted pods before, their processes take a while to end, and
// the kubelet to forget their containers. Then it waits a moment and returns again: plan again, until
// the time until.
func (x *execution) planBusy(
	ctx context.Context, n *Node, p *api.Problem, until time.Time,
) (again bool, err error) {
	b := sortHolders(p.Blocking)

	if !b.isEnough() && n.Rounds > 0 && x.Clock.Now().Before(until) {
		return true, x.Clock.Sleep(ctx, pollEvery)
	}

	if err := x.checkEvictable(ctx, n, p); err != nil {
		return false, err
	}

	if n.Rounds == maxRounds {
		return false, failUnchanged("pods have come %d times: %s", maxRounds, joinPods(b.pods))
	}

	n.Rounds++
	n.Pods = b.pods
	n.Phase = Evicting

	return false, nil
}

// operations lists the operations of a node, the latest first, once the exporter knows all of them.
func (x *execution) operations(ctx context.Context, n *Node) ([]api.Operation, error) {
	var list *api.Operations

	err := x.retry(ctx, func() (err error) {
		list, err = x.Exporter.Operations(ctx, n.Name)
		if err == nil && list.Recovering {
			err = errRecovering
		}

		return err
	})
	if err != nil {
		return nil, err
	}

	return list.Operations, nil
}

var errRecovering = errors.New("the exporter is finishing what its last run has left")

func (x *execution) evict(ctx context.Context, n *Node) error {
	if x.run.Options.Eviction == nil {
		return failUnchanged("pods hold the devices: %s", joinPods(n.Pods))
	}

	if err := x.ensureCordon(ctx, n); err != nil {
		return err
	}

	err := x.retry(ctx, func() error {
		if err := x.Store.Held(); err != nil {
			return err
		}

		return x.Cluster.Evict(ctx, n.Name, n.Pods, *x.run.Options.Eviction)
	})
	if err != nil {
		return failUnchanged("evict: %w", err)
	}

	n.Pods = nil
	n.Phase = Planning

	return nil
}

// start starts the operation, or finds it if an earlier attempt has started it.
func (x *execution) start(ctx context.Context, n *Node) error {
	list, err := x.operations(ctx, n)
	if err != nil {
		return failUnclear(Starting, "%w", err)
	}

	if id := n.findStarted(list); id != "" {
		n.setOperation(id)
		return nil
	}

	if err := x.ensureCordon(ctx, n); err != nil {
		return err
	}

	// All this may have taken long: do we still own the run?
	if err := x.Store.Held(); err != nil {
		return err
	}

	var op *api.Operation
	if n.Undo {
		op, err = x.Exporter.Rollback(ctx, n.Name, n.Operation, n.Key)
	} else {
		op, err = x.Exporter.Start(ctx, n.Name, api.OperationRequest{Plan: n.Plan, Hash: n.Hash}, n.Key)
	}

	if err == nil {
		n.setOperation(op.ID)
		return nil
	}

	return x.handleStartError(ctx, n, err)
}

// handleStartError decides what follows if the exporter has not accepted the operation, or has not
// answered. If it does not change the phase, start tries again.
func (x *execution) handleStartError(ctx context.Context, n *Node, err error) error {
	var p *api.Problem
	if !errors.As(err, &p) {
		if !isTemporary(err) || x.isOverdue(n) {
			return failUnclear(Starting, "%w", err)
		}

		// The exporter may have started the operation: the next attempt looks for it first.
		return x.Clock.Sleep(ctx, errorInterval)
	}

	switch p.Type {
	case api.InProgress, api.RateLimited, api.Unavailable, api.Internal, api.KeyReused:
		if x.isOverdue(n) {
			return failUnclear(Starting, "%w", err)
		}

		// For the same key, the exporter would repeat its answer.
		n.Key = newKey()

		return x.Clock.Sleep(ctx, errorInterval)
	case api.Busy:
		if x.mayLinger(n, p) {
			n.Key = newKey() // the exporter would repeat its refusal
			return x.Clock.Sleep(ctx, pollEvery)
		}

		n.Phase = Planning
		_, err := x.planBusy(ctx, n, p, x.Clock.Now()) // without waiting

		return err
	case api.StalePlan, api.NotFound:
		if n.Undo || n.Rounds == maxRounds {
			break
		}

		n.Rounds++
		n.Phase = Planning

		return nil
	}

	return failUnchanged("%w", err)
}

// mayLinger reports whether what keeps a rollback from starting may be processes of pods that we have
// evicted. They are waited for as they are while a plan is made, which a rollback has none of.
func (x *execution) mayLinger(n *Node, p *api.Problem) bool {
	b := sortHolders(p.Blocking)

	return n.Undo && n.Rounds > 0 && !b.isEnough() && !x.isOverdue(n)
}

// isOverdue reports whether a node has had the phase for too long.
func (x *execution) isOverdue(n *Node) bool {
	return x.Clock.Now().Sub(n.since) > x.run.Options.Timeout
}

// findStarted returns the id of the operation that an earlier attempt has started, "" if there is
// none: the operation of the node's plan, or the rollback of the node's operation. It skips a rollback
// that has ended without a change: we try that again.
func (n *Node) findStarted(list []api.Operation) string {
	i := slices.IndexFunc(list, func(op api.Operation) bool {
		if n.Undo {
			return op.RollbackOf == n.Operation && !isUndone(op.State)
		}

		return op.Plan == n.Plan
	})
	if i < 0 {
		return ""
	}

	return list[i].ID
}

func (n *Node) setOperation(id string) {
	if n.Undo {
		n.RolledBackBy = id
	} else {
		n.Operation = id
	}

	n.Plan = ""
	n.Hash = ""
	n.Key = ""
	n.Phase = Running
}

// runningOperation returns the id of the operation that runs.
func (n *Node) runningOperation() string {
	if n.Undo {
		return n.RolledBackBy
	}

	return n.Operation
}

// awaitOperation blocks until the operation has ended, or needs an operator.
func (x *execution) awaitOperation(ctx context.Context, n *Node) error {
	var unsettledSince time.Time

	for {
		op, err := x.operation(ctx, n, n.runningOperation())
		if isUnknown(err) {
			n.LeftBy = n.forgetOperation()
			n.Before = nil

			return unknownOperation(n.LeftBy)
		}

		if err != nil {
			return failUnclear(Running, "operation %s: %w", n.runningOperation(), err)
		}

		switch op.State {
		case api.Succeeded:
			n.LeftBy = ""
			n.Phase = Settling

			return nil
		case api.Unsettled:
			if unsettledSince.IsZero() {
				unsettledSince = x.Clock.Now()
			}

			if x.Clock.Now().Sub(unsettledSince) >= x.run.Options.Timeout {
				return failUnclear(Running, "operation %s is unsettled: it waits for %s",
					op.ID, joinFirst(op.WaitsFor))
			}
		case api.RolledBack, api.Failed:
			n.forgetOperation()
			return failUnchanged("operation %s is %s%s", op.ID, op.State, reason(op))
		case api.Interrupted, api.Accepted:
			n.LeftBy = n.forgetOperation()
			n.Unclear = true

			if op.State == api.Accepted && !n.Undo && n.Rounds < maxRounds {
				n.Rounds++
				n.Phase = Planning

				return nil
			}

			return failUnclear(Waiting, "operation %s is %s%s", op.ID, op.State, reason(op))
		case api.Degraded, api.Stuck:
			return failUnclear(Running, "operation %s is %s%s: it needs an operator",
				op.ID, op.State, reason(op))
		}

		if err := x.Clock.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// forgetOperation forgets an operation that has left nothing to undo, and returns its id.
func (n *Node) forgetOperation() string {
	id := n.runningOperation()

	if n.Undo {
		n.RolledBackBy = ""
	} else {
		n.Operation = ""
	}

	return id
}

// forgetUndone forgets the operation that cannot be rolled back, and returns its id.
func (n *Node) forgetUndone() string {
	id := n.Operation
	n.Operation = ""
	n.LeftBy = ""
	n.Before = nil

	return id
}

// reason returns why an operation has ended so, as " (...)"; "" if it does not say.
func reason(op *api.Operation) string {
	if op.Error == nil {
		return ""
	}

	return " (" + strings.TrimSuffix(op.Error.Error(), ".") + ")"
}

// newKey returns a random Idempotency-Key.
func newKey() string { return rand.Text() }
