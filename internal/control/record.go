package control

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// record is an operation as it is on disk: its document, and what the next start needs to finish it
// after a crash.
type record struct {
	Operation api.Operation `json:"operation"`
	// Revision grows with every save: of two copies on disk the one with the higher revision
	// counts.
	Revision int `json:"revision"`
	// Written is the time of the last save; Boot and Driver name the boot and the driver version
	// that the operation began with.
	Written time.Time `json:"written"`
	Boot    string    `json:"boot"`
	Driver  string    `json:"driver"`
	// Changes say what the operation does to its GPUs, in the order of Operation.GPUs. On disk
	// they keep their first name, "parts".
	Changes []gpuChange `json:"parts,omitempty"`
	// Untouched are GPUs that had the requested layout already: a restore needs them, too.
	Untouched []layout `json:"untouched,omitempty"`
	Force     []string `json:"force,omitempty"`
	TakeOver  bool     `json:"takeOver,omitempty"`
	// Cordoned says that the node may be cordoned for this operation.
	Cordoned bool `json:"cordoned,omitempty"`
	// PluginPods are the UIDs of the device plugin's pods that were ended so that the plugin reads
	// the new layout.
	PluginPods []string `json:"pluginPods,omitempty"`
	// Cause is why the operation is rolled back.
	Cause *api.Problem `json:"cause,omitempty"`
}

// gpuChange is what an operation does to one GPU. Operation.GPUs has its state, at the same index.
// Its instances are replaced, never modified.
type gpuChange struct {
	GPU gpu.UUID `json:"gpu"`
	// Before are the instances that existed when the operation was accepted, After those that it
	// shall create or keep, without ids.
	Before []mig.Instance `json:"before"`
	After  []mig.Instance `json:"after"`
	// Expected are the instances as the operation has left them. Pending is the last step that was
	// begun, as long as we don't know whether it was done.
	Expected []mig.Instance `json:"expected"`
	Pending  *mig.Step      `json:"pending,omitempty"`
	// Changed says that a step of the operation was done on this GPU, or may have been.
	Changed bool `json:"changed,omitempty"`
	// View is the GPU's mark at the time when the operation was accepted, or has last read the GPU.
	View mark `json:"view,omitzero"`

	changing bool          // from beginChanges to endChanges
	facts    mig.GPULayout // the GPU as read last; its instances are out of date, use Expected
}

// live returns the GPU with the instances that we expect on it now.
func (c *gpuChange) live() mig.GPULayout {
	g := c.facts
	g.UUID = c.GPU
	g.Instances = c.Expected

	return g
}

func (c *gpuChange) before() layout { return layout{GPU: c.GPU, Instances: c.Before} }
func (c *gpuChange) after() layout  { return layout{GPU: c.GPU, Instances: c.After} }

// clone copies a record. The copy shares only what is never modified.
func (r *record) clone() record {
	c := *r
	c.Changes = slices.Clone(r.Changes)

	d := &c.Operation
	d.Steps = slices.Clone(d.Steps)
	d.Rollback = slices.Clone(d.Rollback)
	d.GPUs = slices.Clone(d.GPUs)
	d.Hooks = slices.Clone(d.Hooks)
	d.Warnings = slices.Clone(d.Warnings)
	d.WaitsFor = slices.Clone(d.WaitsFor)
	d.Renamed = maps.Clone(d.Renamed)

	if d.Mode != nil {
		mode := *d.Mode
		d.Mode = &mode
	}

	return c
}

// document returns the operation for a caller. It modifies r, which must be a copy.
func (r *record) document() *api.Operation {
	r.Operation.Cordoned = r.Cordoned
	return &r.Operation
}

// gpuChange returns what the operation does to a GPU, one of Changes.
func (r *record) gpuChange(id gpu.UUID) *gpuChange {
	at := slices.IndexFunc(r.Changes, func(c gpuChange) bool { return c.GPU == id })
	return &r.Changes[at]
}

// changed reports whether the operation has changed anything, or may have.
func (r *record) changed() bool {
	return slices.ContainsFunc(r.Changes, func(c gpuChange) bool { return c.Changed })
}

// gpuState returns the state of one GPU of the operation.
func (r *record) gpuState(id gpu.UUID) api.OperationState {
	at := slices.IndexFunc(r.Operation.GPUs, func(g api.OperationGPU) bool { return g.GPU == id })
	return r.Operation.GPUs[at].State
}

// gpusIn returns the GPUs of the operation that are in a state.
func (r *record) gpusIn(state api.OperationState) []gpu.UUID {
	return r.gpusWith(func(s api.OperationState) bool { return s == state })
}

// openGPUs returns the GPUs that the operation has not finished.
func (r *record) openGPUs() []gpu.UUID {
	return r.gpusWith(func(s api.OperationState) bool { return !s.Final() })
}

func (r *record) gpusWith(is func(s api.OperationState) bool) []gpu.UUID {
	var list []gpu.UUID

	for n := range r.Operation.GPUs {
		if g := &r.Operation.GPUs[n]; is(g.State) {
			list = append(list, g.GPU)
		}
	}

	return list
}

// history is what is on disk besides the operation in the slots.
type history struct {
	// Operations are the operations that are over, that wait for the kubelet, or that wait to be
	// retried, oldest first.
	Operations []record `json:"operations"`
	// Layouts are the committed layouts of GPUs, for a restore. Restored is the boot whose restore
	// was begun, Unrestored are the GPUs that it has not restored yet.
	Layouts    []layout     `json:"layouts,omitempty"`
	Restored   string       `json:"restored,omitempty"`
	Unrestored []unrestored `json:"unrestored,omitempty"`
	// SlotsUsed says that an operation was saved in the slots: if they are empty, it was lost.
	SlotsUsed bool `json:"slotsUsed,omitempty"`
}

// maxOperations is how many operations we remember after their end.
const maxOperations = 64

// storeError says that a document could not be saved. We do nothing that is not on disk.
type storeError struct{ err error }

func (e storeError) Error() string { return "state folder: " + e.err.Error() }
func (e storeError) Unwrap() error { return e.err }

// saveOperation saves the current operation in the slots. If it cannot, the engine is read-only.
func (e *Engine) saveOperation(op *operation) error {
	err := e.save(func() error {
		document, err := op.encode()
		if err != nil {
			return err
		}

		return e.o.Store.SaveOperation(document)
	})
	if err == nil {
		op.change(func(o *entry) { o.inSlots = true })
	}

	return err
}

// save calls saveDocument, which saves one document in the store. If the state folder was replaced,
// save saves the history in the new one, and calls saveDocument again. An error makes the engine
// read-only.
func (e *Engine) save(saveDocument func() error) error {
	err := e.useStore(func() error {
		err := saveDocument()
		if errors.Is(err, ErrStateReplaced) {
			level.Warn(e.o.Logger).Log(
				"msg", "state folder was replaced or deleted while in use; "+
					"saving all documents again in the one that is there now",
			)

			if err = e.reopenStore(); err == nil {
				err = saveDocument()
			}
		}

		return err
	})
	if err != nil {
		e.setUnusable(err)
		return storeError{err}
	}

	return nil
}

// errStoreHangs says that a call of the store has not returned. What it writes may still get on
// disk.
var errStoreHangs = errors.New("its disk has not answered in time")

// useStore calls the store, one goroutine at a time, and blocks for the call timeout at most, or
// until Run has to return. It then abandons the call and returns errStoreHangs; no other call
// begins until that call returns.
func (e *Engine) useStore(call func() error) error {
	if err := e.takeStore(); err != nil {
		return err
	}

	returned := make(chan error, 1)
	go func() {
		err := call()
		e.saving.release() // first, so that a caller that sees the call return finds the store free
		returned <- err
		// Last: abandonCall sets it to true, and then looks whether the result is there.
		e.storeHangs.Store(false)
	}()

	select {
	case err := <-returned:
		return err
	case <-time.After(e.o.CallTimeout):
	case <-e.stopped:
	}

	return e.abandonCall(returned)
}

// abandonCall marks the store as hanging, unless its call has returned by now.
func (e *Engine) abandonCall(returned <-chan error) error {
	e.storeHangs.Store(true)

	select {
	case err := <-returned:
		e.storeHangs.Store(false)
		return err
	default:
		return errStoreHangs
	}
}

// takeStore blocks until no other goroutine uses the store. It waits for any number of slow calls,
// as long as they return. It waits at most one more call timeout for a call that was abandoned.
func (e *Engine) takeStore() error {
	for {
		select {
		case e.saving <- struct{}{}:
			return nil
		case <-e.stopped:
			return errStoreHangs
		case <-time.After(e.o.CallTimeout):
			if e.storeHangs.Load() {
				return errStoreHangs
			}
		}
	}
}

func (op *operation) encode() ([]byte, error) {
	op.change(func(o *entry) {
		o.Revision++
		o.Written = o.now()
	})
	o := op.copy()

	return json.Marshal(o.record)
}

// reserveRoom reserves disk space for all that an operation will have to save, including its
// rollback. A step takes about 300 bytes in the document, a rollback step with its result twice
// that. A rollback has at most as many steps as it takes to destroy what the operation creates and
// to create the previous layout. So four times the first document is enough.
func (e *Engine) reserveRoom(op *operation) error {
	return e.save(func() error {
		document, err := op.encode()
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

// markSlotsUsed records in the history that the slots have an operation. The first operation of a
// state folder calls it before its first step: while that operation runs, nothing else in the
// history shows that the slots must have one.
func (e *Engine) markSlotsUsed() error {
	known := false

	e.state.update(func(b *book) {
		known = b.slotsUsed
		b.slotsUsed = true
	})

	if known {
		return nil
	}

	err := e.saveHistory()
	if err != nil {
		e.state.update(func(b *book) { b.slotsUsed = false })
	}

	return err
}

// saveHistory saves everything but the operation in the slots. If it cannot, the engine is
// read-only.
func (e *Engine) saveHistory() error { return e.save(e.writeHistory) }

func (e *Engine) writeHistory() error {
	document, err := json.Marshal(read(e.state, (*book).makeHistory))
	if err != nil {
		return err
	}

	return e.o.Store.SaveHistory(document)
}

// reopenStore opens the folder that has replaced the state folder, and saves the history there.
// Call it in useStore.
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

// writeLatest saves the latest operation in the slots of a new folder. If a history has operations
// and the slots have none, the next start takes the last operation for lost.
func (e *Engine) writeLatest() error {
	latest := read(e.state, func(b *book) *operation {
		if b.current != nil && b.current.in(b).inSlots { // the history leaves it out
			return b.current
		}

		if len(b.operations) == 0 {
			return nil
		}

		return b.operations[len(b.operations)-1]
	})
	if latest == nil {
		return nil
	}

	o := latest.copy()

	document, err := json.Marshal(o.record)
	if err != nil {
		return err
	}

	return e.o.Store.SaveOperation(document)
}
