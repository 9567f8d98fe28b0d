package nvmlsrc

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readPerformanceState leaves out the state that the driver does not know either (NVML_PSTATE_UNKNOWN).
func (r *round) readPerformanceState() gpu.Opt[int] {
	state, ok := ask(&r.asker, "nvmlDeviceGetPerformanceState", gpu.ReadingClocks, r.dev.GetPerformanceState)
	if !ok || state < nvml.PSTATE_0 || state > nvml.PSTATE_15 {
		return gpu.None[int]()
	}
	return gpu.Some(int(state))
}

// maxFans bounds the fans that are asked for, whatever the driver counts.
const maxFans = 16

// readFans reads the fans of a board that has any: those in servers have none.
func (r *round) readFans(to *gpu.Readings) {
	count, _ := ask(&r.asker, "nvmlDeviceGetNumFans", gpu.ReadingFans, r.dev.GetNumFans)
	for i := range min(count, maxFans) {
		question := fmt.Sprintf("nvmlDeviceGetFanSpeed_v2(%d)", i)
		percent, ok := ask(&r.asker, question, gpu.ReadingFans, func() (uint32, nvml.Return) { return r.dev.GetFanSpeed(i) })
		if ok {
			to.Fans = append(to.Fans, gpu.Fan{Index: i, Speed: float64(percent) / 100})
		}
	}
}
