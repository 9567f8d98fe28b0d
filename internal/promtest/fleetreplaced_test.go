package promtest

import (
	"strings"
	"testing"
)

// TestFleetAfterAnExporterWasReplaced: a GPU is known from the exporter that serves it now, by whatever names
// it was served before.
func TestFleetAfterAnExporterWasReplaced(t *testing.T) {
	t.Parallel()

	const replaced = 20 * 60

	r := askFleetOfPast(t, 5, func(minute int, put func(string, float64, ...string)) {
		of := []string{"UUID", "GPU-0", "Hostname", "n", "modelName", h100, "instance", "n:9400", "namespace", "ml", "pod", "p"}
		if minute < replaced {
			put("DCGM_FI_DEV_FB_USED", 4096, of...)
			put("DCGM_FI_DEV_FB_FREE", h100Bytes/(1<<20)-4096, of...)
			put("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.2, of...)
			put("DCGM_FI_PROF_SM_ACTIVE", 0.01, of...)

			return
		}

		put("DCGM_FI_DEV_FB_USED_BYTES", 4<<30, of...)
		put("DCGM_FI_DEV_FB_FREE_BYTES", h100Bytes-4<<30, of...)
		put("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 0.2, of...)
		put("DCGM_FI_PROF_SM_UTIL_RATIO", 0.01, of...)
		put("DCGM_FI_PROF_DRAM_UTIL_RATIO", 0.01, of...)
	})

	if len(r.GPUs) != 1 {
		t.Fatalf("%d GPUs, want 1", len(r.GPUs))
	}

	if got := answerOf(&r.GPUs[0]); got != "keep start-unseen " || r.GPUs[0].ObservedHours != 28 {
		t.Errorf("%q in %v hours", got, r.GPUs[0].ObservedHours)
	}
}

// TestFleetDoubtsWithoutTheAdvisor: an advisor that had an answer in the last hour, and has none, may still
// refuse a slice. One that has an answer, or had none, raises no such doubt.
func TestFleetDoubtsWithoutTheAdvisor(t *testing.T) {
	t.Parallel()

	r := askFleetOfPast(t, 5, func(minute int, put func(string, float64, ...string)) {
		for _, uuid := range []string{"GPU-lapsed", "GPU-advised", "GPU-alone"} {
			of := []string{"uuid", uuid, "node", "n-" + uuid, "instance", "n:9401"}
			put("nvidia_gpu_info", 1, append([]string{"name", h100}, of...)...)
			put("nvidia_gpu_memory_used_bytes", 4<<30, of...)
			put("nvidia_gpu_graphics_engine_activity_ratio", 0.2, of...)

			if uuid == "GPU-lapsed" && minute < pastMinutes-20 || uuid == "GPU-advised" {
				put("nvidia_gpu_rightsizing_rejected", 1, append([]string{"reason", "opted-out"}, of...)...)
			}
		}
	})

	const lapsed = "Of 1 GPUs the right-sizing advisor had an answer in the last hour"
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, lapsed) {
		t.Errorf("%q is not in the notes:\n%s", lapsed, notes)
	}
}
