package collector

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func processNode() *gpu.Snapshot {
	whole := plainGPU(0)
	split := migGPU()
	whole.Readings.Processes = gpu.Some([]gpu.Process{
		{PID: 7, MemoryBytes: gpu.Some[uint64](70), SM: gpu.Some(0.25),
			Container: gpu.Container{Namespace: "ml", Pod: "a", Name: "main"}},
		{PID: 8, SM: gpu.Some(0.0)},
		{PID: 9}, // the driver says nothing of it
	})
	split.Readings.Processes = gpu.Some([]gpu.Process{
		{PID: 7, MemoryBytes: gpu.Some[uint64](0), Instance: gpu.Some(gpu.InstanceID(1)),
			Compute: gpu.Some(gpu.ComputeID(0))},
		{PID: 7, MemoryBytes: gpu.Some[uint64](5), Instance: gpu.Some(gpu.InstanceID(1)),
			Compute: gpu.Some(gpu.ComputeID(1))},
	})

	return newNode(whole, plainGPU(1), split)
}

func TestProcess(t *testing.T) {
	const split = `nvidia_gpu_process_memory_used_bytes{compute_instance="0",gpu="2",gpu_instance="1",pid="7",uuid="GPU-2"} 0
		nvidia_gpu_process_memory_used_bytes{compute_instance="1",gpu="2",gpu_instance="1",pid="7",uuid="GPU-2"} 5
		`
	const omitted = `# TYPE nvidia_gpu_processes_omitted gauge
		nvidia_gpu_processes_omitted{gpu="0",uuid="GPU-0"} 0
		nvidia_gpu_processes_omitted{gpu="2",uuid="GPU-2"} 0`
	opts := fixedOptions("process")
	expectText(t, renderText(t, mustNew(t, opts), processNode()), `# TYPE nvidia_gpu_process_memory_used_bytes gauge
		`+split+`nvidia_gpu_process_memory_used_bytes{container="main",gpu="0",namespace="ml",pid="7",pod="a",uuid="GPU-0"} 70
		# TYPE nvidia_gpu_process_sm_utilization_ratio gauge
		nvidia_gpu_process_sm_utilization_ratio{gpu="0",pid="8",uuid="GPU-0"} 0
		nvidia_gpu_process_sm_utilization_ratio{container="main",gpu="0",namespace="ml",pid="7",pod="a",uuid="GPU-0"} 0.25
		`+omitted)
	// pods are in the info families alone, or nowhere
	for _, opts.PodLabels = range []PodLabelMode{PodLabelsInfo, PodLabelsOff} {
		expectText(t, renderText(t, mustNew(t, opts), processNode()), `# TYPE nvidia_gpu_process_memory_used_bytes gauge
			nvidia_gpu_process_memory_used_bytes{gpu="0",pid="7",uuid="GPU-0"} 70
			`+split+`# TYPE nvidia_gpu_process_sm_utilization_ratio gauge
			nvidia_gpu_process_sm_utilization_ratio{gpu="0",pid="7",uuid="GPU-0"} 0.25
			nvidia_gpu_process_sm_utilization_ratio{gpu="0",pid="8",uuid="GPU-0"} 0
			`+omitted)
	}
}

// The series of processes are those of the largest, and the rest is counted.
func TestProcessesAreBounded(t *testing.T) {
	g := plainGPU(0)

	var list []gpu.Process
	for i := range uint32(1000) {
		list = append(list, gpu.Process{PID: i, MemoryBytes: gpu.Some(uint64(i))})
	}

	g.Readings.Processes = gpu.Some(list)

	families, err := mustNew(t, fixedOptions("process")).Gather(newNode(g))
	if err != nil {
		t.Fatal(err)
	}

	if got := metricValue(families, "nvidia_gpu_processes_omitted"); got != 744 {
		t.Errorf("%v are left out, want 744", got)
	}

	shown := metricsOf(families, "nvidia_gpu_process_memory_used_bytes")
	if len(shown) != 256 {
		t.Errorf("%d processes have a series, want 256", len(shown))
	}

	for _, m := range shown {
		if m.GetGauge().GetValue() < 744 {
			t.Errorf("%v has a series, and a larger one has none", m)
		}
	}

	if list[0].PID != 0 || list[999].PID != 999 {
		t.Error("the Snapshot's list was sorted")
	}
}

// Processes have series of their own only if that is enabled.
func TestProcessIsOptIn(t *testing.T) {
	for _, test := range []struct {
		disabled map[string]bool
		want     int
	}{{nil, 0}, {map[string]bool{"process": true}, 0}, {map[string]bool{"process": false}, 3},
		{map[string]bool{"ecc": true}, 0}} {
		families, err := mustNew(t, Options{Disabled: test.disabled}).Gather(processNode())
		if err != nil {
			t.Fatal(err)
		}

		if got := len(metricsOf(families, "nvidia_gpu_process_memory_used_bytes")); got != test.want {
			t.Errorf("disabled %v: %d series, want %d", test.disabled, got, test.want)
		}
	}

	for _, g := range Groups() {
		if said := strings.Contains(g.Help, "off unless asked for"); g.OptIn != said {
			t.Errorf("%s: opt-in is %v, its help says %v", g.Name, g.OptIn, said)
		}
	}
}
