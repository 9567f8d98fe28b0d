package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// awaitSettled waits until a Snapshot has the new layout, the hooks have run and the kubelet offers the new devices. No
// failure of it fails the operation, and it blocks only the operation's GPUs. It returns early when ctx ends; if the
// grace period ends, the next start does it again.
func (e *Engine) awaitSettled(ctx context.Context, op *operation) {
	safe, cancel := withGrace(ctx)
	defer cancel()
	e.pollLayout(ctx, op)
	e.listReplaced(safe, op)
	e.runHooks(safe, op, api.Succeeded)
	if e.deferToRestart(safe, op) {
		return
	}
	e.awaitKubelet(ctx, op)
	e.endOperation(safe, op, api.Succeeded, nil)
	e.mu.Lock()
	e.endEvents(op)
	e.mu.Unlock()
	e.reportState()
}

// EndSettling ends the wait for the kubelet of an operation that settles.
func (e *Engine) EndSettling(_ context.Context, by Actor, id string) (*api.Operation, error) {
	if p := e.mayApply(by); p != nil {
		return nil, p
	}
	e.mu.Lock()
	op, p := e.findOperation(id)
	if p == nil && op.Operation.State != api.Settling {
		p = problemf(api.BadSpec, "operation %s is %s: it does not wait for the kubelet", id, op.Operation.State)
	}
	if p != nil {
		e.mu.Unlock()
		return nil, p
	}
	select {
	case <-op.settled:
	default:
		close(op.settled)
	}
	e.mu.Unlock()
	e.addWarning(op, "%s has ended the wait for the kubelet", by.Name)
	return e.Operation(id)
}

// pollLayout polls the operation's GPUs, so that the Snapshot has their new layouts.
func (e *Engine) pollLayout(ctx context.Context, op *operation) {
	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	if err := e.o.Poller.PollGPUs(ctx, op.gpus()...); err != nil {
		e.addWarning(op, "the node could not be polled at once; metrics follow with the next poll")
	}
}

// runHooks runs the programs that the operator wants to be run after a change.
func (e *Engine) runHooks(ctx context.Context, op *operation, state api.OperationState) {
	if e.o.RunHook == nil || len(e.o.Hooks) == 0 {
		return
	}
	env := e.hookEnvironment(ctx, op, state)
	for _, h := range e.o.Hooks {
		r := e.o.RunHook(ctx, h, env)
		e.mu.Lock()
		op.Operation.Hooks = append(op.Operation.Hooks, r)
		e.addEvent(op, api.Event{Kind: api.EventHook, Hook: &r})
		e.mu.Unlock()
	}
}

// hookEnvironment names for a hook what has changed: the MIG devices of the operation's GPUs before and after, by
// commas.
func (e *Engine) hookEnvironment(ctx context.Context, op *operation, state api.OperationState) []string {
	var gpus, before, now []string
	live, _, err := e.readLayouts(ctx, op.gpus()...)
	for _, id := range op.gpus() {
		gpus = append(gpus, string(id))
		if g, missing := findGPU(live, nil, id); err == nil && missing == nil && op.Operation.Verb != api.VerbMode {
			now = append(now, uuids(g.Instances)...)
		}
	}
	for _, p := range op.Parts {
		before = append(before, uuids(p.Before)...)
	}
	slices.Sort(before)
	slices.Sort(now)
	return []string{
		"MIG_CONTROL_OPERATION=" + op.Operation.ID,
		"MIG_CONTROL_VERB=" + string(op.Operation.Verb),
		"MIG_CONTROL_RESULT=" + string(state),
		"MIG_CONTROL_GPUS=" + strings.Join(gpus, ","),
		"MIG_CONTROL_OLD_UUIDS=" + strings.Join(before, ","),
		"MIG_CONTROL_NEW_UUIDS=" + strings.Join(now, ","),
	}
}

// awaitKubelet waits until the kubelet can give out every MIG device that the operation has created, and none that it
// has destroyed: a pod that is given one of those has no device. The operation says what it waits for meanwhile.
// Where devices are given by DRA claims, the kubelet offers none, and there is nothing to wait for.
func (e *Engine) awaitKubelet(ctx context.Context, op *operation) {
	if e.o.Assignments == nil {
		return
	}
	changed := e.compareDevices(ctx, op)
	if len(changed.created)+len(changed.destroyed) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.o.SettleTimeout)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-op.settled:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		list, err := e.readAllocatable(ctx)
		if errors.Is(err, gpu.ErrNoKubelet) {
			return
		}
		if err == nil && len(list) == 0 && e.usesOnlyClaims(ctx) {
			return
		}
		missing, stale := changed.compareOffers(list, err)
		if len(missing)+len(stale) == 0 {
			return
		}
		e.setWaiting(op, waitingFor(missing, stale, err))
		sleep(ctx, time.Second)
		if ctx.Err() == nil {
			continue
		}
		e.warnUnsettled(op, missing, stale, err)
		return
	}
}

// readAllocatable asks the kubelet which devices it can give out.
func (e *Engine) readAllocatable(ctx context.Context) ([]gpu.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	return e.o.Assignments.Allocatable(ctx)
}

// usesOnlyClaims reports whether containers were given devices, and all of them by DRA claims.
func (e *Engine) usesOnlyClaims(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	list, _ := e.o.Assignments.List(ctx) // what it has returned before is as good
	all := slices.Concat(list.List, list.Unreadable)
	return len(all) > 0 &&
		!slices.ContainsFunc(all, func(a gpu.Assignment) bool { return !strings.HasPrefix(a.Holder.Resource, "claim/") })
}

// waitingFor describes what an operation waits for. failed is the error of the kubelet's last answer, or nil.
func waitingFor(missing, stale []string, failed error) []string {
	if failed != nil {
		return []string{fmt.Sprintf("the kubelet to say which devices it offers (%s)", reasonText(failed))}
	}
	var list []string
	if len(missing) > 0 {
		list = append(list, "the kubelet to offer "+strings.Join(missing, ", "))
	}
	if len(stale) > 0 {
		list = append(list, "the kubelet to stop offering "+strings.Join(stale, ", ")+", which was destroyed")
	}
	return list
}

// setWaiting records what an operation waits for, and adds an event if that has changed.
func (e *Engine) setWaiting(op *operation, list []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Equal(op.Operation.WaitsFor, list) {
		return
	}
	op.Operation.WaitsFor = list
	if len(list) > 0 {
		e.addEvent(op, api.Event{Kind: api.EventNote, Text: "waits for " + strings.Join(list, ", and for ")})
	}
}

// warnUnsettled adds a warning that names what to restart when the kubelet has not followed in time. failed is the
// error of its last answer, or nil.
func (e *Engine) warnUnsettled(op *operation, missing, stale []string, failed error) {
	if failed != nil {
		e.addWarning(op, "the kubelet does not say what it offers (%s): fix or restart it, and restart the device plugin if "+
			"its devices stay wrong", reasonText(failed))
	}
	if len(missing) > 0 {
		e.addWarning(op, "the kubelet does not offer %s yet: restart the device plugin if it does not follow",
			strings.Join(missing, ", "))
	}
	if len(stale) > 0 {
		e.addWarning(op, "the kubelet may still offer %s, which was destroyed: restart the device plugin, or the next pod "+
			"gets a device that does not exist",
			strings.Join(stale, ", "))
	}
}

// cordonNode keeps new pods away while GPUs are repartitioned. The intent is saved first, and an annotation on
// the node marks the cordon as this program's: so a crash does not leave it, and no other cordon is undone.
func (e *Engine) cordonNode(ctx context.Context, op *operation) error {
	if e.o.Cluster == nil {
		return nil
	}
	e.cordoning.Lock()
	defer e.cordoning.Unlock()
	e.setCordoned(op, true)
	if err := e.saveOperation(op); err != nil {
		e.setCordoned(op, false)
		return err
	}
	call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	if _, err := e.o.Cluster.Cordon(call); err != nil {
		e.addWarning(op, "the node could not be cordoned (%s): pods may be given new devices before all is done",
			reasonText(err))
	}
	return nil
}

func (e *Engine) setCordoned(op *operation, cordoned bool) {
	e.mu.Lock()
	op.Cordoned = cordoned
	e.mu.Unlock()
}

// uncordonNode undoes this program's cordon when the last operation that wants it ends. If it fails, Run tries it
// again, and the next start.
func (e *Engine) uncordonNode(ctx context.Context, op *operation) {
	e.cordoning.Lock()
	defer e.cordoning.Unlock()
	e.mu.Lock()
	mine := op.Cordoned && e.o.Cluster != nil
	wanted := slices.ContainsFunc(e.operations, func(o *operation) bool {
		return o != op && o.Cordoned && !o.Operation.State.Final()
	})
	e.mu.Unlock()
	if !mine {
		return
	}
	if !wanted {
		call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()
		if err := e.o.Cluster.Uncordon(call); err != nil {
			level.Warn(e.o.Logger).Log("msg", "node is still cordoned", "operation", op.Operation.ID, "err", err)
			e.addWarning(op, "the node is still cordoned (%s): uncordoning is retried", reasonText(err))
			return
		}
	}
	e.setCordoned(op, false)
}

// retryUncordon uncordons the node if an operation has ended without doing so.
func (e *Engine) retryUncordon(ctx context.Context) {
	e.mu.Lock()
	at := slices.IndexFunc(e.operations, func(op *operation) bool { return op.Cordoned && op.Operation.State.Final() })
	var op *operation
	if at >= 0 && e.current == nil && e.unusable == "" {
		op = e.operations[at]
	}
	e.mu.Unlock()
	if op == nil {
		return
	}
	if e.uncordonNode(ctx, op); !op.Cordoned {
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}
}
