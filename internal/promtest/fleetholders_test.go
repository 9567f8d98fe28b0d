package promtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// TestFleetTakesNoUnknownHolderForNone: if mig-exporter did not know for a part of the window what
// held a GPU, its pod may have been there: then its start was not seen, and the GPU counts as held.
func TestFleetTakesNoUnknownHolderForNone(t *testing.T) {
	t.Parallel()

	const minutes = 2 * 24 * 60
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
		{"processes alone, that came", never, never, always, late, "slice  1g.10gb", 38},
		{"processes alone, served later on", never, never, late, late, "keep start-unseen ", 48},
	}

	e := NewPrometheus(t)
	app := e.db.Appender(t.Context())

	for minute := 0; minute < minutes; minute += 5 {
		at := scraped().Add(time.Duration(minute)*time.Minute + 30*time.Second).UnixMilli()

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
				series := labels.FromStrings("__name__", family, "uuid", fmt.Sprintf("GPU-%02d", i), "name", h100,
					"node", fmt.Sprintf("n-%02d", i), "namespace", "ml", "pod", fmt.Sprintf("p-%02d", i), "instance", "n:9401")
				if _, err := app.Append(0, series, at, v); err != nil {
					t.Fatal(err)
				}
			}
		}
	}

	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}

	_, url := serveAPI(t, e)
	r := askFleet(t, url, "2d", scraped().Add(minutes*time.Minute))

	if len(r.GPUs) != len(gpus) {
		t.Fatalf("%d GPUs, want %d", len(r.GPUs), len(gpus))
	}

	for i, g := range r.GPUs {
		got := fmt.Sprint(g.Action, " ", g.Reason, " ", g.RecommendedProfile)
		if want := gpus[i]; got != want.want || g.ObservedHours != want.hours {
			t.Errorf("%s: %q in %v hours, want %q in %v", want.about, got, g.ObservedHours, want.want, want.hours)
		}
	}
}
