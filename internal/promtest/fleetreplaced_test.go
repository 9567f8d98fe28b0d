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

// TestFleetKeepsTheLastWord: what an advisor said last in 26 hours counts while the GPU is free, and while the
// advisor has too little evidence after a restart, as in the alerts. Once another pod has had the GPU, it
// raises a doubt alone.
func TestFleetKeepsTheLastWord(t *testing.T) {
	t.Parallel()

	type hours struct {
		since  int    // minutes before the end
		holder string // of the GPU; free if empty
		reason string // why the advisor refuses a slice; it has no answer if empty
	}

	all := map[string]struct {
		past []hours
		want string
	}{
		"GPU-nightly":   {[]hours{{pastMinutes, "a", "opted-out"}, {600, "", ""}}, "keep opted-out "},
		"GPU-restarted": {[]hours{{pastMinutes, "b", "opted-out"}, {300, "b", "little-evidence"}}, "keep opted-out "},
		"GPU-turned":    {[]hours{{pastMinutes, "c", "opted-out"}, {300, "c", "latency"}}, "keep latency "},
		"GPU-long-ago":  {[]hours{{pastMinutes, "d", "opted-out"}, {27 * 60, "d", "little-evidence"}}, "unknown no-activity "},
		"GPU-another":   {[]hours{{pastMinutes, "e", "opted-out"}, {300, "f", ""}}, "keep little-evidence "},
		"GPU-alone":     {[]hours{{pastMinutes, "g", ""}}, "unknown no-activity "},
	}

	r := askFleetOfPast(t, 5, func(minute int, put func(string, float64, ...string)) {
		for uuid, c := range all {
			of := []string{"uuid", uuid, "node", "n-" + uuid, "instance", "n:9401"}
			put("nvidia_gpu_info", 1, append([]string{"name", h100}, of...)...)
			put("nvidia_gpu_memory_used_bytes", 4<<30, of...)
			put("nvidia_gpu_graphics_engine_activity_ratio", 0.2, of...)

			var now hours

			for _, h := range c.past {
				if pastMinutes-minute <= h.since {
					now = h
				}
			}

			if now.holder == "" {
				put("nvidia_gpu_allocated", 0, of...)
			} else {
				put("nvidia_gpu_pod_info", 1, append(of, "namespace", "ml", "pod", now.holder+"-1", "workload", "Deployment/"+now.holder)...)
			}

			if now.reason != "" {
				put("nvidia_gpu_rightsizing_rejected", 1, append(of, "reason", now.reason)...)
			}
		}
	})

	for i := range r.GPUs {
		if g := &r.GPUs[i]; answerOf(g) != all[g.UUID].want {
			t.Errorf("%s: %q, want %q", g.UUID, answerOf(g), all[g.UUID].want)
		}
	}

	const lapsed = "Of 1 GPUs the right-sizing advisor had an answer in the last day"
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, lapsed) {
		t.Errorf("%q is not in the notes:\n%s", lapsed, notes)
	}
}

// TestFleetEndsWithinAnHour: memory is read to the end of the window, wherever in an hour that lies.
func TestFleetEndsWithinAnHour(t *testing.T) {
	t.Parallel()

	for _, minutes := range []int{pastMinutes, pastMinutes + 5, pastMinutes + 35, pastMinutes + 55} {
		r := askFleetAfter(t, minutes, 5, func(minute int, put func(string, float64, ...string)) {
			of := []string{"uuid", "GPU-0", "node", "n", "instance", "n:9401"}
			put("nvidia_gpu_info", 1, append([]string{"name", h100}, of...)...)
			put("nvidia_gpu_graphics_engine_activity_ratio", 0.2, of...)
			put("nvidia_gpu_sm_activity_ratio", 0.01, of...)
			put("nvidia_gpu_dram_activity_ratio", 0.01, of...)
			put("nvidia_gpu_memory_used_bytes", map[bool]float64{false: 4 << 30, true: 30 << 30}[minute == minutes-5], of...)
		})

		if g := &r.GPUs[0]; answerOf(g) != "keep start-unseen " || g.MemoryMaxBytes != 30<<30 {
			t.Errorf("%d minutes: %q, %v GiB", minutes, answerOf(g), g.MemoryMaxBytes/(1<<30))
		}
	}
}
