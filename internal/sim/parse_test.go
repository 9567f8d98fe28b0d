package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// badScenario is a good scenario with one thing wrong; its error names file, line, key and what was
// expected.
type badScenario struct{ name, text, want string }

// goodHead is where most of them begin; the next line is the fourth.
const goodHead = "version: 1\ngpus:\n  - {model: A100-40GB, count: 2}\n"

func badFiles() []badScenario {
	return []badScenario{
		{"empty", "", "bad.yaml:1: is empty"},
		{"no YAML", "version: [1\n", "bad.yaml:"},
		{"a list", "- 1\n", "bad.yaml:1: is a list; expected a mapping"},
		{"two documents", goodHead + "---\nversion: 1\n", "bad.yaml:4: a second document"},
		{"no version", "gpus: []\n", "bad.yaml:1: version: is missing; expected 1, the version"},
		{"no gpus", "version: 1\n", "bad.yaml:1: gpus: is missing"},
		{"unknown key", goodHead + "pod: []\n", "bad.yaml:4: pod: is not known here; expected one of version, node, seed, gpus, workloads, pods"},
		{"twice", goodHead + "seed: 1\nseed: 2\n", "bad.yaml:5: seed: duplicate key"},
		{"version", "version: 2\ngpus: []\n", "bad.yaml:1: version: is 2; expected 1, the version"},
		{"alias of something else", "version: 1\ngpus: &g\n  - {model: A30}\npods: *g\n", "bad.yaml:3: pods[0].model: is not known here; expected one of namespace"},
		{
			"alias of a layout with a mistake", "version: 1\ngpus:\n  - {model: A100-40GB, mig: true, layout: [&a {gi: \"3g.20gb@0\", ci: [9c]}, *a]}\n",
			"bad.yaml:3: gpus[0].layout[1].ci[0]: ",
		},
		{"unquoted driver", goodHead + "node: {driver: 580.95}\n", `bad.yaml:4: node.driver: is 580.95; expected a driver version such as "580.95.05"`},
		{"driver", goodHead + "node: {driver: new}\n", `bad.yaml:4: node.driver: is "new"; expected a driver version`},
		{"CUDA version", goodHead + "node: {cuda: \"13.05\"}\n", `bad.yaml:4: node.cuda: is "13.05"; expected a version such as "13.0"`},
		{"PID namespace", goodHead + "node: {pidNamespace: pod}\n",
			`bad.yaml:4: node.pidNamespace: is "pod"; expected one of host, container`},
		{"cost of no call", goodHead + "driverCosts: {nvmlDeviceGetFoo: 1ms}\n", `bad.yaml:4: driverCosts.nvmlDeviceGetFoo: is "nvmlDeviceGetFoo"; expected a class of calls (exclusive, gpu, shared, mapped, unknown) or a function of NVML without its version`},
		{"cost that is no duration", goodHead + "driverCosts: {exclusive: 4.5}\n", "bad.yaml:4: driverCosts.exclusive: is 4.5; expected a duration such as 30s or 1h30m"},
		{"cost twice", goodHead + "driverCosts: {exclusive: 1ms, exclusive: 2ms}\n", "bad.yaml:4: driverCosts.exclusive: duplicate key"},
		{"allocator", goodHead + "node: {allocator: docker}\n", `bad.yaml:4: node.allocator: is "docker"; expected one of device-plugin, gke, hami, dra`},
	}
}

func badGPUs() []badScenario {
	return []badScenario{
		{"unknown model", "version: 1\ngpus:\n  - {model: B300}\n", `bad.yaml:3: gpus[0].model: is "B300", which cannot be simulated; expected one of A30-24GB, A100-40GB`},
		{"count", "version: 1\ngpus:\n  - {model: A30, count: 0}\n", `gpus[0].count: is 0; expected a whole number from 1`},
		{"fans", "version: 1\ngpus:\n  - {model: A30, fans: 9}\n", `gpus[0].fans: is 9; expected a whole number from 0 to 8`},
		{"layout without MIG", "version: 1\ngpus:\n  - {model: A30, layout: []}\n", "bad.yaml:3: gpus[0].layout: is given without mig: true"},
		{"unknown profile", "version: 1\ngpus:\n  - {model: A30, mig: true, layout: [\"3g.20gb@0\"]}\n",
			`gpus[0].layout[0]: is "3g.20gb@0"; expected one of the model's profiles (1g.6gb, `},
		{"bad start", "version: 1\ngpus:\n  - {model: A100-40GB, mig: true, layout: [\"3g.20gb@2\"]}\n",
			`gpus[0].layout[0]: is "3g.20gb@2"; expected 3g.20gb at one of its placements, @0, @4`},
		{"no start", "version: 1\ngpus:\n  - {model: A100-40GB, mig: true, layout: [\"3g.20gb\"]}\n", "at one of its placements"},
		{"overlap", "version: 1\ngpus:\n  - {model: A100-40GB, mig: true, layout: [\"3g.20gb@0\", \"1g.5gb@2\"]}\n",
			"gpus[0].layout[1]: 1g.5gb@2:1 overlaps 3g.20gb@0:4"},
		{"two media extensions", "version: 1\ngpus:\n  - {model: A100-40GB, mig: true, layout: [\"1g.5gb+me@0\", \"1g.5gb+me@2\"]}\n",
			"gpus[0].layout[1]: the layout has a second profile with media extensions"},
		{"too many engines", "version: 1\ngpus:\n  - {model: RTX-PRO-6000, mig: true, layout: [1g.24gb@0, 1g.24gb+me.all@9]}\n",
			"gpus[0].layout[1]: the layout has more copy or media engines than the GPU"},
		{"too many compute slices", "version: 1\ngpus:\n  - {model: A100-40GB, mig: true, layout: [{gi: \"3g.20gb@0\", ci: [2c, 2c]}]}\n",
			"gpus[0].layout[0]: its compute instances take 4 slices of 3"},
		{"bad compute instance", "version: 1\ngpus:\n  - {model: A100-40GB, mig: true, layout: [{gi: \"3g.20gb@0\", ci: [4c]}]}\n",
			`gpus[0].layout[0].ci[0]: is "4c"; expected a compute instance of 3g.20gb`},
		{"sharing", "version: 1\ngpus:\n  - {model: A30, sharing: {kind: luck}}\n", "gpus[0].sharing.kind: is \"luck\"; expected one of time-slicing, mps"},
		{"minor of many", "version: 1\ngpus:\n  - {model: A30, count: 2, minor: 3}\n", "gpus[0].minor: is given for 2 GPUs"},
	}
}

// badDemands are workloads whose keys contradict each other.
func badDemands() []badScenario {
	var list []badScenario

	for keys, want := range map[string]string{
		"sm: 4, width: 4":                                                              "sm: is set together with width; expected sm alone",
		"sm: 4, requests: {rate: 1, gpu: 1ms}":                                         "sm: is set together with requests",
		"dram: 0.5, width: 4, busy: 0.5":                                               "dram: is set together with width; expected bandwidth",
		"width: 4, phases: [{share: 1, width: 4}], busy: 1":                            "phases: is set together with width; expected the widths of the phases",
		"bandwidth: 0.4, phases: [{share: 1, width: 4}], busy: 1":                      "phases: is set together with bandwidth",
		"width: 4, busy: 0.5, requests: {rate: 1, gpu: 1ms}":                           "requests: is set together with busy; expected either",
		"width: 4, bandwidth: 0.2":                                                     "has width and bandwidth without a time; expected busy or requests",
		"busy: 0.4":                                                                    "has busy without a width; expected width or phases",
		"phases: [{share: 0.4, width: 4}, {share: 0.4, width: 9}], busy: 1":            "phases: has shares that add up to 0.8; expected 1",
		"phases: [], busy: 1":                                                          "phases: has shares that add up to 0; expected 1",
		"phases: [{share: 1}], busy: 1":                                                "phases[0].width: is missing",
		"width: 4, bandwidth: 0.95, busy: 1":                                           "bandwidth: is 0.95; expected a number from 0 to 0.9, what kernels reach",
		"width: 4, requests: {gpu: 1ms}":                                               "requests: expected either concurrency",
		"width: 4, requests: {gpu: 1ms, rate: 1, concurrency: 1}":                      "requests: expected either concurrency",
		"width: 4, requests: {gpu: 0s, rate: 1}":                                       `requests.gpu: is "0s"; expected more than no time`,
		"width: 4, requests: {rate: 1}":                                                "requests.gpu: is missing; expected the time on the GPU",
		"width: 4, requests: {rate: 1, gpu: 1ms, think: 1s}":                           "requests.think: is not known here",
		"width: 4, busy: 1, loss: 2":                                                   "loss: is 2; expected a number from 0 to 1",
		"width: 4, requests: {rate: {sine: {min: 9, max: 1, period: 1h}}, gpu: 100ms}": "requests.rate.sine.max: is below min",
	} {
		at := "bad.yaml:5: workloads[0]."
		if strings.HasPrefix(want, "has ") {
			at = "bad.yaml:5: workloads[0]: "
		}

		list = append(list, badScenario{keys, goodHead + "workloads:\n  - {name: w, " + keys + "}\n", at + want})
	}

	return list
}

func badWork() []badScenario {
	return []badScenario{
		{"bad size", goodHead + "workloads:\n  - {name: w, memory: 6GB}\n", `bad.yaml:5: workloads[0].memory: is "6GB"; expected a size such as 512MiB`},
		{"bad share", goodHead + "workloads:\n  - {name: w, dram: 1.5}\n", `workloads[0].dram: is 1.5; expected a number from 0 to 1`},
		{"bad engines", goodHead + "workloads:\n  - {name: w, decoder: 65}\n", `workloads[0].decoder: is 65; expected a number from 0 to 64`},
		{"no shape", goodHead + "workloads:\n  - {name: w, sm: {repeat: 1m}}\n", "workloads[0].sm: has 0 shapes; expected exactly one of sine, steps or trace"},
		{"bad sine", goodHead + "workloads:\n  - {name: w, sm: {sine: {min: 4, max: 2, period: 1m}}}\n", "workloads[0].sm.sine.max: is below min"},
		{"no period", goodHead + "workloads:\n  - {name: w, sm: {sine: {min: 1, max: 2}}}\n", "workloads[0].sm.sine.period: is missing"},
		{"steps back", goodHead + "workloads:\n  - {name: w, sm: {steps: [{at: 2m, value: 1}, {at: 1m, value: 2}]}}\n",
			"workloads[0].sm.steps[1].at: is 1m0s; expected a time after the step before"},
		{"trace outside", goodHead + "workloads:\n  - {name: w, sm: {trace: ../x.csv}}\n", "workloads[0].sm.trace: is \"../x.csv\"; expected a file below"},
		{"workload twice", goodHead + "workloads:\n  - {name: w}\n  - {name: w}\n", "bad.yaml:6: workloads[1].name"},
		{"unknown workload", goodHead + "pods:\n  - {name: p, resource: nvidia.com/gpu, workload: w}\n",
			`bad.yaml:5: pods[0].workload: is "w"; expected one of the names of this file, of which there are none yet`},
		{"no resource", goodHead + "workloads: [{name: w}]\npods:\n  - {name: p, workload: w}\n", "pods[0].resource: is missing"},
		{"bad duration", goodHead + "pods:\n  - {name: p, at: soon}\n", `pods[0].at: is "soon"; expected a duration such as 30s`},
		{"name twice", goodHead + "pods:\n  - {name: p}\n  - {name: p, at: 1m}\n", `bad.yaml:6: pods[1].name: is "p" while a pod`},
		{"pod name", goodHead + "pods:\n  - {name: ../p, resource: r}\n", `bad.yaml:5: pods[0].name: is "../p"; expected lower-case letters`},
		{"misspelt profile", goodHead + "pods:\n  - {name: p, resource: r, device: 0/1g.6gbb@0}\n", `pods[0].device: is "0/1g.6gbb@0"; expected one of A100-40GB's profiles (1g.5gb, `},
		{"no such GPU", goodHead + "pods:\n  - {name: p, resource: r, device: 7}\n", `pods[0].device: is 7; expected a GPU's index from 0 to 1`},
		{"container beside containers", goodHead + "pods:\n  - {name: p, resource: r, containers: []}\n", "pods[0].resource: is set together with containers"},
		{"label", goodHead + "pods:\n  - {name: p, labels: {a: 1}}\n", `pods[0].labels.a: is 1; expected text`},
		{"pods without Kubernetes", goodHead + "node: {kubernetes: false}\npods:\n  - {name: p}\n", "pods: the node has kubernetes: false"},
		{"process nowhere", goodHead + "workloads: [{name: w}]\nprocesses:\n  - {workload: w}\n", "processes[0]: expected either gpu"},
		{"admin access without claims", goodHead + "pods:\n  - {name: p, resource: nvidia.com/gpu, admin: true}\n",
			"bad.yaml:5: pods[0].admin: is true; expected a node with allocator dra, not device-plugin"},
		{"admin access to nothing", goodHead + "node: {allocator: dra}\npods:\n  - {name: p, admin: true}\n", "bad.yaml:6: pods[0].resource: is missing"},
		{"admin that is no boolean", goodHead + "pods:\n  - {name: p, resource: r, admin: all}\n", `pods[0].admin: is "all"; expected true or false`},
		{"static pod with an owner", goodHead + "pods:\n  - {name: p, static: true, owner: Deployment/p}\n",
			`bad.yaml:5: pods[0].owner: is "Deployment/p"; expected none`},
		{"static pod with a claim", goodHead + "node: {allocator: dra}\npods:\n  - {name: p, static: true, resource: nvidia.com/gpu}\n",
			"bad.yaml:6: pods[0].static: is true; expected a pod of the API server"},
		{"static that is no boolean", goodHead + "pods:\n  - {name: p, static: 1}\n", `pods[0].static: is 1; expected true or false`},
		{"name of a static pod on its node", goodHead + "pods:\n  - {name: p-gpu-node}\n  - {name: p, static: true}\n", `bad.yaml:6: pods[1].name: is "p" while a pod`},
		{"the exporter's own pod", goodHead + "pods:\n  - {namespace: mig-exporter, name: mig-exporter-sim}\n",
			`bad.yaml:5: pods[0].name: is "mig-exporter-sim", the exporter's own pod in namespace mig-exporter`},
		{"init container beside no containers", goodHead + "pods:\n  - {name: p, init: true}\n", "bad.yaml:5: pods[0].init: is not known here; expected one of namespace, name"},
		{"init containers alone", goodHead + "pods:\n  - {name: p, containers: [{name: i, init: true, for: 1s}]}\n", "pods[0].containers: has init containers alone"},
		{"init container without an end", goodHead + "pods:\n  - {name: p, containers: [{name: i, init: true}, {name: c}]}\n",
			"pods[0].containers[0].for: is missing; expected how long the init container runs"},
		{"init container for no time", goodHead + "pods:\n  - {name: p, containers: [{name: i, init: true, for: 0s}, {name: c}]}\n",
			`pods[0].containers[0].for: is "0s"; expected more than no time`},
		{"container that ends", goodHead + "pods:\n  - {name: p, containers: [{name: c, for: 1s}]}\n",
			"pods[0].containers[0].for: is given without init: true; expected it at the pod"},
		{"init that is no boolean", goodHead + "pods:\n  - {name: p, containers: [{name: c, init: first}]}\n", `pods[0].containers[0].init: is "first"; expected true or false`},
	}
}

func badFaults() []badScenario {
	return []badScenario{
		{"slow API server without a delay", goodHead + "faults:\n  - {kind: api-server-slow}\n", "faults[0].delay: is missing"},
		{"API server of one GPU", goodHead + "faults:\n  - {kind: api-server-down, gpu: 0}\n", "faults[0].gpu: has no meaning for a api-server-down fault"},
		{"fault kind", goodHead + "faults:\n  - {kind: fire}\n", `faults[0].kind: is "fire"; expected one of activity-above-one, activity-nan, api-server-down, api-server-slow, change-fails, checkpoint-invalid`},
		{"fault's key", goodHead + "faults:\n  - {kind: hang, gpu: 1, xid: 3}\n", "faults[0].xid: has no meaning for a hang fault"},
		{"fault's reading to begin with", goodHead + "faults:\n  - {kind: hang, gpu: 1, during: lunch}\n", `faults[0].during: is "lunch"; expected one of activity, `},
		{"fault that cannot wait for a reading", goodHead + "faults:\n  - {kind: slow, delay: 1s, during: power}\n", "faults[0].during: has no meaning for a slow fault"},
		{"fault that begins twice", goodHead + "faults:\n  - {kind: hang, during: power, on: create-gi}\n", "faults[0].on: is set together with during"},
		{"fault of a change that is none", goodHead + "faults:\n  - {kind: lost, on: reset}\n", `faults[0].on: is "reset"; expected one of create-gi, create-ci`},
		{"creation elsewhere of what is destroyed", goodHead + "faults:\n  - {kind: create-elsewhere, on: destroy-gi}\n", `faults[0].on: is "destroy-gi"`},
		{"fault after no change", goodHead + "faults:\n  - {kind: lost, after: 1}\n", "faults[0].after: has no meaning without on"},
		{"change that fails for nothing", goodHead + "faults:\n  - {kind: change-fails, on: change}\n", "faults[0].error: is missing"},
		{"error of a change", goodHead + "faults:\n  - {kind: change-fails, on: change, error: rain}\n", `faults[0].error: is "rain"; expected one of in-use`},
		{"fault of one GPU's kubelet", goodHead + "faults:\n  - {kind: kubelet-down, gpu: 1}\n", "faults[0].gpu: has no meaning for a kubelet-down fault"},
		{"jump by nothing", goodHead + "faults:\n  - {kind: clock-jump, by: 0s}\n", "faults[0].by: is \"0s\"; expected a duration such as 10m or -10m"},
		{"heat without a temperature", goodHead + "faults:\n  - {kind: overheat, gpu: 1}\n", "faults[0].celsius: is missing"},
		{"heat beyond all", goodHead + "faults:\n  - {kind: overheat, celsius: 200}\n", "faults[0].celsius: is 200; expected a whole number from 0 to 127"},
		{"fault without xid", goodHead + "faults:\n  - {kind: xid, gpu: 1}\n", "faults[0].xid: is missing"},
		{"fault's GPU", goodHead + "faults:\n  - {kind: hang, gpu: 2}\n", `faults[0].gpu: is 2; expected a whole number from 0 to 1`},
	}
}

func TestBadScenarios(t *testing.T) {
	for _, tc := range slices.Concat(badFiles(), badGPUs(), badWork(), badDemands(), badFaults()) {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("bad.yaml", []byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want one with %q", err, tc.want)
			}

			var parseError *strictyaml.Error
			if !errors.As(err, &parseError) || parseError.Line < 1 {
				t.Errorf("%#v has no line", err)
			}
		})
	}
}

func TestAllErrorsAreTold(t *testing.T) {
	_, err := Parse("bad.yaml", []byte("version: 2\ngpus:\n  - {model: X}\n  - {model: Y}\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v, want three errors", err)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	if _, err := Load("no/such.yaml"); err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestTrace(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		return path
	}
	write("load.csv", "seconds, sm\n0, 4\n60, 20\n120, 8\n")
	write("bad.csv", "0, 4\n60, many\n")
	const text = "version: 1\ngpus: [{model: A30}]\nworkloads: [{name: w, sm: {trace: %s, repeat: 3m}}]\n" +
		"pods: [{name: p, resource: nvidia.com/gpu, workload: w}]\n"

	s, err := Load(write("s.yaml", fmt.Sprintf(text, "load.csv")))
	if err != nil {
		t.Fatal(err)
	}

	sm := s.Pods[0].Containers[0].Workload.Demand.Width
	for at, want := range map[time.Duration]float64{0: 4, 59 * time.Second: 4, time.Minute: 20, 2 * time.Minute: 8, 4 * time.Minute: 20} {
		if got := sm.At(at, 0); got != want {
			t.Errorf("after %s: %g, want %g", at, got, want)
		}
	}

	if _, err := Load(write("b.yaml", fmt.Sprintf(text, "bad.csv"))); err == nil || !strings.Contains(err.Error(), `workloads[0].sm.trace: line 2: is "many"`) {
		t.Errorf("got %v", err)
	}
}

func TestEveryModelHasAGeometry(t *testing.T) {
	for _, b := range gpuModels() {
		found, ok := findModel(b.key)
		if !ok {
			t.Errorf("%s: no geometry", b.key)
			continue
		}

		m := found.mig
		if !m.PlacementsKnown() || m.Architecture != string(b.arch) {
			t.Errorf("%s: geometry %s of %s", b.key, m.Name, m.Architecture)
		}

		total := uint64(0)
		for _, f := range m.Profiles {
			total = max(total, f.MemoryBytes>>20)
		}

		if total == 0 || total > b.memoryMiB {
			t.Errorf("%s: the largest profile has %d MiB, want 1 to %d", b.key, total, b.memoryMiB)
		}

		if m.SMs > b.sms {
			t.Errorf("%s: geometry %s has %d SMs, want %d at most", b.key, m.Name, m.SMs, b.sms)
		}
	}
}

// Whatever a file says, it is refused or it makes a node that runs.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(scenarioFolder, "*.yaml"))
	if err != nil {
		f.Fatal(err)
	}

	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}

		f.Add(text)
	}

	f.Add([]byte("version: 1\ngpus: [{model: A30, mig: true, layout: [&a {gi: \"1g.6gb@0\", ci: [1c]}, *a]}]\n"))
	f.Add([]byte("version: 1\ngpus: [{model: A30, mig: true, layout: [{gi: \"2g.12gb@0\", ci: [1c, 1c]}]}]\nfaults: [{kind: lost}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse("fuzz.yaml", text)
		if err != nil {
			var parseError *strictyaml.Error
			if !errors.As(err, &parseError) {
				t.Errorf("error %v names no place", err)
			}

			return
		}

		if len(s.GPUs) > 16 || len(s.Pods) > 64 {
			return // costs time and shows nothing more
		}

		n, err := New(s, NewClock(ClockStep))
		if err != nil {
			t.Fatalf("accepted, but: %v", err)
		}
		defer n.Close()

		if err := n.Advance(10 * time.Second); err != nil {
			t.Fatal(err)
		}

		n.Containers()
		n.Allocatable()
	})
}
