package nvmlsource

import (
	"sync/atomic"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// callMeter counts the calls of the seam and adds up what they take, by class.
type callMeter struct {
	functions map[string]*classMeter // never modified
	classes   map[gpu.CallClass]*classMeter
	tiers     [tierCount]tierMeter
}

// classMeter is the part of a callMeter for one class.
type classMeter struct {
	burdens bool // the calls keep other users of the driver waiting, or may
	calls   atomic.Uint64
	nanos   atomic.Int64
}

// tierMeter adds up what the readings of a tier burden other users of the driver with.
type tierMeter struct {
	readings atomic.Uint64
	nanos    atomic.Int64
}

// readTier says by what the calls of a reading are due.
type readTier int

const (
	tierFast readTier = iota
	tierSlow
	tierOnce // once for a GPU, or for a change of it
	tierCount
)

func newCallMeter() *callMeter {
	m := &callMeter{functions: map[string]*classMeter{}, classes: map[gpu.CallClass]*classMeter{}}
	for function, class := range gpu.ClassifiedCalls() {
		if m.classes[class] == nil {
			m.classes[class] = &classMeter{
				burdens: class == gpu.CallExclusive || class == gpu.CallUnknown,
			}
		}

		m.functions[function] = m.classes[class]
	}

	return m
}

// of returns the class that a function counts for.
func (m *callMeter) of(function string) *classMeter {
	if class := m.functions[function]; class != nil {
		return class
	}

	return m.classes[gpu.CallUnknown]
}

// add adds a reading, and what its calls took.
func (m *tierMeter) add(took time.Duration) {
	m.readings.Add(1)
	m.nanos.Add(int64(took))
}

// BeginCall counts a call before it is made, so that one that hangs is counted too.
func (m *callMeter) BeginCall(function string) time.Time {
	m.of(function).calls.Add(1)

	return time.Now()
}

// EndCall adds the time that a call took.
func (m *callMeter) EndCall(function string, began time.Time) { m.endCall(function, began) }

// endCall is EndCall, and returns the time for which the call has burdened other users of the
// driver.
func (m *callMeter) endCall(function string, began time.Time) (burden time.Duration) {
	took := time.Since(began)
	class := m.of(function)
	class.nanos.Add(int64(took))

	if class.burdens {
		return took
	}

	return 0
}

// DriverUse returns how many calls of the driver seam (Library) were made of each class, and the
// time that those which have returned took, added up over threads. The calls mean the same for the
// simulated node and for NVML; the binding may need several calls of the C library for one of them,
// if it tries versions of a function or goes through profiles. Receiving events is not among them:
// it waits in the driver all the time.
func (s *Source) DriverUse() []gpu.CallUse {
	list := make([]gpu.CallUse, 0, len(s.meter.classes))
	for _, class := range gpu.CallClasses() {
		m := s.meter.classes[class]
		if m == nil { // no function is known to be of it
			continue
		}

		list = append(
			list,
			gpu.CallUse{Class: class, Calls: m.calls.Load(), Took: time.Duration(m.nanos.Load())},
		)
	}

	return list
}

// ReadCosts returns what the readings of each tier have cost other users of the driver.
func (s *Source) ReadCosts() gpu.ReadCosts {
	cost := func(of readTier) gpu.TierCost {
		t := &s.meter.tiers[of]
		return gpu.TierCost{Readings: t.readings.Load(), Took: time.Duration(t.nanos.Load())}
	}

	return gpu.ReadCosts{Fast: cost(tierFast), Slow: cost(tierSlow)}
}

// DriverCalls returns how many calls DriverUse counts.
func (s *Source) DriverCalls() uint64 {
	sum := uint64(0)
	for _, use := range s.DriverUse() {
		sum += use.Calls
	}

	return sum
}
