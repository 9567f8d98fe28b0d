package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// entity is what physical GPUs and MIG devices have in common.
type entity struct {
	lib *library
	nvml.Device
}

func (e entity) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	m, ret := call(e.lib, e.Device.GetMemoryInfo_v2, "nvmlDeviceGetMemoryInfo_v2")
	if ret != nvml.ERROR_FUNCTION_NOT_FOUND && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		return m, ret
	}

	old, ret := call(e.lib, e.Device.GetMemoryInfo, "nvmlDeviceGetMemoryInfo")

	return nvml.Memory_v2{Total: old.Total, Free: old.Free, Used: old.Used}, ret
}

// device is a physical GPU.
type device struct{ entity }

func (d device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	pci, ret := d.Device.GetPciInfo()
	if !d.lib.has("nvmlDeviceGetPciInfo_v3") {
		pci.BusId = nvml.PciInfo{}.BusId // older versions write something else there
	}

	return pci, ret
}

func (d device) GetTemperature() (int, nvml.Return) {
	t, ret := call(d.lib, d.Device.GetTemperatureV().V1, "nvmlDeviceGetTemperatureV")
	if ret != nvml.ERROR_FUNCTION_NOT_FOUND && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		return int(t.Temperature), ret
	}

	old, ret := call(
		d.lib,
		func() (uint32, nvml.Return) { return d.Device.GetTemperature(nvml.TEMPERATURE_GPU) },
		"nvmlDeviceGetTemperature",
	)

	return int(old), ret
}

func (d device) GetMarginTemperature() (int, nvml.Return) {
	margin, ret := d.Device.GetMarginTemperature()
	return int(margin.MarginTemperature), ret
}

func (d device) GetGpuFabricInfoV() (nvml.GpuFabricInfo_v3, nvml.Return) {
	handler := d.Device.GetGpuFabricInfoV()
	if info, ret := handler.V3(); !needsOlderVersion(ret) {
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
		return d.Device.GetCurrentClocksEventReasons()
	}

	return call(
		d.lib,
		d.Device.GetCurrentClocksThrottleReasons,
		"nvmlDeviceGetCurrentClocksThrottleReasons",
	)
}

func (d device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	if len(values) == 0 { // go-nvml takes the address of the first
		return nvml.SUCCESS
	}

	return d.Device.GetFieldValues(values)
}

func (d device) RegisterEvents(types uint64, set EventSet) nvml.Return {
	s, ok := set.(eventSet)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	return d.Device.RegisterEvents(types, s.EventSet)
}

func (d device) GetFanSpeed(fan int) (uint32, nvml.Return) { return d.GetFanSpeed_v2(fan) }

// The methods for media engines drop the sampling period, which go-nvml returns, too.

func (d device) GetEncoderUtilization() (uint32, nvml.Return) {
	percent, _, ret := d.Device.GetEncoderUtilization()
	return percent, ret
}

func (d device) GetDecoderUtilization() (uint32, nvml.Return) {
	percent, _, ret := d.Device.GetDecoderUtilization()
	return percent, ret
}

func (d device) GetJpgUtilization() (uint32, nvml.Return) {
	percent, _, ret := d.Device.GetJpgUtilization()
	return percent, ret
}

func (d device) GetOfaUtilization() (uint32, nvml.Return) {
	percent, _, ret := d.Device.GetOfaUtilization()
	return percent, ret
}
