package nvmlsource

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readPerformanceState reads the performance state; it is absent if the driver reports NVML_PSTATE_UNKNOWN.
func (r *gpuRead) readPerformanceState() gpu.Opt[int] {
	state, ok := query(&r.querier, "nvmlDeviceGetPerformanceState", gpu.ReadingClocks, r.dev.GetPerformanceState)
	if !ok || state < nvml.PSTATE_0 || state > nvml.PSTATE_15 {
		return gpu.None[int]()
	}
	return gpu.Some(int(state))
}

// maxFans bounds the calls for fans, however many the driver counts.
const maxFans = 16

// readFans reads the fans. GPUs in servers have none.
func (r *gpuRead) readFans(to *gpu.Readings) {
	count, _ := query(&r.querier, "nvmlDeviceGetNumFans", gpu.ReadingFans, r.dev.GetNumFans)
	for i := range min(count, maxFans) {
		call := fmt.Sprintf("nvmlDeviceGetFanSpeed_v2(%d)", i)
		percent, ok := query(&r.querier, call, gpu.ReadingFans, func() (uint32, nvml.Return) {
			return r.dev.GetFanSpeed(i)
		})
		if ok {
			to.Fans = append(to.Fans, gpu.Fan{Index: i, Speed: float64(percent) / 100})
		}
	}
}
