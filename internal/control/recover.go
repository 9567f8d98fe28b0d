package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// errInterrupted is why we roll back an operation that a crash has left.
var errInterrupted = errors.New("the exporter stopped in the middle of the operation")

// maxAway is how long after its last save we still finish an operation that a crash has left.
// Later, another client is too likely to have changed the GPUs, even if the instances look the
// same.
const maxAway = 10 * time.Minute

// clockTolerance is by how much the clock may be set back in between, as an ordinary correction.
const clockTolerance = time.Minute

// recoverOperations reads the state folder and finishes what a crash has left, by commit or
// rollback. After a reboot it restores the committed layouts, if so configured. Call it again until
// it has read the folder; from then on it does nothing. A rollback that fails and a folder that
// cannot be used are states of the engine, not errors.
func (e *Engine) recoverOperations(ctx context.Context) {
	due := false
	hangs := e.storeHangs.Load() // waiting for the store would hold up Run

	e.state.update(func(b *book) {
		due = !b.loaded && !hangs
		b.recovering = b.recovering || due
	})

	if !due {
		return
	}

	e.reportState()
	graceCtx, cancel := withGrace(ctx)
	defer cancel()

	if err := e.load(graceCtx); err != nil {
		e.setUnusable(err)
		e.setRecovered()

		return
	}

	open := e.listUnfinished()

	for _, op := range open {
		// To resume an operation we overwrite the slots. If they have another one, the history must
		// have that first: the last process may have been unable to save how it ended.
		saved := len(open) < 2 || e.saveHistory() == nil
		if isDegraded(op.status()) && !saved {
			op.change(func(o *entry) { o.retryable = true })
			continue
		}

		e.resume(ctx, graceCtx, op)
	}

	if e.Reason() == "" { // damaged documents stay until they are accepted
		e.retryUncordon(graceCtx)
		e.restoreOnce(ctx)
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}

	e.setRecovered()
}

func (e *Engine) setRecovered() {
	e.state.update(func(b *book) {
		b.recovering = false

		if !isClosed(e.started) {
			close(e.started)
		}
	})
	e.reportState()
}

// listUnfinished lists the operations that the last process left, unless documents are damaged: then
// we must not touch them.
func (e *Engine) listUnfinished() []*operation {
	return read(e.state, func(b *book) []*operation {
		if b.damaged {
			return nil
		}

		return b.list(func(o *entry) bool { return !o.Operation.State.Final() })
	})
}

// load reads the state folder.
func (e *Engine) load(ctx context.Context) error {
	var docs Documents

	err := e.useStore(func() (err error) {
		docs, err = e.o.Store.Open()
		return err
	})
	if err != nil { // don't use docs: an abandoned call may still write to it
		return err
	}

	h, last := decodeDocuments(&docs)
	damage := e.assessDamage(ctx, docs, last)

	var operations []*operation

	for _, r := range withLast(h.Operations, last) {
		op := e.newOperation(r)
		absence := e.longAbsence(r.Written)

		op.change(func(o *entry) {
			o.absence = absence
			o.addEvent(api.Event{Kind: api.EventState, Text: string(o.Operation.State)})
		})
		operations = append(operations, op)
	}

	readOnlyReason := ""

	if damage != nil {
		operations = append(operations, e.newOperation(*damage))
		readOnlyReason = fmt.Sprintf(
			"%s; look at the GPUs that it names, then: migctl accept %s",
			damage.Operation.Error.Detail,
			damage.Operation.ID,
		)
		level.Error(e.o.Logger).Log("msg", "partition control is read-only", "err", readOnlyReason)
	}

	if e.Reason() != "" {
		level.Info(e.o.Logger).Log("msg", "state folder of partition control is usable again")
	}

	e.state.update(func(b *book) {
		b.loaded = true
		b.readOnlyReason = readOnlyReason
		b.damaged = damage != nil
		b.layouts = h.Layouts
		b.restoredBoot = h.Restored
		b.unrestored = h.Unrestored
		b.slotsUsed = h.usesSlots()
		b.operations = append(b.operations, operations...)
	})

	return nil
}

// decodeDocuments decodes the history and the last operation; without one, last has an empty ID. In
// docs it marks the documents that are damaged.
func decodeDocuments(docs *Documents) (h history, last *record) {
	if docs.History != nil && json.Unmarshal(docs.History, &h) != nil {
		docs.HistoryDamaged = true
	}

	last = &record{}
	if docs.Operation != nil &&
		(json.Unmarshal(docs.Operation, last) != nil || last.Operation.ID == "") {
		docs.OperationDamaged = true
		last = &record{}
	}

	// We save an operation in the slots before the history has it or says that they are used. If
	// the history does, and the slots are empty, an operation was lost.
	if h.usesSlots() && last.Operation.ID == "" {
		docs.OperationDamaged = true
	}

	return h, last
}

// usesSlots reports whether an operation was ever saved in the slots.
func (h *history) usesSlots() bool { return h.SlotsUsed || len(h.Operations) > 0 }

// withLast returns the operations of the history and the last one. If both have it, the higher
// revision counts.
func withLast(records []record, last *record) []record {
	if last.Operation.ID == "" {
		return records
	}

	at := slices.IndexFunc(
		records,
		func(r record) bool { return r.Operation.ID == last.Operation.ID },
	)
	if at < 0 {
		return append(records, *last)
	}

	if records[at].Revision < last.Revision {
		records[at] = *last
	}

	return records
}

// assessDamage returns, if a document is damaged, an operation for the operator to accept. It returns
// nil if the readable documents prove that no operation was under way: we write the two slots in
// turn, so if the newer one is damaged and the GPUs are as the older one says, nothing was done
// after that.
func (e *Engine) assessDamage(ctx context.Context, docs Documents, last *record) *record {
	if !docs.OperationDamaged && !docs.HistoryDamaged {
		return nil
	}

	level.Warn(e.o.Logger).Log(
		"msg", "cannot read a document in the state folder",
		"operation", docs.OperationDamaged,
		"history", docs.HistoryDamaged,
	)

	gpus, unreadable, err := e.readLayouts(ctx)
	if err != nil {
		level.Warn(e.o.Logger).Log("msg", "cannot compare the GPUs with the state folder", "err", err)
	}

	finding := "the state of the last operation cannot be read, and GPUs are not as the one before says"
	var suspect []gpu.UUID

	if docs.HistoryDamaged || last.Operation.ID == "" {
		finding = "the state of operations is missing or cannot be read"

		for _, g := range gpus {
			suspect = append(suspect, g.UUID)
		}

		suspect = append(suspect, slices.Sorted(maps.Keys(unreadable))...)
	} else {
		for _, c := range last.Changes {
			if live := instancesOn(gpus, c.GPU); live == nil || !c.matches(live) {
				suspect = append(suspect, c.GPU)
			}
		}

		if len(suspect) == 0 {
			return nil
		}
	}

	r := &record{Operation: e.newHeader(api.VerbRecovery, "system"), Boot: e.o.BootID}
	r.Operation.State = api.Degraded
	r.Operation.Error = problemf(api.ReadOnly, "%s: an operation may have been under way", finding)

	for _, id := range suspect {
		r.Operation.GPUs = append(r.Operation.GPUs, api.OperationGPU{
			GPU:     id,
			State:   api.Degraded,
			Current: describeLayout(instancesOn(gpus, id)),
		})
	}

	return r
}

// resume makes an unfinished operation of the last process the current one, and finishes it.
func (e *Engine) resume(ctx, graceCtx context.Context, op *operation) {
	e.state.update(func(b *book) {
		b.current = op
		op.in(b).live = true
	})
	e.resumeOperation(graceCtx, op)
	e.clearCurrent(ctx, op)
}

// resumeOperation commits or rolls back an operation of the last process, or defers it until we can
// decide which.
func (e *Engine) resumeOperation(ctx context.Context, op *operation) {
	if e.endWithoutDriver(ctx, op) {
		return
	}

	waits := e.missingFacts(ctx, op)
	if len(waits) > 0 {
		e.deferToDriver(op, waits)
		return
	}

	e.endWaiting(op)

	o := op.copy()
	lost := e.resumeRefusal(&o)

	switch {
	case op.verb == api.VerbMode:
		e.endModeFromDriver(ctx, op, errInterrupted)
	case lost != "" && o.Operation.State == api.Degraded:
		// An operator may still ask for its rollback, if the GPUs are as the operation has left
		// them.
	case lost != "":
		e.endInterrupted(ctx, op, lost)
	case !e.o.Apply:
		e.deferToApply(op)
	case o.Cause == nil:
		e.commitOrRollBack(ctx, op)
	default:
		e.rollBack(ctx, op)
	}
}

// commitOrRollBack commits an operation whose steps are all done, and rolls back any other. If a
// GPU stops answering, it decides nothing.
func (e *Engine) commitOrRollBack(ctx context.Context, op *operation) {
	err := e.checkFinished(ctx, op)
	o := op.copy()

	var unread *unreadError
	if errors.As(err, &unread) && o.mayBeFinished() {
		e.deferToDriver(op, waitsForGPUs(o.openGPUs()))
		return
	}

	if err == nil && e.commit(op) == nil {
		return
	}

	e.startRollback(ctx, op, errInterrupted)
}

// endWithoutDriver ends an operation if its record alone says how, and reports whether there is
// nothing left to do: also if the operation only waits for the kubelet.
func (e *Engine) endWithoutDriver(ctx context.Context, op *operation) bool {
	o := op.copy()
	begun := o.changed() ||
		slices.ContainsFunc(o.Changes, func(c gpuChange) bool { return c.Pending != nil })
	rebooted := o.Boot != e.o.BootID
	isMode := op.verb == api.VerbMode

	switch {
	case o.Operation.State == api.Settling && rebooted:
		// Its instances did not survive the reboot; a restore creates them again.
		e.endOperation(ctx, op, api.Succeeded, nil)
	case o.Operation.State == api.Settling: // clearCurrent goes on
	case !isMode && !begun && !isDegraded(o.Operation.State):
		e.endOperation(
			ctx,
			op,
			api.Failed,
			problemf(api.DriverFailed, "%s, before anything was changed", errInterrupted),
		)
	case !isMode && rebooted:
		e.endInterrupted(
			ctx,
			op,
			"the node was rebooted in the middle of the operation; instances do not survive that",
		)
	default:
		return false
	}

	return true
}

// resumeRefusal returns why another client may have changed the GPUs of an operation that a crash
// has left, or "". The driver version must be known.
func (e *Engine) resumeRefusal(o *entry) string {
	if o.Driver != e.polledDriver() {
		return cmp.Or(
			o.absence,
			"the driver version differs from the one that the operation began with",
		)
	}

	return o.absence
}

// longAbsence returns "" unless the exporter was away for more than maxAway between an operation's
// last save and the start of this process, or the clock was set back. The time that this process
// waits does not count.
func (e *Engine) longAbsence(written time.Time) string {
	away := e.began.Sub(written)
	if away < -clockTolerance {
		return fmt.Sprintf(
			"the node's clock was set back, by %s at least, in the middle of the operation",
			(-away).Round(time.Second),
		)
	}

	if away > maxAway {
		return fmt.Sprintf(
			"the exporter was away for %s in the middle of the operation",
			away.Round(time.Second),
		)
	}

	return ""
}

// checkFinished returns an error unless all steps of an operation are done.
func (e *Engine) checkFinished(ctx context.Context, op *operation) error {
	for _, id := range op.gpus {
		if err := e.reconcile(ctx, op, id); err != nil {
			return err
		}
	}

	return e.verify(ctx, op)
}

// endInterrupted ends an operation without touching its GPUs.
func (e *Engine) endInterrupted(ctx context.Context, op *operation, why string) {
	problem := problemf(api.NotResumed, "%s: the GPUs are left as they are", why)

	gpus, _, err := e.readLayouts(ctx, op.gpus...)
	if err != nil {
		level.Warn(e.o.Logger).Log(
			"msg", "cannot read the GPUs of an interrupted operation",
			"operation", op.id,
			"err", err,
		)
	}

	for _, c := range op.copy().Changes {
		if op.gpuState(c.GPU).Final() {
			continue
		}

		state := api.Interrupted
		if !c.Changed && c.Pending == nil {
			state = api.Failed
		}

		c.Changed = c.Changed || c.Pending != nil
		op.endPendingStep(c, api.StepFailed)
		op.setGPU(c.GPU, state, problem, instancesOn(gpus, c.GPU))
	}

	o := op.copy()

	state := api.Failed
	if o.changed() {
		state = api.Interrupted
	}

	e.endOperation(ctx, op, state, problem)
}

// deferToApply leaves an operation to the next start with --control.mode=apply.
func (e *Engine) deferToApply(op *operation) {
	p := problemf(
		api.PlanOnly,
		"%s, and this program only plans: it is rolled back by a start with --control.mode=apply",
		errInterrupted,
	)

	for _, c := range op.copy().Changes {
		if !op.gpuState(c.GPU).Final() {
			op.setGPU(c.GPU, api.Degraded, p, knownInstances(c.Expected))
		}
	}

	e.markDegraded(op, p)
}
