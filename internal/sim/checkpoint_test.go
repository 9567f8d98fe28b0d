package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// checkpointed are the containers of the checkpoint, with their pods' names and numbers of devices.
func checkpointed(n *Node) string {
	names := map[string]string{}
	for _, p := range n.apiPods {
		names[p.uid] = p.spec.Name
	}

	var list []string

	for _, e := range n.Checkpoint().Entries {
		count := 0
		for _, ids := range e.DeviceIDs {
			count += len(ids)
		}

		list = append(list, fmt.Sprintf("%s/%s:%d", names[e.PodUID], e.Container, count))
	}

	return strings.Join(list, " ")
}

func TestCheckpoint(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A30, count: 6}]
pods:
  - {name: a, resource: nvidia.com/gpu, for: 10s}
  - {name: none, for: 5s}
  - {name: wide, resource: nvidia.com/gpu, count: 5}
  - {name: nothing, at: 11s}
  - {name: b, resource: nvidia.com/gpu, at: 20s, for: 5s}
  - {name: static, static: true, resource: nvidia.com/gpu, at: 30s}
faults: [{at: 29s, kind: kubelet-restart}, {at: 40s, for: 5s, kind: checkpoint-invalid}]
`)
	version := 0
	step := func(to time.Duration, entries string, writes int) Checkpoint {
		t.Helper()
		advance(t, n, to-n.Now().Sub(StepStart()))

		c := n.Checkpoint()
		if got := checkpointed(n); got != entries || c.Version != version+writes {
			t.Errorf("after %s: %q written %d times, want %q and %d", to, got, c.Version-version, entries, writes)
		}

		version = c.Version

		return c
	}
	first := step(0, "a/main:1 wide/main:5", 3)
	wide := first.Entries[1]
	cmptest.Equal(t, "devices on each NUMA node", [2]int{len(wide.DeviceIDs[0]), len(wide.DeviceIDs[1])}, [2]int{3, 2})
	cmptest.Equal(t, "resource", wide.Resource, "nvidia.com/gpu")

	if r := first.Registered; len(r) != 1 || len(r[0].IDs) != 6 {
		t.Errorf("registered %+v", r)
	}

	step(19*time.Second, "a/main:1 wide/main:5", 0) // a has ended
	step(20*time.Second, "wide/main:5 b/main:1", 1) // what ended is removed
	// the plugin registers, and nothing else
	step(29*time.Second, "wide/main:5 b/main:1", 1)
	// b stays: the pods are not all known yet
	step(30*time.Second, "wide/main:5 b/main:1 static/main:1", 1)

	if c := step(40*time.Second, "wide/main:5 b/main:1 static/main:1", 1); !c.Invalid { // it is damaged
		t.Error("it is not invalid")
	}

	if c := step(45*time.Second, "wide/main:5 b/main:1 static/main:1", 1); c.Invalid {
		t.Error("it is still invalid")
	}
}

func TestNoClaimsInTheCheckpoint(t *testing.T) {
	n := start(t, monitored)
	c := n.Checkpoint()
	cmptest.Equal(t, "entries and registered resources", [2]int{len(c.Entries), len(c.Registered)}, [2]int{})
	cmptest.Equal(t, "version", c.Version, 1)
}

// TestInitContainers: they run one after the other before the rest, are in no list, and their
// devices are the pod's until it ends. Other containers of the pod get them, too.
func TestInitContainers(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["1g.5gb@0"]}, {model: A100-40GB, count: 2}]
workloads: [{name: w, memory: 1GiB, sm: 4}]
pods:
  - name: p
    for: 20s
    containers:
      - {name: main, resource: nvidia.com/gpu, workload: w}
      - {name: fetch, init: true, for: 3s, resource: nvidia.com/mig-1g.5gb, workload: w}
      - {name: check, init: true, for: 2s, resource: nvidia.com/gpu, count: 2, workload: w}
  - {name: rival, resource: nvidia.com/mig-1g.5gb, at: 10s}
  - {name: heir, resource: nvidia.com/mig-1g.5gb, at: 20s}
`)

	running := func() string {
		var list []string

		for _, c := range n.Running() {
			if len(c.PIDs) > 0 {
				list = append(list, c.Name)
			}
		}

		return strings.Join(list, " ")
	}
	for second, want := range []string{"fetch", "fetch", "fetch", "check", "check", "main", "main"} {
		if got := running(); got != want {
			t.Errorf("after %d s %q runs, want %q", second, got, want)
		}

		advance(t, n, time.Second)
	}

	if got := listedPods(n); got != "mig-exporter-sim p" {
		t.Errorf("listed: %s", got)
	}

	if c := mustContainer(t, n, "p"); c.Name != "main" || len(c.Devices[0].IDs) != 1 {
		t.Errorf("listed: %+v", c)
	}

	if got := checkpointed(n); got != "p/main:1 p/fetch:1 p/check:2" {
		t.Errorf("checkpoint: %s", got)
	}

	inits := 0

	devices := map[gpu.UUID]bool{}
	for _, h := range n.Holdings() {
		devices[h.GPU] = true
		if h.Init {
			inits++
		}
	}

	if inits != 3 || len(devices) != 3 {
		t.Errorf("held: %+v", n.Holdings())
	}

	advance(t, n, 13*time.Second)

	if !recorded(n, "default/rival: refused") || !recorded(n, "default/heir: admitted") {
		t.Errorf("the device of an init container: %+v", n.Records())
	}
}

// TestInitContainerOutlivesItsPod: nothing starts after a pod's end.
func TestInitContainerOutlivesItsPod(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A30}]
workloads: [{name: w, memory: 1GiB, sm: 4}]
pods:
  - {name: p, for: 2s, containers: [{name: i, init: true, for: 5s, resource: nvidia.com/gpu, workload: w}, {name: c, resource: nvidia.com/gpu, workload: w}]}
`)
	advance(t, n, time.Second)

	if s := state(t, n, 0); len(s.Processes) != 1 {
		t.Errorf("%v", s.Processes)
	}

	for range 8 {
		advance(t, n, time.Second)

		if s := state(t, n, 0); len(s.Processes) != 0 || len(n.Holdings()) != 0 {
			t.Errorf("after its end: %v, %v", s.Processes, n.Holdings())
		}
	}
}

func TestStaleDevicePlugin(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "2g.10gb@4"]}]
workloads: [{name: w, memory: 1GiB, sm: 4}]
pods:
  - {name: misled, resource: nvidia.com/mig-2g.10gb, device: "0/2g.10gb@4", workload: w, at: 12s}
  - {name: refused, resource: nvidia.com/mig-1g.5gb, at: 12s}
  - {name: right, resource: nvidia.com/mig-1g.5gb, workload: w, at: 20s}
faults:
  - {at: 10s, gpu: 0, kind: external-reconfigure, layout: ["3g.20gb@0", "1g.5gb@4"]}
  - {at: 10s, for: 10s, kind: device-plugin-stale}
`)
	offered := func() []string {
		var ids []string
		for _, d := range n.Allocatable() {
			ids = append(ids, d.IDs...)
		}

		return ids
	}
	before := offered()
	advance(t, n, 12*time.Second)

	if got := offered(); !slices.Equal(got, before) {
		t.Errorf("stale: %v, want %v", got, before)
	}

	c := mustContainer(t, n, "misled")

	given := c.Devices[0].IDs[0]
	if len(c.PIDs) != 0 {
		t.Errorf("misled has processes %v, want none", c.PIDs)
	}

	if !slices.Contains(before, given) {
		t.Errorf("misled has %s, want one of %v", given, before)
	}

	if slices.ContainsFunc(state(t, n, 0).Devices, func(d *MIGDevice) bool { return string(d.Compute.UUID) == given }) {
		t.Errorf("misled has %s, want a device that does not exist", given)
	}

	wantAbsentHolding(t, n, gpu.MIGUUID(given))

	if !recorded(n, "default/misled: container main does not start") || !recorded(n, "default/refused: refused") {
		t.Errorf("%+v", n.Records())
	}

	advance(t, n, 8*time.Second)

	got := offered()
	if slices.Equal(got, before) {
		t.Errorf("after the plugin's restart it offers %v, as before", got)
	}

	cmptest.Equal(t, "devices after the plugin's restart", len(got), 2)
	cmptest.Equal(t, "processes of right", len(mustContainer(t, n, "right").PIDs), 1)
}

// wantAbsentHolding expects that one device is held, which does not exist.
func wantAbsentHolding(t *testing.T, n *Node, device gpu.MIGUUID) {
	t.Helper()

	h := n.Holdings()
	if len(h) != 1 {
		t.Fatalf("held: %+v, want one device", h)
	}

	cmptest.Equal(t, "the held device exists", h[0].Present, false)
	cmptest.Equal(t, "the held device", h[0].MIG, device)
}

// TestDeviceCreatedAgain: the kubelet goes by ids, and does not give one away twice.
func TestDeviceCreatedAgain(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}]
pods:
  - {name: holder, resource: nvidia.com/mig-3g.20gb, for: 5s}
  - {name: second, resource: nvidia.com/mig-3g.20gb, at: 2s}
  - {name: third, resource: nvidia.com/mig-3g.20gb, at: 5s}
faults: [{at: 1s, gpu: 0, kind: external-reconfigure, layout: ["3g.20gb@0"]}]
`)
	advance(t, n, 2*time.Second)
	wantAbsentHolding(t, n, state(t, n, 0).Devices[0].Compute.UUID)
	advance(t, n, 3*time.Second)

	if !recorded(n, "default/second: refused") || !recorded(n, "default/third: admitted") {
		t.Errorf("%+v", n.Records())
	}
}

// TestHAMiSpreadsOverMIGDevices, whose ids name the GPU alone.
func TestHAMiSpreadsOverMIGDevices(t *testing.T) {
	n := start(t, `
version: 1
node: {allocator: hami}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}]
pods: [{name: a, resource: nvidia.com/gpu}, {name: b, resource: nvidia.com/gpu}]
`)
	if h := n.Holdings(); len(h) != 2 || h[0].MIG == h[1].MIG {
		t.Errorf("held: %+v", h)
	}
}
