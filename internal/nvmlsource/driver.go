package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// The driver_*.go files define the driver seam: the part of NVML that this package calls, in NVML's
// own types and return codes. A method does what nvml.h says of the function with its name. go-nvml
// implements the seam through the adapter in binding.go, the simulated node through
// internal/sim/simnvml. Below each interface is its intercepted form, which passes every call to an
// Interceptor, under NVML's name of the function.

// Library is NVML as a whole. A Library may also have a method LoadError() error, which returns why
// Init found no library.
type Library interface {
	// SystemGetConfComputeState is called before Init. It opens no GPU: it initialises NVML without
	// attaching GPUs, and shuts it down again.
	SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return)
	Init() nvml.Return
	// InitNoAttach is Init without opening any GPU. Each is opened when it is looked up.
	InitNoAttach() nvml.Return
	Shutdown() nvml.Return
	SystemGetDriverVersion() (string, nvml.Return)
	SystemGetNVMLVersion() (string, nvml.Return)
	SystemGetCudaDriverVersion() (int, nvml.Return)
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(index int) (Device, nvml.Return)
	// DeviceGetHandleByPciBusId takes a bus id as the kernel writes it, 0000:07:00.0.
	DeviceGetHandleByPciBusId(busID string) (Device, nvml.Return)
	EventSetCreate() (EventSet, nvml.Return)
	// SystemEventSetWait returns which GPUs were unbound from the kernel driver, or bound to it,
	// since the last call. It does not wait: ERROR_TIMEOUT means that there was no event. The first
	// call after an Init creates the queue, which Shutdown frees; earlier events are lost.
	SystemEventSetWait() ([]nvml.SystemEventData_v1, nvml.Return)
	// GpmSampleAlloc allocates a sample, which belongs to the caller until it is freed.
	GpmSampleAlloc() (GPMSample, nvml.Return)
	// GpmMetricsGet computes metrics of the window between two samples of one entity. The caller
	// sets the ids in metrics; the call fills in each value and return code.
	GpmMetricsGet(before, after GPMSample, metrics []GPMMetric) nvml.Return
}

// GPMSample is nvmlGpmSample_t: a buffer for the profiling counters of one entity at one moment.
type GPMSample interface {
	Free() nvml.Return
}

// GPMMetric is nvmlGpmMetric_t without its description. Utilizations are in percent, traffic in
// MiB/s.
type GPMMetric struct {
	ID     uint32 // nvmlGpmMetricId_t
	Value  float64
	Return nvml.Return
}

// EventSet is a queue of the driver's events.
type EventSet interface {
	// Wait blocks for at most timeoutMillis and returns ERROR_TIMEOUT when nothing happened.
	Wait(timeoutMillis uint32) (Event, nvml.Return)
	Free() nvml.Return
}

// Event is nvmlEventData_t; the instance ids are NoInstance if it has none.
type Event struct {
	Device            Device
	Type              uint64
	Data              uint64
	GPUInstanceID     uint32
	ComputeInstanceID uint32
}

// NoInstance is NVML's "no GPU or compute instance" id.
const NoInstance = 0xFFFFFFFF

type interceptedLibrary struct{ handle[Library] }

// LoadError returns why no library was found, if the Library reports it.
func (l interceptedLibrary) LoadError() error {
	if reports, ok := l.raw.(interface{ LoadError() error }); ok {
		return reports.LoadError()
	}

	return nil
}

func (l interceptedLibrary) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	return pass(l.handle, "nvmlSystemGetConfComputeState", Library.SystemGetConfComputeState)
}

func (l interceptedLibrary) Init() nvml.Return {
	return passCode(l.handle, Call{Function: "nvmlInit"}, Library.Init)
}

func (l interceptedLibrary) InitNoAttach() nvml.Return {
	return passCode(l.handle, Call{Function: "nvmlInitNoAttach"}, Library.InitNoAttach)
}

func (l interceptedLibrary) Shutdown() nvml.Return {
	return passCode(l.handle, Call{Function: "nvmlShutdown"}, Library.Shutdown)
}

func (l interceptedLibrary) SystemGetDriverVersion() (string, nvml.Return) {
	return pass(l.handle, "nvmlSystemGetDriverVersion", Library.SystemGetDriverVersion)
}

func (l interceptedLibrary) SystemGetNVMLVersion() (string, nvml.Return) {
	return pass(l.handle, "nvmlSystemGetNVMLVersion", Library.SystemGetNVMLVersion)
}

func (l interceptedLibrary) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return pass(l.handle, "nvmlSystemGetCudaDriverVersion", Library.SystemGetCudaDriverVersion)
}

func (l interceptedLibrary) DeviceGetCount() (int, nvml.Return) {
	return pass(l.handle, "nvmlDeviceGetCount", Library.DeviceGetCount)
}

func (l interceptedLibrary) SystemEventSetWait() ([]nvml.SystemEventData_v1, nvml.Return) {
	return pass(l.handle, "nvmlSystemEventSetWait", Library.SystemEventSetWait)
}

func (l interceptedLibrary) DeviceGetHandleByIndex(index int) (Device, nvml.Return) {
	c := Call{Function: "nvmlDeviceGetHandleByIndex", Args: [3]uint64{uint64(index)}}

	d, ret := passCall(l.handle, c, func(l Library) (Device, nvml.Return) {
		return l.DeviceGetHandleByIndex(index)
	})

	return l.wrapDevice(c, d, ret), ret
}

func (l interceptedLibrary) DeviceGetHandleByPciBusId(busID string) (Device, nvml.Return) {
	c := Call{Function: "nvmlDeviceGetHandleByPciBusId"}

	d, ret := passCall(l.handle, c, func(l Library) (Device, nvml.Return) {
		return l.DeviceGetHandleByPciBusId(busID)
	})

	return l.wrapDevice(c, d, ret), ret
}

// wrapResult returns the intercepted handle of an object that call c on parent has returned, at a
// position if the call returns a list. known is false if the Interceptor hides the object.
func wrapResult[D, H any](parent handle[D], c Call, position int, raw H) (h handle[H], known bool) {
	c.Object = parent.object
	h = handle[H]{raw: raw, by: parent.by}
	h.object, known = parent.by.Object(c, position, raw)

	return h, known
}

// wrapDevice returns the intercepted GPU that a call has returned; it is a MutableDevice if the GPU
// is one.
func (h handle[D]) wrapDevice(c Call, d Device, ret nvml.Return) Device {
	if ret != nvml.SUCCESS {
		return nil
	}

	wrapped, known := wrapResult(h, c, 0, d)
	if !known {
		return nil
	}

	plain := interceptedDevice{interceptedEntity[Device]{wrapped}}
	if _, ok := d.(MutableDevice); ok {
		return interceptedMutableDevice{plain}
	}

	return plain
}

func (l interceptedLibrary) EventSetCreate() (EventSet, nvml.Return) {
	c := Call{Function: "nvmlEventSetCreate"}

	set, ret := passCall(l.handle, c, Library.EventSetCreate)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	h, _ := wrapResult(l.handle, c, 0, set)

	return interceptedEvents{h}, ret
}

type interceptedEvents struct{ handle[EventSet] }

func (s interceptedEvents) Wait(timeoutMillis uint32) (Event, nvml.Return) {
	c := Call{Function: "nvmlEventSetWait", Args: [3]uint64{uint64(timeoutMillis)}}

	e, ret := passCall(s.handle, c, func(s EventSet) (Event, nvml.Return) { return s.Wait(timeoutMillis) })
	if e.Device != nil {
		e.Device = s.wrapDevice(c, e.Device, ret)
	}

	return e, ret
}

func (s interceptedEvents) Free() nvml.Return {
	return passCode(s.handle, Call{Function: "nvmlEventSetFree"}, EventSet.Free)
}

func (l interceptedLibrary) GpmSampleAlloc() (GPMSample, nvml.Return) {
	c := Call{Function: "nvmlGpmSampleAlloc"}

	sample, ret := passCall(l.handle, c, Library.GpmSampleAlloc)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	h, _ := wrapResult(l.handle, c, 0, sample)

	return interceptedSample{h}, ret
}

type interceptedSample struct{ handle[GPMSample] }

func (s interceptedSample) Free() nvml.Return {
	return passCode(s.handle, Call{Function: "nvmlGpmSampleFree"}, GPMSample.Free)
}

func (l interceptedLibrary) GpmMetricsGet(before, after GPMSample, metrics []GPMMetric) nvml.Return {
	from, ok := before.(interceptedSample)

	to, ok2 := after.(interceptedSample)
	if !ok || !ok2 {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	c := Call{
		Function: "nvmlGpmMetricsGet",
		Samples:  [2]any{from.object, to.object},
		Metrics:  metrics,
	}

	return passCode(l.handle, c, func(l Library) nvml.Return {
		return l.GpmMetricsGet(from.raw, to.raw, metrics)
	})
}

// passSample passes a call that fills a sample.
func passSample[D any](
	h handle[D],
	c Call,
	into GPMSample,
	f func(D, GPMSample) nvml.Return,
) nvml.Return {
	s, ok := into.(interceptedSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	c.Samples[0] = s.object

	return passCode(h, c, func(d D) nvml.Return { return f(d, s.raw) })
}
