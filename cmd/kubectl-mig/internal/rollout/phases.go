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

// failure is why a node has failed, and what follows.
type failure struct {
	err   error
	retry Phase // in which a resumed run goes on
	// keep: the node's layout is not what it was, or that is not known, and it stays cordoned.
	keep bool
	// cordoned: it stays cordoned because we could not uncordon it.
	cordoned bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// unchanged is a failure of a node with the layout that it had.
func unchanged(format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), retry: Waiting}
}

// unclear is a failure of a node that stays cordoned until an operator has looked at it.
func unclear(retry Phase, format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), retry: retry, keep: true}
}

// fail records a failure. A node whose layout is the one from before the run is uncordoned.
func (n *Node) fail(err error) {
	f := &failure{err: err, retry: n.Phase, keep: true}
	_ = errors.As(err, &f)

	n.Failure = shorten(cmp.Or(n.Failure, err.Error()))
	n.Retry = cmp.Or(n.Retry, f.retry)
	n.Unclear = n.Unclear || f.keep
	n.Pods = nil

	if n.Unclear || f.cordoned || n.Cordon != Own {
		n.Phase = Failed
	} else {
		n.Phase = Uncordoning
	}
}

// do does the deed of a node's phase, and sets the next one. It leaves the phase if the deed has to
// be repeated.
func (x *execution) do(ctx context.Context, n *Node) error {
	switch n.Phase {
	case Waiting:
		return x.begin(ctx, n)
	case Cordoning:
		return x.cordon(ctx, n)
	case Planning:
		return x.plan(ctx, n)
	case Evicting:
		return x.evict(ctx, n)
	case Starting:
		return x.start(ctx, n)
	case Running:
		return x.follow(ctx, n)
	case Settling:
		return x.settle(ctx, n)
	case Uncordoning:
		return x.uncordon(ctx, n)
	}

	return unclear(n.Phase, "the phase %q is not known: a later kubectl mig has begun this run", n.Phase)
}

// begin finds out whether there is anything to do, and whether it can be done, before the node is
// cordoned.
func (x *execution) begin(ctx context.Context, n *Node) error {
	n.Phase = Cordoning

	if n.Undo {
		return x.checkUndo(ctx, n)
	}

	plan, err := x.makePlan(ctx, n)

	switch p := busy(err); {
	case p != nil && n.Rounds > 0: // planning waits for what was evicted
	case p != nil:
		return x.mayEvict(p)
	case err != nil:
		return unchanged("%w", err)
	case len(plan.Steps) == 0 && n.Cordon == Own: // a failure before has left it
		n.Phase = Settling
	case len(plan.Steps) == 0:
		n.LeftBy = ""
		n.Unclear = false
		n.Phase = Skipped
	}

	return nil
}

// checkUndo refuses the rollback of an operation that has not ended with its layout.
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
		return unchanged("operation %s: %w", n.Operation, err)
	}

	switch {
	case op.State.Committed():
		return nil
	case isUndone(op.State): // the exporter has done it after the run had lost sight of it
		n.Operation = ""
		n.Phase = Settling

		return nil
	}

	return unclear(Waiting, "operation %s is %s%s: it cannot be rolled back as it is",
		op.ID, op.State, reason(op))
}

// findStarted finds the operation that an attempt to start it has begun without an answer. If there
// is none, nothing has to be undone.
func (x *execution) findStarted(ctx context.Context, n *Node) error {
	list, err := x.operations(ctx, n)
	if err != nil {
		return unclear(Waiting, "%w", err)
	}

	i := slices.IndexFunc(list, func(op api.Operation) bool { return n.Plan != "" && op.Plan == n.Plan })
	n.Plan = ""
	n.Hash = ""
	n.Key = ""

	switch {
	case i >= 0:
		n.Operation = list[i].ID
	case n.LeftBy != "":
		return unclear(Waiting, "operation %s has left the layout as it is, and cannot be rolled back", n.LeftBy)
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
	return unclear(Waiting, "the exporter does not know operation %s: it has lost its state, or the node is "+
		"another one of this name. A resumed run begins from the layout that it has", id)
}

// isUndone reports whether an operation that has ended has left the layout as it was before.
func isUndone(state api.OperationState) bool {
	return state == api.RolledBack || state == api.Failed
}

// mayEvict refuses a change for which pods would have to be evicted, unless we may and that would
// do.
func (x *execution) mayEvict(p *api.Problem) error {
	b := sortBlockers(p.Blocking)
	if err := b.obstacle(); err != nil {
		return unchanged("%w", err)
	}

	if x.run.Options.Eviction == nil {
		return unchanged("%w", b.refusal())
	}

	return nil
}

// makePlan asks the node's exporter for a plan.
func (x *execution) makePlan(ctx context.Context, n *Node) (*api.Plan, error) {
	var plan *api.Plan

	request := api.PlanRequest{Spec: x.run.Specs[n.Spec], TakeOver: x.run.Options.TakeOver}
	err := x.retry(ctx, func() (err error) {
		plan, err = x.Exporter.Plan(ctx, n.Name, request)
		return err
	})

	return plan, err
}

func (x *execution) operation(ctx context.Context, n *Node, id string) (*api.Operation, error) {
	var op *api.Operation

	err := x.retry(ctx, func() (err error) {
		op, err = x.Exporter.Operation(ctx, n.Name, id)
		return err
	})

	return op, err
}

func (x *execution) cordon(ctx context.Context, n *Node) error {
	if err := x.ensureCordon(ctx, n); err != nil {
		return err
	}

	if n.Before == nil {
		n.Before = x.offer(ctx, n)
	}

	n.Phase = Planning

	return nil
}

// offer returns what a node has before its change, as far as that is known.
func (x *execution) offer(ctx context.Context, n *Node) *Offer {
	var o Offer

	err := x.retry(ctx, func() (err error) {
		o.Resources, err = x.Cluster.Offered(ctx, n.Name)
		return err
	})
	if err != nil {
		return nil
	}

	if o.Devices, err = x.Exporter.Devices(ctx, n.Name); err != nil {
		o.Devices = nil
	}

	return &o
}

// ensureCordon cordons a node that is not cordoned. We do so again before each deed that needs it:
// another client can have uncordoned the node since, or it is a new one of the same name.
func (x *execution) ensureCordon(ctx context.Context, n *Node) error {
	var own bool

	err := x.retry(ctx, func() (err error) {
		if err = x.Store.Held(); err == nil {
			own, err = x.Cluster.Cordon(ctx, n.Name, x.run.Name)
		}

		return err
	})
	if err != nil {
		// The last attempt may have cordoned it without an answer.
		n.Cordon = Own
		return unchanged("cordon: %w", err)
	}

	n.Cordon = Foreign
	if own {
		n.Cordon = Own
	}

	return nil
}

// plan makes the plan of the operation, or finds the pods to evict.
func (x *execution) plan(ctx context.Context, n *Node) error {
	if n.Undo {
		n.Key = newKey()
		n.Phase = Starting

		return nil
	}

	until := x.Clock.Now().Add(x.run.Options.Timeout)

	for {
		plan, err := x.makePlan(ctx, n)

		switch p := busy(err); {
		case p != nil:
			again, err := x.clear(ctx, n, p, until)
			if !again {
				return err
			}

			continue
		case err != nil:
			return unchanged("%w", err)
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

// clear sets the phase in which what is in the way is evicted. It returns true after some time if
// the plan is to be made again: after an eviction, processes take a while to end, and the kubelet to
// forget their containers.
func (x *execution) clear(
	ctx context.Context, n *Node, p *api.Problem, until time.Time,
) (again bool, err error) {
	b := sortBlockers(p.Blocking)

	obstacle := b.obstacle()
	if obstacle != nil && n.Rounds > 0 && x.Clock.Now().Before(until) {
		return true, x.Clock.Sleep(ctx, pollEvery)
	}

	if obstacle != nil {
		return false, unchanged("%w", obstacle)
	}

	if err := x.mayEvict(p); err != nil {
		return false, err
	}

	if n.Rounds == maxRounds {
		return false, unchanged("pods have come %d times: %s", maxRounds, joinPods(b.pods))
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
		return unchanged("pods hold the devices: %s", joinPods(n.Pods))
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
		return unchanged("evict: %w", err)
	}

	n.Pods = nil
	n.Phase = Planning

	return nil
}

// start starts the operation, or finds it if an attempt before has started it.
func (x *execution) start(ctx context.Context, n *Node) error {
	list, err := x.operations(ctx, n)
	if err != nil {
		return unclear(Starting, "%w", err)
	}

	if id := n.startedAmong(list); id != "" {
		n.setOperation(id)
		return nil
	}

	if err := x.ensureCordon(ctx, n); err != nil {
		return err
	}

	// All this may have taken long.
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

	return x.startFailed(ctx, n, err)
}

// startFailed decides what follows if the exporter has not accepted the operation, or has not
// answered.
func (x *execution) startFailed(ctx context.Context, n *Node, err error) error {
	var p *api.Problem
	if !errors.As(err, &p) {
		if !temporary(err) || x.overdue(n) {
			return unclear(Starting, "%w", err)
		}

		return x.Clock.Sleep(ctx, errorInterval) // and look for the operation
	}

	switch p.Type {
	case api.InProgress, api.RateLimited, api.Unavailable, api.Internal, api.KeyReused:
		if x.overdue(n) {
			return unclear(Starting, "%w", err)
		}

		// The exporter would repeat its refusal for the same key.
		n.Key = newKey()

		return x.Clock.Sleep(ctx, errorInterval)
	case api.Busy:
		if x.mayLinger(n, p) {
			n.Key = newKey() // the exporter would repeat its refusal
			return x.Clock.Sleep(ctx, pollEvery)
		}

		n.Phase = Planning
		_, err := x.clear(ctx, n, p, x.Clock.Now())

		return err
	case api.StalePlan, api.NotFound:
		if n.Undo || n.Rounds == maxRounds {
			break
		}

		n.Rounds++
		n.Phase = Planning

		return nil
	}

	return unchanged("%w", err)
}

// mayLinger reports whether what keeps a rollback from starting may be processes of pods that we have
// evicted. They are waited for as they are while a plan is made, which a rollback has none of.
func (x *execution) mayLinger(n *Node, p *api.Problem) bool {
	b := sortBlockers(p.Blocking)

	return n.Undo && n.Rounds > 0 && b.obstacle() != nil && !x.overdue(n)
}

// overdue reports whether a node has had the phase for too long.
func (x *execution) overdue(n *Node) bool {
	return x.Clock.Now().Sub(n.since) > x.run.Options.Timeout
}

// startedAmong returns the operation that an attempt before has started, if any has: the operation
// of the plan, or the rollback of the operation by its name. A rollback that has left the layout as
// it was is tried again.
func (n *Node) startedAmong(list []api.Operation) string {
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

// current returns the id of the operation that runs.
func (n *Node) current() string {
	if n.Undo {
		return n.RolledBackBy
	}

	return n.Operation
}

// follow waits until the operation has ended.
func (x *execution) follow(ctx context.Context, n *Node) error {
	var unsettled time.Time

	for {
		op, err := x.operation(ctx, n, n.current())
		if isUnknown(err) {
			n.LeftBy = n.forget()
			n.Before = nil

			return unknownOperation(n.LeftBy)
		}

		if err != nil {
			return unclear(Running, "operation %s: %w", n.current(), err)
		}

		switch op.State {
		case api.Succeeded:
			n.LeftBy = ""
			n.Phase = Settling

			return nil
		case api.Unsettled:
			if unsettled.IsZero() {
				unsettled = x.Clock.Now()
			}

			if x.Clock.Now().Sub(unsettled) >= x.run.Options.Timeout {
				return unclear(Running, "operation %s is unsettled: it waits for %s",
					op.ID, listed(op.WaitsFor))
			}
		case api.RolledBack, api.Failed:
			n.forget()
			return unchanged("operation %s is %s%s", op.ID, op.State, reason(op))
		case api.Interrupted, api.Accepted:
			n.LeftBy = n.forget()
			n.Unclear = true

			if op.State == api.Accepted && !n.Undo && n.Rounds < maxRounds {
				n.Rounds++
				n.Phase = Planning

				return nil
			}

			return unclear(Waiting, "operation %s is %s%s", op.ID, op.State, reason(op))
		case api.Degraded, api.Stuck:
			return unclear(Running, "operation %s is %s%s: it needs an operator",
				op.ID, op.State, reason(op))
		}

		if err := x.Clock.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// forget forgets an operation that has left nothing to undo, and returns its id.
func (n *Node) forget() string {
	id := n.current()

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

func reason(op *api.Operation) string {
	if op.Error == nil {
		return ""
	}

	return " (" + strings.TrimSuffix(op.Error.Error(), ".") + ")"
}

// settle waits until the API server shows the devices that the node has now.
func (x *execution) settle(ctx context.Context, n *Node) error {
	until := x.Clock.Now().Add(x.run.Options.Timeout)

	for {
		missing, err := x.missing(ctx, n)
		if err == nil && len(missing) == 0 {
			n.Phase = Uncordoning
			return nil
		}

		if err != nil && !temporary(err) {
			return unclear(Settling, "%w", err)
		}

		if !x.Clock.Now().Before(until) {
			if err == nil {
				err = fmt.Errorf("the layout stands, but the node's allocatable does not follow: %s",
					listed(missing))
			}

			return unclear(Settling, "%w", err)
		}

		if err := x.Clock.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

func (x *execution) missing(ctx context.Context, n *Node) ([]string, error) {
	devices, err := x.Exporter.Devices(ctx, n.Name)
	if err != nil {
		return nil, err
	}

	return x.Cluster.Missing(ctx, n.Name, devices, n.Before)
}

// uncordon lifts the run's own cordon.
func (x *execution) uncordon(ctx context.Context, n *Node) error {
	if n.Cordon == Own {
		err := x.retry(ctx, func() error {
			if err := x.Store.Held(); err != nil {
				return err
			}

			return x.Cluster.Uncordon(ctx, n.Name, x.run.Name)
		})
		if err != nil {
			return &failure{err: fmt.Errorf("uncordon: %w", err), retry: Uncordoning, cordoned: true}
		}
	}

	n.Before = nil
	n.Cordon = ""
	n.LeftBy = ""
	n.Unclear = false
	n.Phase = Done

	if n.Failure != "" {
		n.Phase = Failed
	}

	return nil
}

// newKey returns a random Idempotency-Key.
func newKey() string { return rand.Text() }
