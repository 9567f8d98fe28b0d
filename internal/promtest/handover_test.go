package promtest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// Documented queries of what pods use.
const (
	podMemory = `sum by (namespace, pod) (nvidia_gpu_container_memory_used_bytes)`
	podWatts  = `sum by (namespace, pod) (nvidia_gpu_container_power_estimate_watts)`
	podEnergy = `sum by (namespace, pod) (increase(nvidia_gpu_container_energy_estimate_joules_total[1d])) / 3.6e6`
)

// handOvers is a node on which a slice, a whole GPU and the parts of a split GPU instance change
// hands every four minutes, two seconds after the pod before has ended: within a scrape interval.
func handOvers() string {
	scenario := `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", {gi: "3g.40gb@4", ci: [1c, 2c]}]}
  - {model: H100-80GB}
workloads:
  - {name: train, memory: 9GiB, sm: 24, dram: 0.3, tensor: 0.3}
  - {name: small, memory: 4GiB, sm: 8, dram: 0.1, tensor: 0.1}
pods:
`

	for _, d := range []struct{ name, resource, workload string }{
		{"slice", "nvidia.com/mig-3g.40gb", "train"},
		{"part", "nvidia.com/mig-1c.3g.40gb", "small"},
		{"rest", "nvidia.com/mig-2c.3g.40gb", "small"},
		{"whole", "nvidia.com/gpu", "train"},
	} {
		for i := range 4 {
			scenario += fmt.Sprintf("  - {namespace: ml, name: %s-%d, container: main, resource: %s, workload: %s, at: %ds, "+
				"for: 238s}\n",
				d.name, i, d.resource, d.workload, 240*i)
		}
	}

	return scenario
}

// TestHandOvers: the joins answer at every evaluation, over ranges too; an average over time counts
// no device twice; and what pods used adds up to what their devices did, each beginning at 0.
func TestHandOvers(t *testing.T) {
	t.Parallel()
	n := startNode(t, handOvers())
	joined := map[string]bool{}
	n.run(15*time.Minute, func(at time.Time) {
		for level, family := range []string{"nvidia_gpu_power_watts", "nvidia_mig_gpu_instance_power_estimate_watts",
			"nvidia_mig_compute_instance_sm_activity_ratio"} {
			l := levels()[level]
			for _, lhs := range []string{family, "avg_over_time(" + family + "[5m])", "max_over_time(" + family + "[10m])"} {
				v, err := n.EvalAt(l.join(lhs), at)
				if err != nil {
					t.Fatalf("%s: %s: %v", n.elapsed, l.join(lhs), err)
				}

				for _, s := range v {
					joined[s.Metric.Get("pod")] = true
				}
			}
		}

		if n.elapsed%time.Minute == 0 && n.elapsed > 5*time.Minute {
			n.compareAverages(at)
		}
	})

	for _, device := range []string{"slice", "part", "rest", "whole"} {
		for i := range 4 {
			if pod := fmt.Sprint(device, "-", i); !joined[pod] {
				t.Errorf("no join finds %s: %v", pod, slices.Sorted(maps.Keys(joined)))
			}
		}
	}

	n.compareEnergies()
}

// compareAverages compares a sum of averages with the average of the sums, which are different if a
// device has other series after it has changed hands.
func (n *scrapedNode) compareAverages(at time.Time) {
	n.t.Helper()

	for _, family := range []string{
		"nvidia_gpu_power_watts", "nvidia_mig_gpu_instance_power_estimate_watts",
		"nvidia_mig_gpu_instance_sm_activity_ratio", "nvidia_gpu_memory_used_bytes",
	} {
		byDevice, err := n.EvalAt("sum(avg_over_time("+family+"[5m]))", at)
		if err != nil {
			n.t.Fatal(err)
		}

		byTime, err := n.EvalAt("avg_over_time(sum("+family+")[5m:30s])", at)
		if err != nil {
			n.t.Fatal(err)
		}

		if len(byDevice) != 1 || len(byTime) != 1 {
			n.t.Fatalf("%s: got %v and %v for %s, want one value each", n.elapsed, byDevice, byTime, family)
		}

		if !same(byDevice[0].F, byTime[0].F) {
			n.t.Errorf("%s: the averages of %s add up to %v, their sum is %v on average", n.elapsed, family, byDevice, byTime)
		}
	}
}

// compareEnergies compares, for each device, the energy of its pods with its own. What is missing
// at most are 32 seconds for each pod, up to its first scrape and from its last.
func (n *scrapedNode) compareEnergies() {
	n.t.Helper()

	for _, d := range []struct{ device, pods, own string }{
		{"the GPU", "whole-.*", `nvidia_gpu_energy_joules_total{gpu="1"}`},
		{"the GPU instance", "slice-.*",
			`nvidia_mig_gpu_instance_energy_estimate_joules_total{mig_profile="3g.40gb",gpu_instance="1"}`},
		{"the split GPU instance", "(part|rest)-.*",
			`nvidia_mig_gpu_instance_energy_estimate_joules_total{gpu_instance="2"}`},
	} {
		pods := n.queryValue(n.t,
			`sum(max_over_time(nvidia_gpu_container_energy_estimate_joules_total{pod=~"`+d.pods+`"}[15m]))`)

		own := n.queryValue(n.t, `sum(max_over_time(`+d.own+`[15m]) - min_over_time(`+d.own+`[15m]))`)
		if pods > own*1.02 || pods < own*0.85 {
			n.t.Errorf("pods of %s: got %v J, want 0.85 to 1.02 of its own %v J", d.device, pods, own)
		}

		first := n.queryValue(n.t,
			`max(min_over_time(nvidia_gpu_container_energy_estimate_joules_total{pod=~"`+d.pods+`"}[15m]))`)
		if most := own / 900 * 31; !(first <= most) { // NaN is more, too
			n.t.Errorf("the energy of a pod of %s is first scraped as %v J, want %v J at most", d.device, first, most)
		}
	}
}

// checkPods compares what pods use with the sums of their containers.
func checkPods(e *Prometheus, x exposition) error {
	for query, family := range map[string]string{
		podMemory: "nvidia_gpu_container_memory_used_bytes", podWatts: "nvidia_gpu_container_power_estimate_watts",
	} {
		want := map[string]float64{}

		for _, s := range x.of(family) {
			pod := map[string]string{}

			for _, label := range []string{"namespace", "pod"} {
				if s.labels[label] != "" {
					pod[label] = s.labels[label]
				}
			}

			want[fmt.Sprint(pod)] += s.value
		}

		if err := expect(e, query, want); err != nil {
			return err
		}
	}

	return nil
}

// TestEnergyOfADay: a pod of two devices that draw 500 W and 100 W for a day has used 14.4 kWh.
func TestEnergyOfADay(t *testing.T) {
	t.Parallel()

	e := NewPrometheus(t)
	for m := 0; m <= 24*60; m += 10 {
		e.AddScrape(t, scraped().Add(time.Duration(m)*time.Minute), Text, fmt.Appendf(nil, `# TYPE nvidia_gpu_container_energy_estimate_joules_total counter
nvidia_gpu_container_energy_estimate_joules_total{uuid="GPU-0",namespace="ml",pod="a",container="m"} %d
nvidia_gpu_container_energy_estimate_joules_total{uuid="GPU-1",namespace="ml",pod="a",container="m"} %d
`, m*60*500, m*60*100))
	}

	if err := expect(e, podEnergy, map[string]float64{"map[namespace:ml pod:a]": 14.4}); err != nil {
		t.Error(err)
	}
}
