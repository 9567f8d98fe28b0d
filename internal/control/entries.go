package control

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// The kinds of entries of the journal.
const (
	entryBegin   = "begin"   // an operation is accepted
	entryIntent  = "intent"  // a step is about to be done
	entryOutcome = "outcome" // it is done, or has failed
	entryPhase   = "phase"   // settling: all steps are verified; rolling-back; degraded; stuck
	entryCordon  = "cordon"  // the node is about to be cordoned
	entryOpen    = "open"    // it is cordoned no more
	entryEnd     = "end"     // the operation is over
	entryLayouts = "layouts" // what operations have made of the GPUs, for a restore
	entryBoot    = "boot"    // the boot whose restore is over
)

// entry is one record of the journal.
type entry struct {
	Kind   string    `json:"kind"`
	Op     string    `json:"op,omitempty"`
	Begin  *begun    `json:"begin,omitempty"`
	Step   *mig.Step `json:"step,omitempty"`
	Number int       `json:"number,omitempty"` // of the step of the operation; -1 of one of its roll-back
	Done   *mig.Done `json:"done,omitempty"`
	Error  string    `json:"error,omitempty"`
	// Taken says that a creation failed because something stands there: what it is, it is not the operation's.
	Taken   bool               `json:"taken,omitempty"`
	Phase   api.OperationState `json:"phase,omitempty"`
	End     *api.Operation     `json:"end,omitempty"`
	Layouts []layout           `json:"layouts,omitempty"`
	Boot    string             `json:"boot,omitempty"`
}

// begun is all that must be known to finish an operation after a crash.
type begun struct {
	Operation api.Operation `json:"operation"`
	Boot      string        `json:"boot"`
	Before    []layout      `json:"before,omitempty"`
	After     []layout      `json:"after,omitempty"`
	Force     []string      `json:"force,omitempty"`
	TakeOver  bool          `json:"takeOver,omitempty"`
	// Enabled is the mode asked for, in an operation of the verb mode; the GPU is that of Operation.Mode.
	Enabled bool `json:"enabled,omitempty"`
}

// undoing is the number of a step of a roll-back.
const undoing = -1

// errJournal wraps what a journal could not take. Nothing is done that it does not have.
type errJournal struct{ err error }

func (e errJournal) Error() string { return "journal: " + e.err.Error() }
func (e errJournal) Unwrap() error { return e.err }

// append puts an entry on disk. When it cannot, the engine is read-only.
func (e *Engine) append(op *operation, n entry) error { return e.record(op, n, nil) }

// record is append with what is so once the entry is on disk: meant is called with mu held, and no compaction comes between
// the two, which would write a journal without the entry.
func (e *Engine) record(op *operation, n entry, meant func()) error {
	e.journaling.Lock()
	defer e.journaling.Unlock()
	if op != nil {
		n.Op = op.doc.ID
	}
	record, err := json.Marshal(n)
	if err == nil {
		err = e.o.Journal.Append(record)
	}
	if err != nil {
		e.fail(err, false)
		return errJournal{err}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.appended++
	if op != nil {
		op.keep(n, record)
	}
	if meant != nil {
		meant()
	}
	return nil
}

// keep holds an entry for compactions while the operation is open. What a roll-back does is not needed to finish it, nor is
// any phase but the last: so one that is tried again and again does not grow.
func (op *operation) keep(n entry, record []byte) {
	switch {
	case n.Number == undoing:
		if op.retraced = true; n.Kind == entryIntent {
			op.lastUndo = record
		}
		return
	case n.Kind == entryPhase:
		op.lastPhase = record
		return
	}
	op.entries = append(op.entries, record)
}

// open are the entries of an open operation that a new journal needs.
func (op *operation) open() [][]byte {
	list := slices.Clone(op.entries)
	for _, last := range [][]byte{op.lastPhase, op.lastUndo} {
		if last != nil {
			list = append(list, last)
		}
	}
	return list
}

func (e *Engine) fail(err error, corrupt bool) {
	level.Error(e.o.Logger).Log("msg", "The journal of partition control cannot be used; nothing is changed any more", "err", err)
	e.mu.Lock()
	e.corrupt = e.corrupt || corrupt
	e.unusable = "the journal cannot be written; make room in the state directory"
	if corrupt {
		e.unusable = err.Error() + "; look at it, move it away, and restart"
	}
	e.mu.Unlock()
	e.announce()
}

// kept is how many operations that are over are remembered.
const kept = 64

// crowded is how many records make a compaction worth while.
const crowded = 512

// compact begins a new journal with what is worth keeping. The operations that are open keep all of their entries.
func (e *Engine) compact() error {
	e.journaling.Lock()
	defer e.journaling.Unlock()
	records, err := e.condensed()
	if err == nil {
		err = e.o.Journal.Reset(records)
	}
	if err == nil {
		e.mu.Lock()
		e.appended = len(records)
		e.mu.Unlock()
	}
	return err
}

func (e *Engine) condensed() ([][]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget()
	var list [][]byte
	var failed error
	add := func(n entry) {
		record, err := json.Marshal(n)
		if err != nil {
			failed = fmt.Errorf("compact: %w", err)
		}
		list = append(list, record)
	}
	if e.boot != "" {
		add(entry{Kind: entryBoot, Boot: e.boot})
	}
	if len(e.committed) > 0 {
		add(entry{Kind: entryLayouts, Layouts: e.committed})
	}
	for _, op := range e.operations {
		if !over(op.doc.State) {
			list = append(list, op.open()...)
			continue
		}
		b := op.begun
		b.Operation = api.Operation{APIVersion: api.Version, ID: op.doc.ID, Verb: op.doc.Verb, Mode: op.begun.Operation.Mode}
		add(entry{Kind: entryBegin, Op: op.doc.ID, Begin: &b})
		if e.cordoned == op.doc.ID {
			add(entry{Kind: entryCordon, Op: op.doc.ID})
		}
		add(entry{Kind: entryEnd, Op: op.doc.ID, End: op.document()})
	}
	return list, failed
}

// forget drops the oldest operations that are over.
func (e *Engine) forget() {
	for len(e.operations) > kept {
		at := slices.IndexFunc(e.operations, func(op *operation) bool { return over(op.doc.State) && op.doc.ID != e.cordoned })
		if at < 0 {
			return
		}
		e.operations = slices.Delete(e.operations, at, at+1)
	}
}

func over(s api.OperationState) bool {
	return s == api.Succeeded || s == api.RolledBack || s == api.Failed
}

// mend tries whether a journal that could not be written can be now.
func (e *Engine) mend() {
	e.mu.Lock()
	try := e.unusable != "" && !e.corrupt && e.current == nil
	e.mu.Unlock()
	if !try {
		return
	}
	if err := e.compact(); err != nil {
		level.Debug(e.o.Logger).Log("msg", "The journal still cannot be written", "err", err)
		return
	}
	e.mu.Lock()
	e.unusable = ""
	e.mu.Unlock()
	level.Info(e.o.Logger).Log("msg", "The journal can be written again")
	e.announce()
}

// remember takes layouts over into those that a restore would make.
func (e *Engine) remember(all []layout) {
	for _, l := range all {
		if at := slices.IndexFunc(e.committed, func(c layout) bool { return c.GPU == l.GPU }); at >= 0 {
			e.committed[at] = l
		} else {
			e.committed = append(e.committed, l)
		}
	}
}
