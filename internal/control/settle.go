package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// settle lets everyone see the new layout: the Snapshot, hooks, the kubelet. Nothing of it fails the operation. A ctx that
// ends makes it wait no longer; when safe ends, the next start does it all again.
func (e *Engine) settle(ctx, safe context.Context, op *operation) {
	e.update(op, "state", "settling", func(d *api.Operation) { d.State = api.Settling })
	e.poll(ctx, op)
	if gpus, _, err := e.read(safe, gpusOf(op.begun.After)...); err == nil { // a roll-back's layout after had UUIDs once
		names := renamed(op.begun.After, gpus)
		e.mu.Lock()
		op.doc.Renamed = names
		e.mu.Unlock()
	}
	e.hooks(safe, op, api.Succeeded)
	if e.leave(safe, op) {
		return
	}
	e.awaitKubelet(ctx, op)
	e.open(safe, op)
	e.end(op, api.Succeeded, nil)
}

// poll makes the Snapshot follow.
func (e *Engine) poll(ctx context.Context, op *operation) {
	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	if err := e.o.Node.Poll(ctx, nil); err != nil {
		e.warn(op, "the node could not be polled at once; metrics follow with the next poll")
	}
}

// hooks runs what the operator wants to be run after a change.
func (e *Engine) hooks(ctx context.Context, op *operation, state api.OperationState) {
	if e.o.RunHook == nil || len(e.o.Hooks) == 0 {
		return
	}
	env := e.environment(ctx, op, state)
	for _, h := range e.o.Hooks {
		r := e.o.RunHook(ctx, h, env)
		text := "hook " + strings.Join(h.Argv, " ") + ": done"
		if !r.OK {
			text = "hook " + strings.Join(h.Argv, " ") + ": " + r.Error
		}
		e.update(op, "hook", text, func(d *api.Operation) { d.Hooks = append(d.Hooks, r) })
	}
}

// environment tells a hook what has changed: the MIG devices of the operation's GPUs before and after, by commas.
func (e *Engine) environment(ctx context.Context, op *operation, state api.OperationState) []string {
	var gpus, now []string
	live, _, err := e.read(ctx, gpusOf(op.begun.Before)...)
	if m := op.begun.Operation.Mode; m != nil {
		gpus = append(gpus, string(m.GPU))
	}
	for _, l := range op.begun.Before {
		gpus = append(gpus, string(l.GPU))
		if g, missing := findGPU(live, nil, l.GPU); err == nil && missing == nil {
			now = append(now, uuids([]layout{layoutOf(g)})...)
		}
	}
	return []string{
		"MIG_CONTROL_OPERATION=" + op.doc.ID,
		"MIG_CONTROL_VERB=" + string(op.doc.Verb),
		"MIG_CONTROL_RESULT=" + string(state),
		"MIG_CONTROL_GPUS=" + strings.Join(gpus, ","),
		"MIG_CONTROL_OLD_UUIDS=" + strings.Join(uuids(op.begun.Before), ","),
		"MIG_CONTROL_NEW_UUIDS=" + strings.Join(now, ","),
	}
}

// awaitKubelet waits until the kubelet can give out every MIG device that the operation has made.
func (e *Engine) awaitKubelet(ctx context.Context, op *operation) {
	expected := op.devices()
	if e.o.Assignments == nil || len(expected) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.o.SettleTimeout)
	defer cancel()
	var missing []string
	for {
		list, err := e.o.Assignments.Allocatable(ctx)
		if errors.Is(err, gpu.ErrNotSupported) { // there is no kubelet, or one that cannot tell
			return
		}
		missing = missing[:0]
		for _, d := range expected {
			if err != nil || !slices.ContainsFunc(list, d.named) {
				missing = append(missing, string(d.uuid))
			}
		}
		if len(missing) == 0 {
			return
		}
		wait(ctx, time.Second)
		if ctx.Err() != nil {
			e.warn(op, "the kubelet does not offer %s yet: restart the device plugin if it does not follow", strings.Join(missing, ", "))
			return
		}
	}
}

// device is a MIG device that an operation has made.
type device struct {
	gpu      gpu.UUID
	uuid     gpu.MIGUUID
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

func (op *operation) devices() []device {
	var list []device
	for _, s := range op.doc.Steps {
		if s.Done != nil && s.Done.UUID != "" && creates(s.Step) {
			list = append(list, device{gpu: s.GPU, uuid: s.Done.UUID, instance: s.Done.Instance, compute: s.Done.ComputeID.Or(0)})
		}
	}
	return list
}

// named tells whether an allocator's name is that of the device.
func (d device) named(r gpu.DeviceRef) bool {
	if r.MIG != "" {
		return r.MIG == d.uuid
	}
	instance, ok := r.Instance.Get()
	return ok && r.GPU == d.gpu && instance == d.instance && r.Compute.Or(d.compute) == d.compute
}

// cordon keeps new pods away while the node is cut. It is journaled first, and a mark on the node says whose it is: so it
// is undone after a crash, and nobody else's is.
func (e *Engine) cordon(ctx context.Context, op *operation) error {
	if e.o.Cluster == nil {
		return nil
	}
	if err := e.record(op, entry{Kind: entryCordon}, func() { e.cordoned = op.doc.ID }); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	if _, err := e.o.Cluster.Cordon(call); err != nil {
		e.warn(op, "the node could not be cordoned (%s): pods may be given new devices before all is done", reasonText(err))
	}
	return nil
}

// open undoes this program's cordon. Where that fails, Run tries it again, and the next start.
func (e *Engine) open(ctx context.Context, op *operation) {
	e.mu.Lock()
	mine := e.cordoned != "" && e.cordoned == op.doc.ID
	e.mu.Unlock()
	if !mine || e.o.Cluster == nil {
		return
	}
	if err := e.uncordon(ctx, op); err != nil {
		e.warn(op, "the node is still cordoned (%s): it is tried again", reasonText(err))
	}
}

func (e *Engine) uncordon(ctx context.Context, op *operation) error {
	call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	if err := e.o.Cluster.Uncordon(call); err != nil {
		return fmt.Errorf("uncordon: %w", err)
	}
	return e.record(op, entry{Kind: entryOpen}, func() { e.cordoned = "" })
}
