package nvmlsource_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// spy is between a Source and the simulated node: it counts the calls by their names, and makes
// them do something else. It is a Library with itself as the Interceptor, in front of a driver that
// may lie.
type spy struct {
	nvmlsource.Library
	mu       sync.Mutex
	calls    map[string]int
	returns  map[string]nvml.Return // what a call returns instead of being made
	before   map[string]func()      // what happens before a call is made
	devices  map[int]spyDevice
	sets     map[*spySet]bool // not freed yet
	loadErr  error
	fallen   nvmlsource.Device
	every    func()                                   // happens before every call of a Read
	occupant occupantFunc                             // nil: counters are the node's
	metrics  map[uint32]nvmlsource.GPMMetric          // what the driver says of metrics instead of the truth
	refuses  func([]nvmlsource.GPMMetric) nvml.Return // what it says of a call for metrics; nil: it answers all

	swapped      map[int]int // indexes that stand for the GPU of another
	oldProcesses bool
	deaf         atomic.Bool // the driver reports no changes of layouts, although it is asked to
	strangers    atomic.Bool // events name a handle that no call has returned, and that does not answer
	twice        bool        // every MIG device is there under two indexes
	noMIGDevices bool        // no GPU can have any, a driver says

	pstate         gpu.Opt[nvml.Pstates] // what the driver says instead of the truth
	fabric         *nvml.GpuFabricInfo_v3
	thresholds     map[nvml.TemperatureThresholds]int32
	rev1SMs        uint32 // of a second compute profile of one slice; 0: there is none
	computeProfile uint32 // that a compute instance was made of last
	wideSeven      bool   // a compute instance of 7 slices has a place of 8
	noPlacements   bool   // the placements of compute instances are not reported
}

func newSpy(lib nvmlsource.Library) *spy {
	s := &spy{
		calls: map[string]int{}, returns: map[string]nvml.Return{}, before: map[string]func(){},
		devices: map[int]spyDevice{},
		sets:    map[*spySet]bool{},
	}
	s.Library = nvmlsource.Intercept(spiedLibrary{lib, s}, s)

	return s
}

// spiedLibrary is the driver behind a spy, whose handles are spies, too.
type spiedLibrary struct {
	nvmlsource.Library
	spy *spy
}

// Before counts a call by its name, such as MIG.GetUUID, and may make it fail.
func (s *spy) Before(c nvmlsource.Call) nvmlsource.Verdict {
	if c.Function == "nvmlGpuInstanceGetComputeInstances" {
		return nvmlsource.Verdict{} // two methods: the driver knows which
	}

	if c.Function == "nvmlGpuInstanceCreateComputeInstanceWithPlacement" {
		s.computeProfile = uint32(c.Args[0])
	}

	ret, passes := s.passes(nameOf(c))

	return nvmlsource.Verdict{Answered: !passes, Answer: nvml.ERROR_UNKNOWN, Return: ret}
}

func nameOf(c nvmlsource.Call) string {
	switch c.Function {
	case "nvmlDeviceCreateGpuInstanceWithPlacement":
		return "CreateGpuInstance"
	case "nvmlGpuInstanceCreateComputeInstanceWithPlacement":
		return "CreateComputeInstance"
	case "nvmlDeviceRegisterEvents":
		return map[uint64]string{nvml.EventTypeXidCriticalError: "RegisterEvents(XID)",
			nvml.EventMigConfigChange:         "RegisterEvents(MIG)",
			nvml.EventTypeGpuUnavailableError: "RegisterEvents(Unavailable)",
			nvml.EventTypeGpuRecoveryAction:   "RegisterEvents(Recovery)"}[c.Args[0]]
	}

	name := strings.TrimPrefix(c.Function, "nvml")

	kind, isHandle := c.Object.(string)
	if !isHandle {
		return name
	}

	for _, prefix := range []string{"Device", "GpuInstance", "ComputeInstance", "EventSet"} {
		name = strings.TrimPrefix(name, prefix)
	}

	return kind + name
}

// Object returns how the names of calls about a handle begin.
func (s *spy) Object(c nvmlsource.Call, _ int, _ any) (object any, known bool) {
	switch c.Function {
	case "nvmlDeviceGetMigDeviceHandleByIndex":
		return "MIG.", true
	case "nvmlDeviceGetGpuInstances", "nvmlDeviceCreateGpuInstanceWithPlacement":
		return "Instance.", true
	case "nvmlGpuInstanceGetComputeInstances", "nvmlGpuInstanceCreateComputeInstanceWithPlacement":
		return "Compute.", true
	}

	return "", true
}

// set makes a call return a code; SUCCESS lets it be made again.
func (s *spy) set(call string, ret nvml.Return) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if ret == nvml.SUCCESS {
		delete(s.returns, call)
		return
	}

	s.returns[call] = ret
}

// do lets something happen before the next such call.
func (s *spy) do(call string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[call] = f
}

// taken returns the calls since the last time.
func (s *spy) taken() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.calls
	s.calls = map[string]int{}

	return taken
}

func (s *spy) passes(call string) (nvml.Return, bool) {
	s.mu.Lock()
	s.calls[call]++
	f := s.before[call]
	delete(s.before, call)
	every := s.every
	s.mu.Unlock()

	if every != nil && call != "Wait" && call != "Free" && call != "EventSetCreate" &&
		!strings.HasPrefix(call, "RegisterEvents") {
		every()
	}

	if f != nil {
		f()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	ret, fails := s.returns[call]

	return ret, !fails
}

func via[T any](s *spy, call string, f func() (T, nvml.Return)) (T, nvml.Return) {
	if ret, ok := s.passes(call); !ok {
		var none T
		return none, ret
	}

	return f()
}

func (s *spy) LoadError() error { return s.loadErr }

func (l spiedLibrary) Shutdown() nvml.Return {
	l.spy.mu.Lock()
	clear(l.spy.devices) // the next Init may number them otherwise
	l.spy.mu.Unlock()

	return l.Library.Shutdown()
}

// DeviceGetHandleByIndex gives the same handle every time, as the driver does.
func (l spiedLibrary) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	d, ret := l.Library.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	s := l.spy

	s.mu.Lock()
	defer s.mu.Unlock()

	if other, is := s.swapped[index]; is {
		return s.devices[other], ret
	}

	if _, known := s.devices[index]; !known {
		s.devices[index] = spyDevice{d, s}
	}

	return s.devices[index], ret
}

// DeviceGetHandleByPciBusId gives the handle that a lookup by index gives.
func (l spiedLibrary) DeviceGetHandleByPciBusId(busID string) (nvmlsource.Device, nvml.Return) {
	d, ret := l.Library.DeviceGetHandleByPciBusId(busID)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	s := l.spy

	s.mu.Lock()
	defer s.mu.Unlock()

	for _, known := range s.devices {
		if known.Device == d {
			return known, ret
		}
	}

	s.devices[1000+len(s.devices)] = spyDevice{d, s}

	return spyDevice{d, s}, ret
}

func (l spiedLibrary) EventSetCreate() (nvmlsource.EventSet, nvml.Return) {
	set, ret := l.Library.EventSetCreate()
	made := &spySet{EventSet: set, spy: l.spy, members: map[nvmlsource.Device]bool{}}
	l.spy.mu.Lock()
	defer l.spy.mu.Unlock()
	l.spy.sets[made] = true

	return made, ret
}

// fall makes a GPU one that has fallen off the bus for the sets that it is in, nil none.
func (s *spy) fall(d nvmlsource.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fallen = d
}

type spySet struct {
	nvmlsource.EventSet
	spy     *spy
	members map[nvmlsource.Device]bool
}

// Wait names the device by the handle that the spy has given out, as the driver does.
func (e *spySet) Wait(timeoutMillis uint32) (nvmlsource.Event, nvml.Return) {
	e.spy.mu.Lock()
	lost := e.members[e.spy.fallen]
	e.spy.mu.Unlock()

	if lost {
		return nvmlsource.Event{}, nvml.ERROR_GPU_IS_LOST
	}

	event, ret := e.EventSet.Wait(timeoutMillis)
	if event.Type == nvml.EventMigConfigChange && e.spy.deaf.Load() {
		return nvmlsource.Event{}, nvml.ERROR_TIMEOUT
	}

	if ret == nvml.SUCCESS && e.spy.strangers.Load() {
		event.Device = stranger{}
		return event, ret
	}

	if ret == nvml.SUCCESS {
		e.spy.mu.Lock()
		defer e.spy.mu.Unlock()

		for _, d := range e.spy.devices {
			if d.Device == event.Device { // no call is made: one that hangs would not answer
				event.Device = d
			}
		}
	}

	return event, ret
}

// stranger is a device that nothing is known of.
type stranger struct{ nvmlsource.Device }

func (stranger) GetUUID() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }

func (e *spySet) Free() nvml.Return {
	e.spy.mu.Lock()
	delete(e.spy.sets, e)
	e.spy.mu.Unlock()

	return e.EventSet.Free()
}

type spyDevice struct {
	nvmlsource.Device
	spy *spy
}

func (d spyDevice) RegisterEvents(types uint64, set nvmlsource.EventSet) nvml.Return {
	d.spy.mu.Lock()
	set.(*spySet).members[d] = true
	d.spy.mu.Unlock()

	return d.Device.RegisterEvents(types, set.(*spySet).EventSet)
}

func (d spyDevice) GetMigDeviceHandleByIndex(index int) (nvmlsource.MIGDevice, nvml.Return) {
	if d.spy.twice {
		index /= 2
	}

	m, ret := d.Device.GetMigDeviceHandleByIndex(index)

	return spyMIG{m, d.spy}, ret
}

func (d spyDevice) GetGpuInstances(profile uint32, capacity int) ([]nvmlsource.GPUInstance, nvml.Return) {
	list, ret := d.Device.GetGpuInstances(profile, capacity)
	for i := range list {
		list[i] = spyInstance{list[i], d.spy}
	}

	return list, ret
}

func (d spyDevice) GetMaxMigDeviceCount() (int, nvml.Return) {
	most, ret := d.Device.GetMaxMigDeviceCount()
	if d.spy.noMIGDevices {
		return 0, ret
	}

	return most, ret
}

// GetComputeRunningProcesses leaves out the instances if the spy is set to an old driver.
func (d spyDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	list, ret := d.Device.GetComputeRunningProcesses()
	for i := range list {
		if d.spy.oldProcesses {
			list[i].GpuInstanceId, list[i].ComputeInstanceId = nvmlsource.NoInstance, nvmlsource.NoInstance
		}
	}

	return list, ret
}

type spyMIG struct {
	nvmlsource.MIGDevice
	spy *spy
}

type spyInstance struct {
	nvmlsource.GPUInstance
	spy *spy
}

// node is a simulated node on a stepped clock, a spy and a Source over both.
type node struct {
	*sim.Node
	t      *testing.T
	spy    *spy
	source *nvmlsource.Source
	cues   gpu.ReadCues // of read
	logged *bytes.Buffer
}

// newNode starts a node; what follows gpus: is the scenario's.
func newNode(t *testing.T, options, gpus string) *node {
	t.Helper()

	return startNode(t,
		"version: 1\nnode: {hostname: n1, driver: \"580.95.05\", cuda: \"13.0\""+options+"}\ngpus:\n"+gpus+"\n")
}

func startNode(t *testing.T, scenario string) *node {
	t.Helper()

	s, err := sim.Parse("test.yaml", []byte(scenario))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { n.Close() })
	logged := &bytes.Buffer{}
	lib := newSpy(simnvml.New(n))

	opts := nvmlsource.Options{
		Now: n.Now, SlowEvery: 15 * time.Second, Logger: log.NewLogfmtLogger(log.NewSyncWriter(logged)),
	}
	if s.Node.PIDNamespace != sim.PIDNamespaceHost {
		opts.ProcessesHidden = gpu.ErrPIDNamespace
	}

	source := nvmlsource.New(lib, opts)
	t.Cleanup(func() {
		if err := source.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})

	return &node{Node: n, t: t, spy: lib, source: source, logged: logged}
}

// discover returns the GPUs.
func (n *node) discover() []gpu.UUID {
	n.t.Helper()

	inventory, err := n.source.Discover()
	if err != nil {
		n.t.Fatal(err)
	}

	var ids []gpu.UUID
	for _, found := range inventory.GPUs {
		ids = append(ids, found.UUID)
	}

	return ids
}

// read reads a GPU as a poll does, some time after the last change: what the driver reports of that
// has arrived.
func (n *node) read(id gpu.UUID) gpu.GPU {
	n.t.Helper()
	n.awaitEvents()

	cues := n.cues
	cues.FollowMemory = true

	g, err := n.source.ReadWith(id, cues)
	if err != nil {
		n.t.Fatal(err)
	}

	return g
}

func (n *node) advance(by time.Duration) {
	n.t.Helper()

	if err := n.Advance(by); err != nil {
		n.t.Fatal(err)
	}

	n.awaitEvents()
}

// readLists is read, with the lists of processes.
func (n *node) readLists(id gpu.UUID) gpu.GPU {
	n.t.Helper()
	n.awaitEvents()

	g, err := n.source.ReadWith(id, gpu.ReadCues{Changed: true})
	if err != nil {
		n.t.Fatal(err)
	}

	return g
}

// withoutReports makes the driver report no changes of layouts, so that every reading scans. It is
// called before discover.
func (n *node) withoutReports() *node {
	n.spy.set("RegisterEvents(MIG)", nvml.ERROR_NOT_SUPPORTED)

	return n
}

// awaitEvents waits until the events of the driver have arrived, unless the test has made the queue
// fail.
func (n *node) awaitEvents() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	n.AwaitHandled(ctx)
}
