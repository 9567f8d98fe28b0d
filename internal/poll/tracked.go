package poll

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// tracked is one GPU over time: its last good reading and what has been added up since it was first seen.
type tracked struct {
	read call[gpu.GPU]
	// last is the last good reading with what was derived from it; its LastRead is zero before the first.
	last    gpu.GPU
	up      bool
	failure []gpu.ReadError // why it is not up
	hanging bool            // the present hang has been counted

	since     time.Time
	layout    layout
	capacity  capacityCache
	totals    gpu.Totals
	instances map[gpu.InstanceID]*instanceTotals
	pcie      [2]wrapped // receive, transmit
	nvlink    [2]wrapped
	idle      idlePower
	boardJ    gpu.Opt[float64] // the board's energy counter at the last reading
}

// instanceTotals is what is added up for one GPU instance; it ends with it.
type instanceTotals struct {
	generation uint64
	xids       []gpu.XIDCount
	energy     gpu.Counter
	counted    bool // energy has begun
}

func newTracked(id gpu.UUID, now time.Time) *tracked {
	t := &tracked{
		since:     now,
		last:      gpu.GPU{Facts: gpu.Facts{UUID: id, Index: -1}},
		instances: map[gpu.InstanceID]*instanceTotals{},
	}
	t.totals.XIDs.Since = now
	t.totals.LayoutChanges.Since = now
	// What can befall a whole GPU is there from the start with 0, so that increase() sees the first.
	for _, reason := range []gpu.Reason{gpu.ReasonLost, gpu.ReasonResetRequired, gpu.ReasonTimeout, gpu.ReasonOther} {
		t.totals.ReadErrors = append(t.totals.ReadErrors,
			gpu.ErrorCount{Reading: gpu.ReadingDevice, Reason: reason, Counter: gpu.Counter{Since: now}})
	}
	return t
}

// absorb takes a good reading that was begun at a time.
func (t *tracked) absorb(g gpu.GPU, at time.Time) {
	before := t.last
	t.up, t.failure, t.hanging = true, nil, false
	t.countErrors(&g, at)
	if t.layout.update(&g) {
		t.totals.LayoutChanges.Value++
	}
	t.pruneInstances(&g)
	g.Capacity = t.capacity.of(&g)
	elapsed := at.Sub(before.LastRead)
	if before.LastRead.IsZero() || elapsed < 0 { // a clock set back gives no interval
		elapsed = 0
	}
	t.addClockEvents(g.Readings.ClockEvents, elapsed, at)
	t.addTraffic(&g.Readings, elapsed, at)
	t.estimatePower(&g, at)
	g.LastRead = at
	for i := range g.Instances {
		g.Instances[i].LastRead = at
	}
	t.last = g
}

// fail takes a reading that failed as a whole.
func (t *tracked) fail(err error, at time.Time) {
	e := gpu.ReadError{Reading: gpu.ReadingDevice, Err: err}
	t.up, t.failure, t.hanging = false, []gpu.ReadError{e}, false
	t.countError(e, at)
}

// hang marks a GPU whose reading has not returned in time; it counts once per hang.
func (t *tracked) hang() {
	if t.hanging {
		return
	}
	t.fail(gpu.ErrTimeout, t.read.started)
	t.hanging = true
}

func (t *tracked) countErrors(g *gpu.GPU, at time.Time) {
	for _, e := range g.Errors {
		t.countError(e, at)
	}
	for i := range g.Instances {
		for _, e := range g.Instances[i].Errors {
			t.countError(e, at)
		}
		for c := range g.Instances[i].Computes {
			for _, e := range g.Instances[i].Computes[c].Errors {
				t.countError(e, at)
			}
		}
	}
}

func (t *tracked) countError(e gpu.ReadError, at time.Time) {
	reason := e.Reason()
	for i := range t.totals.ReadErrors {
		if c := &t.totals.ReadErrors[i]; c.Reading == e.Reading && c.Reason == reason {
			c.Value++
			return
		}
	}
	t.totals.ReadErrors = append(t.totals.ReadErrors,
		gpu.ErrorCount{Reading: e.Reading, Reason: reason, Counter: gpu.Counter{Value: 1, Since: at}})
}

// xid counts an XID for the GPU and, where it names one, for the GPU instance.
func (t *tracked) xid(e gpu.Event) {
	t.totals.XIDs.Value++
	t.totals.XIDErrors = countXID(t.totals.XIDErrors, e)
	if id, ok := e.Instance.Get(); ok {
		if it := t.instances[id]; it != nil {
			it.xids = countXID(it.xids, e)
		}
	}
}

// countXID counts in a list ordered by XID.
func countXID(list []gpu.XIDCount, e gpu.Event) []gpu.XIDCount {
	i, found := slices.BinarySearchFunc(list, e.XID, func(c gpu.XIDCount, xid uint64) int {
		return int(int64(c.XID) - int64(xid))
	})
	if !found {
		list = slices.Insert(list, i, gpu.XIDCount{XID: e.XID, Counter: gpu.Counter{Since: e.Time}})
	}
	list[i].Value++
	list[i].Last = e.Time
	return list
}

// pruneInstances keeps totals for the instances that there are.
func (t *tracked) pruneInstances(g *gpu.GPU) {
	have := make(map[gpu.InstanceID]bool, len(g.Instances))
	for i := range g.Instances {
		gi := &g.Instances[i]
		have[gi.ID] = true
		if it := t.instances[gi.ID]; it == nil || it.generation != gi.Generation {
			t.instances[gi.ID] = &instanceTotals{generation: gi.Generation}
		}
	}
	for id := range t.instances {
		if !have[id] {
			delete(t.instances, id)
		}
	}
}

// addClockEvents adds the time since the last reading to the reasons that are active now.
func (t *tracked) addClockEvents(events gpu.Opt[gpu.ClockEvents], elapsed time.Duration, at time.Time) {
	bits, ok := events.Get()
	if !ok {
		return // never told, or one failed reading: what has been added up stays
	}
	if t.totals.ClockEvents == nil {
		for _, r := range gpu.ClockEventReasons() {
			t.totals.ClockEvents = append(t.totals.ClockEvents, gpu.ReasonSeconds{Reason: r.Name, Seconds: gpu.Counter{Since: at}})
		}
	}
	for i, r := range gpu.ClockEventReasons() {
		c := &t.totals.ClockEvents[i]
		if c.Active = bits&r.Bit != 0; c.Active {
			c.Seconds.Value += elapsed.Seconds()
		}
	}
}
