package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

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

// mediaUtilization leaves out the sampling period, which the driver tells too.
func (d device) mediaUtilization(symbol string, f func(nvml.Device) (percent, micros uint32, ret nvml.Return)) (uint32, nvml.Return) {
	return call(d.lib, symbol, func() (uint32, nvml.Return) {
		percent, _, ret := f(d.dev)
		return percent, ret
	})
}
