package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// entity is what physical GPUs and MIG devices have in common.
type entity struct {
	lib *library
	dev nvml.Device
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
