package sim

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// ErrClosed is the error of all calls of a closed node, also of those that hang in a fault.
var ErrClosed = errors.New("simulated node is closed")

// Node is a simulated node. It is safe for concurrent use.
type Node struct {
	scenario *Scenario
	clock    *Clock
	start    time.Time
	closed   chan struct{} // closed by Close
	closing  sync.Once
	shared   *shared // nil for a node that shares no state

	driverCalls *callMeter

	mu           sync.Mutex // guards the fields below, except the outages
	stateTime    time.Time  // the state is as of this moment, at which the running step began
	resample     bool       // something happened at stateTime: a new step has to begin
	step         int64      // full seconds from the start to stateTime
	schedule     []scheduledEvent
	gpus         []*simGPU
	boots        int            // how many times it was rebooted
	nodeID       string         // distinguishes this node from those of other processes
	pods         []*pod         // the pods that the kubelet lists, in the order of their admission
	apiPods      []*pod         // the pods that the API server knows or knew: all that were ever admitted
	own          *pod           // the exporter's own; nil without Kubernetes
	admission    *slowAdmission // the one that is under way; nil if there is none
	waiting      []*waitingPod
	pids         map[uint32]bool // ids in use, or used before
	records      []Record
	failures     []Truth // processes that were killed
	watches      []*Subscription
	kernel       kernelLog
	replacements int                 // how many pods were replaced so far
	failedQueues int                 // event queues that failed and whose owner has no working one yet
	triggered    map[*FaultSpec]bool // faults that a call has started
	calls        map[*FaultSpec]int  // how many changes each fault has counted
	idle         chan struct{}       // closed and replaced whenever a queue is found empty
	open         map[int]int         // how many clients of this process have each GPU open
	unbound      map[int]bool        // GPUs that are unbound from the kernel driver

	kubeletOutages, apiOutages outages // never change

	checkpoint  Checkpoint // of the kubelet's device manager, without the damage of faults
	frozen      []offer    // what a stale device plugin offers
	freezes     int        // how many faults keep the device plugin stale
	pluginError string     // why the device plugin offers nothing; empty if it offers devices
}

// simGPU is one GPU.
type simGPU struct {
	model    gpuModel
	mig      mig.Model
	index    int
	minor    int
	uuid     gpu.UUID
	noiseKey uint64 // see noise
	sharing  SharingSpec
	mps      uint32 // pid of the MPS server, 0 without MPS

	fanCount int

	migOn, migPending bool
	instances         []*Instance // by placement
	devices           []*Compute  // MIG devices by handle index; nil if one was destroyed
	tasks             []*task     // in the order of their start
	sample            sample
	totals            totals
	// counters are the activity of instances, added up in seconds to the start of the running step.
	// Counters of destroyed instances stay: see Counters.
	counters  map[CountersOf]Activity
	errors    errorCounts
	history   history
	described *GPUState // the cached result of describe; nil if something has changed
}

// Record says what happened to a pod or a GPU, for authors of scenarios.
type Record struct {
	Time    time.Time
	GPU     gpu.Opt[int]
	Pod     string // namespace/name; empty for none
	Message string
}

// New starts a node. No other node may have the clock. Close the node when you no longer need it.
func New(s *Scenario, clock *Clock) (*Node, error) {
	n := &Node{
		scenario:  s,
		clock:     clock,
		start:     clock.Start(),
		closed:    make(chan struct{}),
		stateTime: clock.Start(),
		nodeID:    rand.Text(),
		pids:      make(map[uint32]bool),
		triggered: make(map[*FaultSpec]bool),
		calls:     make(map[*FaultSpec]int),
		idle:      make(chan struct{}),
		open:      make(map[int]int),
		unbound:   make(map[int]bool),

		driverCalls: newCallMeter(s.DriverCosts),

		kubeletOutages: s.outages(FaultKubeletDown, FaultKubeletRestart),
		apiOutages:     s.outages(FaultAPIServerDown),
	}
	for index, spec := range s.GPUs {
		g := newSimGPU(s, index, spec)
		if spec.Sharing.Kind == gpu.SharingMPS {
			g.mps = n.newPID("mps", index)
		}

		n.gpus = append(n.gpus, g)
		if err := n.buildLayout(g, spec.Layout); err != nil {
			return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
		}
	}

	n.own = n.newOwnPod()
	n.writeCheckpoint()
	n.scheduleScenario()
	n.runDue()
	n.sampleAll(0)

	return n, nil
}

func newSimGPU(s *Scenario, index int, spec GPUSpec) *simGPU {
	uuid := gpu.UUID("GPU-" + uuidOf(s.Seed, s.Node.Hostname, index))
	g := &simGPU{
		model:      spec.Model,
		mig:        spec.Model.mig,
		index:      index,
		minor:      spec.Minor.Or(index),
		uuid:       uuid,
		noiseKey:   hash(uuid),
		sharing:    spec.Sharing,
		fanCount:   spec.Fans,
		migOn:      spec.MIG == MIGOn,
		migPending: spec.MIG != MIGOff,
		counters:   make(map[CountersOf]Activity),
	}
	g.sample.temperature = g.restingTemperature()

	return g
}

// Close ends the node: calls that hang or wait for events return. You can call it more than once.
func (n *Node) Close() error {
	n.closing.Do(func() {
		close(n.closed)
		n.leaveShared()
	})

	return nil
}

// Now returns the time that the node's clock shows. FaultClockJump makes it differ from the
// simulated time.
func (n *Node) Now() time.Time {
	if n.shared != nil { // another process may have moved a shared clock
		n.lockAndCatchUp()
		n.mu.Unlock()
	}

	return n.shown(n.clock.Now())
}

// shown returns the time that the node's clock shows at a simulated time.
func (n *Node) shown(simulated time.Time) time.Time {
	offset := time.Duration(0)
	n.eachActiveFault(noSingleGPU, simulated, func(f *FaultSpec) {
		if f.Kind == FaultClockJump {
			offset += time.Duration(f.By)
		}
	})

	return simulated.Add(offset)
}

// Advance moves a stepped clock, and brings the state up to its new time.
func (n *Node) Advance(by time.Duration) error {
	advance := n.clock.Advance
	if n.shared != nil {
		advance = n.advanceShared
	}

	if err := advance(by); err != nil {
		return err
	}

	n.lockAndCatchUp()
	n.mu.Unlock()

	return nil
}

// Scenario returns the scenario that the node plays. Do not modify it.
func (n *Node) Scenario() *Scenario { return n.scenario }

// Records returns what has happened so far, in that order.
func (n *Node) Records() []Record {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	return append([]Record(nil), n.records...)
}

func (n *Node) record(r Record) {
	r.Time = n.stateTime
	n.records = append(n.records, r)
}

// lockAndCatchUp locks n.mu, brings the state up to now and returns the time. The caller unlocks n.mu.
func (n *Node) lockAndCatchUp() time.Time {
	n.mu.Lock()
	n.syncShared()
	now := n.clock.Now()
	n.catchUp(now)

	return now
}
