package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// followInterval is the time between two questions to the kubelet while an operation waits for it.
const followInterval = time.Second

// awaitFollowers polls the new layout, runs the hooks, restarts the device plugin and waits until
// the kubelet offers the new devices. The change stays even if they fail: after the settle timeout
// the operation is unsettled. Meanwhile other GPUs can be changed. When ctx ends, awaitFollowers
// leaves the rest to the next start.
func (e *Engine) awaitFollowers(ctx context.Context, op *operation) {
	graceCtx, cancel := withGrace(ctx)
	defer cancel()

	e.pollLayout(ctx, op)
	e.listReplaced(graceCtx, op)
	e.runHooks(graceCtx, op, api.Succeeded)

	if e.deferToRestart(graceCtx, op) {
		return
	}

	waits, over := e.awaitOffered(ctx, op)
	if !over {
		_ = e.saveHistory() // with the hooks that have run; if it cannot be saved, the engine is read-only

		level.Info(e.o.Logger).Log(
			"msg", "left an operation that waits for the kubelet to the next start",
			"operation", op.id,
			"cordoned", op.copy().Cordoned,
		)

		return
	}

	op.setLayoutOffered(len(waits) == 0)
	waits = append(waits, e.awaitedHooks(op)...)
	state := api.Succeeded

	if len(waits) > 0 {
		state = api.Unsettled
	}

	op.setWaiting(waits)
	e.endOperation(graceCtx, op, state, nil)

	op.change((*entry).endEvents)
	e.reportState()
}

// endOperation closes an operation. If it cannot save the end, the engine is read-only, and tries
// again. An unsettled operation keeps the node cordoned as long as the kubelet may offer devices
// that do not exist.
func (e *Engine) endOperation(
	ctx context.Context,
	op *operation,
	state api.OperationState,
	p *api.Problem,
) {
	if state != api.Unsettled || op.copy().layoutOffered {
		e.uncordonNode(ctx, op)
	}

	e.state.update(func(b *book) { b.end(op, state, p) })
	e.logEnd(op, state)

	// The current operation is saved in the slots. Once another operation is current, this one is
	// only in the history.
	if read(e.state, func(b *book) bool { return b.current == op }) {
		_ = e.saveOperation(op)
	} else {
		_ = e.saveHistory()
	}

	e.countOperation(op, state)
}

// end sets the last state of an operation, and remembers its layouts if it has committed. An
// unsettled operation keeps what it waits for.
func (b *book) end(op *operation, state api.OperationState, p *api.Problem) {
	o := op.in(b)

	o.Operation.State = state
	o.Operation.Ended = o.now()

	if state != api.Unsettled {
		o.Operation.WaitsFor = nil
	}

	if p != nil {
		o.Operation.Error = p
	}

	for n := range o.Operation.GPUs {
		if g := &o.Operation.GPUs[n]; !g.State.Final() {
			g.State = state
		}
	}

	if state.Committed() {
		o.Operation.Error = nil
		b.remember(o)
	}

	o.addEvent(api.Event{Kind: api.EventState, Text: string(state)})
}

// logEnd logs the end of an operation, as a warning if the operation has any.
func (e *Engine) logEnd(op *operation, state api.OperationState) {
	o := op.copy()
	warnings := o.Operation.Warnings

	line := []any{
		"msg", "operation ended",
		"operation", op.id,
		"verb", op.verb,
		"by", o.Operation.By,
		"state", state,
	}
	if state == api.Unsettled {
		waits := strings.Join(o.Operation.WaitsFor, "; ")
		line = append(line, "waits_for", waits, "cordoned", o.Cordoned)
	}

	if len(warnings) == 0 && state != api.Unsettled {
		level.Info(e.o.Logger).Log(line...)
		return
	}

	level.Warn(e.o.Logger).Log(append(line, "warnings", strings.Join(warnings, "; "))...)
}

// awaitOffered blocks until the kubelet offers the devices that an operation has created, the
// operator ends the wait, or the settle timeout is over. It returns what the operation still waits
// for, and false if ctx has ended before.
func (e *Engine) awaitOffered(ctx context.Context, op *operation) (waits []string, over bool) {
	w := &kubeletWait{e: e, op: op}
	expected := e.expectedLayouts(ctx, op)

	waitCtx, cancel := context.WithTimeout(ctx, e.o.SettleTimeout)
	defer cancel()
	go func() { // ends with waitCtx
		select {
		case <-op.ended:
			cancel()
		case <-waitCtx.Done():
		}
	}()

	for {
		missing := w.look(waitCtx, expected)
		if len(missing) == 0 {
			return nil, true
		}

		// If the wait ended during this look, its calls may have failed for that reason only: we
		// keep the result of the look before.
		cutShort := waitCtx.Err() != nil
		if !cutShort || waits == nil {
			waits = missing
		}

		if !cutShort {
			op.setWaiting(waits)
			_ = retry.Sleep(waitCtx, followInterval)
		}

		switch {
		case ctx.Err() != nil:
			return waits, false
		case isClosed(op.ended):
			return nil, true
		case waitCtx.Err() != nil:
			return waits, true
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// kubeletWait follows one operation until the kubelet offers exactly its devices. It belongs to one
// goroutine.
type kubeletWait struct {
	e  *Engine
	op *operation
	// restartAt is the earliest time of the next attempt to restart the device plugin, refusal why
	// the last one failed.
	restartAt time.Time
	refusal   string
}

// look restarts the device plugin unless that was done, and returns what has to happen before the
// kubelet gives pods exactly the devices that exist; nil if that is so. now are the operation's GPUs
// with the devices that should exist.
func (w *kubeletWait) look(ctx context.Context, now []mig.GPULayout) []string {
	waits := w.renewPlugin(ctx)
	return append(waits, w.compareAllocatable(ctx, now)...)
}

// compareAllocatable returns what the kubelet has to change so that it can give out every MIG device
// that the operation has created, and none that it has destroyed.
func (w *kubeletWait) compareAllocatable(ctx context.Context, now []mig.GPULayout) []string {
	e := w.e
	if e.o.Assignments == nil {
		return nil // the operator has told us not to ask the kubelet
	}

	o := w.op.copy()

	changed := o.compareDevices(now)
	if changed.isEmpty() {
		return nil
	}

	list, err := e.readAllocatable(ctx)
	if errors.Is(err, gpu.ErrNoKubelet) {
		return nil
	}

	// If pods get all devices by DRA claims, the kubelet offers none. With a device plugin, an
	// empty list means that the plugin has not registered yet.
	if err == nil && len(list) == 0 && e.o.DevicePlugin == nil && e.usesOnlyClaims(ctx) {
		return nil
	}

	missing, stale := changed.compareOffers(list, err)

	return waitingFor(missing, stale, err)
}

// expectedLayouts returns the GPUs of an operation as it has left them. It reads their minor
// numbers again, and the whole GPU if the operation has changed its MIG mode.
func (e *Engine) expectedLayouts(ctx context.Context, op *operation) []mig.GPULayout {
	// If this fails, references by minor number match nothing.
	live, _, _ := e.readLayouts(ctx, op.gpus...)

	var list []mig.GPULayout

	o := op.copy()
	for _, c := range o.Changes {
		g := c.live()
		if now, err := findGPU(live, nil, c.GPU); err == nil {
			g.Minor = now.Minor
		}

		list = append(list, g)
	}

	if m := o.Operation.Mode; m != nil {
		g, err := findGPU(live, nil, m.GPU)
		if err != nil {
			g = mig.GPULayout{Facts: gpu.Facts{UUID: m.GPU}, MIG: gpu.Some(m.Current)}
		}

		list = append(list, g)
	}

	return list
}

// EndSettling ends an operation's wait for the kubelet. An unsettled operation becomes succeeded:
// the operator says that nothing is left to be done.
func (e *Engine) EndSettling(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	if p := e.checkMayApply(by); p != nil {
		return nil, p
	}

	op, p := e.findOperation(id)
	if p != nil {
		return nil, p
	}

	var state api.OperationState

	op.change(func(o *entry) {
		state = o.Operation.State
		if state == api.Settling && !isClosed(op.ended) {
			close(op.ended)
		}
	})

	switch state {
	case api.Settling:
		op.addWarning("%s has ended the wait for the kubelet", by.Name)
	case api.Unsettled:
		op.addWarning("%s has said that nothing is left to be done", by.Name)
		e.finishUnsettled(ctx, op)
	default:
		return nil, problemf(
			api.BadSpec,
			"operation %s is %s: it does not wait for the kubelet",
			id,
			state,
		)
	}

	return e.Operation(id)
}

// pollLayout polls the operation's GPUs, so that the Snapshot has their new layouts.
func (e *Engine) pollLayout(ctx context.Context, op *operation) {
	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	if err := e.o.Poller.PollGPUs(ctx, op.gpus...); err != nil {
		op.addWarning("the node could not be polled at once; metrics follow with the next poll")
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
	list, _ := e.o.Assignments.List(ctx) // after an error, the list from before is good enough
	all := slices.Concat(list.List, list.Unreadable)

	return len(all) > 0 &&
		!slices.ContainsFunc(
			all,
			func(a gpu.Assignment) bool { return !a.Holder.ByClaim() },
		)
}

// waitingFor describes what an operation waits for. failed is the error of the kubelet's last
// answer, or nil.
func waitingFor(missing, stale []string, failed error) []string {
	if failed != nil {
		return []string{"the kubelet to say which devices it offers (" + reasonText(failed) + ")"}
	}

	var list []string
	if len(missing) > 0 {
		list = append(list, "the kubelet to offer "+strings.Join(missing, ", "))
	}

	if len(stale) > 0 {
		list = append(
			list,
			"the kubelet to stop offering "+strings.Join(stale, ", ")+", which was destroyed",
		)
	}

	return list
}

// setWaiting records what an operation waits for, and adds an event if that has changed. It does
// nothing if the operation has succeeded meanwhile, because an operator has ended the wait.
func (op *operation) setWaiting(list []string) {
	op.change(func(o *entry) {
		if o.Operation.State == api.Succeeded || slices.Equal(o.Operation.WaitsFor, list) {
			return
		}

		o.Operation.WaitsFor = list
		if len(list) > 0 {
			text := "waits for " + strings.Join(list, ", and for ")
			o.addEvent(api.Event{Kind: api.EventNote, Text: text})
		}
	})
}

func (op *operation) setLayoutOffered(offered bool) {
	op.change(func(o *entry) { o.layoutOffered = offered })
}
