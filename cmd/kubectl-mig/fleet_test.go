package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

const (
	leases     = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases/"
	configMaps = "/api/v1/namespaces/" + namespace + "/configmaps/"
)

// realFleet is a cluster whose nodes have real exporters, and the built kubectl-mig.
type realFleet struct {
	*world
	t      *testing.T
	binary string
	run    string // the name of the run
}

// newRealFleet starts an exporter for each node, with a scenario. The nodes offer their devices by DRA.
func newRealFleet(t *testing.T, scenarios map[string]string) *realFleet {
	t.Helper()

	binary, err := testbuild.KubectlMig()
	if err != nil {
		t.Fatal(err)
	}

	f := &realFleet{world: newWorld(t), t: t, binary: binary}

	var pods []fakePod

	for _, node := range slices.Sorted(maps.Keys(scenarios)) {
		pods = append(pods, fakePod{
			name: "mig-exporter-" + node, node: node, phase: "Running", port: controlPort,
			address: startExporter(t, f.world, node, scenarios[node]),
		})

		f.api.objects.Lock()
		f.api.objects.Put("/api/v1/nodes/"+node, map[string]any{
			"kind": "Node", "apiVersion": "v1",
			"metadata": map[string]any{"labels": map[string]any{"pool": "a100"}}, "spec": map[string]any{},
		})
		f.api.objects.Put("/apis/resource.k8s.io/v1/resourceslices/"+node, map[string]any{
			"spec": map[string]any{"driver": "gpu.nvidia.com", "nodeName": node},
		})
		f.api.objects.Unlock()
	}

	f.api.set(func() { f.api.pods = pods })

	return f
}

// command returns a command that runs kubectl mig.
func (f *realFleet) command(kubeconfig string, args ...string) *exec.Cmd {
	f.t.Helper()

	return newCommand(f.t, f.binary, f.binary, kubeconfig, args...)
}

// must runs a command line that has to end with an exit code, and returns what it has written.
func (f *realFleet) must(code int, kubeconfig string, args ...string) string {
	f.t.Helper()

	got := runCommand(f.t, f.command(kubeconfig, args...))
	if got.code != code {
		f.t.Fatalf("%v: exit code %d: %s%s", args, got.code, got.out, got.err)
	}

	return got.out + got.err
}

// state returns the saved state of the run.
func (f *realFleet) state() *rollout.Run {
	f.t.Helper()

	text, _ := f.api.objects.Get(configMaps+f.run, "data", "run.json").(string)

	var run rollout.Run
	if err := json.Unmarshal([]byte(text), &run); err != nil {
		f.t.Fatalf("the run's state: %v: %s", err, text)
	}

	return &run
}

// expectNode compares the instances that stand on a node, its operations, the phase that the run has
// saved, and that the node is not cordoned.
func (f *realFleet) expectNode(node string, phase rollout.Phase, operations int, instances ...string) {
	f.t.Helper()

	found := map[string]bool{}
	text := f.must(0, f.kubeconfig, "get", node, "-o", "json")

	for _, match := range regexp.MustCompile(`"profile": "(\dg\.\d+gb)"`).FindAllStringSubmatch(text, -1) {
		found[match[1]] = true
	}

	cmptest.Equal(f.t, "instances on "+node, slices.Sorted(maps.Keys(found)), instances)

	var list api.Operations
	if err := json.Unmarshal([]byte(f.must(0, f.kubeconfig, "operations", node, "-o", "json")), &list); err != nil {
		f.t.Fatal(err)
	}

	cmptest.Equal(f.t, "operations on "+node, len(list.Operations), operations)

	run := f.state()
	at := slices.IndexFunc(run.Nodes, func(n rollout.Node) bool { return n.Name == node })
	cmptest.Equal(f.t, "phase of "+node, run.Nodes[at].Phase, phase)

	cordoned := f.api.objects.Get("/api/v1/nodes/"+node, "spec", "unschedulable")
	mark := f.api.objects.Get("/api/v1/nodes/"+node, "metadata", "annotations", "mig-exporter.io/cordoned-by-run")
	cmptest.Equal(f.t, node+" is cordoned", cordoned == true || mark != nil, false)
}

// expectReleased checks that no client owns the run.
func (f *realFleet) expectReleased() {
	f.t.Helper()

	if holder := f.api.objects.Get(leases+f.run, "spec", "holderIdentity"); holder != nil {
		f.t.Errorf("the Lease is held by %v", holder)
	}
}

// killAt starts a command line and kills it when it is about to save a node's phase, which it then
// has not saved.
func (f *realFleet) killAt(node string, phase rollout.Phase, args ...string) {
	f.t.Helper()

	reached := make(chan struct{})
	api := f.api.objects

	api.Lock()
	api.Before = func(r *http.Request) {
		if r.Method != http.MethodPut || r.URL.Path != configMaps+f.run {
			return
		}

		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))

		var object struct{ Data map[string]string }
		var run rollout.Run

		if err != nil || json.Unmarshal(body, &object) != nil ||
			json.Unmarshal([]byte(object.Data["run.json"]), &run) != nil {
			return
		}

		for i := range run.Nodes {
			if n := &run.Nodes[i]; n.Name == node && n.Phase == phase {
				close(reached)
				<-r.Context().Done() // the client is gone
				panic(http.ErrAbortHandler)
			}
		}
	}
	api.Unlock()

	command := f.command(f.kubeconfig, args...)
	var out bytes.Buffer
	command.Stdout = &out
	command.Stderr = &out

	if err := command.Start(); err != nil {
		f.t.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()

	select {
	case <-reached:
		command.Process.Kill()
		<-ended
	case err := <-ended:
		f.t.Fatalf("%v ended before: %v: %s", args, err, out.String())
	}

	api.Lock()
	api.Before = nil
	api.Unlock()
}

const (
	twoInstances = `{gpus: [0], devices: {2g.10gb: 1, 3g.20gb: 1}}`
	fleetFile    = `
apiVersion: mig-exporter/v1
kind: Fleet
entries:
- {selector: pool=a100, spec: ` + twoInstances + `}
`
)

// TestFleet: a run over three nodes with real exporters, of which one fails in the middle; kubectl
// mig is killed in the middle of the next attempt, and resumed by another operator; then the run is
// rolled back.
func TestFleet(t *testing.T) {
	f := newRealFleet(t, map[string]string{
		"gpu-01": scenario,
		"gpu-02": scenario + "faults: [{kind: change-fails, gpu: 0, on: create-ci, error: insufficient-resources}]\n",
		"gpu-03": scenario,
	})

	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(fleetFile), 0o600); err != nil {
		t.Fatal(err)
	}

	cmptest.HasTexts(t, f.must(0, f.kubeconfig, "plan", "-f", file), "gpu-01\n", "gpu-02\n", "gpu-03\n", "+ 2g.10gb at 0:2")

	out := f.must(7, f.kubeconfig, "apply", "-f", file, "--yes", "--reason=ticket 17", "--context=prod")
	cmptest.HasTexts(t, flat(out), "gpu-02: failed", "is rolled-back", "1 more nodes were not begun")

	match := regexp.MustCompile(`To go on: kubectl mig --context=prod apply --resume=(\S+)`).FindStringSubmatch(out)
	if match == nil {
		t.Fatalf("it does not say how to go on:\n%s", out)
	}

	f.run = match[1]
	f.expectNode("gpu-01", rollout.Done, 1, "2g.10gb", "3g.20gb")
	f.expectNode("gpu-02", rollout.Failed, 1, "3g.20gb")
	f.expectNode("gpu-03", rollout.Waiting, 0, "3g.20gb")
	f.expectReleased()
	cmptest.HasTexts(t, f.must(0, f.kubeconfig, "operations", "gpu-01", "-o", "json"), `"statedReason": "ticket 17"`)

	// The operation of gpu-03 has begun, and its name is not saved yet.
	f.killAt("gpu-03", rollout.Running, "apply", "--resume", f.run, "--yes")
	cmptest.Equal(t, "gpu-03 is cordoned", f.api.objects.Get("/api/v1/nodes/gpu-03", "spec", "unschedulable"), any(true))

	f.forgetOffers()

	other := f.api.kubeconfig(t, secondToken)
	cmptest.HasTexts(t, f.must(0, other, "apply", "--resume", f.run, "--yes"), "Waiting until it is known", "gpu-03: done")

	f.expectNode("gpu-01", rollout.Done, 1, "2g.10gb", "3g.20gb")
	f.expectNode("gpu-02", rollout.Done, 2, "2g.10gb", "3g.20gb")
	f.expectNode("gpu-03", rollout.Done, 1, "2g.10gb", "3g.20gb")
	f.expectReleased()
	cmptest.HasTexts(t, f.must(0, other, "apply", "--resume", f.run), "Nothing is left to do.")

	f.rollBack(other)
}

// TestPlanNamesInstancesByIndex: the plan for a node with a real exporter names an instance in the way as
// migctl does.
func TestPlanNamesInstancesByIndex(t *testing.T) {
	f := newRealFleet(t, map[string]string{"gpu-01": scenario +
		"workloads: [{name: w, sm: 30}]\nprocesses: [{device: \"0/3g.20gb@4\", workload: w}]\n"})

	file := filepath.Join(t.TempDir(), "fleet.yaml")
	text := "apiVersion: mig-exporter/v1\nkind: Fleet\nentries: [{node: gpu-01, spec: {gpus: [0], devices: {7g.40gb: 1}}}]\n"

	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	out := f.must(1, f.kubeconfig, "plan", "-f", file)
	cmptest.HasTexts(t, out, "in the way: GPU 0 3g.20gb@4\n", "not by pods: GPU 0 3g.20gb@4: ")

	if strings.Contains(out, "MIG-") {
		t.Errorf("the plan has UUIDs:\n%s", out)
	}
}

// forgetOffers removes what the nodes offered from the run's state, which an older kubectl mig has not
// saved either.
func (f *realFleet) forgetOffers() {
	f.t.Helper()

	run := f.state()
	forgotten := 0

	for i := range run.Nodes {
		if run.Nodes[i].Before != nil {
			run.Nodes[i].Before = nil
			forgotten++
		}
	}

	cmptest.Equal(f.t, "nodes in progress", forgotten, 1)

	text, err := json.Marshal(run)
	if err != nil {
		f.t.Fatal(err)
	}

	f.api.objects.Lock()
	defer f.api.objects.Unlock()

	object := f.api.objects.Objects[configMaps+f.run]
	object["data"] = map[string]any{"run.json": string(text)}
}

// rollBack rolls the run back: one node by its name, then the others.
func (f *realFleet) rollBack(kubeconfig string) {
	f.t.Helper()

	before := f.state()

	f.must(0, kubeconfig, "rollback", "--run", f.run, "gpu-02", "--yes", "--reason=ticket 18")
	f.expectNode("gpu-01", rollout.Done, 1, "2g.10gb", "3g.20gb")
	f.expectNode("gpu-02", rollout.Done, 3, "3g.20gb")

	f.must(0, kubeconfig, "rollback", "--run", f.run, "--yes")
	f.expectNode("gpu-01", rollout.Done, 2, "3g.20gb")
	f.expectNode("gpu-02", rollout.Done, 3, "3g.20gb")
	f.expectNode("gpu-03", rollout.Done, 2, "3g.20gb")
	f.expectReleased()

	after := f.state()

	for i := range after.Nodes {
		n := &after.Nodes[i]
		text := f.must(0, kubeconfig, "operations", n.Name, n.RolledBackBy, "-o", "json")
		cmptest.HasTexts(f.t, text, fmt.Sprintf(`"rollbackOf": %q`, before.Nodes[i].Operation))
	}

	cmptest.HasTexts(f.t, f.must(0, kubeconfig, "operations", "gpu-02", "-o", "json"), `"statedReason": "ticket 18"`)

	got := runCommand(f.t, f.command(kubeconfig, "rollback", "--run", f.run, "--yes"))
	cmptest.Equal(f.t, "exit code if nothing is left to undo", got.code, 1)
	cmptest.HasTexts(f.t, strings.TrimSpace(f.must(0, kubeconfig, "runs", f.run)), "rolled back")
	cmptest.HasTexts(f.t, f.must(0, kubeconfig, "runs"), f.run)
	f.expectRunRights()
}
