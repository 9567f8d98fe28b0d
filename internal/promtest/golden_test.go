package promtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const goldens = "../../testdata/golden"

// required are the goldens that must be there; any other of the folder is checked as well. A golden
// is named after its scenario, with ".info" or ".series" if it was served with that mode of
// --kubernetes.labels.
func required() []string {
	return []string{
		"a30.prom",
		"chaos.prom",
		"dgx-a100-mixed.info.prom",
		"dgx-a100-mixed.prom",
		"dgx-a100-mixed.series.prom",
		"gke-h100-3g.prom",
		"h100-underused.prom",
		"mps-and-timeslicing.prom",
	}
}

// TestGoldens runs the documented joins and sums on what the program serves for each scenario.
func TestGoldens(t *testing.T) {
	t.Parallel()

	names := required()
	for _, file := range findFiles(t, filepath.Join(goldens, "*.prom")) {
		if name := filepath.Base(file); !slices.Contains(names, name) && !strings.HasSuffix(name, dcgmSuffix) {
			names = append(names, name)
		}
	}

	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(goldens, name))
			if err != nil {
				t.Fatalf("%v; write it with: make golden", err)
			}

			mode := "container"

			for _, other := range []string{"info", "series"} {
				if strings.HasSuffix(name, "."+other+".prom") {
					mode = other
				}
			}

			results, err := checkAll(t, text, mode)
			if err != nil {
				t.Error(err)
			}

			t.Logf("joined series: %d of GPUs, %d of GPU instances, %d of compute instances", results[0], results[1], results[2])
		})
	}
}

// TestGoldensHoldWhatTheJoinsAreFor: without these cases in the scenarios the checks would prove
// little.
func TestGoldensHoldWhatTheJoinsAreFor(t *testing.T) {
	for _, c := range []struct {
		golden, what, family string
		want                 []string
	}{
		{"dgx-a100-mixed.prom", "a whole GPU that one container holds", "nvidia_gpu_pod_info", []string{"sharing=exclusive"}},
		{"dgx-a100-mixed.prom", "a GPU instance that one pod holds", "nvidia_mig_gpu_instance_pod_info",
			[]string{"sharing=exclusive"}},
		{"dgx-a100-mixed.prom", "a second compute instance of one GPU instance that a container holds",
			"nvidia_mig_compute_instance_pod_info", []string{"sharing=exclusive", "compute_instance=1"}},
		{"dgx-a100-mixed.activity.prom", "the activity of a GPU instance that a container holds",
			"nvidia_gpu_container_sm_activity_ratio", []string{"sharing=exclusive"}},
		{"mps-and-timeslicing.prom", "a GPU shared by time-slicing", "nvidia_gpu_pod_info", []string{"sharing=time-slicing"}},
		{"mps-and-timeslicing.prom", "a GPU shared by MPS", "nvidia_gpu_pod_info", []string{"sharing=mps"}},
		{"mps-and-timeslicing.prom", "the memory of a container on a shared GPU", "nvidia_gpu_container_memory_used_bytes",
			nil},
	} {
		t.Run(c.golden+"/"+c.family, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(goldens, c.golden))
			if err != nil {
				t.Fatalf("%v; write it with: make golden", err)
			}

			x, err := readExposition(text)
			if err != nil {
				t.Fatal(err)
			}

			if len(x.of(c.family, c.want...)) == 0 {
				t.Errorf("no %s: %s%v", c.what, c.family, c.want)
			}
		})
	}
}
