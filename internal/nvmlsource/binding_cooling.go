package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func (d device) GetFanSpeed(fan int) (uint32, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetFanSpeed_v2", func() (uint32, nvml.Return) { return d.dev.GetFanSpeed_v2(fan) })
}
