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

// CallName names the calls whose cost a scenario sets: those of a function of NVML, without its
// version, or of a class of functions.
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
	classes map[string]gpu.CallClass // of functions; never modified

	// exclusive stands for the driver's locks: an exclusive call has its slot for as long as it
	// takes, others wait until it is free when they begin.
	exclusive chan struct{}

	mu     sync.Mutex
	counts map[string]uint64
	owed   time.Duration // by calls that cost less than shortestWait; negative if a wait took too long
}

// shortestWait is how long a call waits at least: timers are hardly finer. Costs below it are added
// up until they reach it, so that many calls take as long as they cost.
const shortestWait = time.Millisecond

func newCallMeter(costs map[CallName]time.Duration) *callMeter {
	return &callMeter{
		costs:     costs,
		classes:   gpu.ClassifiedCalls(),
		exclusive: make(chan struct{}, 1),
		counts:    map[string]uint64{},
	}
}

// BeginCall counts a call of the driver's C library, and blocks for as long as it costs in real
// time. Meanwhile no other call goes on if it is exclusive. The function is named as in nvml.h; its
// version counts for nothing.
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
		n.spend(name)
	}

	return began
}

// EndCall does nothing: a call has taken its time when BeginCall returns.
func (n *Node) EndCall(string, time.Time) {}

// spend waits for the driver's locks and for the cost of a call, or until the node is closed.
func (n *Node) spend(function string) {
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
	case gpu.CallMapped:
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

// charge returns how long a call waits. One that costs less than shortestWait usually waits for
// nothing; once the costs of such calls reach it together, one call waits for all.
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

// refund subtracts from what is owed the time that a wait for short costs took too long.
func (m *callMeter) refund(cost, left time.Duration) {
	if cost >= shortestWait {
		return
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	m.owed += left
}

// withoutVersion returns the function that a name of nvml.h is a version of: nvmlDeviceGetCount_v2,
// nvmlDeviceGetTemperatureV.
func withoutVersion(name string, known map[string]gpu.CallClass) string {
	plain := name

	at := strings.LastIndex(name, "_v")
	if at >= 0 && strings.Trim(name[at+2:], "0123456789") == "" {
		plain = name[:at]
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
