package nvmlsrc

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// entity is what physical GPUs and MIG devices have in common.
type entity struct {
	lib *library
	dev nvml.Device
}

func (e entity) GetUUID() (string, nvml.Return) {
	return call(e.lib, "nvmlDeviceGetUUID", e.dev.GetUUID)
}

func (e entity) GetName() (string, nvml.Return) {
	return call(e.lib, "nvmlDeviceGetName", e.dev.GetName)
}

func (e entity) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	m, ret := call(e.lib, "nvmlDeviceGetMemoryInfo_v2", e.dev.GetMemoryInfo_v2)
	if ret != nvml.ERROR_FUNCTION_NOT_FOUND && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		return m, ret
	}
	old, ret := call(e.lib, "nvmlDeviceGetMemoryInfo", e.dev.GetMemoryInfo)
	return nvml.Memory_v2{Total: old.Total, Free: old.Free, Used: old.Used}, ret
}

func (e entity) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if !e.lib.has("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return e.dev.GetComputeRunningProcesses()
}

// device is a physical GPU.
type device struct{ entity }

func (d device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetArchitecture", d.dev.GetArchitecture)
}

func (d device) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	if !d.lib.has("nvmlDeviceGetCudaComputeCapability") {
		return 0, 0, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.dev.GetCudaComputeCapability()
}

func (d device) GetNumGpuCores() (int, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetNumGpuCores", d.dev.GetNumGpuCores)
}

func (d device) GetSerial() (string, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetSerial", d.dev.GetSerial)
}

func (d device) GetVbiosVersion() (string, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetVbiosVersion", d.dev.GetVbiosVersion)
}

func (d device) GetMinorNumber() (int, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetMinorNumber", d.dev.GetMinorNumber)
}

func (d device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	if !d.lib.has("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo") {
		return nvml.PciInfo{}, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	pci, ret := d.dev.GetPciInfo()
	if !d.lib.has("nvmlDeviceGetPciInfo_v3") {
		pci.BusId = nvml.PciInfo{}.BusId // older versions write something else there
	}
	return pci, ret
}

func (d device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetUtilizationRates", d.dev.GetUtilizationRates)
}

func (d device) GetPowerUsage() (uint32, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetPowerUsage", d.dev.GetPowerUsage)
}

func (d device) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetEnforcedPowerLimit", d.dev.GetEnforcedPowerLimit)
}

func (d device) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetTotalEnergyConsumption", d.dev.GetTotalEnergyConsumption)
}

func (d device) GetTemperature() (int, nvml.Return) {
	t, ret := call(d.lib, "nvmlDeviceGetTemperatureV", d.dev.GetTemperatureV().V1)
	if ret != nvml.ERROR_FUNCTION_NOT_FOUND && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		return int(t.Temperature), ret
	}
	old, ret := call(d.lib, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) {
		return d.dev.GetTemperature(nvml.TEMPERATURE_GPU)
	})
	return int(old), ret
}

func (d device) GetClockInfo(domain nvml.ClockType) (uint32, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.dev.GetClockInfo(domain) })
}

// GetCurrentClocksEventReasons falls back to the name that the function had before R535.
func (d device) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	if d.lib.has("nvmlDeviceGetCurrentClocksEventReasons") {
		return d.dev.GetCurrentClocksEventReasons()
	}
	return call(d.lib, "nvmlDeviceGetCurrentClocksThrottleReasons", d.dev.GetCurrentClocksThrottleReasons)
}

func (d device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	switch {
	case !d.lib.has("nvmlDeviceGetFieldValues"):
		return nvml.ERROR_FUNCTION_NOT_FOUND
	case len(values) == 0: // go-nvml takes the address of the first
		return nvml.SUCCESS
	}
	return d.dev.GetFieldValues(values)
}

func (d device) GetPcieReplayCounter() (int, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetPcieReplayCounter", d.dev.GetPcieReplayCounter)
}

func (d device) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetCurrPcieLinkWidth", d.dev.GetCurrPcieLinkWidth)
}

func (d device) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetCurrPcieLinkGeneration", d.dev.GetCurrPcieLinkGeneration)
}

func (d device) GetMemoryErrorCounter(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType,
	location nvml.MemoryLocation) (uint64, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetMemoryErrorCounter", func() (uint64, nvml.Return) {
		return d.dev.GetMemoryErrorCounter(severity, lifetime, location)
	})
}

func (d device) GetTotalEccErrors(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType) (uint64, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
		return d.dev.GetTotalEccErrors(severity, lifetime)
	})
}

func (d device) GetRemappedRows() (correctable, uncorrectable int, pending, failure bool, ret nvml.Return) {
	if !d.lib.has("nvmlDeviceGetRemappedRows") {
		return 0, 0, false, false, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.dev.GetRemappedRows()
}

func (d device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetComputeMode", d.dev.GetComputeMode)
}

func (d device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if !d.lib.has("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",
		"nvmlDeviceGetGraphicsRunningProcesses") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.dev.GetGraphicsRunningProcesses()
}

func (d device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if !d.lib.has("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
		"nvmlDeviceGetMPSComputeRunningProcesses") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.dev.GetMPSComputeRunningProcesses()
}

func (d device) RegisterEvents(types uint64, set EventSet) nvml.Return {
	s, ok := set.(eventSet)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if !d.lib.has("nvmlDeviceRegisterEvents") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.dev.RegisterEvents(types, s.set)
}
