package control

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ownEvents is how long after an operation has last read a GPU we still count the driver's reports
// as the operation's own changes: the driver doesn't say who made a change, and reports it a little
// late.
const ownEvents = 2 * time.Second

// mark says which changes of a GPU's layout we had seen at one time. A plan or an operation keeps
// the mark of each of its GPUs. It still holds as long as broken finds no change by another client
// between its mark and the current one.
type mark struct {
	// Process names the process that has seen the changes. It is empty if the driver does not
	// report changes of the GPU.
	Process string `json:"process,omitempty"`
	// Foreign counts the changes by other clients, Gaps how often reports of the driver may have
	// been lost.
	Foreign uint64 `json:"foreign,omitempty"`
	Gaps    uint64 `json:"gaps,omitempty"`
}

// broken returns why changes by other clients between two marks cannot be ruled out; empty if they
// can.
func (m mark) broken(now mark) string {
	switch {
	case m.Process == "":
		return "it is not known what has changed since: the driver did not report changes of the GPU"
	case now.Process == "":
		return "it is not known what has changed since: the driver does not report changes of the GPU now"
	case m.Process != now.Process:
		return "mig-exporter was restarted since, and has not seen what changed meanwhile"
	case m.Foreign != now.Foreign:
		return "another client has changed the GPU since"
	case m.Gaps != now.Gaps:
		return "reports of the driver were lost since, and with them perhaps a change by another client"
	default:
		return ""
	}
}

// views counts the changes of GPUs' layouts that are not the operations' own. It is a
// mig.LayoutWatcher: its methods never block. It is safe for concurrent use.
type views struct {
	now     func() time.Time
	process string

	mu   sync.Mutex
	gpus gpuViews
}

type gpuViews map[gpu.UUID]*gpuView

// gpuView is what we have seen of one GPU.
type gpuView struct {
	foreign, gaps uint64 // see mark
	watched       bool   // the driver reports changes
	// changing is set while an operation changes the GPU. Changes reported before ownUntil count as
	// its own, too.
	changing bool
	ownUntil time.Time
	// polled is the layout generation of the last Snapshot; 0 before the first. unpolled is set
	// from an operation's first change until a Snapshot has all of its changes.
	polled   uint64
	unpolled bool
}

func newViews(now func() time.Time) *views {
	return &views{now: now, process: rand.Text(), gpus: gpuViews{}}
}

// of returns the view of a GPU, a new one if there is none.
func (v gpuViews) of(id gpu.UUID) *gpuView {
	g := v[id]
	if g == nil {
		g = &gpuView{}
		v[id] = g
	}

	return g
}

// isOwn reports whether a change that we notice now counts as an operation's.
func (g *gpuView) isOwn(now time.Time) bool { return g.changing || now.Before(g.ownUntil) }

// LayoutChanged implements mig.LayoutWatcher. A report that names no known GPU may be about any.
func (v *views) LayoutChanged(id gpu.UUID) {
	v.mu.Lock()
	defer v.mu.Unlock()

	now := v.now()
	if id != "" {
		v.gpus.of(id) // so that the loop finds a new GPU, too
	}

	for other, g := range v.gpus {
		if (other == id || id == "") && !g.isOwn(now) {
			g.foreign++
		}
	}
}

// Watching implements mig.LayoutWatcher.
func (v *views) Watching(id gpu.UUID, on bool) {
	v.mu.Lock()
	defer v.mu.Unlock()

	g := v.gpus.of(id)
	if g.watched && !on {
		g.gaps++
	}

	g.watched = on
}

// begin notes that an operation changes a GPU from now on.
func (v *views) begin(id gpu.UUID) {
	v.mu.Lock()
	defer v.mu.Unlock()

	g := v.gpus.of(id)
	g.changing = true
	g.unpolled = true
}

// end notes that an operation has read a GPU for the last time and changes it no more. It does
// nothing if no operation was changing the GPU.
func (v *views) end(id gpu.UUID) {
	v.mu.Lock()
	defer v.mu.Unlock()

	if g := v.gpus.of(id); g.changing {
		g.changing = false
		g.ownUntil = v.now().Add(ownEvents)
	}
}

// isChanging reports whether an operation changes a GPU.
func (v *views) isChanging(id gpu.UUID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()

	return v.gpus.of(id).changing
}

// addForeign counts a change by another client that we have found by reading the GPU.
func (v *views) addForeign(id gpu.UUID) {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.gpus.of(id).foreign++
}

// observe compares a Snapshot's layouts with the last Snapshot's, since a driver may fail to report
// a change.
func (v *views) observe(s *gpu.Snapshot) {
	if s == nil {
		return
	}

	v.mu.Lock()
	defer v.mu.Unlock()

	for n := range s.GPUs {
		if seen := &s.GPUs[n]; seen.Up && seen.UUID != "" {
			v.gpus.of(seen.UUID).observe(seen)
		}
	}
}

// observe compares a reading with the last one. A reading from before the end of an operation may
// have some of its changes, so we skip it. The first reading after it has all of them: we only
// remember that one, for the next comparison.
func (g *gpuView) observe(seen *gpu.GPU) {
	if g.changing || !seen.LastRead.After(g.ownUntil) {
		return
	}

	if !g.unpolled && g.polled != 0 && g.polled != seen.MIG.LayoutGeneration {
		g.foreign++
	}

	g.polled = seen.MIG.LayoutGeneration
	g.unpolled = false
}

// marks returns the current mark of every GPU.
func (v *views) marks() map[gpu.UUID]mark {
	v.mu.Lock()
	defer v.mu.Unlock()

	list := make(map[gpu.UUID]mark, len(v.gpus))
	for id, g := range v.gpus {
		list[id] = g.mark(v.process)
	}

	return list
}

// mark returns the current mark of a GPU.
func (v *views) mark(id gpu.UUID) mark {
	v.mu.Lock()
	defer v.mu.Unlock()

	return v.gpus.of(id).mark(v.process)
}

func (g *gpuView) mark(process string) mark {
	m := mark{Process: process, Foreign: g.foreign, Gaps: g.gaps}
	if !g.watched {
		m.Process = ""
	}

	return m
}

// marks returns the current marks of all GPUs, after it has looked at the last Snapshot.
func (e *Engine) marks() map[gpu.UUID]mark {
	e.views.observe(e.o.Poller.Current())
	return e.views.marks()
}

// beginChanges notes that an operation changes a GPU from now on; call it before each step. It
// returns an error if another client has changed the GPU since the operation was accepted, or since
// it could not be rolled back.
func (e *Engine) beginChanges(op *operation, id gpu.UUID) error {
	c := op.gpuChange(id)
	if c.changing {
		return nil
	}

	// The order matters: a report before begin counts as another client's, one after it as the
	// operation's.
	e.views.observe(e.o.Poller.Current())
	e.views.begin(id)

	c.changing = true
	op.setChange(c)

	if e.isChangedByOthers(&c) {
		return &foreignError{gpu: id}
	}

	return nil
}

// isChangedByOthers reports whether we know that another client has changed a GPU since the
// operation has last seen it. If we don't know, the caller compares the instances.
func (e *Engine) isChangedByOthers(c *gpuChange) bool {
	now := e.views.mark(c.GPU)
	return c.View.Process != "" && c.View.Process == now.Process && c.View.Foreign != now.Foreign
}

// endChanges notes that an operation has read its GPUs for the last time, and stores their marks in
// it. It leaves out stuck GPUs: their driver call has not returned, so we still count their changes
// as the operation's.
func (e *Engine) endChanges(op *operation) {
	for _, id := range op.gpus {
		if op.gpuState(id) != api.Stuck {
			e.views.end(id)
		}
	}

	for _, c := range op.copy().Changes {
		if c.changing && !e.views.isChanging(c.GPU) {
			c.changing = false
			c.View = e.views.mark(c.GPU)
			op.setChange(c)
		}
	}
}
