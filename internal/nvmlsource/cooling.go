package nvmlsource

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// queryPerformanceState queries the performance state; it is absent if the driver reports
// NVML_PSTATE_UNKNOWN.
func (r *gpuRead) queryPerformanceState(q *querier) gpu.Opt[int] {
	state, err := query(
		q,
		"nvmlDeviceGetPerformanceState",
		gpu.ReadingClocks,
		r.dev.GetPerformanceState,
	)
	if err != nil || state < nvml.PSTATE_0 || state > nvml.PSTATE_15 {
		return gpu.None[int]()
	}

	return gpu.Some(int(state))
}

// maxFans limits how many fans we ask for, should a driver report an impossible number.
const maxFans = 16

// queryFans queries the fans. GPUs in servers have none.
func (r *gpuRead) queryFans(q *querier) (list []gpu.Fan) {
	count, _ := query(q, "nvmlDeviceGetNumFans", gpu.ReadingFans, r.dev.GetNumFans)
	for i := range min(count, maxFans) {
		call := fmt.Sprintf("nvmlDeviceGetFanSpeed_v2(%d)", i)

		percent, err := query(
			q,
			call,
			gpu.ReadingFans,
			func() (uint32, nvml.Return) { return r.dev.GetFanSpeed(i) },
		)
		if err == nil {
			list = append(list, gpu.Fan{Index: i, Speed: float64(percent) / 100})
		}
	}

	return list
}
