// Package simnvml implements nvmlsource.Library with the simulated node: it answers with NVML's types
// and return codes. What a comment calls unverified follows nvml.h or published captures; we have
// not measured it.
package simnvml

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// New returns a library that reads a simulated node. The node counts calls as calls of NVML's C
// functions (see sim.Node.CallCounts). The caller closes the node.
func New(node *sim.Node) nvmlsource.Library {
	l := &library{node: node, client: node.NewClient(nil)}
	states := &sync.Pool{}

	for i := range node.Count() {
		l.devices = append(l.devices, &gpuHandle{node: node, index: i, states: states})
	}

	return nvmlsource.ObserveCalls(l, node)
}

type library struct {
	node    *sim.Node
	client  *sim.Client
	devices []*gpuHandle // one handle for each GPU, as NVML gives

	mu      sync.Mutex
	binding *sim.BindWatch // nil until the first SystemEventSetWait
}

// returnOf returns NVML's code for an error of the node.
func returnOf(err error) nvml.Return { return nvml.Return(sim.ReturnCode(err)) }

// SystemGetConfComputeState also answers if no GPU is attached, as after nvmlInitWithFlags with
// NVML_INIT_FLAG_NO_ATTACH. That a real driver does so is unverified.
func (l *library) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	var state nvml.ConfComputeSystemState
	if err := l.node.Driver(); err != nil {
		return state, returnOf(err)
	}

	if l.node.Scenario().Node.ConfidentialComputing {
		state.Environment = nvml.CC_SYSTEM_ENVIRONMENT_PROD
		state.CcFeature = nvml.CC_SYSTEM_FEATURE_ENABLED
	}

	return state, nvml.SUCCESS
}

func (l *library) Init() nvml.Return { return returnOf(l.client.Begin(true)) }

func (l *library) InitNoAttach() nvml.Return { return returnOf(l.client.Begin(false)) }

func (l *library) Shutdown() nvml.Return {
	if !l.client.End() {
		return nvml.ERROR_UNINITIALIZED
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.binding = nil

	return nvml.SUCCESS
}

func (l *library) SystemGetDriverVersion() (string, nvml.Return) {
	return l.node.Scenario().Node.Driver, returnOf(l.node.Driver())
}

func (l *library) SystemGetNVMLVersion() (string, nvml.Return) {
	node := &l.node.Scenario().Node
	return fmt.Sprintf("%d.%s", node.CUDAVersion()/1000, node.Driver), returnOf(l.node.Driver())
}

func (l *library) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return l.node.Scenario().Node.CUDAVersion(), returnOf(l.node.Driver())
}

func (l *library) DeviceGetCount() (int, nvml.Return) {
	return l.client.Count(), returnOf(l.node.Driver())
}

func (l *library) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	at, err := l.client.At(index)
	if err == nil {
		_, err = l.node.Read(at, gpu.ReadingDevice)
	}

	if err != nil {
		return nil, returnOf(err)
	}

	return l.devices[at], nvml.SUCCESS
}

func (l *library) DeviceGetHandleByPciBusId(busID string) (nvmlsource.Device, nvml.Return) {
	index, err := l.node.FindBusID(busID)
	if err == nil {
		err = l.client.Open(index)
	}

	if err == nil {
		_, err = l.node.Read(index, gpu.ReadingDevice)
	}

	if err != nil {
		return nil, returnOf(err)
	}

	return l.devices[index], nvml.SUCCESS
}

func (l *library) SystemEventSetWait() ([]nvml.SystemEventData_v1, nvml.Return) {
	if err := l.node.Driver(); err != nil {
		return nil, returnOf(err)
	}

	if !l.node.ReportsBinding() {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	l.mu.Lock()
	if l.binding == nil {
		l.binding = l.node.WatchBinding()
	}

	binding := l.binding
	l.mu.Unlock()

	var list []nvml.SystemEventData_v1

	for _, e := range binding.Events(l.node.Count()) {
		kind := uint64(nvml.SystemEventTypeGpuDriverUnbind)
		if e.Bound {
			kind = nvml.SystemEventTypeGpuDriverBind
		}

		list = append(list, nvml.SystemEventData_v1{EventType: kind, GpuId: l.node.PCIID(e.Index)})
	}

	if list == nil {
		return nil, nvml.ERROR_TIMEOUT
	}

	return list, nvml.SUCCESS
}

func (l *library) EventSetCreate() (nvmlsource.EventSet, nvml.Return) {
	if err := l.node.Driver(); err != nil {
		return nil, returnOf(err)
	}

	return &eventSet{lib: l, queue: l.node.Subscribe()}, nvml.SUCCESS
}
