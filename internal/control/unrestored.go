package control

import (
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// unrestored is a GPU whose layout we have to restore in this boot, and have not yet.
type unrestored struct {
	GPU       gpu.UUID          `json:"gpu"`
	Reason    api.RestoreReason `json:"reason"`
	Detail    string            `json:"detail"`
	Operation string            `json:"operation,omitempty"` // the last that tried it; empty if none
	// AwaitsOperator says that we don't try again until an operator asks for it: another client works
	// on the GPU. Even once the instances of that client are gone, it may not have finished.
	AwaitsOperator bool `json:"left,omitempty"`

	retry retry.Backoff
}

// The waits between attempts to restore a GPU grow from minRestoreBackoff. An attempt that fails has
// done and undone steps and run hooks: then they grow to maxRestoreBackoff. If an obstacle keeps us
// from beginning, an attempt costs only a reading: they grow to maxLookBackoff.
const (
	minRestoreBackoff = 10 * time.Second
	maxLookBackoff    = time.Minute
	maxRestoreBackoff = 30 * time.Minute
)

// beginRestore lists, once in a boot, the GPUs whose layouts we have to restore. GPUs that an earlier
// process of this boot has not restored become due at once. If the boot's id is unknown, it lists
// none: this may be the boot of the last restore.
func (e *Engine) beginRestore() {
	due := false
	now := e.o.Now()

	e.state.update(func(b *book) {
		due = b.isRestoreDue(e.o.BootID)
		if due {
			b.restoredBoot = e.o.BootID
		}

		if due || !e.o.Restore {
			b.unrestored = nil
		}

		for n := range b.unrestored { // the obstacles that the last process met may be gone
			b.unrestored[n].retry.Next = now
		}

		for _, l := range b.layouts {
			if due && e.o.Restore && e.o.Apply {
				b.unrestored = append(b.unrestored, unrestored{GPU: l.GPU, Reason: api.NotTried,
					Detail: "it was not tried yet", retry: retry.Backoff{Next: now}})
			}
		}
	})

	if due {
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}

	e.reportState()
}

// isRestoreDue reports whether the restore of a boot has to begin, and can.
func (b *book) isRestoreDue(boot string) bool {
	return b.restoredBoot != boot && boot != "" && b.readOnlyReason == "" && b.current == nil
}

// dueRestores lists the GPUs to restore now.
func (e *Engine) dueRestores() (list []gpu.UUID) {
	now := e.o.Now()

	e.state.update(func(b *book) {
		if !e.o.Restore || !e.o.Apply || b.readOnlyReason != "" || b.current != nil {
			return
		}

		for _, u := range b.unrestored {
			if !u.AwaitsOperator && u.retry.IsDue(now) {
				list = append(list, u.GPU)
			}
		}
	})

	return list
}

func (b *book) findUnrestored(id gpu.UUID) *unrestored {
	at := slices.IndexFunc(b.unrestored, func(u unrestored) bool { return u.GPU == id })
	if at < 0 {
		return nil
	}

	return &b.unrestored[at]
}

// dropUnrestored records that there is nothing left to restore on a GPU.
func (b *book) dropUnrestored(id gpu.UUID) {
	b.unrestored = slices.DeleteFunc(b.unrestored, func(u unrestored) bool { return u.GPU == id })
}

// postponeRestore records why a GPU is not restored, and when to try again. by is the id of the
// operation that failed, "" if none was begun.
func (e *Engine) postponeRestore(id gpu.UUID, reason api.RestoreReason, detail, by string) {
	now := e.o.Now()
	found := false
	news := false

	e.state.update(func(b *book) {
		if u := b.findUnrestored(id); u != nil {
			found = true
			news = u.postpone(now, reason, detail, by)
		}
	})

	if !found {
		return
	}

	if news {
		level.Warn(e.o.Logger).Log(
			"msg", "did not restore the layout of a GPU",
			"gpu", id,
			"reason", reason,
			"err", detail,
		)
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}

	e.reportState()
}

// postpone records the reason and the next try. It reports whether the reason, the detail or the
// operation has changed.
func (u *unrestored) postpone(now time.Time, reason api.RestoreReason, detail, by string) bool {
	longest := maxLookBackoff
	if reason == api.RestoreFailed {
		longest = maxRestoreBackoff
	}

	news := u.Reason != reason || u.Detail != detail || by != "" && u.Operation != by
	u.Reason = reason
	u.Detail = detail
	u.AwaitsOperator = reason == api.NotEmpty

	if by != "" {
		u.Operation = by
	}

	u.retry.Postpone(now, minRestoreBackoff, longest)

	return news
}

// recordRestore records how an operation of the verb restore has ended for its GPUs.
func (e *Engine) recordRestore(op *operation) {
	if op.verb != api.VerbRestore {
		return
	}

	o := op.copy()
	state := o.Operation.State
	detail := "operation " + op.id + " is " + string(state)
	byOthers := state == api.Interrupted

	if p := o.Operation.Error; p != nil {
		detail = p.Detail
		byOthers = byOthers || state == api.Failed && p.Type == api.LayoutChanged
	}

	for _, id := range op.gpus {
		// An operation that only the next process can finish is in none of these cases: that process
		// records it.
		switch {
		case state == api.Settling || state.Committed(): // the layout is committed
			e.state.update(func(b *book) { b.dropUnrestored(id) })
		case byOthers:
			e.postponeRestore(id, api.NotEmpty, detail, op.id)
		case isDegraded(state):
			e.postponeRestore(id, api.RestoreBlocked, detail, op.id)
		case state.Final():
			e.postponeRestore(id, api.RestoreFailed, detail, op.id)
		}
	}
}

// dropAttempt forgets the last automatic attempt to restore a GPU, which has ended: a GPU that always
// fails must not push all other operations out of the history.
func (e *Engine) dropAttempt(id gpu.UUID) {
	e.state.update(func(b *book) {
		u := b.findUnrestored(id)
		if u == nil {
			return
		}

		b.operations = slices.DeleteFunc(b.operations, func(op *operation) bool {
			o := op.in(b)
			isAttempt := op.id == u.Operation && op.verb == api.VerbRestore &&
				o.Operation.By == "system"

			return isAttempt && o.Operation.State.Final() && !o.Cordoned
		})
	})
}

// listUnrestored describes the GPUs that are not restored.
func (b *book) listUnrestored() []api.Unrestored {
	var list []api.Unrestored

	for _, u := range b.unrestored {
		d := api.Unrestored{GPU: u.GPU, Reason: u.Reason, Detail: u.Detail, Operation: u.Operation}
		if !u.AwaitsOperator {
			d.Next = u.retry.Next
		}

		if l := b.findLayout(u.GPU); l != nil {
			d.Wanted = describeWanted(l.Instances)
		}

		list = append(list, d)
	}

	return list
}

// describeWanted describes a layout that a GPU does not have. Its instances do not exist, so that we
// mark them as new: any ids that they once had are not shown.
func describeWanted(instances []mig.Instance) []api.Instance {
	wanted := copyInstances(instances)
	for n := range wanted {
		wanted[n].New = true
		for k := range wanted[n].ComputeInstances {
			wanted[n].ComputeInstances[k].New = true
		}
	}

	return describeLayout(wanted)
}
