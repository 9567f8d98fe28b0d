package nvmlsource

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// CallObserver observes every call of the seam, by the function's name in nvml.h without a version. It is called
// concurrently.
type CallObserver interface {
	// BeginCall is called before the driver is. EndCall gets its result.
	BeginCall(function string) time.Time
	EndCall(function string, began time.Time)
}

// ObserveCalls returns a Library that reports to an observer every call of another Library, and of all handles that
// this one gives out. Receiving events is not observed: it waits in the driver all the time.
func ObserveCalls(lib Library, observer CallObserver) Library {
	return observedLibrary{Library: lib, observer: observer}
}

type observedLibrary struct {
	Library
	observer CallObserver
}

// LoadError is why no library was found, if the Library reports it.
func (l observedLibrary) LoadError() error {
	if reports, ok := l.Library.(interface{ LoadError() error }); ok {
		return reports.LoadError()
	}

	return nil
}

func (l observedLibrary) DeviceGetHandleByIndex(index int) (Device, nvml.Return) {
	const function = "nvmlDeviceGetHandleByIndex"
	defer l.observer.EndCall(function, l.observer.BeginCall(function))

	d, ret := l.Library.DeviceGetHandleByIndex(index)

	return l.observe(d), ret
}

func (l observedLibrary) DeviceGetHandleByPciBusId(busID string) (Device, nvml.Return) {
	const function = "nvmlDeviceGetHandleByPciBusId"
	defer l.observer.EndCall(function, l.observer.BeginCall(function))

	d, ret := l.Library.DeviceGetHandleByPciBusId(busID)

	return l.observe(d), ret
}

// observe returns a GPU whose calls are observed, with the methods that change it if it has them. Those of equal
// handles are equal.
func (l observedLibrary) observe(d Device) Device {
	if d == nil {
		return nil
	}

	observed := observedDevice{Device: d, observer: l.observer}
	if _, ok := d.(MutableDevice); ok {
		return observedMutableDevice{observed}
	}

	return observed
}

func (l observedLibrary) EventSetCreate() (EventSet, nvml.Return) {
	set, ret := l.Library.EventSetCreate()
	if set == nil {
		return nil, ret
	}

	return observedEvents{EventSet: set, library: l}, ret
}

func (l observedLibrary) GpmSampleAlloc() (GPMSample, nvml.Return) {
	const function = "nvmlGpmSampleAlloc"
	defer l.observer.EndCall(function, l.observer.BeginCall(function))

	return l.Library.GpmSampleAlloc()
}

func (l observedLibrary) GpmMetricsGet(before, after GPMSample, metrics []GPMMetric) nvml.Return {
	const function = "nvmlGpmMetricsGet"
	defer l.observer.EndCall(function, l.observer.BeginCall(function))

	return l.Library.GpmMetricsGet(before, after, metrics)
}

// observedEvents gives events the handles that the observed library gives out.
type observedEvents struct {
	EventSet
	library observedLibrary
}

func (s observedEvents) Wait(timeoutMillis uint32) (Event, nvml.Return) {
	e, ret := s.EventSet.Wait(timeoutMillis)
	e.Device = s.library.observe(e.Device)

	return e, ret
}

type observedDevice struct {
	Device
	observer CallObserver
}

// RegisterEvents registers with the driver's own set.
func (d observedDevice) RegisterEvents(types uint64, set EventSet) nvml.Return {
	if observed, ok := set.(observedEvents); ok {
		set = observed.EventSet
	}

	return d.Device.RegisterEvents(types, set)
}

func (d observedDevice) GpmSampleGet(sample GPMSample) nvml.Return {
	const function = "nvmlGpmSampleGet"
	defer d.observer.EndCall(function, d.observer.BeginCall(function))

	return d.Device.GpmSampleGet(sample)
}

func (d observedDevice) GpmMigSampleGet(gpuInstance int, sample GPMSample) nvml.Return {
	const function = "nvmlGpmMigSampleGet"
	defer d.observer.EndCall(function, d.observer.BeginCall(function))

	return d.Device.GpmMigSampleGet(gpuInstance, sample)
}

func (d observedDevice) GetMigDeviceHandleByIndex(index int) (MIGDevice, nvml.Return) {
	const function = "nvmlDeviceGetMigDeviceHandleByIndex"
	defer d.observer.EndCall(function, d.observer.BeginCall(function))

	m, ret := d.Device.GetMigDeviceHandleByIndex(index)
	if m == nil {
		return nil, ret
	}

	return observedMIG{MIGDevice: m, observer: d.observer}, ret
}

func (d observedDevice) GetGpuInstances(
	profileID uint32,
	capacity int,
) ([]GPUInstance, nvml.Return) {
	const function = "nvmlDeviceGetGpuInstances"
	defer d.observer.EndCall(function, d.observer.BeginCall(function))

	list, ret := d.Device.GetGpuInstances(profileID, capacity)
	for i, gi := range list {
		list[i] = observeInstance(gi, d.observer)
	}

	return list, ret
}

func observeInstance(gi GPUInstance, observer CallObserver) GPUInstance {
	observed := observedInstance{GPUInstance: gi, observer: observer}
	if _, ok := gi.(MutableInstance); ok {
		return observedMutableInstance{observed}
	}

	return observed
}

type observedMutableDevice struct{ observedDevice }

func (d observedMutableDevice) mutable() MutableDevice { return d.Device.(MutableDevice) }

func (d observedMutableDevice) CreateGpuInstanceWithPlacement(profileID uint32,
	at nvml.GpuInstancePlacement) (MutableInstance, nvml.Return) {
	const function = "nvmlDeviceCreateGpuInstanceWithPlacement"
	defer d.observer.EndCall(function, d.observer.BeginCall(function))

	gi, ret := d.mutable().CreateGpuInstanceWithPlacement(profileID, at)
	if gi == nil {
		return nil, ret
	}

	return observedMutableInstance{observedInstance{GPUInstance: gi, observer: d.observer}}, ret
}

type observedMIG struct {
	MIGDevice
	observer CallObserver
}

func (m observedMIG) GpmSampleGet(sample GPMSample) nvml.Return {
	const function = "nvmlGpmSampleGet"
	defer m.observer.EndCall(function, m.observer.BeginCall(function))

	return m.MIGDevice.GpmSampleGet(sample)
}

type observedInstance struct {
	GPUInstance
	observer CallObserver
}

type observedMutableInstance struct{ observedInstance }

func (i observedMutableInstance) mutable() MutableInstance {
	return i.GPUInstance.(MutableInstance)
}

func (i observedMutableInstance) GetComputeInstancesOf(profileID uint32,
	capacity int) ([]ComputeInstance, nvml.Return) {
	const function = "nvmlGpuInstanceGetComputeInstances"
	defer i.observer.EndCall(function, i.observer.BeginCall(function))

	list, ret := i.mutable().GetComputeInstancesOf(profileID, capacity)
	for k, c := range list {
		list[k] = observedCompute{ComputeInstance: c, observer: i.observer}
	}

	return list, ret
}

func (i observedMutableInstance) CreateComputeInstanceWithPlacement(profileID uint32,
	at nvml.ComputeInstancePlacement) (ComputeInstance, nvml.Return) {
	const function = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
	defer i.observer.EndCall(function, i.observer.BeginCall(function))

	c, ret := i.mutable().CreateComputeInstanceWithPlacement(profileID, at)
	if c == nil {
		return nil, ret
	}

	return observedCompute{ComputeInstance: c, observer: i.observer}, ret
}

type observedCompute struct {
	ComputeInstance
	observer CallObserver
}
