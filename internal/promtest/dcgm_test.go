package promtest

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// dcgmExpositions are those under dcgm-exporter's names: a node made for the purpose, and every
// golden of that mode.
func dcgmExpositions(t *testing.T) []string {
	t.Helper()
	return append(findFiles(t, filepath.Join(goldens, "*"+dcgmSuffix)), filepath.Join("testdata", "dcgm.prom"))
}

// dcgmSuffix ends the names of goldens under dcgm-exporter's names.
const dcgmSuffix = ".dcgm.prom"

// dcgmBoard are the fields of a whole GPU, dcgmPart those that each GPU instance has if a GPU has
// any.
func dcgmBoard() []string {
	return []string{"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP",
		"DCGM_FI_DEV_POWER_USAGE",
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
		"DCGM_FI_PROF_PCIE_TX_BYTES"}
}

func dcgmPart() []string {
	return []string{"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
		"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"}
}

// TestDCGMDashboards runs queries as dashboards for dcgm-exporter have them, and holds their
// answers to what the exposition says.
func TestDCGMDashboards(t *testing.T) {
	t.Parallel()

	for _, file := range dcgmExpositions(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text := []byte(readFile(t, file))

			x, err := readExposition(text)
			if err != nil {
				t.Fatal(err)
			}

			e := NewPrometheus(t)
			e.AddScrape(t, scraped(), Text, text)
			e.AddScrape(t, scraped().Add(15*time.Second), Text, text)

			if err := errors.Join(checkDCGMOnce(x), checkDCGMPanels(e, x), checkDCGMPods(e, x)); err != nil {
				t.Error(err)
			}
		})
	}
}

// The fixture has every case that the checks are about.
func TestDCGMFixtureHoldsWhatTheQueriesAreFor(t *testing.T) {
	x, err := readExposition([]byte(readFile(t, filepath.Join("testdata", "dcgm.prom"))))
	if err != nil {
		t.Fatal(err)
	}

	for _, family := range append(dcgmBoard(), dcgmPart()...) {
		if len(x.of(family)) == 0 {
			t.Errorf("no %s", family)
		}
	}

	if n := len(x.of("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "GPU_CI_ID=1", "pod=tts")); n != 1 {
		t.Errorf("%d series of a pod's compute instance beside another's", n)
	}
}

// checkDCGMOnce: no fact of a whole GPU is on a GPU instance, no GPU with instances has what they
// have, and memory and DRAM activity are of no compute instance.
func checkDCGMOnce(x exposition) error {
	var errs []error

	for _, family := range dcgmBoard() {
		seen := map[string]bool{}
		for _, s := range x.of(family) {
			if s.labels["GPU_I_ID"] != "" || s.labels["GPU_CI_ID"] != "" || seen[s.labels["UUID"]] {
				errs = append(errs, fmt.Errorf("%s: a GPU's value is there again: %v", family, s.labels))
			}

			seen[s.labels["UUID"]] = true
		}
	}

	partitioned := map[string]bool{}
	for _, s := range x.of("DCGM_FI_DEV_FB_USED") {
		partitioned[s.labels["UUID"]] = partitioned[s.labels["UUID"]] || s.labels["GPU_I_ID"] != ""
	}

	for _, family := range dcgmPart() {
		for _, s := range x.of(family) {
			if (s.labels["GPU_I_ID"] == "") == partitioned[s.labels["UUID"]] {
				errs = append(errs, fmt.Errorf("%s: %v, and the GPU has instances: %v", family, s.labels, partitioned[s.labels["UUID"]]))
			}

			if s.labels["GPU_CI_ID"] != "" &&
				!slices.Contains([]string{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"}, family) {
				errs = append(errs, fmt.Errorf("%s: of a compute instance: %v", family, s.labels))
			}
		}
	}

	return errors.Join(errs...)
}

// by sums series up by labels, and counts them.
func by(all []series, names ...string) (sums, counts map[string]float64) {
	sums = map[string]float64{}
	counts = map[string]float64{}

	for _, s := range all {
		group := map[string]string{}

		for _, name := range names {
			if v := s.labels[name]; v != "" {
				group[name] = v
			}
		}

		sums[fmt.Sprint(group)] += s.value
		counts[fmt.Sprint(group)]++
	}

	return sums, counts
}

// means divides sums by counts.
func means(sums, counts map[string]float64) map[string]float64 {
	all := map[string]float64{}
	for group, sum := range sums {
		all[group] = sum / counts[group]
	}

	return all
}

// checkDCGMPanels: temperature, power, clocks, utilization and memory, of the fleet, by host and by
// GPU.
func checkDCGMPanels(e *Prometheus, x exposition) error {
	power, boards := by(x.of("DCGM_FI_DEV_POWER_USAGE"), "Hostname")

	energy, _ := by(x.of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"), "gpu", "UUID")
	for group := range energy {
		energy[group] = 0 // both scrapes say the same
	}

	clocks := map[string]float64{}
	for _, s := range x.of("DCGM_FI_DEV_SM_CLOCK") {
		clocks[fmt.Sprint(s.labels)] = s.value * 1e6
	}

	_, models := by(x.of("DCGM_FI_DEV_GPU_TEMP"), "modelName")
	used, _ := by(x.of("DCGM_FI_DEV_FB_USED"), "Hostname")
	free, _ := by(x.of("DCGM_FI_DEV_FB_FREE"), "Hostname")

	share := map[string]float64{}
	for host := range used {
		share[host] = 100 * used[host] / (used[host] + free[host])
	}

	byGPU, _ := by(x.of("DCGM_FI_DEV_FB_USED"), "Hostname", "gpu")
	util, utils := by(x.of("DCGM_FI_DEV_GPU_UTIL"), "Hostname")
	temps := x.of("DCGM_FI_DEV_GPU_TEMP")
	temp, count := by(temps)

	return errors.Join(
		expect(e, `avg(DCGM_FI_DEV_GPU_TEMP{gpu=~".*", Hostname=~".*"})`, means(temp, count)),
		expect(e, `sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE{gpu=~".+"})`, power),
		expect(e, `count by (Hostname) (DCGM_FI_DEV_POWER_USAGE)`, boards),
		expect(e, `sum by (gpu, UUID) (rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m]) / 1000)`, energy),
		expect(e, `DCGM_FI_DEV_SM_CLOCK * 1000000`, clocks),
		expect(e, `count by (modelName) (DCGM_FI_DEV_GPU_TEMP)`, models),
		expect(e, `100 * sum by (Hostname) (DCGM_FI_DEV_FB_USED) / sum by (Hostname) (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)`, share),
		expect(e, `sum by (Hostname, gpu) (DCGM_FI_DEV_FB_USED)`, byGPU),
		expect(e, `avg by (Hostname) (max_over_time(DCGM_FI_DEV_GPU_UTIL[5m]))`, means(util, utils)),
	)
}

// checkDCGMPods: activity and memory by GPU instance and by pod. What a pod has is counted once,
// also if it has several compute instances of a GPU instance.
func checkDCGMPods(e *Prometheus, x exposition) error {
	var instances, held, memory []series

	for _, s := range x.of("DCGM_FI_PROF_GR_ENGINE_ACTIVE") {
		if s.labels["GPU_I_ID"] != "" && s.labels["GPU_CI_ID"] == "" {
			instances = append(instances, s)
		}

		if s.labels["pod"] != "" {
			held = append(held, s)
		}
	}

	for _, s := range x.of("DCGM_FI_DEV_FB_USED") {
		if s.labels["pod"] != "" {
			memory = append(memory, s)
		}
	}

	activity, _ := by(instances, "UUID", "GPU_I_ID", "GPU_I_PROFILE")
	byPod, ofPod := by(held, "namespace", "pod")
	used, _ := by(memory, "namespace", "pod")

	return errors.Join(
		expect(e, `avg by (UUID, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!="", GPU_CI_ID=""})`,
			activity),
		expect(e, `avg by (namespace, pod) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!=""})`, means(byPod, ofPod)),
		expect(e, `sum by (namespace, pod) (DCGM_FI_DEV_FB_USED{pod!=""})`, used),
		// One activity for each memory: the join that shows both in a table.
		expect(e, `count by (UUID, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!="", GPU_CI_ID=""} and on (UUID, GPU_I_ID) DCGM_FI_DEV_FB_USED)`,
			ones(activity)),
	)
}

func ones(groups map[string]float64) map[string]float64 {
	all := map[string]float64{}
	for group := range groups {
		all[group] = 1
	}

	return all
}

// The checks find what they are for.
func TestDCGMChecksNotice(t *testing.T) {
	const labels = `gpu="1",UUID="GPU-1",Hostname="dgx"`
	for _, test := range []struct{ name, text string }{
		{"a copy for an instance", `DCGM_FI_DEV_POWER_USAGE{` + labels + `} 1` + "\n" + `DCGM_FI_DEV_POWER_USAGE{` + labels +
			`,GPU_I_ID="2"} 1`},
		{"a copy with a pod", `DCGM_FI_DEV_POWER_USAGE{` + labels + `} 1` + "\n" + `DCGM_FI_DEV_POWER_USAGE{` + labels +
			`,pod="a"} 1`},
		{"memory of the board beside its instances'", `DCGM_FI_DEV_FB_USED{` + labels + `} 3` + "\n" +
			`DCGM_FI_DEV_FB_USED{` + labels + `,GPU_I_ID="2"} 1`},
		{"memory of a compute instance", `DCGM_FI_DEV_FB_USED{` + labels + `,GPU_I_ID="2"} 1` + "\n" +
			`DCGM_FI_DEV_FB_USED{` + labels + `,GPU_I_ID="2",GPU_CI_ID="0"} 1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			x, err := readExposition([]byte(test.text + "\n"))
			if err != nil {
				t.Fatal(err)
			}

			if checkDCGMOnce(x) == nil {
				t.Error("nothing was noticed")
			}
		})
	}
}
