package promtest

import (
	"fmt"
	"testing"
)

// TestFleetTakesNoUnknownHolderForNone: if mig-exporter did not know for a part of the window what
// held a GPU, its pod may have been there: then its start was not seen, and the GPU counts as held.
func TestFleetTakesNoUnknownHolderForNone(t *testing.T) {
	t.Parallel()

	always := func(int) bool { return true }
	never := func(int) bool { return false }
	late := func(minute int) bool { return minute >= 600 }
	paused := func(minute int) bool { return minute < 600 || minute >= 640 }

	gpus := []struct {
		about                      string
		pod, allocation, processes func(minute int) bool // whether they are served
		held                       func(minute int) bool
		want                       string
		hours                      float64 // for which it was observed while it was held
	}{
		{"a pod that came", late, always, always, late, "slice  1g.10gb", 38},
		{"one that came, without processes", late, always, never, late, "slice  1g.10gb", 38},
		{"one that was there", always, always, always, always, "keep start-unseen ", 48},
		{"pods are served later on", late, late, never, always, "keep start-unseen ", 48},
		{"pods are served later on, processes always", late, late, always, always, "keep start-unseen ", 48},
		{"the kubelet does not answer for a time", paused, paused, never, always, "keep start-unseen ", 48},
		{"nor then, beside processes", paused, paused, always, always, "keep start-unseen ", 48},
		{"nothing is ever served", never, never, never, always, "keep start-unseen ", 48},
		{"processes alone, that came", never, never, always, late, "keep start-unseen ", 48},
		{"processes alone, served later on", never, never, late, late, "keep start-unseen ", 48},
		{"processes on a node without a kubelet", never, always, always, late, "slice  1g.10gb", 38},
	}

	r := askFleetOfPast(t, 5, func(minute int, put func(string, float64, ...string)) {
		for i, g := range gpus {
			values := map[string]float64{
				"nvidia_gpu_info": 1, "nvidia_gpu_memory_total_bytes": h100Bytes, "nvidia_gpu_memory_used_bytes": 4 << 30,
				"nvidia_gpu_graphics_engine_activity_ratio": 0.2, "nvidia_gpu_sm_activity_ratio": 0.01,
				"nvidia_gpu_dram_activity_ratio": 0.01,
			}
			held := boolValue(g.held(minute))

			if g.pod(minute) && held == 1 {
				values["nvidia_gpu_pod_info"] = 1
			}

			if g.allocation(minute) {
				values["nvidia_gpu_allocated"] = held
			}

			if g.processes(minute) {
				values["nvidia_gpu_processes"] = held
			}

			for family, v := range values {
				put(family, v, "uuid", fmt.Sprintf("GPU-%02d", i), "name", h100, "node", fmt.Sprintf("n-%02d", i),
					"namespace", "ml", "pod", fmt.Sprintf("p-%02d", i), "instance", "n:9401")
			}
		}
	})

	if len(r.GPUs) != len(gpus) {
		t.Fatalf("%d GPUs, want %d", len(r.GPUs), len(gpus))
	}

	for i, g := range r.GPUs {
		if want, got := gpus[i], answerOf(&g); got != want.want || g.ObservedHours != want.hours {
			t.Errorf("%s: %q in %v hours, want %q in %v", want.about, got, g.ObservedHours, want.want, want.hours)
		}
	}
}
