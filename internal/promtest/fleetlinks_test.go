package promtest

import (
	"fmt"
	"maps"
	"testing"
)

// linkFamilies are what an exporter serves of two GPUs of a node that are held, besides NVLink
// traffic; both and total are the families that have that traffic.
type linkFamilies struct {
	labels   func(uuid string) []string
	families map[string]float64
	both     [2]string
	total    string // in both directions; empty if there is no such family
}

func linkExporters() map[string]linkFamilies {
	dcgm := func(uuid string) []string {
		return []string{"UUID", uuid, "Hostname", "n-" + uuid[:3], "modelName", h100, "namespace", "ml", "pod", "p-" + uuid}
	}
	native := func(uuid string) []string {
		return []string{"uuid", uuid, "node", "n-" + uuid[:3], "name", h100, "namespace", "ml", "pod", "p-" + uuid}
	}
	prof := [2]string{"DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"}

	return map[string]linkFamilies{
		"mig-exporter": {native, map[string]float64{
			"nvidia_gpu_info": 1, "nvidia_gpu_pod_info": 1, "nvidia_gpu_allocated": 1,
			"nvidia_gpu_memory_total_bytes": h100Bytes, "nvidia_gpu_memory_used_bytes": 4 << 30,
			"nvidia_gpu_graphics_engine_activity_ratio": 0.2, "nvidia_gpu_sm_activity_ratio": 0.01,
			"nvidia_gpu_dram_activity_ratio": 0.01,
		}, [2]string{"nvidia_gpu_nvlink_transmit_bytes_total", "nvidia_gpu_nvlink_receive_bytes_total"}, ""},
		"dcgm-exporter": {dcgm, map[string]float64{
			"DCGM_FI_DEV_FB_USED": 4096, "DCGM_FI_DEV_FB_FREE": h100Bytes/(1<<20) - 4096,
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.2, "DCGM_FI_PROF_SM_ACTIVE": 0.01, "DCGM_FI_PROF_DRAM_ACTIVE": 0.01,
		}, prof, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"},
	}
}

// TestFleetReadsLinksOfTheWholeWindow: by a real Prometheus' history, NVLink traffic counts as read
// if both directions are in it for nearly all of the time for which a GPU was held, whatever families
// have them; and traffic that any of them shows counts. On every node two GPUs are held.
func TestFleetReadsLinksOfTheWholeWindow(t *testing.T) {
	t.Parallel()

	const read, unread, traffic = "slice  1g.10gb", "unknown nvlink-unread ", "keep nvlink "
	always := func(int) bool { return true }
	never := func(int) bool { return false }
	late := func(minute int) bool { return minute >= pastMinutes/2 }
	early := func(minute int) bool { return minute < pastMinutes/2 }

	for name, exporter := range linkExporters() {
		nodes := []struct {
			about                string
			sent, received, both func(minute int) bool
			isHigh               func(minute int) bool
			want                 string
		}{
			{"always", always, always, never, never, read},
			{"never", never, never, never, never, unread},
			{"in the second half", late, late, never, never, unread},
			{"in nearly all", func(minute int) bool { return minute >= 20 }, always, never, never, read},
			{"one direction", never, always, never, never, unread},
			{"the other direction in the second half", always, late, never, never, unread},
			{"traffic in one direction", never, always, never, late, traffic},
		}
		if exporter.total != "" {
			nodes = append(nodes, nodes[:2]...)
			nodes[7].about, nodes[7].sent, nodes[7].both, nodes[7].received = "in one family", never, always, never
			nodes[8].about, nodes[8].both, nodes[8].want = "in one family, and then in others", early, read
			nodes[8].sent, nodes[8].received = late, late
			busy := nodes[8]
			busy.about, busy.isHigh, busy.want = "traffic in the families that came later", late, traffic
			nodes = append(nodes, busy)
		}

		r := askFleetOfPast(t, 5, func(minute int, put func(string, float64, ...string)) {
			for i, n := range nodes {
				values := maps.Clone(exporter.families)
				moved := 0.

				if n.isHigh(minute) {
					moved = 1e9 * float64(minute-pastMinutes/2) // as a counter, and far above the floor as a rate
				}

				if n.sent(minute) {
					values[exporter.both[0]] = moved
				}

				if n.received(minute) {
					values[exporter.both[1]] = moved
				}

				if n.both(minute) {
					values[exporter.total] = moved
				}

				for device := range 2 {
					named := exporter.labels(fmt.Sprintf("%03d-%d-GPU", i, device))
					if minute < 60 {
						named[len(named)-1] += before // the start of the pod that is judged is seen
					}

					for family, v := range values {
						put(family, v, append(named, "instance", "n:9400", "job", "gpus")...)
					}
				}
			}
		})

		if len(r.GPUs) != 2*len(nodes) {
			t.Fatalf("%s: %d GPUs, want %d", name, len(r.GPUs), 2*len(nodes))
		}

		for i, g := range r.GPUs {
			n := nodes[i/2]
			if got := answerOf(&g); got != n.want {
				t.Errorf("%s: %s: %q, want %q", name, n.about, got, n.want)
			}
		}
	}
}
