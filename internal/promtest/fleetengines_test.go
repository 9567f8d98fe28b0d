package promtest

import "testing"

// engineFamilies are what an exporter serves of a GPU that is held, with its decoders busy for a
// share of the time.
type engineFamilies struct {
	labels   func(uuid string) []string
	families func(decoders float64) map[string]float64
}

func engineExporters() map[string]engineFamilies {
	dcgm := func(uuid string) []string {
		return []string{"UUID", uuid, "Hostname", "n", "modelName", "NVIDIA H100 80GB HBM3", "namespace", "video", "pod", "p-" + uuid}
	}

	return map[string]engineFamilies{
		"dcgm-exporter": {dcgm, func(decoders float64) map[string]float64 {
			return map[string]float64{
				"DCGM_FI_DEV_FB_USED": 4096, "DCGM_FI_DEV_FB_FREE": h100Bytes/(1<<20) - 4096,
				"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.2, "DCGM_FI_PROF_SM_ACTIVE": 0.01, "DCGM_FI_PROF_DRAM_ACTIVE": 0.01,
				"DCGM_FI_DEV_ENC_UTIL": 0, "DCGM_FI_DEV_DEC_UTIL": 100 * decoders, "DCGM_FI_PROF_NVLINK_TX_BYTES": 0,
			}
		}},
		"dcgm-exporter 4.9": {dcgm, func(decoders float64) map[string]float64 {
			return map[string]float64{
				"DCGM_FI_DEV_FB_USED_BYTES": 4 << 30, "DCGM_FI_DEV_FB_FREE_BYTES": h100Bytes - 4<<30,
				"DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": 0.2, "DCGM_FI_PROF_SM_UTIL_RATIO": 0.01,
				"DCGM_FI_PROF_DRAM_UTIL_RATIO": 0.01, "DCGM_FI_DEV_ENC_UTIL_RATIO": 0, "DCGM_FI_DEV_DEC_UTIL_RATIO": decoders,
				"DCGM_FI_PROF_NVLINK_TX_BYTES": 0,
			}
		}},
	}
}

// TestFleetCountsEngines: by a real Prometheus' history of dcgm-exporter, a GPU gets a slice with
// as many decoders as it uses, in bursts too, and none if no slice has them, or if it only receives
// data over NVLink.
func TestFleetCountsEngines(t *testing.T) {
	t.Parallel()
	uses := map[string]func(minute int) float64{
		"GPU-0": func(int) float64 { return 0 },
		"GPU-1": func(int) float64 { return 0.1 },
		"GPU-2": func(int) float64 { return 0.3 },
		"GPU-3": func(int) float64 { return 0.71 },
		"GPU-4": func(minute int) float64 { return 0.71 * boolValue(minute%5 == 2) },
		"GPU-5": func(minute int) float64 { return 0.71 * boolValue(minute >= 1000 && minute < 1010) },
		"GPU-6": func(int) float64 { return 0 },
	}
	keep := "keep media-engines "
	want := map[string]string{"GPU-0": "slice  1g.10gb", "GPU-1": "slice  1g.10gb", "GPU-2": "slice  3g.40gb",
		"GPU-3": keep, "GPU-4": keep, "GPU-5": keep, "GPU-6": "keep nvlink "}

	for name, exporter := range engineExporters() {
		r := askFleetOfPast(t, 1, func(minute int, put func(string, float64, ...string)) {
			for uuid, use := range uses {
				named := exporter.labels(uuid)
				if minute < 10 {
					named[len(named)-1] += "-before" // the pod that is judged comes within the window: its start is seen
				}

				families := exporter.families(use(minute))
				families["DCGM_FI_PROF_NVLINK_RX_BYTES"] = (2 << 20) * boolValue(uuid == "GPU-6")

				for family, v := range families {
					put(family, v, append(named, "instance", "n:9400", "job", "gpus")...)
				}
			}
		})

		if len(r.GPUs) != len(uses) {
			t.Errorf("%s: %d GPUs", name, len(r.GPUs))
		}

		for _, g := range r.GPUs {
			if got := answerOf(&g); got != want[g.UUID] {
				t.Errorf("%s: %s: %q, want %q", name, g.UUID, got, want[g.UUID])
			}
		}
	}
}
