package capture

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// library is the driver seam over a tape: in front of a driver while that is recorded, in its place in a replay. One
// implementation of both keeps the names and types of the questions the same.
type library struct {
	tape   *tape
	real   nvmlsrc.Library // nil in a replay
	node   *entity
	events *eventQueue

	// devices are guarded by the tape's mu; each GPU has one for each handle that the driver gives, the same every time.
	devices []*device
}

// Init is asked again in every poll until it succeeds.
func (l *library) Init() nvml.Return {
	_, ret := ask(l.node, "nvmlInit", func() (none, nvml.Return) { return none{}, l.real.Init() })
	return ret
}

// LoadError is not recorded: its text names files of the node.
func (l *library) LoadError() error {
	if with, ok := l.real.(interface{ LoadError() error }); ok {
		return with.LoadError()
	}
	return nil
}

// Shutdown is not recorded: a recording ends before it.
func (l *library) Shutdown() nvml.Return {
	if l.tape.replays {
		return nvml.SUCCESS
	}
	return l.real.Shutdown()
}

func (l *library) SystemGetDriverVersion() (string, nvml.Return) {
	return put(l.node, l.real, "nvmlSystemGetDriverVersion", nvmlsrc.Library.SystemGetDriverVersion)
}

func (l *library) SystemGetNVMLVersion() (string, nvml.Return) {
	return put(l.node, l.real, "nvmlSystemGetNVMLVersion", nvmlsrc.Library.SystemGetNVMLVersion)
}

func (l *library) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return put(l.node, l.real, "nvmlSystemGetCudaDriverVersion", nvmlsrc.Library.SystemGetCudaDriverVersion)
}

func (l *library) DeviceGetCount() (int, nvml.Return) {
	n, ret := put(l.node, l.real, "nvmlDeviceGetCount", func(h nvmlsrc.Library) (count, nvml.Return) {
		n, ret := h.DeviceGetCount()
		return count(n), ret
	})
	return int(n), ret
}

// DeviceGetHandleByIndex: the answer is the GPU's name in the recording.
func (l *library) DeviceGetHandleByIndex(index int) (nvmlsrc.Device, nvml.Return) {
	question := fmt.Sprintf("nvmlDeviceGetHandleByIndex(%d)", index)
	name, ret := ask(l.node, question, func() (gpuName, nvml.Return) {
		h, ret := l.real.DeviceGetHandleByIndex(index)
		if ret != nvml.SUCCESS {
			return "", ret
		}
		return l.wrap(h, index).name, ret
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

// wrap returns the recorded device of a driver's handle, a new one for a handle not seen before.
func (l *library) wrap(h nvmlsrc.Device, index int) *device {
	if d := l.find(func(d *device) bool { return d.real == h }); d != nil {
		return d
	}
	name := gpuName(fmt.Sprintf("gpu%d", index))
	for n := 2; l.find(func(d *device) bool { return d.name == name }) != nil; n++ { // another GPU, or handle, at the same index
		name = gpuName(fmt.Sprintf("gpu%d.%d", index, n))
	}
	d := newDevice(l, gpuRecord{name: string(name)})
	d.real = h
	l.tape.mu.Lock()
	defer l.tape.mu.Unlock()
	l.devices = append(l.devices, d)
	return d
}

// find returns the first device that is wanted, or nil.
func (l *library) find(wanted func(*device) bool) *device {
	l.tape.mu.Lock()
	defer l.tape.mu.Unlock()
	if i := slices.IndexFunc(l.devices, wanted); i >= 0 {
		return l.devices[i]
	}
	return nil
}

// put puts a question to a handle of the driver, which is nil in a replay.
func put[H, T any](e *entity, handle H, question string, f func(H) (T, nvml.Return)) (T, nvml.Return) {
	return ask(e, question, func() (T, nvml.Return) { return f(handle) })
}
