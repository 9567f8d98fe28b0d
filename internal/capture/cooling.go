package capture

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

func (d *device) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return of(d, "nvmlDeviceGetPerformanceState", nvmlsrc.Device.GetPerformanceState)
}

func (d *device) GetNumFans() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetNumFans", nvmlsrc.Device.GetNumFans)
}

func (d *device) GetFanSpeed(fan int) (uint32, nvml.Return) {
	question := fmt.Sprintf("nvmlDeviceGetFanSpeed_v2(%d)", fan)
	return of(d, question, func(h nvmlsrc.Device) (uint32, nvml.Return) { return h.GetFanSpeed(fan) })
}
