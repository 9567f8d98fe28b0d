package promtest

import (
	"fmt"
	"testing"
)

// TestFleetAsksForReadingsWhileHeld: memory and the use of media engines count as read if the history
// has them for nearly all of the time for which a GPU was held, not of the window, and not for an hour
// because one scrape of it has them.
func TestFleetAsksForReadingsWhileHeld(t *testing.T) {
	t.Parallel()

	const came = 23 * 60
	always := func(int) bool { return true }

	gpus := []struct {
		about         string
		memory, media func(minute int) bool // whether they are served
		want          string
		isUnchecked   bool
	}{
		{"all is read", always, always, "slice  1g.10gb", false},
		{"memory in one scrape of an hour", func(minute int) bool { return minute%60 == 30 }, always, "keep memory-unread ", false},
		{"memory but in one scrape of an hour", func(minute int) bool { return minute%60 != 30 }, always, "keep memory-unread ", false},
		{"memory but in one scrape of a day", func(minute int) bool { return minute%1440 != 600 }, always, "slice  1g.10gb", false},
		{"media but for two hours", always, func(minute int) bool { return minute < 2000 || minute >= 2120 },
			"slice  1g.10gb", true},
		{"media but for two hours before it was held", always, func(minute int) bool { return minute < 600 || minute >= 720 },
			"slice  1g.10gb", false},
		{"media since it is held", always, func(minute int) bool { return minute >= came }, "slice  1g.10gb", false},
		{"media before it was held", always, func(minute int) bool { return minute < came }, "slice  1g.10gb", true},
	}

	r := askFleetOfPast(t, 5, func(minute int, putPlain func(string, float64, ...string)) {
		for i, g := range gpus {
			put := func(family string, v float64, more ...string) {
				putPlain(family, v, append([]string{"uuid", fmt.Sprintf("GPU-%02d", i), "node", fmt.Sprintf("n-%02d", i),
					"instance", "n:9401"}, more...)...)
			}
			put("nvidia_gpu_info", 1, "name", h100)
			put("nvidia_gpu_memory_total_bytes", h100Bytes)
			put("nvidia_gpu_graphics_engine_activity_ratio", 0.2)
			put("nvidia_gpu_sm_activity_ratio", 0.01)
			put("nvidia_gpu_dram_activity_ratio", 0.01)
			put("nvidia_gpu_allocated", boolValue(minute >= came))

			if minute >= came {
				put("nvidia_gpu_pod_info", 1, "namespace", "ml", "pod", "p")
			}

			if g.memory(minute) {
				put("nvidia_gpu_memory_used_bytes", 4<<30)
			}

			for _, engine := range []string{"decoder", "jpeg", "ofa"} {
				if g.media(minute) {
					put("nvidia_gpu_media_activity_ratio", 0, "engine", engine)
				}
			}
		}
	})

	if len(r.GPUs) != len(gpus) {
		t.Fatalf("%d GPUs, want %d", len(r.GPUs), len(gpus))
	}

	for i, g := range r.GPUs {
		if want, got := gpus[i], answerOf(&g); got != want.want || g.MediaNotChecked != want.isUnchecked {
			t.Errorf("%s: %q, not checked: %v; want %q and %v", want.about, got, g.MediaNotChecked, want.want, want.isUnchecked)
		}
	}
}

// TestFleetMissesMemoryOfDCGM: dcgm-exporter names the pod on the series of memory, which we read. If
// memory is missing for a while beside busy time, the pod has not left, and its memory was not read. Nor has
// it if its name is missing beside memory, as while the kubelet is stopped.
func TestFleetMissesMemoryOfDCGM(t *testing.T) {
	t.Parallel()

	always := func(int) bool { return true }
	paused := func(minute int) bool { return minute < 600 || minute >= 620 }

	gpus := []struct {
		about         string
		memory, named func(minute int) bool // whether it is served, and with a name
		came          int                   // when the pod came
		want          string
		hours         float64
	}{
		{"a pod that came", always, always, 600, "slice  1g.10gb", 38},
		{"one that was there", always, always, 0, "keep start-unseen ", 48},
		{"memory is missing for a while", paused, always, 0, "keep start-unseen ", 48},
		{"memory is often missing", func(minute int) bool { return minute < 700 || minute%15 == 0 }, always, 600,
			"keep memory-unread ", 38},
		{"its name is missing for a while", always, paused, 0, "keep start-unseen ", 48},
		{"it has no name", always, func(int) bool { return false }, 0, "keep start-unseen ", 48},
	}

	r := askFleetOfPast(t, 5, func(minute int, put func(string, float64, ...string)) {
		for i, g := range gpus {
			values := map[string]float64{"DCGM_FI_DEV_FB_FREE": h100Bytes/(1<<20) - 4096,
				"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.2, "DCGM_FI_PROF_SM_ACTIVE": 0.01, "DCGM_FI_PROF_DRAM_ACTIVE": 0.01}
			if g.memory(minute) {
				values["DCGM_FI_DEV_FB_USED"] = 4096 * boolValue(minute >= g.came)
			}

			for family, v := range values {
				pairs := []string{"UUID", fmt.Sprintf("GPU-%02d", i), "Hostname", fmt.Sprintf("n-%02d", i),
					"modelName", h100, "instance", "n:9400"}
				if minute >= g.came && g.named(minute) {
					pairs = append(pairs, "namespace", "ml", "pod", "p")
				}

				put(family, v, pairs...)
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
