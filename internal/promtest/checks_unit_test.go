package promtest

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// scraped is when an exposition under test was scraped.
func scraped() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// checkAll runs every check and returns the results of the joins per level.
func checkAll(t *testing.T, text []byte, mode string) ([]int, error) {
	t.Helper()

	x, err := readExposition(text)
	if err != nil {
		t.Fatal(err)
	}

	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), Text, text)
	results, err := checkJoins(e, x)

	return results, errors.Join(err, checkOnce(x), checkPodLabels(x, mode), checkContainers(x, mode), checkHolders(x),
		checkPower(e, x), checkSlices(e, x), checkFree(e, x), checkRoom(e, x), checkPods(e, x))
}

func readNode(t *testing.T) string {
	t.Helper()
	return readFile(t, "testdata/node.prom")
}

func TestChecksAcceptAGoodNode(t *testing.T) {
	results, err := checkAll(t, []byte(readNode(t)), "series")
	if err != nil {
		t.Error(err)
	}

	for i, want := range []int{7, 2, 6} {
		if results[i] != want {
			t.Errorf("level %d: %d joined series, want %d", i, results[i], want)
		}
	}
}

// TestChecksAcceptAnUnconfirmedHolder: it stays on the series of its device, alone or until a
// confirmed one follows it.
func TestChecksAcceptAnUnconfirmedHolder(t *testing.T) {
	const held = `container="main",workload="Deployment/resnet",resource="nvidia.com/gpu",sharing="exclusive",replica="",confirmed="true"} 1`
	node := readNode(t)
	unconfirmed := strings.Replace(held, `"true"`, `"false"`, 1)
	alone := strings.Replace(node, held, unconfirmed, 1)

	followed := strings.Replace(node, held,
		held+"\n"+`nvidia_gpu_pod_info{gpu="0",uuid="GPU-0",namespace="vision",pod="before",`+unconfirmed, 1)
	for name, text := range map[string]string{"alone": alone, "followed": followed} {
		results, err := checkAll(t, []byte(text), "series")
		if err != nil || text == node {
			t.Errorf("%s: %v", name, err)
		}

		if want := map[string]int{"alone": 0, "followed": 7}[name]; results[0] != want {
			t.Errorf("%s: %d joined series, want %d", name, results[0], want)
		}
	}
}

// TestChecksFindWhatIsWrong changes one thing of the good node at a time.
func TestChecksFindWhatIsWrong(t *testing.T) {
	const gpu1 = `nvidia_gpu_power_watts{gpu="1",uuid="GPU-1"} 99.25` + "\n"

	const held = `nvidia_gpu_pod_info{gpu="0",uuid="GPU-0",namespace="vision",pod="resnet-0",container="main",workload="Deployment/resnet",resource="nvidia.com/gpu",sharing="exclusive",replica="",confirmed="true"} 1` + "\n"
	for _, c := range []struct{ name, from, to, mode, err string }{
		{"a pod that has ended still holds the GPU beside its successor", held,
			held + strings.ReplaceAll(held, "resnet-0", "resnet-1"), "series", "two exclusive holders of uuid=GPU-0"},
		{"the engine refuses that join", held, held + strings.ReplaceAll(held, "resnet-0", "resnet-1"), "series",
			"many-to-many matching not allowed"},
		{"the holder is in another pod than the series say", held, strings.ReplaceAll(held, "resnet-0", "resnet-1"),
			"series", "pod labels namespace=vision,pod=resnet-0,container=main, want namespace=vision,pod=resnet-1"},
		{"pod labels on a shared GPU", gpu1, strings.ReplaceAll(gpu1, `"}`, `",pod="nb-0"}`), "series",
			"pod labels namespace=,pod=nb-0"},
		{"pod labels missing",
			`nvidia_gpu_power_watts{gpu="0",uuid="GPU-0",namespace="vision",pod="resnet-0",container="main"}`,
			`nvidia_gpu_power_watts{gpu="0",uuid="GPU-0"}`, "series", "nvidia_gpu_power_watts{uuid=GPU-0}: pod labels"},
		{"pod labels on XIDs", `nvidia_gpu_xids_total{gpu="0",uuid="GPU-0"}`,
			`nvidia_gpu_xids_total{gpu="0",uuid="GPU-0",namespace="vision",pod="resnet-0",container="main"}`, "series",
			"nvidia_gpu_xids_total{uuid=GPU-0}: pod labels"},
		{"pod labels in mode container", "", "", "container", "want namespace=,pod=,container="},
		{"a container has another power than its device", `sharing="exclusive"} 210.5`, `sharing="exclusive"} 200`,
			"series", "of uuid=GPU-0 is 200"},
		{"the parts of a GPU instance have more than it", `sharing="exclusive"} 60`, `sharing="exclusive"} 61`, "series",
			"add up to 101, it has 100"},
		{"the power of a shared device", `sharing="exclusive"} 210.5`, `sharing="mps"} 210.5`, "series",
			"of a shared device"},
		{"a container is left out", `nvidia_gpu_container_power_estimate_watts{gpu="0",uuid="GPU-0"`,
			`nvidia_gpu_container_power_estimate_watts{gpu="1",uuid="GPU-1"`, "series", "no container has uuid=GPU-0"},
		{"containers in mode info", "", "", "info", "nvidia_gpu_container_power_estimate_watts is served"},
		{"pod labels in mode info", "", "", "info", "want namespace=,pod=,container="},
		{"a shared GPU cloned per pod", gpu1, strings.ReplaceAll(gpu1, `"}`, `",pod="nb-0"}`) + strings.ReplaceAll(gpu1,
			`"}`, `",pod="nb-1"}`), "series", "nvidia_gpu_power_watts: map[gpu:1 uuid:GPU-1] occurs twice"},
		{"board power repeated per GPU instance", gpu1, gpu1 + strings.ReplaceAll(gpu1, `"}`, `",gpu_instance="1"}`),
			"series", "a fact of the GPU on GPU instance 1"},
		{"estimates do not add up", `gpu_instance="1",mig_profile="3g.20gb"} 100`,
			`gpu_instance="1",mig_profile="3g.20gb"} 101`, "series", "map[uuid:GPU-2] = 158.1, want 157.1"},
		{"nothing said of the power of an empty MIG GPU", `nvidia_gpu_power_unallocated_watts{gpu="3",uuid="GPU-3"} 28`, "",
			"series", "map[uuid:GPU-3] is missing"},
		{"slices do not add up", `uuid="GPU-3",kind="memory",state="free"} 4`, `uuid="GPU-3",kind="memory",state="free"} 3`,
			"series", "map[kind:memory uuid:GPU-3] = 3, want 4"},
		{"used slices are not those of the instances", `compute_slices="3",memory_slices="4"} 1`,
			`compute_slices="2",memory_slices="4"} 1`, "series", "map[kind:compute uuid:GPU-2] = 6, want 5"},
		{"a held GPU counts as free", `nvidia_gpu_allocated{gpu="1",uuid="GPU-1"} 1`,
			`nvidia_gpu_allocated{gpu="1",uuid="GPU-1"} 0`, "series", "map[name:NVIDIA A100-SXM4-40GB] = 1, want 0"},
		{"a GPU without MIG has room", `nvidia_gpu_mig_profile_instances_available{gpu="1",mig_profile="3g.20gb",uuid="GPU-1"} 0`,
			`nvidia_gpu_mig_profile_instances_available{gpu="1",mig_profile="3g.20gb",uuid="GPU-1"} 2`, "series",
			"map[mig_profile:3g.20gb] = 3, want 1"},
		{"one pod is said to hold the GPU instance that two hold",
			`nvidia_mig_gpu_instance_pod_info{gpu="2",uuid="GPU-2",gpu_instance="2"`,
			`nvidia_mig_gpu_instance_pod_info{gpu="2",uuid="GPU-2",gpu_instance="1"`, "series",
			"uuid=GPU-2,gpu_instance=1: held by one pod: true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := readNode(t)
			if !strings.Contains(text, c.from) {
				t.Fatalf("the good node has no %s", c.from)
			}

			_, err := checkAll(t, []byte(strings.Replace(text, c.from, c.to, 1)), c.mode)
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("checks say %v, want something with %q", err, c.err)
			}
		})
	}
}

// TestJoinsHoldWhenAPodFollowsAnother: the series of the pod before have ended, so that the
// successor is the one result.
func TestJoinsHoldWhenAPodFollowsAnother(t *testing.T) {
	e := NewPrometheus(t)
	before := readNode(t)
	after := strings.ReplaceAll(before, "resnet-0", "resnet-1")
	e.AddScrape(t, scraped(), Text, []byte(before))
	e.AddScrape(t, scraped().Add(15*time.Second), Text, []byte(after))

	x, err := readExposition([]byte(after))
	if err != nil {
		t.Fatal(err)
	}

	if _, err := checkJoins(e, x); err != nil {
		t.Error(err)
	}
}
