package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// CallName names the driver calls whose cost a scenario sets: a function of NVML without its
// version, such as nvmlDeviceGetName, or a class of functions (gpu.CallClass).
type CallName string

// Valid reports whether there is such a class or function.
func (c CallName) Valid(any) (valid bool, expected string) {
	if _, known := gpu.ClassifiedCalls()[string(c)]; known ||
		slices.Contains(gpu.CallClasses(), gpu.CallClass(c)) {
		return true, ""
	}

	var classes []string
	for _, class := range gpu.CallClasses() {
		classes = append(classes, string(class))
	}

	return false, fmt.Sprintf(
		"a class of calls (%s) or a function of NVML without its version, such as "+
			"nvmlDeviceGetComputeRunningProcesses",
		strings.Join(classes, ", "),
	)
}

// callMeter counts the calls of a node's driver by function, and makes them take the time that the
// scenario says.
type callMeter struct {
	costs   map[CallName]time.Duration
	classes map[string]gpu.CallClass // by function; never modified

	// exclusive stands for the driver's locks. An exclusive call holds its only slot for as long as
	// it takes; other calls wait until the slot is free when they begin.
	exclusive chan struct{}

	mu     sync.Mutex
	counts map[string]uint64 // calls by function, without its version
	owed   time.Duration     // what short calls still have to wait; negative if a wait took too long
}

// shortestWait is the shortest time for which we wait, as timers are hardly finer. We add up lower
// costs until they reach it: a thousand calls of 10 µs take 10 ms together.
const shortestWait = time.Millisecond

func newCallMeter(costs map[CallName]time.Duration) *callMeter {
	return &callMeter{
		costs:     costs,
		classes:   gpu.ClassifiedCalls(),
		exclusive: make(chan struct{}, 1),
		counts:    map[string]uint64{},
	}
}

// BeginCall counts a call of a function of nvml.h, whose version makes no difference. It blocks for
// as long as the call costs, in real time. While an exclusive call takes its time, others wait.
func (n *Node) BeginCall(function string) time.Time {
	began := time.Now()
	m := n.driverCalls

	name := function
	if _, known := m.classes[name]; !known {
		name = withoutVersion(name, m.classes)
	}

	m.mu.Lock()
	m.counts[name]++
	m.mu.Unlock()

	if len(m.costs) > 0 {
		n.waitForCall(name)
	}

	return began
}

// EndCall does nothing: a call has taken its time when BeginCall returns.
func (n *Node) EndCall(string, time.Time) {}

// waitForCall waits for the driver's locks and then for the cost of a call, or until the node is
// closed.
func (n *Node) waitForCall(function string) {
	m := n.driverCalls

	class, known := m.classes[function]
	if !known {
		class = gpu.CallUnknown
	}

	cost, ok := m.costs[CallName(function)]
	if !ok {
		cost = m.costs[CallName(class)]
	}

	switch class {
	case gpu.CallMapped: // it takes no lock of the driver
	case gpu.CallExclusive:
		m.exclusive <- struct{}{}
		defer func() { <-m.exclusive }()
	default:
		m.exclusive <- struct{}{}
		<-m.exclusive
	}

	if due := m.charge(cost); due > 0 {
		began := time.Now()
		n.sleep(due)
		m.refund(cost, due-time.Since(began))
	}
}

// charge returns how long a call has to wait. Most calls that cost less than shortestWait do not
// wait; once their costs add up to that, one call waits for all of them.
func (m *callMeter) charge(cost time.Duration) (due time.Duration) {
	if cost >= shortestWait {
		return cost
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	m.owed += cost
	if m.owed < shortestWait {
		return 0
	}

	due = m.owed
	m.owed = 0

	return due
}

// refund credits the time by which a wait for short calls took too long: left is negative then.
func (m *callMeter) refund(cost, left time.Duration) {
	if cost >= shortestWait {
		return
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	m.owed += left
}

// withoutVersion returns the name of a function without its version: nvmlDeviceGetCount of
// nvmlDeviceGetCount_v2, nvmlDeviceGetTemperature of nvmlDeviceGetTemperatureV. A name that it does
// not know either way stays as it is.
func withoutVersion(name string, known map[string]gpu.CallClass) string {
	plain := name

	suffix := strings.LastIndex(name, "_v")
	if suffix >= 0 && strings.Trim(name[suffix+2:], "0123456789") == "" {
		plain = name[:suffix]
	}

	if known[plain] != "" {
		return plain
	}

	if short := strings.TrimSuffix(plain, "V"); known[short] != "" {
		return short
	}

	return name
}

// CallCounts returns how often each function of the driver's C library was called.
func (n *Node) CallCounts() map[string]uint64 {
	m := n.driverCalls
	m.mu.Lock()
	defer m.mu.Unlock()

	return maps.Clone(m.counts)
}
