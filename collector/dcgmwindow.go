package collector

import (
	"slices"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dcgmCounters remembers what dcgm-exporter counts over a window of time. It is fed by observe with every Snapshot.
type dcgmCounters struct {
	xidWindow, clockWindow time.Duration
	ignoreFirstCounts      bool // the first Snapshot is one of a program that has run for a while
	isUsed                 bool // whether any row needs it

	mu   sync.Mutex
	gpus map[gpu.UUID]*dcgmHistory
}

func newDCGMCounters(opts Options, rows []dcgmRow) *dcgmCounters {
	c := &dcgmCounters{xidWindow: opts.XIDWindow, clockWindow: opts.ClockEventsWindow, gpus: map[gpu.UUID]*dcgmHistory{}}
	if c.xidWindow == 0 {
		c.xidWindow = dcgmWindow
	}
	if c.clockWindow == 0 {
		c.clockWindow = dcgmWindow
	}
	c.isUsed = slices.ContainsFunc(rows, func(r dcgmRow) bool { return (r.ownCounter != nil || r.xids != nil) && r.source == fromCounting })
	return c
}

// takeOver takes over the histories of the counts that it replaces, which are not modified any more.
func (c *dcgmCounters) takeOver(former *dcgmCounters) {
	former.mu.Lock()
	defer former.mu.Unlock()
	c.gpus, c.ignoreFirstCounts = former.gpus, !former.isUsed
}

// history is the history of a GPU, empty for one that was not observed.
func (c *dcgmCounters) history(uuid gpu.UUID) *dcgmHistory {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.gpus[uuid]; h != nil {
		return h
	}
	return &dcgmHistory{}
}

// observe takes a published Snapshot in and forgets the GPUs that it does not have.
func (c *dcgmCounters) observe(s *gpu.Snapshot) {
	if !c.isUsed {
		return
	}
	next := make(map[gpu.UUID]*dcgmHistory, len(s.GPUs))
	xidsSince := s.Time.Add(-c.xidWindow)
	if c.ignoreFirstCounts {
		xidsSince, c.ignoreFirstCounts = s.Time, false // earlier XIDs were not counted
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		n := &dcgmHistory{instances: map[gpu.InstanceKey]*xidHistory{}}
		h := c.history(g.UUID)
		n.addXIDs(&h.xidHistory, g.Totals.GPUXIDs, xidsSince)
		for k := range g.Instances {
			if gi := &g.Instances[k]; len(gi.XIDErrors) > 0 {
				of := &xidHistory{}
				of.addXIDs(h.instances[g.Key(gi)], gi.XIDErrors, xidsSince)
				n.instances[g.Key(gi)] = of
			}
		}
		n.addClockReading(h, g, s.Time.Add(-c.clockWindow))
		next[g.UUID] = n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gpus = next
}

// dcgmHistory is what the windows hold of one GPU. It is not modified once it can be read.
type dcgmHistory struct {
	xidHistory                                 // those of instances aside
	instances  map[gpu.InstanceKey]*xidHistory // of those that had one

	clocks   []clockReading // those at which something held the clocks down, in their order
	starts   [clockEventReasonCount]uint64
	lastRead time.Time // zero: the clocks were never read
	active   gpu.ClockEvents
}

// xidHistory is what the window holds of a GPU's or a GPU instance's XIDs.
type xidHistory struct {
	xids []xidBurst
	seen map[uint64]float64 // how often each XID was seen altogether
}

// clockEventReasonCount is how many reasons dcgm-exporter names.
const clockEventReasonCount = 9

// xidBurst is how often an XID came between two Snapshots. It counts at the time of the last of them.
type xidBurst struct {
	at    time.Time
	xid   uint64
	count float64
}

type clockReading struct {
	at     time.Time
	events gpu.ClockEvents
}

// addXIDs fills the window that begins after since from how often each XID was seen altogether. before is nil if there is none.
func (h *xidHistory) addXIDs(before *xidHistory, counts []gpu.XIDCount, since time.Time) {
	if before == nil {
		before = &xidHistory{}
	}
	for _, b := range before.xids {
		if b.at.After(since) {
			h.xids = append(h.xids, b)
		}
	}
	h.seen = make(map[uint64]float64, len(counts))
	for _, x := range counts {
		h.seen[x.XID] = x.Value
		if fresh := x.Value - before.seen[x.XID]; fresh > 0 && x.Last.After(since) {
			h.xids = append(h.xids, xidBurst{at: x.Last, xid: x.XID, count: fresh})
		}
	}
}

// addClockReading fills the window that begins after since. A reading that was taken already, as of a GPU that did not answer,
// does not count again; what held the clocks down when they were first read did not begin under our eyes.
func (h *dcgmHistory) addClockReading(before *dcgmHistory, g *gpu.GPU, since time.Time) {
	first := slices.IndexFunc(before.clocks, func(r clockReading) bool { return r.at.After(since) })
	if first >= 0 {
		h.clocks = before.clocks[first:]
	}
	h.starts, h.lastRead, h.active = before.starts, before.lastRead, before.active
	events, ok := g.Readings.ClockEvents.Get()
	if !ok || !g.LastRead.After(before.lastRead) {
		return
	}
	if events != 0 {
		h.clocks = append(h.clocks, clockReading{at: g.LastRead, events: events})
	}
	for i, e := range dcgmClockEvents() {
		if !before.lastRead.IsZero() && events&^before.active&e.bit != 0 {
			h.starts[i]++
		}
	}
	h.lastRead, h.active = g.LastRead, events
}

// writeRecentXIDs counts each XID of the window. A nil history holds none.
func (h *xidHistory) recentXIDs() map[uint64]float64 {
	if h == nil {
		return nil
	}
	counts := make(map[uint64]float64, len(h.xids))
	for _, b := range h.xids {
		counts[b.xid] += b.count
	}
	return counts
}

// writeRecentClockEvents counts the readings of the window at which each reason held the clocks down.
func (h *dcgmHistory) recentClockEvents() [clockEventReasonCount]uint64 {
	var counts [clockEventReasonCount]uint64
	for _, r := range h.clocks {
		for i, e := range dcgmClockEvents() {
			if r.events&e.bit != 0 {
				counts[i]++
			}
		}
	}
	return counts
}
