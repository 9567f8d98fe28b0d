package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// entity is what physical GPUs and MIG devices have in common.
type entity struct {
	lib *library
	dev nvml.Device
}

func (e entity) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	m, ret := call(e.lib, e.dev.GetMemoryInfo_v2, "nvmlDeviceGetMemoryInfo_v2")
	if ret != nvml.ERROR_FUNCTION_NOT_FOUND && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		return m, ret
	}

	old, ret := call(e.lib, e.dev.GetMemoryInfo, "nvmlDeviceGetMemoryInfo")

	return nvml.Memory_v2{Total: old.Total, Free: old.Free, Used: old.Used}, ret
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
	t, ret := call(d.lib, d.dev.GetTemperatureV().V1, "nvmlDeviceGetTemperatureV")
	if ret != nvml.ERROR_FUNCTION_NOT_FOUND && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		return int(t.Temperature), ret
	}

	old, ret := call(
		d.lib,
		func() (uint32, nvml.Return) { return d.dev.GetTemperature(nvml.TEMPERATURE_GPU) },
		"nvmlDeviceGetTemperature",
	)

	return int(old), ret
}

func (d device) GetMarginTemperature() (int, nvml.Return) {
	margin, ret := call(d.lib, d.dev.GetMarginTemperature, "nvmlDeviceGetMarginTemperature")
	return int(margin.MarginTemperature), ret
}

func (d device) GetGpuFabricInfoV() (nvml.GpuFabricInfo_v3, nvml.Return) {
	if !d.lib.has("nvmlDeviceGetGpuFabricInfoV") {
		return nvml.GpuFabricInfo_v3{}, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	handler := d.dev.GetGpuFabricInfoV()
	if info, ret := handler.V3(); !isOlderVersion(ret) {
		return info, ret
	}

	info, ret := handler.V2()

	return nvml.GpuFabricInfo_v3{
		ClusterUuid: info.ClusterUuid,
		Status:      info.Status,
		CliqueId:    info.CliqueId,
		State:       info.State,
		HealthMask:  info.HealthMask,
	}, ret
}

// GetCurrentClocksEventReasons falls back to the name that the function had before R535.
func (d device) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	if d.lib.has("nvmlDeviceGetCurrentClocksEventReasons") {
		return d.dev.GetCurrentClocksEventReasons()
	}

	return call(
		d.lib,
		d.dev.GetCurrentClocksThrottleReasons,
		"nvmlDeviceGetCurrentClocksThrottleReasons",
	)
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

func (d device) GetFanSpeed(fan int) (uint32, nvml.Return) {
	return call(
		d.lib,
		func() (uint32, nvml.Return) { return d.dev.GetFanSpeed_v2(fan) },
		"nvmlDeviceGetFanSpeed_v2",
	)
}

func (d device) GetEncoderUtilization() (uint32, nvml.Return) {
	return d.mediaUtilization("nvmlDeviceGetEncoderUtilization", nvml.Device.GetEncoderUtilization)
}

func (d device) GetDecoderUtilization() (uint32, nvml.Return) {
	return d.mediaUtilization("nvmlDeviceGetDecoderUtilization", nvml.Device.GetDecoderUtilization)
}

func (d device) GetJpgUtilization() (uint32, nvml.Return) {
	return d.mediaUtilization("nvmlDeviceGetJpgUtilization", nvml.Device.GetJpgUtilization)
}

func (d device) GetOfaUtilization() (uint32, nvml.Return) {
	return d.mediaUtilization("nvmlDeviceGetOfaUtilization", nvml.Device.GetOfaUtilization)
}

// mediaUtilization leaves out the sampling period, which the driver reports, too.
func (d device) mediaUtilization(symbol string,
	f func(nvml.Device) (percent, micros uint32, ret nvml.Return)) (uint32, nvml.Return) {
	return call(d.lib, func() (uint32, nvml.Return) {
		percent, _, ret := f(d.dev)
		return percent, ret
	}, symbol)
}
