package control

import (
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// unrestored is a GPU whose layout is to be restored in this boot, and is not yet.
type unrestored struct {
	GPU       gpu.UUID          `json:"gpu"`
	Reason    api.RestoreReason `json:"reason"`
	Detail    string            `json:"detail"`
	Operation string            `json:"operation,omitempty"` // the last that tried it
	// Left says that it is not tried again until an operator asks for it: another client works on the GPU, and that its
	// instances have gone does not show that it has finished.
	Left bool `json:"left,omitempty"`

	again   time.Time // the next attempt
	backoff time.Duration
}

// Waiting times between attempts to restore a GPU. An attempt that fails has done and undone steps, and hooks have run:
// those come at growing intervals. Looking whether an obstacle is gone costs a reading.
const (
	minRestoreBackoff = 10 * time.Second
	maxLookBackoff    = time.Minute
	maxRestoreBackoff = 30 * time.Minute
)

// beginRestore lists, once in a boot, the GPUs whose layout is to be restored; those that an earlier process of the
// boot has left are due again. If the boot is not known, it waits: a boot without a name is not another boot.
func (e *Engine) beginRestore() {
	e.mu.Lock()
	if !e.o.Restore {
		e.unrestored = nil
	}

	due := e.isRestoreDue()
	if due {
		e.restoredBoot = e.o.BootID
		e.unrestored = nil
	}

	for _, u := range e.unrestored { // what kept the last process from it may be gone
		u.again = e.o.Now()
	}

	for _, l := range e.layouts {
		if due && e.o.Restore && e.o.Apply {
			e.unrestored = append(e.unrestored, &unrestored{GPU: l.GPU, Reason: api.NotTried,
				Detail: "it was not tried yet", again: e.o.Now()})
		}
	}

	e.mu.Unlock()

	if due {
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}

	e.reportState()
}

// isRestoreDue reports whether the restore of this boot is to be begun. It is called with mu held.
func (e *Engine) isRestoreDue() bool {
	return e.restoredBoot != e.o.BootID && e.o.BootID != "" && e.unusable == "" && e.current == nil
}

// dueRestores lists the GPUs whose restore is to be tried now.
func (e *Engine) dueRestores() []gpu.UUID {
	e.mu.Lock()
	defer e.mu.Unlock()

	if !e.o.Restore || !e.o.Apply || e.unusable != "" || e.current != nil {
		return nil
	}

	var list []gpu.UUID

	for _, u := range e.unrestored {
		if !u.Left && !e.o.Now().Before(u.again) {
			list = append(list, u.GPU)
		}
	}

	return list
}

// findUnrestored is called with mu held.
func (e *Engine) findUnrestored(id gpu.UUID) *unrestored {
	at := slices.IndexFunc(e.unrestored, func(u *unrestored) bool { return u.GPU == id })
	if at < 0 {
		return nil
	}

	return e.unrestored[at]
}

// dropUnrestored records that a GPU has the layout that is asked for. It is called with mu held.
func (e *Engine) dropUnrestored(id gpu.UUID) {
	e.unrestored = slices.DeleteFunc(
		slices.Clone(e.unrestored),
		func(u *unrestored) bool { return u.GPU == id },
	)
}

// postponeRestore records why a GPU is not restored, and when it is tried again. by is the operation that failed, ""
// if none was begun.
func (e *Engine) postponeRestore(id gpu.UUID, reason api.RestoreReason, detail, by string) {
	e.mu.Lock()

	u := e.findUnrestored(id)
	if u == nil {
		e.mu.Unlock()
		return
	}

	longest := maxLookBackoff
	if reason == api.NotDone {
		longest = maxRestoreBackoff
	}

	news := u.Reason != reason || u.Detail != detail || by != "" && u.Operation != by
	u.Reason = reason
	u.Detail = detail
	u.Left = reason == api.NotEmpty

	if by != "" {
		u.Operation = by
	}

	u.backoff = min(max(2*u.backoff, minRestoreBackoff), longest)
	u.again = e.o.Now().Add(u.backoff)
	e.mu.Unlock()

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

// recordRestore records what an operation of the verb restore has made of its GPUs. What the next start finishes is
// recorded by that.
func (e *Engine) recordRestore(op *operation) {
	if op.Operation.Verb != api.VerbRestore {
		return
	}

	state := op.Operation.State
	detail := "operation " + op.Operation.ID + " is " + string(op.Operation.State)
	foreign := state == api.Interrupted

	if p := op.Operation.Error; p != nil {
		detail = p.Detail
		foreign = foreign || state == api.Failed && p.Type == api.LayoutChanged
	}

	for _, id := range op.gpus() {
		switch {
		case state == api.Settling || state.Committed(): // the layout is committed
			e.mu.Lock()
			e.dropUnrestored(id)
			e.mu.Unlock()
		case foreign:
			e.postponeRestore(id, api.NotEmpty, detail, op.Operation.ID)
		case isDegraded(state):
			e.postponeRestore(id, api.NotUnblocked, detail, op.Operation.ID)
		case state.Final():
			e.postponeRestore(id, api.NotDone, detail, op.Operation.ID)
		}
	}
}

// dropAttempt forgets the last automatic attempt to restore a GPU, which has ended.
func (e *Engine) dropAttempt(id gpu.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()

	u := e.findUnrestored(id)
	if u == nil {
		return
	}

	e.operations = slices.DeleteFunc(slices.Clone(e.operations), func(op *operation) bool {
		return op.Operation.ID == u.Operation && op.Operation.Verb == api.VerbRestore && op.Operation.By == "system" &&
			op.Operation.State.Final() &&
			!op.Cordoned
	})
}

// listUnrestored describes the GPUs that are not restored. It is called with mu held.
func (e *Engine) listUnrestored() []api.Unrestored {
	var list []api.Unrestored

	for _, u := range e.unrestored {
		d := api.Unrestored{GPU: u.GPU, Reason: u.Reason, Detail: u.Detail, Operation: u.Operation}
		if !u.Left {
			d.Next = u.again
		}

		if at := slices.IndexFunc(
			e.layouts,
			func(l layout) bool { return l.GPU == u.GPU },
		); at >= 0 {
			d.Wanted = describeWanted(e.layouts[at].Instances)
		}

		list = append(list, d)
	}

	return list
}

// describeWanted returns instances that are to be created for the API.
func describeWanted(instances []mig.Instance) []api.Instance {
	wanted := knownInstances(copyInstances(instances))
	for n := range wanted {
		wanted[n].New = true
		for k := range wanted[n].ComputeInstances {
			wanted[n].ComputeInstances[k].New = true
		}
	}

	return describeLayout(wanted)
}
