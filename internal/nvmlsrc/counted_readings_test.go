package nvmlsrc_test

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func (d countedDevice) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetPerformanceState")
	return d.Device.GetPerformanceState()
}

func (d countedDevice) GetNumFans() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetNumFans")
	return d.Device.GetNumFans()
}

func (d countedDevice) GetFanSpeed(fan int) (uint32, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetFanSpeed_v2", fan)
	return d.Device.GetFanSpeed(fan)
}
