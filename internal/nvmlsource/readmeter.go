package nvmlsource

import (
	"sync/atomic"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readMeter observes the calls that the readings of one GPU make, one at a time: when the last one
// began, and for how long each tier makes other users of the driver wait. It also counts them for
// the node (callMeter).
type readMeter struct {
	*callMeter
	now    func() time.Time
	hangs  time.Duration // a call that takes this long counts as one that hangs; 0: none does
	origin time.Time
	began  atomic.Int64 // when the last call began, in nanoseconds after origin; 0: there was none

	// The reading under way owns the rest.
	use        *usage                   // of handles, by the reading
	tier       readTier                 // what the call under way is made for
	spent      [tierCount]time.Duration // by the reading's calls, for each tier
	fast, slow bool                     // the reading counts for the tier
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

// EndCall adds the time that a call took to the sums of its class and of the tier. It leaves a call
// that hangs out of the tier: it says nothing of what readings usually cost.
func (m *readMeter) EndCall(function string, began time.Time) {
	burden := m.addCall(function, began)
	if m.hangs > 0 && burden >= m.hangs {
		return
	}

	m.spent[m.tier] += burden
}

// beginReading begins a reading. slow is set if the slow tier is due. once is set if the reading is
// the first of its GPU, or the first after a change: it does not show what other readings cost.
func (m *readMeter) beginReading(slow, once bool) {
	m.tier = tierFast
	if once {
		m.tier = tierOnce
	}

	m.fast = !once
	m.slow = slow && !once
	m.spent = [tierCount]time.Duration{}
}

// endReading adds what the reading has cost. It leaves out a fast tier that took so long that it is
// no measure for others (Options.LongReading).
func (m *readMeter) endReading() {
	isLong := m.long > 0 && m.spent[tierFast] >= m.long
	if m.fast && !isLong {
		m.tiers[tierFast].add(m.spent[tierFast])
	}

	if m.slow {
		m.tiers[tierSlow].add(m.spent[tierSlow])
	}
}

// countFor makes the following calls of a reading count for the slow tier if they are made because
// it is due, else for the fast tier. In a reading that counts for neither, it changes nothing.
func (m *readMeter) countFor(slow bool) {
	switch {
	case m.tier == tierOnce:
	case slow:
		m.tier = tierSlow
	default:
		m.tier = tierFast
	}
}

// lastBegan returns when the last call began, by the Source's clock; zero if there was none.
func (m *readMeter) lastBegan() time.Time {
	nanos := m.began.Load()
	if nanos == 0 {
		return time.Time{}
	}

	return m.origin.Add(time.Duration(nanos))
}

// Progress returns when the readings of a GPU have begun their last driver call, by Options.Now;
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

// meterReadings gives the readings of a GPU a meter of their own, and returns the GPU.
func (s *Source) meterReadings(g *gpuState) *gpuState {
	g.meter = newReadMeter(s.meter, &s.opts)
	g.dev = observeInstead(g.handle, g.meter)

	return g
}
