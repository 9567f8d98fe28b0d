package control

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// record is an operation as it is on disk: its document, and all that finishing it after a crash needs.
type record struct {
	Operation api.Operation `json:"operation"`
	// Revision grows with every save: of two copies on disk the one with the higher revision counts.
	Revision int `json:"revision"`
	// Written is the time of the last save; Boot and Driver name the boot and the driver version that the operation
	// began with.
	Written time.Time `json:"written"`
	Boot    string    `json:"boot"`
	Driver  string    `json:"driver"`
	// Parts are the GPUs that the operation changes, as Operation.GPUs.
	Parts []*part `json:"parts,omitempty"`
	// Untouched are GPUs that had the layout asked for: they are remembered for a restore.
	Untouched []layout `json:"untouched,omitempty"`
	Force     []string `json:"force,omitempty"`
	TakeOver  bool     `json:"takeOver,omitempty"`
	// Cordoned says that the node may be cordoned for this operation.
	Cordoned bool `json:"cordoned,omitempty"`
	// PluginPods are the UIDs of the device plugin's pods that were ended so that the plugin reads the new layout.
	PluginPods []string `json:"pluginPods,omitempty"`
	// Cause is why the operation is rolled back.
	Cause *api.Problem `json:"cause,omitempty"`
}

// part is what an operation does to one GPU. Operation.GPUs has its state, at the same index.
type part struct {
	GPU gpu.UUID `json:"gpu"`
	// Before are the instances that existed when the operation was accepted, After those that it is to lead to, without
	// ids.
	Before []mig.Instance `json:"before"`
	After  []mig.Instance `json:"after"`
	// Expected are the instances as the operation has left them. Pending is the step that was begun last, as long as it
	// is not known whether it was done.
	Expected []mig.Instance `json:"expected"`
	Pending  *mig.Step      `json:"pending,omitempty"`
	// Changed says that a step of the operation was done on this GPU, or may have been.
	Changed bool `json:"changed,omitempty"`
	// View is where the view of the GPU had got to when the operation was accepted, or has read it last.
	View mark `json:"view,omitzero"`

	changing bool          // the operation has begun to change the GPU, see beginChanges
	facts    mig.GPULayout // of the GPU, as read last; without a meaning for its instances
}

// live is the GPU with the instances that are expected on it.
func (p *part) live() mig.GPULayout {
	g := p.facts
	g.UUID = p.GPU
	g.Instances = p.Expected

	return g
}

func (p *part) before() layout { return layout{GPU: p.GPU, Instances: p.Before} }
func (p *part) after() layout  { return layout{GPU: p.GPU, Instances: p.After} }

// history is everything else that is on disk.
type history struct {
	// Operations are those that are over, that settle, or that wait to be retried, oldest first.
	Operations []*record `json:"operations"`
	// Layouts are what operations have made of the GPUs, for a restore. Restored is the boot whose restore was begun,
	// Unrestored what is left of it.
	Layouts    []layout      `json:"layouts,omitempty"`
	Restored   string        `json:"restored,omitempty"`
	Unrestored []*unrestored `json:"unrestored,omitempty"`
	// SlotsUsed says that the slots have had an operation: if they are empty, it was lost.
	SlotsUsed bool `json:"slotsUsed,omitempty"`
}

// maxOperations is how many operations that are over are remembered.
const maxOperations = 64

// storeError wraps the error of a document that could not be saved. Nothing is done that is not on disk.
type storeError struct{ err error }

func (e storeError) Error() string { return "state folder: " + e.err.Error() }
func (e storeError) Unwrap() error { return e.err }

// saveOperation puts the current operation on disk. If it cannot, the engine is read-only.
func (e *Engine) saveOperation(op *operation) error {
	err := e.save(func() error {
		document, err := e.encodeOperation(op)
		if err != nil {
			return err
		}

		return e.o.Store.SaveOperation(document)
	})
	e.mu.Lock()
	op.inSlots = op.inSlots || err == nil
	e.mu.Unlock()

	return err
}

// save writes documents one at a time. If the state folder was replaced, it is saved in the new one, after the
// history. An error makes the engine read-only.
func (e *Engine) save(document func() error) error {
	e.saving.Lock()
	defer e.saving.Unlock()

	err := document()
	if errors.Is(err, ErrStateReplaced) {
		level.Warn(e.o.Logger).Log(
			"msg", "state folder was replaced or deleted while in use; "+
				"saving all documents again in the one that is there now",
		)

		if err = e.reopenStore(); err == nil {
			err = document()
		}
	}

	if err != nil {
		e.setUnusable(err)
		return storeError{err}
	}

	return nil
}

func (e *Engine) encodeOperation(op *operation) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	op.Revision++
	op.Written = e.o.Now()

	return json.Marshal(op.record)
}

// reserveRoom makes room on disk for all that an operation will have to save, its rollback included. A step takes
// about 300 bytes in the document, one of the rollback and its result twice that, and a rollback has at most as many
// steps as the operation and the layout before together; four times the first document bounds them.
func (e *Engine) reserveRoom(op *operation) error {
	return e.save(func() error {
		document, err := e.encodeOperation(op)
		if err != nil {
			return err
		}

		return e.o.Store.Reserve(reserveFactor*len(document) + reserveBase)
	})
}

const (
	reserveFactor = 4
	reserveBase   = 64 << 10
)

// markSlotsUsed records in the history, before the first operation of a state folder does anything, that the slots have
// it: until it is over, the history has no operation that would show what the slots must have. Without that record no
// step may begin.
func (e *Engine) markSlotsUsed() error {
	e.mu.Lock()
	known := e.slotsUsed
	e.slotsUsed = true
	e.mu.Unlock()

	if known {
		return nil
	}

	err := e.saveHistory()
	if err != nil {
		e.mu.Lock()
		e.slotsUsed = false
		e.mu.Unlock()
	}

	return err
}

// saveHistory puts everything but the operation that the slots have on disk. If it cannot, the engine is read-only.
func (e *Engine) saveHistory() error { return e.save(e.writeHistory) }

func (e *Engine) writeHistory() error {
	e.mu.Lock()
	e.dropOldOperations()

	h := history{
		Layouts:    e.layouts,
		Restored:   e.restoredBoot,
		Unrestored: e.unrestored,
		SlotsUsed:  e.slotsUsed,
		Operations: []*record{},
	}
	for _, op := range e.operations {
		if op != e.current || !op.inSlots {
			op.Revision++
			h.Operations = append(h.Operations, &op.record)
		}
	}

	document, err := json.Marshal(h)
	e.mu.Unlock()

	if err != nil {
		return err
	}

	return e.o.Store.SaveHistory(document)
}

// dropOldOperations forgets the oldest operations that are over and need no more work. It is called with mu held.
func (e *Engine) dropOldOperations() {
	for len(e.operations) > maxOperations {
		at := slices.IndexFunc(e.operations, func(op *operation) bool {
			return op.Operation.State.Final() && op.Operation.State != api.Unsettled && !op.Cordoned
		})
		if at < 0 {
			return
		}

		e.operations = slices.Delete(e.operations, at, at+1)
	}
}

// reopenStore takes up a state folder that was replaced, and saves the history there. It is called with saving held.
func (e *Engine) reopenStore() error {
	docs, err := e.o.Store.Open()
	if err != nil {
		return err
	}

	if err := e.writeHistory(); err != nil || docs.Operation != nil {
		return err
	}

	return e.writeLatest()
}

// writeLatest saves the latest operation in the slots of a new folder: slots without an operation, beside a history
// that has some, would count as lost at the next start.
func (e *Engine) writeLatest() error {
	e.mu.Lock()
	if len(e.operations) == 0 {
		e.mu.Unlock()
		return nil
	}

	latest := e.operations[len(e.operations)-1]
	if e.current != nil && e.current.inSlots { // the history leaves it out
		latest = e.current
	}

	document, err := json.Marshal(latest.record)
	e.mu.Unlock()

	if err != nil {
		return err
	}

	return e.o.Store.SaveOperation(document)
}
