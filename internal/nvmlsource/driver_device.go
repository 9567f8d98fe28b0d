package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// Entity is what a physical GPU and a MIG device handle have in common.
type Entity interface {
	GetUUID() (string, nvml.Return)
	GetName() (string, nvml.Return)
	// GetMemoryInfo prefers nvmlDeviceGetMemoryInfo_v2; with the older call Reserved is 0 and
	// Version is 0.
	GetMemoryInfo() (nvml.Memory_v2, nvml.Return)
	GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)
	// GetMemoryErrorCounter of a MIG device counts only the errors of that device.
	GetMemoryErrorCounter(
		nvml.MemoryErrorType,
		nvml.EccCounterType,
		nvml.MemoryLocation,
	) (uint64, nvml.Return)
	// GpmSampleGet fills a sample with the counters of the GPU; of a MIG device, with those of its
	// compute instance.
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
	// GetTemperature returns the temperature of the GPU die in degrees Celsius. It prefers
	// nvmlDeviceGetTemperatureV.
	GetTemperature() (int, nvml.Return)
	GetTemperatureThreshold(nvml.TemperatureThresholds) (uint32, nvml.Return) // Celsius
	// GetMarginTemperature returns how many degrees the GPU is below the temperature at which it
	// slows down.
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
	// GetGpuFabricInfoV asks for the newest struct that the driver knows; the older one has no
	// summary of the health.
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
	// GetProcessUtilization lists the samples newer than a timestamp in microseconds. If there are
	// none, it returns NOT_FOUND or an empty list.
	GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return)

	GetMigMode() (current, pending int, ret nvml.Return)
	GetMaxMigDeviceCount() (int, nvml.Return)
	GetMigDeviceHandleByIndex(index int) (MIGDevice, nvml.Return)
	// GetGpuInstanceProfileInfo takes NVML's profile enum. It asks for the newest struct that the
	// driver knows. If the driver supports no versioned call (it is old, or MIG is off), it falls
	// back to the unversioned one, which has no Name.
	GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return)
	GetGpuInstancePossiblePlacements(profileID uint32) ([]nvml.GpuInstancePlacement, nvml.Return)
	// GetGpuInstances lists the GPU instances of one profile; instanceCount is at least how many there
	// can be.
	GetGpuInstances(profileID uint32, instanceCount int) ([]GPUInstance, nvml.Return)
}

// MIGDevice is a MIG device handle.
type MIGDevice interface {
	Entity
	GetGpuInstanceId() (int, nvml.Return)
	GetComputeInstanceId() (int, nvml.Return)
	GetAttributes() (nvml.DeviceAttributes, nvml.Return)
}

// The calls that change the layout of a GPU have interfaces of their own, so that a driver that can
// only be read need not have them.

// MutableDevice is a Device whose partition can be changed.
type MutableDevice interface {
	Device
	// SetMigMode returns the code of the call as ret. activation is SUCCESS if the mode is in force
	// already, else why it is not.
	SetMigMode(mode int) (activation, ret nvml.Return)
	CreateGpuInstanceWithPlacement(
		profileID uint32,
		at nvml.GpuInstancePlacement,
	) (MutableInstance, nvml.Return)
}

// interceptedEntity is a GPU or a MIG device.
type interceptedEntity[E Entity] struct{ handle[E] }

func (e interceptedEntity[E]) GetUUID() (string, nvml.Return) {
	return pass(e.handle, "nvmlDeviceGetUUID", E.GetUUID)
}

func (e interceptedEntity[E]) GetName() (string, nvml.Return) {
	return pass(e.handle, "nvmlDeviceGetName", E.GetName)
}

func (e interceptedEntity[E]) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	return pass(e.handle, "nvmlDeviceGetMemoryInfo", E.GetMemoryInfo)
}

func (e interceptedEntity[E]) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return pass(e.handle, "nvmlDeviceGetComputeRunningProcesses", E.GetComputeRunningProcesses)
}

func (e interceptedEntity[E]) GetMemoryErrorCounter(
	kind nvml.MemoryErrorType,
	counter nvml.EccCounterType,
	at nvml.MemoryLocation,
) (uint64, nvml.Return) {
	c := Call{
		Function: "nvmlDeviceGetMemoryErrorCounter",
		Args:     [3]uint64{uint64(kind), uint64(counter), uint64(at)},
	}

	return passCall(e.handle, c, func(e E) (uint64, nvml.Return) {
		return e.GetMemoryErrorCounter(kind, counter, at)
	})
}

func (e interceptedEntity[E]) GpmSampleGet(into GPMSample) nvml.Return {
	return passSample(e.handle, Call{Function: "nvmlGpmSampleGet"}, into, E.GpmSampleGet)
}

type interceptedDevice struct{ interceptedEntity[Device] }

func (d interceptedDevice) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetArchitecture", Device.GetArchitecture)
}

// ComputeCapability is the answer of GetCudaComputeCapability.
type ComputeCapability struct{ Major, Minor int }

func (d interceptedDevice) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	capability, ret := pass(d.handle, "nvmlDeviceGetCudaComputeCapability",
		func(d Device) (c ComputeCapability, ret nvml.Return) {
			c.Major, c.Minor, ret = d.GetCudaComputeCapability()
			return c, ret
		})

	return capability.Major, capability.Minor, ret
}

func (d interceptedDevice) GetNumGpuCores() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetNumGpuCores", Device.GetNumGpuCores)
}

func (d interceptedDevice) GetSerial() (string, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetSerial", Device.GetSerial)
}

func (d interceptedDevice) GetVbiosVersion() (string, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetVbiosVersion", Device.GetVbiosVersion)
}

func (d interceptedDevice) GetMinorNumber() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetMinorNumber", Device.GetMinorNumber)
}

func (d interceptedDevice) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetPciInfo", Device.GetPciInfo)
}

func (d interceptedDevice) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetUtilizationRates", Device.GetUtilizationRates)
}

func (d interceptedDevice) GetPowerUsage() (uint32, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetPowerUsage", Device.GetPowerUsage)
}

func (d interceptedDevice) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetEnforcedPowerLimit", Device.GetEnforcedPowerLimit)
}

func (d interceptedDevice) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetTotalEnergyConsumption", Device.GetTotalEnergyConsumption)
}

func (d interceptedDevice) GetTemperature() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetTemperature", Device.GetTemperature)
}

func (d interceptedDevice) GetTemperatureThreshold(
	kind nvml.TemperatureThresholds,
) (uint32, nvml.Return) {
	return passNumber(d.handle,
		"nvmlDeviceGetTemperatureThreshold",
		Device.GetTemperatureThreshold, kind)
}

func (d interceptedDevice) GetMarginTemperature() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetMarginTemperature", Device.GetMarginTemperature)
}

func (d interceptedDevice) GetClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return passNumber(d.handle, "nvmlDeviceGetClockInfo", Device.GetClockInfo, kind)
}

func (d interceptedDevice) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetCurrentClocksEventReasons", Device.GetCurrentClocksEventReasons)
}

func (d interceptedDevice) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetPerformanceState", Device.GetPerformanceState)
}

func (d interceptedDevice) GetNumFans() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetNumFans", Device.GetNumFans)
}

func (d interceptedDevice) GetFanSpeed(fan int) (uint32, nvml.Return) {
	return passNumber(d.handle, "nvmlDeviceGetFanSpeed", Device.GetFanSpeed, fan)
}

func (d interceptedDevice) GetEncoderUtilization() (uint32, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetEncoderUtilization", Device.GetEncoderUtilization)
}

func (d interceptedDevice) GetDecoderUtilization() (uint32, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetDecoderUtilization", Device.GetDecoderUtilization)
}

func (d interceptedDevice) GetJpgUtilization() (uint32, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetJpgUtilization", Device.GetJpgUtilization)
}

func (d interceptedDevice) GetOfaUtilization() (uint32, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetOfaUtilization", Device.GetOfaUtilization)
}

func (d interceptedDevice) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	c := Call{Function: "nvmlDeviceGetFieldValues", Fields: values}
	return passCode(d.handle, c, func(d Device) nvml.Return { return d.GetFieldValues(values) })
}

func (d interceptedDevice) GetPcieReplayCounter() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetPcieReplayCounter", Device.GetPcieReplayCounter)
}

func (d interceptedDevice) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetCurrPcieLinkWidth", Device.GetCurrPcieLinkWidth)
}

func (d interceptedDevice) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetCurrPcieLinkGeneration", Device.GetCurrPcieLinkGeneration)
}

func (d interceptedDevice) GetGpuFabricInfoV() (nvml.GpuFabricInfo_v3, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetGpuFabricInfoV", Device.GetGpuFabricInfoV)
}

func (d interceptedDevice) GetTotalEccErrors(
	kind nvml.MemoryErrorType,
	counter nvml.EccCounterType,
) (uint64, nvml.Return) {
	c := Call{
		Function: "nvmlDeviceGetTotalEccErrors",
		Args:     [3]uint64{uint64(kind), uint64(counter)},
	}

	return passCall(d.handle, c, func(d Device) (uint64, nvml.Return) {
		return d.GetTotalEccErrors(kind, counter)
	})
}

// RemappedRows is the answer of GetRemappedRows.
type RemappedRows struct {
	Correctable, Uncorrectable int
	Pending, Failure           bool
}

func (d interceptedDevice) GetRemappedRows() (
	correctable, uncorrectable int,
	pending, failure bool,
	ret nvml.Return,
) {
	rows, ret := pass(d.handle, "nvmlDeviceGetRemappedRows",
		func(d Device) (r RemappedRows, ret nvml.Return) {
			r.Correctable, r.Uncorrectable, r.Pending, r.Failure, ret = d.GetRemappedRows()
			return r, ret
		})

	return rows.Correctable, rows.Uncorrectable, rows.Pending, rows.Failure, ret
}

func (d interceptedDevice) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetComputeMode", Device.GetComputeMode)
}

func (d interceptedDevice) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetPersistenceMode", Device.GetPersistenceMode)
}

func (d interceptedDevice) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetGraphicsRunningProcesses", Device.GetGraphicsRunningProcesses)
}

func (d interceptedDevice) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetMPSComputeRunningProcesses", Device.GetMPSComputeRunningProcesses)
}

func (d interceptedDevice) RegisterEvents(types uint64, set EventSet) nvml.Return {
	s, ok := set.(interceptedEvents)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	c := Call{Function: "nvmlDeviceRegisterEvents", Args: [3]uint64{types}}

	return passCode(d.handle, c, func(d Device) nvml.Return { return d.RegisterEvents(types, s.raw) })
}

func (d interceptedDevice) GpmQueryDeviceSupport() (bool, nvml.Return) {
	return pass(d.handle, "nvmlGpmQueryDeviceSupport", Device.GpmQueryDeviceSupport)
}

func (d interceptedDevice) GpmMigSampleGet(gpuInstance int, into GPMSample) nvml.Return {
	c := Call{Function: "nvmlGpmMigSampleGet", Args: [3]uint64{uint64(gpuInstance)}}

	return passSample(d.handle, c, into, func(d Device, into GPMSample) nvml.Return {
		return d.GpmMigSampleGet(gpuInstance, into)
	})
}

func (d interceptedDevice) GetProcessUtilization(
	lastSeen uint64,
) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return passNumber(d.handle,
		"nvmlDeviceGetProcessUtilization",
		Device.GetProcessUtilization, lastSeen)
}

// MIGModes is the answer of GetMigMode.
type MIGModes struct{ Current, Pending int }

func (d interceptedDevice) GetMigMode() (current, pending int, ret nvml.Return) {
	modes, ret := pass(d.handle, "nvmlDeviceGetMigMode", func(d Device) (m MIGModes, ret nvml.Return) {
		m.Current, m.Pending, ret = d.GetMigMode()
		return m, ret
	})

	return modes.Current, modes.Pending, ret
}

func (d interceptedDevice) GetMaxMigDeviceCount() (int, nvml.Return) {
	return pass(d.handle, "nvmlDeviceGetMaxMigDeviceCount", Device.GetMaxMigDeviceCount)
}

func (d interceptedDevice) GetMigDeviceHandleByIndex(index int) (MIGDevice, nvml.Return) {
	c := Call{Function: "nvmlDeviceGetMigDeviceHandleByIndex", Args: [3]uint64{uint64(index)}}

	m, ret := passCall(d.handle, c, func(d Device) (MIGDevice, nvml.Return) {
		return d.GetMigDeviceHandleByIndex(index)
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	h, _ := wrapResult(d.handle, c, 0, m)

	return interceptedMIG{interceptedEntity[MIGDevice]{h}}, ret
}

func (d interceptedDevice) GetGpuInstanceProfileInfo(
	profile int,
) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	return passNumber(d.handle,
		"nvmlDeviceGetGpuInstanceProfileInfo",
		Device.GetGpuInstanceProfileInfo, profile)
}

func (d interceptedDevice) GetGpuInstancePossiblePlacements(
	profileID uint32,
) ([]nvml.GpuInstancePlacement, nvml.Return) {
	return passNumber(d.handle,
		"nvmlDeviceGetGpuInstancePossiblePlacements",
		Device.GetGpuInstancePossiblePlacements, profileID)
}

func (d interceptedDevice) GetGpuInstances(profileID uint32, instanceCount int) ([]GPUInstance, nvml.Return) {
	c := Call{Function: "nvmlDeviceGetGpuInstances", Args: [3]uint64{uint64(profileID)}}

	list, ret := passCall(d.handle, c, func(d Device) ([]GPUInstance, nvml.Return) {
		return d.GetGpuInstances(profileID, instanceCount)
	})
	for i, gi := range list {
		list[i] = d.wrapInstance(c, i, gi)
	}

	return list, ret
}

// wrapInstance returns the intercepted GPU instance that a call has returned; it is a
// MutableInstance if the GPU instance is one.
func (d interceptedDevice) wrapInstance(c Call, position int, gi GPUInstance) GPUInstance {
	h, _ := wrapResult(d.handle, c, position, gi)

	plain := interceptedInstance{h}
	if _, ok := gi.(MutableInstance); ok {
		return interceptedMutableInstance{plain}
	}

	return plain
}

type interceptedMutableDevice struct{ interceptedDevice }

func (d interceptedMutableDevice) mutable() handle[MutableDevice] {
	return handle[MutableDevice]{d.raw.(MutableDevice), d.by, d.object}
}

func (d interceptedMutableDevice) SetMigMode(mode int) (activation, ret nvml.Return) {
	return passNumber(d.mutable(), "nvmlDeviceSetMigMode", MutableDevice.SetMigMode, mode)
}

func (d interceptedMutableDevice) CreateGpuInstanceWithPlacement(
	profileID uint32,
	at nvml.GpuInstancePlacement,
) (MutableInstance, nvml.Return) {
	c := Call{
		Function: "nvmlDeviceCreateGpuInstanceWithPlacement",
		Args:     [3]uint64{uint64(profileID), uint64(at.Start), uint64(at.Size)},
	}

	gi, ret := passCall(d.mutable(), c, func(d MutableDevice) (MutableInstance, nvml.Return) {
		return d.CreateGpuInstanceWithPlacement(profileID, at)
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return d.wrapInstance(c, 0, gi).(MutableInstance), ret
}

type interceptedMIG struct{ interceptedEntity[MIGDevice] }

func (m interceptedMIG) GetGpuInstanceId() (int, nvml.Return) {
	return pass(m.handle, "nvmlDeviceGetGpuInstanceId", MIGDevice.GetGpuInstanceId)
}

func (m interceptedMIG) GetComputeInstanceId() (int, nvml.Return) {
	return pass(m.handle, "nvmlDeviceGetComputeInstanceId", MIGDevice.GetComputeInstanceId)
}

func (m interceptedMIG) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return pass(m.handle, "nvmlDeviceGetAttributes", MIGDevice.GetAttributes)
}
