package contract

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// TestSystemEvents: go-nvml and the C library tell of a GPU that is unbound, and bound again, once
// each.
func TestSystemEvents(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, `
version: 1
node: {hostname: n1}
gpus: [{model: H100-80GB, count: 2}]
faults: [{at: 1m, for: 1m, gpu: 1, kind: unbind}]
`), "MIG_SIM_CLOCK=step", "MIG_SIM_STATE="+filepath.Join(t.TempDir(), "state")) {
		return
	}

	scenario, err := sim.Load(os.Getenv("MIG_SIM_SCENARIO"))
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.Join(scenario, sim.ClockStep, os.Getenv("MIG_SIM_STATE"))
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()

	lib := nvmlsource.Open(built("libnvidia-ml.so.1"))
	want(t, "nvmlInit", lib.Init(), nvml.SUCCESS)
	want(t, "the first call", code(lib.SystemEventSetWait()), nvml.ERROR_TIMEOUT)

	for _, kind := range []uint64{nvml.SystemEventTypeGpuDriverUnbind, nvml.SystemEventTypeGpuDriverBind} {
		if err := node.Advance(time.Minute); err != nil {
			t.Fatal(err)
		}

		list := ok[[]nvml.SystemEventData_v1](t)(lib.SystemEventSetWait())
		cmptest.Equal(t, "events", list, []nvml.SystemEventData_v1{{EventType: kind, GpuId: 0x4300}})
		want(t, "once more", code(lib.SystemEventSetWait()), nvml.ERROR_TIMEOUT)
	}

	// After another nvmlInit there is another queue.
	want(t, "nvmlShutdown", lib.Shutdown(), nvml.SUCCESS)
	want(t, "nvmlInit", lib.Init(), nvml.SUCCESS)
	want(t, "the first call", code(lib.SystemEventSetWait()), nvml.ERROR_TIMEOUT)
	want(t, "nvmlShutdown", lib.Shutdown(), nvml.SUCCESS)
}
