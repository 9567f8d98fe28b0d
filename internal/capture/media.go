package capture

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

func (d *device) GetEncoderUtilization() (uint32, nvml.Return) {
	return of(d, "nvmlDeviceGetEncoderUtilization", nvmlsrc.Device.GetEncoderUtilization)
}

func (d *device) GetDecoderUtilization() (uint32, nvml.Return) {
	return of(d, "nvmlDeviceGetDecoderUtilization", nvmlsrc.Device.GetDecoderUtilization)
}

func (d *device) GetJpgUtilization() (uint32, nvml.Return) {
	return of(d, "nvmlDeviceGetJpgUtilization", nvmlsrc.Device.GetJpgUtilization)
}

func (d *device) GetOfaUtilization() (uint32, nvml.Return) {
	return of(d, "nvmlDeviceGetOfaUtilization", nvmlsrc.Device.GetOfaUtilization)
}
