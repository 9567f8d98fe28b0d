package nvmlsource

import (
	"sync/atomic"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// callMeter counts the calls of the driver seam and adds up how long they take, by class.
type callMeter struct {
	functions map[string]*classMeter // by NVML's name of the function; never modified
	classes   map[gpu.CallClass]*classMeter
	tiers     [tierCount]tierMeter
}

// classMeter is the part of a callMeter for one class.
type classMeter struct {
	burdens bool // calls of this class make, or may make, other users of the driver wait
	calls   atomic.Uint64
	nanos   atomic.Int64
}

// tierMeter counts the readings of a tier, and adds up for how long they made other users of the
// driver wait.
type tierMeter struct {
	readings atomic.Uint64
	nanos    atomic.Int64
}

// readTier is what a call of a reading is made for.
type readTier int

const (
	tierFast readTier = iota // every reading
	tierSlow                 // readings in which the slow tier is due
	tierOnce                 // the first reading of a GPU, or the first after a change of it
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

// classOf returns the class that a function counts for.
func (m *callMeter) classOf(function string) *classMeter {
	if class := m.functions[function]; class != nil {
		return class
	}

	return m.classes[gpu.CallUnknown]
}

// add counts a reading. took is for how long its calls made others wait.
func (m *tierMeter) add(took time.Duration) {
	m.readings.Add(1)
	m.nanos.Add(int64(took))
}

// BeginCall counts a call before it is made, so that one that hangs is counted too.
func (m *callMeter) BeginCall(function string) time.Time {
	m.classOf(function).calls.Add(1)

	return time.Now()
}

// EndCall adds the time that a call took.
func (m *callMeter) EndCall(function string, began time.Time) { m.addCall(function, began) }

// addCall adds the time that a call took to its class. It returns that time if calls of the class
// burden other users of the driver, else 0.
func (m *callMeter) addCall(function string, began time.Time) (burden time.Duration) {
	took := time.Since(began)
	class := m.classOf(function)
	class.nanos.Add(int64(took))

	if class.burdens {
		return took
	}

	return 0
}

// DriverUse returns, for each class, how many calls of the driver seam (Library) were made, and how
// long those that have returned took, added up over threads. A call is the same for the simulated
// node and for NVML; the binding may need several calls of the C library for it, if it tries
// versions of a function or goes through profiles. Receiving events is not counted: it waits in the
// driver all the time.
func (s *Source) DriverUse() []gpu.CallUse {
	list := make([]gpu.CallUse, 0, len(s.meter.classes))
	for _, class := range gpu.CallClasses() {
		m := s.meter.classes[class]
		if m == nil { // no function is classified so
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
	cost := func(tier readTier) gpu.TierCost {
		t := &s.meter.tiers[tier]
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
