package contract

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// What nvmlsource reads through go-nvml and the C library is what it reads from the node in its own
// process: the two faces are held to each other, for everything that is read, on every shipped
// scenario whose GPUs answer at all times.
func TestSourceReadsTheSame(t *testing.T) {
	paths, err := filepath.Glob(scenarios + "*.yaml")
	if err != nil || len(paths) < 6 {
		t.Fatalf("scenarios %v, %v", paths, err)
	}

	for _, path := range append(paths, "") {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		switch name {
		case "chaos":
			continue
		case ".":
			name = "old-driver"
		}

		t.Run(name, func(t *testing.T) {
			if path == "" {
				path = scenarioFile(t, oldDriver)
			}

			if inChild(t, "MIG_SIM_SCENARIO="+path, "MIG_SIM_CLOCK=step", "MIG_SIM_STATE="+filepath.Join(t.TempDir(), "state")) {
				compareFaces(t)
			}
		})
	}
}

const oldDriver = `
version: 1
node: {privileged: false, driver: "470.57.02", cuda: "11.4", migUUIDs: legacy, kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4", {gi: "3g.20gb@0", ci: ["1c", "2c"]}]}, {model: A30}]
workloads: [{name: work, memory: 1GiB, sm: 10}]
processes: [{device: "0/3g.20gb@0/1", workload: work}, {gpu: 1, workload: work}]
`

// face is one way to the node.
type face struct {
	about  string
	source *nvmlsource.Source
}

// compareFaces runs in the process that the library is for.
func compareFaces(t *testing.T) {
	t.Helper()

	scenario, err := sim.Load(os.Getenv("MIG_SIM_SCENARIO"))
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.Join(scenario, sim.ClockStep, os.Getenv("MIG_SIM_STATE"))
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	options := nvmlsource.Options{
		Now: node.Now, SlowEvery: 15 * time.Second, GPM: true, Logger: log.NewNopLogger(),
	}

	faces := []face{
		{"in process", nvmlsource.New(simnvml.New(node), options)},
		{"C library", nvmlsource.New(nvmlsource.Open(built("libnvidia-ml.so.1")), options)},
	}
	for _, step := range []time.Duration{0, 1500 * time.Millisecond, 40 * time.Second, 20 * time.Second} {
		if err := node.Advance(step); err != nil { // the library sees it in the state file
			t.Fatal(err)
		}

		if step == 20*time.Second {
			partition(t, node)
		}

		inProcess := faces[0].everything(t)

		inC := faces[1].everything(t)
		if inProcess != inC {
			t.Fatalf("after %s more:\n%s\n%s", step, inProcess, inC)
		}
	}

	for _, f := range faces {
		if err := f.source.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", f.about, err)
		}
	}
}

// partition creates one more GPU instance if there is room.
func partition(t *testing.T, node *sim.Node) {
	t.Helper()

	for index := range node.Count() {
		s, err := node.Read(index, gpu.ReadingMIG)
		if err != nil {
			t.Fatal(err)
		}

		for _, f := range s.Profiles {
			if id, err := node.CreateGPUInstance(index, f.ID, gpu.Opt[int]{}); err == nil {
				if _, err := node.CreateComputeInstance(index, id, 1); err != nil {
					t.Fatal(err)
				}

				return
			}
		}
	}
}

// everything is what a source reports of the node, as text.
func (f face) everything(t *testing.T) string {
	t.Helper()

	inventory, err := f.source.Discover()
	if err != nil {
		t.Fatalf("%s: %v", f.about, err)
	}

	all := []any{inventory}
	for _, found := range inventory.GPUs {
		g, err := f.source.ReadWith(found.UUID, gpu.ReadCues{FollowMemory: true,
			Extras: gpu.Extras{Media: true, InstanceECC: true, InstancePCIe: true, Fabric: true}})
		if err != nil {
			t.Fatalf("%s: %v", f.about, err)
		}

		for _, e := range g.Errors {
			all = append(all, e.Err.Error())
		}

		all = append(all, g)
	}

	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}
