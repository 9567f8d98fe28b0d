package nvmlsource

import (
	"sync/atomic"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readMeter observes the calls that the readings of one GPU make, one after the other: when the
// last one began, and what each tier costs. They count for the node, too.
type readMeter struct {
	*callMeter
	now    func() time.Time
	hangs  time.Duration // a call that takes this long counts as one that hangs; 0: none does
	origin time.Time
	began  atomic.Int64 // when the last call began, in nanoseconds after origin; 0 before the first

	// Owned by the reading.
	use        *usage                   // what it counts as
	tier       readTier                 // of the call under way
	spent      [tierCount]time.Duration // by its calls
	fast, slow bool                     // it counts for the tier
	long       time.Duration            // Options.LongReading
}

// newReadMeter returns a meter for the readings of one GPU.
func newReadMeter(node *callMeter, opts *Options) *readMeter {
	return &readMeter{
		callMeter: node,
		now:       opts.Now,
		hangs:     opts.HangsAfter,
		long:      opts.LongReading,
		origin:    opts.Now().Add(-1),
		use:       &usage{},
	}
}

// BeginCall counts a call, and notes when it began.
func (m *readMeter) BeginCall(function string) time.Time {
	m.began.Store(int64(m.now().Sub(m.origin)))
	began := m.callMeter.BeginCall(function)
	m.use.noteCall(began)

	return began
}

// EndCall adds the time that a call took to that of its class and of the tier. One that hangs says
// nothing of what readings cost.
func (m *readMeter) EndCall(function string, began time.Time) {
	burden := m.endCall(function, began)
	if m.hangs > 0 && burden >= m.hangs {
		return
	}

	m.spent[m.tier] += burden
}

// beginReading begins a reading of which the slow tier is due, or not. A reading that is the first
// of its GPU, or the first after a change, says nothing of what others will cost.
func (m *readMeter) beginReading(slow, once bool) {
	m.tier = tierFast
	if once {
		m.tier = tierOnce
	}

	m.fast = !once
	m.slow = slow && !once
	m.spent = [tierCount]time.Duration{}
}

// endReading adds what the reading has cost. Whether its fast tier counts is known at its end.
func (m *readMeter) endReading() {
	isLong := m.long > 0 && m.spent[tierFast] >= m.long
	if m.fast && !isLong {
		m.tiers[tierFast].add(m.spent[tierFast])
	}

	if m.slow {
		m.tiers[tierSlow].add(m.spent[tierSlow])
	}
}

// countFor makes the calls of a reading count for the slow tier if they are made because it is due,
// else for the fast one. What is done once stays that.
func (m *readMeter) countFor(slow bool) {
	switch {
	case m.tier == tierOnce:
	case slow:
		m.tier = tierSlow
	default:
		m.tier = tierFast
	}
}

// lastBegan returns when the last call began, by the Source's clock; zero before the first.
func (m *readMeter) lastBegan() time.Time {
	nanos := m.began.Load()
	if nanos == 0 {
		return time.Time{}
	}

	return m.origin.Add(time.Duration(nanos))
}

// Progress returns when a reading of a GPU has made its last call of the driver, by Options.Now;
// zero if there was none. It never blocks.
func (s *Source) Progress(id gpu.UUID) time.Time {
	s.mu.Lock()
	g := s.gpus[id]
	s.mu.Unlock()

	if g == nil {
		return time.Time{}
	}

	return g.meter.lastBegan()
}

// meterReadings makes the calls of a GPU's readings known to its own meter.
func (s *Source) meterReadings(g *gpuState) *gpuState {
	g.meter = newReadMeter(s.meter, &s.opts)
	g.dev = observeInstead(g.handle, g.meter)

	return g
}
