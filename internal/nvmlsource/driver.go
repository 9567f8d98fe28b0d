package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

//go:generate go run ./seamgen

// The driver seam: what this package calls of NVML, in NVML's own types and return codes. The methods mean what
// nvml.h says of the function of the same name. go-nvml satisfies it through the adapter in binding.go, the simulated
// node through internal/sim/simnvml. Methods of the adapter, of the recorder in internal/capture and of the fakes of
// this package's tests that only pass a call on are generated from it; those that deal in handles, and in the adapter
// those that go-nvml has in other types or as several functions, are written by hand.

// Library is NVML as a whole. A Library may also have a method LoadError() error, which returns why Init found no
// library.
type Library interface {
	// SystemGetConfComputeState is called before Init. It opens no GPU: it initialises NVML without attaching GPUs, and
	// shuts it down again.
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
	// SystemEventSetWait returns, without waiting, the events since the last call of GPUs that are unbound from the kernel
	// driver, or bound to it. The first call after an Init makes the queue, which Shutdown frees: events before are lost.
	// ERROR_TIMEOUT is that there was none.
	SystemEventSetWait() ([]nvml.SystemEventData_v1, nvml.Return)
	// GpmSampleAlloc allocates a sample, which belongs to the caller until it is freed.
	GpmSampleAlloc() (GPMSample, nvml.Return)
	// GpmMetricsGet computes metrics of the window between two samples of one entity: it fills in the value and the
	// return code of each metric of the list, by its id.
	GpmMetricsGet(before, after GPMSample, metrics []GPMMetric) nvml.Return
}

// GPMSample is nvmlGpmSample_t: a buffer for the profiling counters of one entity at one moment.
type GPMSample interface {
	Free() nvml.Return
}

// GPMMetric is nvmlGpmMetric_t without its description. Utilizations are in percent, traffic in MiB/s.
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

// Entity is what a physical GPU and a MIG device handle have in common.
type Entity interface {
	GetUUID() (string, nvml.Return)
	GetName() (string, nvml.Return)
	// GetMemoryInfo prefers nvmlDeviceGetMemoryInfo_v2; with the older call Reserved is 0 and Version is 0.
	GetMemoryInfo() (nvml.Memory_v2, nvml.Return)
	GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)
	// GetMemoryErrorCounter counts, of a MIG device, the errors that it has had.
	GetMemoryErrorCounter(
		nvml.MemoryErrorType,
		nvml.EccCounterType,
		nvml.MemoryLocation,
	) (uint64, nvml.Return)
	// GpmSampleGet fills a sample; of a MIG device, with the counters of its compute instance.
	GpmSampleGet(GPMSample) nvml.Return
}

// Device is a physical GPU. Its values are comparable: handles of the same GPU are equal.
type Device interface {
	Entity
	GetArchitecture() (nvml.DeviceArchitecture, nvml.Return)
	GetCudaComputeCapability() (major, minor int, ret nvml.Return)
	GetNumGpuCores() (int, nvml.Return)
	GetSerial() (string, nvml.Return)
	GetVbiosVersion() (string, nvml.Return)
	GetMinorNumber() (int, nvml.Return)
	GetPciInfo() (nvml.PciInfo, nvml.Return)
	GetUtilizationRates() (nvml.Utilization, nvml.Return)
	GetPowerUsage() (uint32, nvml.Return)         // mW
	GetEnforcedPowerLimit() (uint32, nvml.Return) // mW
	GetTotalEnergyConsumption() (uint64, nvml.Return)
	// of the GPU die, Celsius; nvmlDeviceGetTemperatureV if present
	GetTemperature() (int, nvml.Return)
	GetTemperatureThreshold(nvml.TemperatureThresholds) (uint32, nvml.Return) // Celsius
	// GetMarginTemperature returns how many degrees the GPU is below the temperature at which it slows down.
	GetMarginTemperature() (int, nvml.Return)
	GetClockInfo(nvml.ClockType) (uint32, nvml.Return)
	GetCurrentClocksEventReasons() (uint64, nvml.Return)
	GetPerformanceState() (nvml.Pstates, nvml.Return)
	GetNumFans() (int, nvml.Return)
	GetFanSpeed(fan int) (uint32, nvml.Return) // of nvmlDeviceGetFanSpeed_v2, in percent
	// The utilization of media engines is in percent.
	GetEncoderUtilization() (uint32, nvml.Return)
	GetDecoderUtilization() (uint32, nvml.Return)
	GetJpgUtilization() (uint32, nvml.Return)
	GetOfaUtilization() (uint32, nvml.Return)
	GetFieldValues([]nvml.FieldValue) nvml.Return
	GetPcieReplayCounter() (int, nvml.Return)
	GetCurrPcieLinkWidth() (int, nvml.Return)
	GetCurrPcieLinkGeneration() (int, nvml.Return)
	// GetGpuFabricInfoV asks for the newest struct that the driver knows; the older one has no summary of the health.
	GetGpuFabricInfoV() (nvml.GpuFabricInfo_v3, nvml.Return)
	GetTotalEccErrors(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return)
	GetRemappedRows() (correctable, uncorrectable int, pending, failure bool, ret nvml.Return)
	GetComputeMode() (nvml.ComputeMode, nvml.Return)
	GetPersistenceMode() (nvml.EnableState, nvml.Return)
	GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)
	GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)
	RegisterEvents(types uint64, set EventSet) nvml.Return
	GpmQueryDeviceSupport() (bool, nvml.Return)
	// GpmMigSampleGet fills a sample with the counters of a GPU instance.
	GpmMigSampleGet(gpuInstance int, sample GPMSample) nvml.Return
	// GetProcessUtilization lists samples newer than a timestamp in microseconds; none is NOT_FOUND or an empty list.
	GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return)

	GetMigMode() (current, pending int, ret nvml.Return)
	GetMaxMigDeviceCount() (int, nvml.Return)
	GetMigDeviceHandleByIndex(index int) (MIGDevice, nvml.Return)
	// GetGpuInstanceProfileInfo takes NVML's profile enum. It asks for the newest struct that the driver knows and falls
	// back to the unversioned call, without name (NUL), if the driver does not support that (MIG is off, old driver).
	GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return)
	GetGpuInstancePossiblePlacements(profileID uint32) ([]nvml.GpuInstancePlacement, nvml.Return)
	// GetGpuInstances lists the GPU instances of one profile; capacity is at least how many there can be.
	GetGpuInstances(profileID uint32, capacity int) ([]GPUInstance, nvml.Return)
}

// MIGDevice is a MIG device handle.
type MIGDevice interface {
	Entity
	GetGpuInstanceId() (int, nvml.Return)
	GetComputeInstanceId() (int, nvml.Return)
	GetAttributes() (nvml.DeviceAttributes, nvml.Return)
}

// GPUInstance is a GPU instance handle.
type GPUInstance interface {
	GetInfo() (GPUInstanceInfo, nvml.Return)
	// GetComputeInstances lists the compute instances of every compute profile, in no particular order.
	GetComputeInstances() ([]ComputeInstanceInfo, nvml.Return)
}

// Calls that change the layout of a GPU are in interfaces of their own: drivers that are only read do not have them.

// MutableDevice is a Device whose partition can be changed.
type MutableDevice interface {
	Device
	// SetMigMode returns the call's code and that of the mode: activation is SUCCESS if the mode is in force.
	SetMigMode(mode int) (activation, ret nvml.Return)
	CreateGpuInstanceWithPlacement(
		profileID uint32,
		at nvml.GpuInstancePlacement,
	) (MutableInstance, nvml.Return)
}

// MutableInstance is a GPUInstance of a MutableDevice.
type MutableInstance interface {
	GPUInstance
	// GetComputeInstancesOf lists the compute instances of one compute profile; capacity is at least how many there can
	// be.
	GetComputeInstancesOf(profileID uint32, capacity int) ([]ComputeInstance, nvml.Return)
	// GetComputeInstanceProfileInfo takes NVML's profile enum, and answers for the shared engine profile.
	GetComputeInstanceProfileInfo(profile int) (nvml.ComputeInstanceProfileInfo, nvml.Return)
	GetComputeInstancePossiblePlacements(
		profileID uint32,
	) ([]nvml.ComputeInstancePlacement, nvml.Return)
	CreateComputeInstanceWithPlacement(
		profileID uint32,
		at nvml.ComputeInstancePlacement,
	) (ComputeInstance, nvml.Return)
	Destroy() nvml.Return
}

// ComputeInstance is a compute instance handle.
type ComputeInstance interface {
	GetInfo() (ComputeInstanceInfo, nvml.Return)
	Destroy() nvml.Return
}

// GPUInstanceInfo is nvmlGpuInstanceInfo_t without the device.
type GPUInstanceInfo struct {
	ID, ProfileID uint32
	Placement     nvml.GpuInstancePlacement
}

// ComputeInstanceInfo is nvmlComputeInstanceInfo_t without the handles. A placement of size 0 is unknown.
type ComputeInstanceInfo struct {
	ID, ProfileID uint32
	Placement     nvml.ComputeInstancePlacement
}
