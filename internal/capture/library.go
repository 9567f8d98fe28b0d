package capture

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// library is the driver seam over a recording: it calls a driver and records the answers, or answers instead of a
// driver in a replay. One implementation of both keeps the names and types of the calls the same. Its other methods
// are generated from the seam.
type library struct {
	entity
	driver nvmlsource.Library // nil in a replay
	events *eventQueue

	// Both are guarded by the timeline's mu. There is one device for each handle that the driver has returned.
	rec     *Recording
	devices []*device
}

// newLibrary returns a library over a recording, which it owns from then on.
func newLibrary(rec *Recording, driver nvmlsource.Library) *library {
	t := &timeline{replays: driver == nil, changed: make(chan struct{})}

	l := &library{
		entity: entity{t, answers(rec.Recorded.Node)}, driver: driver, rec: rec,
		events: &eventQueue{sets: map[*eventSet]bool{}},
	}
	for name, g := range rec.Recorded.GPUs {
		l.devices = append(l.devices, l.newDevice(name, g))
	}

	return l
}

func (l *library) newDevice(name gpuName, record *gpuRecord) *device {
	return &device{
		entity: entity{l.time, answers(record.Answers)},
		name:   name,
		lib:    l,
		record: record,
	}
}

// LoadError is not recorded: its text names files of the node.
func (l *library) LoadError() error {
	if with, ok := l.driver.(interface{ LoadError() error }); ok {
		return with.LoadError()
	}

	return nil
}

// Shutdown is not recorded: a recording ends before it.
func (l *library) Shutdown() nvml.Return {
	if l.time.replays {
		return nvml.SUCCESS
	}

	return l.driver.Shutdown()
}

// InitNoAttach is not recorded: a program that records lets go of no GPU.
func (l *library) InitNoAttach() nvml.Return {
	if l.time.replays {
		return nvml.ERROR_NOT_SUPPORTED
	}

	return l.driver.InitNoAttach()
}

// DeviceGetHandleByPciBusId is for a program that lets go of a GPU, which neither records nor replays.
func (l *library) DeviceGetHandleByPciBusId(string) (nvmlsource.Device, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func (l *library) DeviceGetCount() (int, nvml.Return) {
	n, ret := query(l.entity, "nvmlDeviceGetCount", func() (handleCount, nvml.Return) {
		n, ret := l.driver.DeviceGetCount()
		return handleCount(n), ret
	})

	return int(n), ret
}

// DeviceGetHandleByIndex records the GPU's name in the recording.
func (l *library) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	name, ret := query(l.entity, callOf("nvmlDeviceGetHandleByIndex", numbers.name(uint64(index))),
		func() (gpuName, nvml.Return) {
			h, ret := l.driver.DeviceGetHandleByIndex(index)
			if ret != nvml.SUCCESS {
				return "", ret
			}

			return l.deviceOf(h, index).name, ret
		})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	d := l.find(func(d *device) bool { return d.name == name })
	if d == nil {
		return nil, nvml.ERROR_UNKNOWN
	}

	return d, ret
}

// deviceOf returns the recorded device of a driver's handle, a new one for a handle not seen before.
func (l *library) deviceOf(h nvmlsource.Device, index int) *device {
	if d := l.find(func(d *device) bool { return d.driver == h }); d != nil {
		return d
	}

	l.time.mu.Lock()
	defer l.time.mu.Unlock()

	gpus := l.rec.Recorded.GPUs

	name := gpuName(fmt.Sprintf("gpu%d", index))
	for n := 2; gpus[name] != nil; n++ { // another GPU, or handle, at the same index
		name = gpuName(fmt.Sprintf("gpu%d.%d", index, n))
	}

	gpus[name] = &gpuRecord{gpuAnswers{}, map[int]migAnswers{}, map[slot]instanceAnswers{}}
	d := l.newDevice(name, gpus[name])
	d.driver = h
	l.devices = append(l.devices, d)

	return d
}

// find returns the first device for which wanted returns true, or nil.
func (l *library) find(wanted func(*device) bool) *device {
	l.time.mu.Lock()
	defer l.time.mu.Unlock()

	if i := slices.IndexFunc(l.devices, wanted); i >= 0 {
		return l.devices[i]
	}

	return nil
}
