package nvmlsource_test

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// calls notes every call that a Source makes, the event queue's own excepted: of which entity, and with which
// arguments.
type calls struct {
	mu      sync.Mutex
	made    map[call]int
	devices map[nvmlsource.Device]countedDevice // by the driver's own handle
}

// call is one function of NVML with its arguments, asked of one entity. The part of an entity's name before the first
// space is its kind.
type call struct{ entity, function, arguments string }

func (c *calls) note(entity, function string, arguments ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()

	made := call{entity: entity, function: function}
	if len(arguments) > 0 {
		made.arguments = fmt.Sprint(arguments...)
	}

	c.made[made]++
}

// taken returns the calls since the last time.
func (c *calls) taken() map[call]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.made
	c.made = map[call]int{}

	return made
}

// countedLibrary is a Library whose calls, and those of everything that it gives out, are noted.
type countedLibrary struct {
	nvmlsource.Library
	*calls
}

const ofNode = "node"

func (l countedLibrary) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	l.note(ofNode, "nvmlDeviceGetHandleByIndex", index)
	d, ret := l.Library.DeviceGetHandleByIndex(index)
	counted := countedDevice{d, l.calls, fmt.Sprintf("GPU %d", index)}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices[d] = counted

	return counted, ret
}

func (l countedLibrary) EventSetCreate() (nvmlsource.EventSet, nvml.Return) {
	set, ret := l.Library.EventSetCreate()
	if set == nil {
		return nil, ret
	}

	return countedEvents{set, l.calls}, ret
}

// countedEvents gives events the handles that the counted library gives out.
type countedEvents struct {
	nvmlsource.EventSet
	calls *calls
}

func (s countedEvents) Wait(timeoutMillis uint32) (nvmlsource.Event, nvml.Return) {
	e, ret := s.EventSet.Wait(timeoutMillis)

	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()

	if d, ok := s.calls.devices[e.Device]; ok {
		e.Device = d
	}

	return e, ret
}

// RegisterEvents registers with the driver's own set.
func (d countedDevice) RegisterEvents(types uint64, set nvmlsource.EventSet) nvml.Return {
	return d.Device.RegisterEvents(types, set.(countedEvents).EventSet)
}

type countedDevice struct {
	nvmlsource.Device
	calls *calls
	name  string
}

func (d countedDevice) GetMigDeviceHandleByIndex(index int) (nvmlsource.MIGDevice, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMigDeviceHandleByIndex", index)
	m, ret := d.Device.GetMigDeviceHandleByIndex(index)

	return countedMIG{m, d.calls, fmt.Sprintf("MIG-device %s/%d", d.name, index)}, ret
}

func (d countedDevice) GetGpuInstances(profileID uint32, capacity int) ([]nvmlsource.GPUInstance, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetGpuInstances", profileID)

	list, ret := d.Device.GetGpuInstances(profileID, capacity)
	for i := range list {
		list[i] = countedInstance{list[i], d.calls, fmt.Sprintf("GPU-instance %s/%d/%d", d.name, profileID, i)}
	}

	return list, ret
}

type countedInstance struct {
	nvmlsource.GPUInstance
	calls *calls
	name  string
}

type countedMIG struct {
	nvmlsource.MIGDevice
	calls *calls
	name  string
}
