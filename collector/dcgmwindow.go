package collector

import (
	"slices"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dcgmCounters keeps what dcgm-exporter counts over a window of time. observe adds every Snapshot.
type dcgmCounters struct {
	xidWindow, clockWindow time.Duration
	ignoreFirstCounts      bool // the XIDs of the first Snapshot are older than these counters
	isUsed                 bool // a row needs the counts

	mu   sync.Mutex
	gpus map[gpu.UUID]*dcgmHistory
}

func newDCGMCounters(opts Options, rows []dcgmRow) *dcgmCounters {
	c := &dcgmCounters{
		xidWindow:   opts.XIDWindow,
		clockWindow: opts.ClockEventsWindow,
		gpus:        map[gpu.UUID]*dcgmHistory{},
	}
	if c.xidWindow == 0 {
		c.xidWindow = dcgmWindow
	}

	if c.clockWindow == 0 {
		c.clockWindow = dcgmWindow
	}

	c.isUsed = slices.ContainsFunc(rows, func(r dcgmRow) bool {
		switch r.value.(type) {
		case ownCounter, xidCounter:
			return r.source == fromCounting
		}

		return false
	})

	return c
}

// takeOver continues with the histories of the counters that it replaces, which are not modified
// any more.
func (c *dcgmCounters) takeOver(former *dcgmCounters) {
	former.mu.Lock()
	defer former.mu.Unlock()

	c.gpus = former.gpus
	c.ignoreFirstCounts = !former.isUsed
}

// history returns the history of a GPU, an empty one for a GPU that was not observed.
func (c *dcgmCounters) history(uuid gpu.UUID) *dcgmHistory {
	c.mu.Lock()
	defer c.mu.Unlock()

	if h := c.gpus[uuid]; h != nil {
		return h
	}

	return &dcgmHistory{}
}

// observe adds a published Snapshot and drops the GPUs that it does not have.
func (c *dcgmCounters) observe(s *gpu.Snapshot) {
	if !c.isUsed {
		return
	}

	next := make(map[gpu.UUID]*dcgmHistory, len(s.GPUs))
	xidsSince := s.Time.Add(-c.xidWindow)

	if c.ignoreFirstCounts {
		xidsSince = s.Time // leaves out all XIDs before it
		c.ignoreFirstCounts = false
	}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		before := c.history(g.UUID)
		history := &dcgmHistory{instances: map[gpu.DeviceID]*xidHistory{}}
		history.addXIDs(&before.xidHistory, g.Totals.GPUXIDs, xidsSince)

		for k := range g.Instances {
			if gi := &g.Instances[k]; len(gi.XIDErrors) > 0 {
				id := gpu.IDOfInstance(g.UUID, gi)
				xids := &xidHistory{}
				xids.addXIDs(before.instances[id], gi.XIDErrors, xidsSince)
				history.instances[id] = xids
			}
		}

		history.addClockReading(before, g, s.Time.Add(-c.clockWindow))
		next[g.UUID] = history
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.gpus = next
}

// dcgmHistory is the content of the windows of one GPU. It is not modified once readers have it.
type dcgmHistory struct {
	xidHistory                              // of the GPU, without its instances
	instances  map[gpu.DeviceID]*xidHistory // of the GPU instances that have had an XID

	clocks   []clockReading                // readings in which a reason held the clocks down, oldest first
	starts   [clockEventReasonCount]uint64 // how often each reason began
	lastRead time.Time                     // zero: the clocks were never read
	active   gpu.ClockEvents               // the reasons at lastRead
}

// xidHistory is the content of the window for the XIDs of a GPU or a GPU instance.
type xidHistory struct {
	xids []xidBurst
	seen map[uint64]float64 // all occurrences of each XID
}

// clockEventReasonCount is the number of reasons that dcgm-exporter has.
const clockEventReasonCount = 9

// xidBurst is the number of occurrences of an XID between two Snapshots. All count at the time of
// the last one.
type xidBurst struct {
	at    time.Time
	xid   uint64
	count float64
}

type clockReading struct {
	at     time.Time
	events gpu.ClockEvents
}

// addXIDs fills h, whose window begins after since, with what is left of the history before, nil if
// there is none, and with how much the counts have grown since then.
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

		added := x.Value - before.seen[x.XID]
		if added > 0 && x.Last.After(since) {
			h.xids = append(h.xids, xidBurst{at: x.Last, xid: x.XID, count: added})
		}
	}
}

// addClockReading fills h, whose window begins after since. A reading counts once, even if several
// Snapshots have it because the GPU does not answer. The reasons of the first reading do not count
// as starts: we do not know when they began.
func (h *dcgmHistory) addClockReading(before *dcgmHistory, g *gpu.GPU, since time.Time) {
	first := slices.IndexFunc(before.clocks, func(r clockReading) bool { return r.at.After(since) })
	if first >= 0 {
		h.clocks = before.clocks[first:]
	}

	h.starts = before.starts
	h.lastRead = before.lastRead
	h.active = before.active

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

	h.lastRead = g.LastRead
	h.active = events
}

// recentXIDs returns the count of each XID in the window; nil for a nil history.
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

// recentClockEvents returns how many readings of the window have each reason.
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
