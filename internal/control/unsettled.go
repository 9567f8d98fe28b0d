package control

import (
	"context"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

const (
	// unsettledInterval is the time between two looks at what an unsettled operation waits for.
	unsettledInterval = 5 * time.Second
	// firstHookRetry is the time before a hook that has failed is run again. It doubles up to
	// maxBackoff.
	firstHookRetry = 30 * time.Second
)

// watchUnsettled starts to watch each unsettled operation that is not watched yet, also of a former
// run.
func (e *Engine) watchUnsettled(ctx context.Context) {
	var list []*operation

	e.state.update(func(b *book) {
		// As long as the state folder cannot be written or trusted, no operation can end.
		if b.readOnlyReason != "" || b.damaged || b.recovering {
			return
		}

		list = b.list(func(o *entry) bool {
			due := o.Operation.State == api.Unsettled && !o.watched
			o.watched = o.watched || due

			return due
		})
	})

	for _, op := range list {
		e.following.Go(func() { e.awaitSettled(ctx, op) })
	}
}

// awaitSettled blocks until an unsettled operation has nothing to wait for any more, and makes it
// succeed. It returns as well when an operator has ended the wait, or ctx ends.
func (e *Engine) awaitSettled(ctx context.Context, op *operation) {
	w := &kubeletWait{e: e, op: op}

	var hooks retry.Backoff
	hooks.Postpone(e.o.Now(), firstHookRetry, maxBackoff)

	for op.status() == api.Unsettled {
		waits := w.lookAgain(ctx)
		if ctx.Err() != nil || op.status() != api.Unsettled {
			return
		}

		if len(waits) == 0 && !op.copy().layoutOffered {
			op.setLayoutOffered(true)
			e.uncordonNode(ctx, op) // if this fails, Run tries again
		}

		if len(e.awaitedHooks(op)) > 0 && hooks.IsDue(e.o.Now()) {
			e.runHooks(ctx, op, api.Succeeded)
			hooks.Postpone(e.o.Now(), firstHookRetry, maxBackoff)
		}

		waits = append(waits, e.awaitedHooks(op)...)
		if len(waits) == 0 {
			e.finishUnsettled(ctx, op)
			return
		}

		op.setWaiting(waits)
		_ = retry.Sleep(ctx, unsettledInterval)
	}
}

// lookAgain calls look with the GPUs as they are now. A later operation or another client may have
// changed them since, and the kubelet will never offer devices that were destroyed.
func (w *kubeletWait) lookAgain(ctx context.Context) []string {
	gpus := w.op.gpus

	live, unreadable, err := w.e.readLayouts(ctx, gpus...)
	if err != nil {
		return []string{"the GPUs to be readable (" + reasonText(err) + ")"}
	}

	var list []mig.GPULayout

	for _, id := range gpus {
		g, err := findGPU(live, unreadable, id)
		if err != nil {
			return []string{string(id) + " to be readable (" + reasonText(err) + ")"}
		}

		list = append(list, g)
	}

	return w.look(ctx, list)
}

// finishUnsettled makes an unsettled operation succeed. It does nothing if that was done meanwhile.
func (e *Engine) finishUnsettled(ctx context.Context, op *operation) {
	done := false

	op.change(func(o *entry) {
		if o.Operation.State != api.Unsettled {
			return
		}

		done = true
		o.Operation.State = api.Succeeded
		o.Operation.WaitsFor = nil

		for n := range o.Operation.GPUs {
			if g := &o.Operation.GPUs[n]; g.State == api.Unsettled {
				g.State = api.Succeeded
			}
		}

		o.addEvent(api.Event{Kind: api.EventState, Text: string(api.Succeeded)})
	})

	if !done {
		return
	}

	e.uncordonNode(ctx, op)
	level.Info(e.o.Logger).Log("msg", "unsettled operation has succeeded", "operation", op.id)
	_ = e.saveHistory() // if it cannot be saved, the engine is read-only, and the next start looks again
	e.reportEnd(op)
	e.reportState()
}

// compareDevices compares the MIG devices of an operation's GPUs before the operation with those in
// now, which are the same GPUs after it. A device that has the same names and profile in both is no
// change.
func (r *record) compareDevices(now []mig.GPULayout) deviceChanges {
	before := make([]mig.GPULayout, len(now))
	for n, g := range now {
		before[n] = g
		before[n].Instances = nil

		at := slices.IndexFunc(r.Changes, func(c gpuChange) bool { return c.GPU == g.UUID })
		if at >= 0 {
			before[n].Instances = r.Changes[at].Before
		}
	}

	devicesBefore := migDevices(before)
	devicesNow := migDevices(now)
	d := deviceChanges{
		created:   without(devicesNow, devicesBefore),
		destroyed: without(devicesBefore, devicesNow),
		before:    devicesOf(before...),
		after:     devicesOf(now...),
	}

	if m := r.Operation.Mode; m != nil && len(now) == 1 && now[0].MIG.Or(false) && m.Wanted {
		d.split = gpu.Some(m.GPU)
	}

	return d
}
