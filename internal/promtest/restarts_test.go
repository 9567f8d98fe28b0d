package promtest

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// worn has a GPU with a row of memory to be replaced, and one without a spare row.
const worn = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus: [{model: H100-80GB, count: 3}]
faults:
  - {at: 5m, gpu: 0, kind: xid, xid: 63}
  - {at: 5m, gpu: 1, kind: xid, xid: 64}
`

// reboot has another node in the place of this one, with the same clock: GPUs have the same UUIDs.
func (r *rollout) reboot(scenario, pod string) {
	r.t.Helper()
	r.stopPod(false)
	r.env = []string{"MIG_SIM_STATE=" + filepath.Join(r.t.TempDir(), "node.json")}
	r.args = append([]string{"--sim.scenario=" + scenarioFile(r.t, scenario)}, r.args[1:]...)
	r.behind = r.elapsed
	r.start("gpu-node-1", pod)
}

// TestRulesOverRestarts: rows of memory, until the node is restarted; an exporter that ends and
// whose target stays; one whose target leaves service discovery; a node that dies and leaves it
// then; and a node that comes back with one GPU fewer, until that is back, too.
func TestRulesOverRestarts(t *testing.T) {
	t.Parallel()
	sound, _, _ := strings.Cut(worn, "faults:")
	r := newRollout(t, worn)
	r.start("gpu-node-1", "mig-exporter-a")
	r.run(20 * time.Minute)
	r.reboot(sound, "mig-exporter-a")
	r.run(30 * time.Minute)
	r.expectStory("GpuRowRemapPending", "GpuRowRemapFailed", "GpuXidMemory", "GpuXidHardware")

	clear(r.fired)
	r.stopPod(true)
	r.run(50 * time.Minute)
	r.start("gpu-node-1", "mig-exporter-a")
	r.run(60 * time.Minute)
	r.expectStory("MigExporterDown", "MigExporterAbsent")
	r.expectSummary("MigExporterDown", "mig-exporter at gpu-node-1 cannot be scraped (GPUs without readings: 3).")

	clear(r.fired)
	r.stopPod(false)
	r.run(80 * time.Minute)
	r.start("gpu-node-1", "mig-exporter-b")
	r.run(90 * time.Minute)
	r.expectStory("MigExporterAbsent") // no pod held its GPUs: the node has left in an orderly way

	clear(r.fired)
	r.stopPod(true)
	r.run(100 * time.Minute)
	r.dropTarget() // after ten minutes without an answer: the node has died
	r.run(120 * time.Minute)
	r.start("gpu-node-1", "mig-exporter-b")
	r.run(130 * time.Minute)
	r.expectStory("MigNodeGone", "MigExporterDown", "MigExporterAbsent")
	r.expectSummary("MigNodeGone", "gpu-node-1 is no longer scraped (GPUs without readings: 3).")

	clear(r.fired)
	r.reboot(strings.Replace(sound, "count: 3", "count: 2", 1), "mig-exporter-b")
	r.run(145 * time.Minute)
	r.reboot(sound, "mig-exporter-b")
	r.run(160 * time.Minute)
	r.expectStory("GpuMissing")
}

// large has a workload that five-minute means take for small, and that the advisor keeps on its GPU:
// at busy times a slice could not keep up.
const large = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus: [{model: H100-80GB, count: 2}]
workloads:
  - {name: llm, memory: {steps: [{at: 0s, value: 500MiB}, {at: 1s, value: 34GiB}]}, width: 80, busy: {sine: {min: 0.25, max: 0.6875, period: 15m}}, bandwidth: 0.424}
pods:
  - {namespace: chat, name: llm-0, owner: StatefulSet/llm, resource: nvidia.com/gpu, device: "0", workload: llm}
`

// TestRulesOverAnAdvisorsRestart: an exporter without --advise.state-dir is started again. Until its
// advisor has an answer, a day later, what it said last holds against the means.
func TestRulesOverAnAdvisorsRestart(t *testing.T) {
	t.Parallel()
	r := newRollout(t, large, advisorPolls)
	answers := func() float64 {
		t.Helper()

		n, err := singleValue(r.EvalAt(`count(nvidia_gpu_rightsizing_rejected{gpu="0",reason!="provisional"}) or vector(0)`, r.now()))
		if err != nil {
			t.Fatal(err)
		}

		return n
	}

	r.start("gpu-node-1:9401", "mig-exporter-a")
	r.runLong(30 * time.Hour)

	if answers() != 1 {
		t.Fatal("the advisor does not keep the GPU, after a day")
	}

	r.stopPod(false)
	r.start("gpu-node-1:9401", "mig-exporter-b")

	for _, until := range []time.Duration{36 * time.Hour, 53 * time.Hour} {
		r.runLong(until)

		if answers() != 0 {
			t.Fatal("the advisor has an answer within a day of its restart")
		}
	}

	r.runLong(60 * time.Hour)

	if answers() != 1 {
		t.Fatal("the advisor does not keep the GPU, a day after its restart")
	}

	r.expectStory()
}

// bare is a host without Kubernetes on which a process runs for a while.
const bare = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: H100-80GB, count: 2}]
workloads: [{name: train, memory: 60GiB, sm: 100}]
processes: [{gpu: 1, workload: train, for: %s}]
`

// TestRulesWhereNoKubernetesIs: a host that leaves service discovery has left in order if no process
// was on its GPUs, and has died if one was.
func TestRulesWhereNoKubernetesIs(t *testing.T) {
	t.Parallel()

	for runs, want := range map[string]string{"10m": "", "10h": "died"} {
		r := newRollout(t, fmt.Sprintf(bare, runs))
		r.start("gpu-node-1", "mig-exporter-a")
		r.run(20 * time.Minute)
		r.stopPod(false)
		r.run(45 * time.Minute)

		got := ""
		for _, alert := range r.firingNow("MigNodeGone") {
			got += alert.Labels.Get("state")
		}

		if got != want {
			t.Errorf("a process that runs for %s: MigNodeGone says %q, want %q", runs, got, want)
		}
	}
}

// blunder has partition control fail: nothing can be created on GPU 0 for a while, so that not even
// a rollback succeeds; and a call hangs on GPU 1.
const blunder = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
faults:
  - {at: 20m, for: 10m, gpu: 0, kind: change-fails, on: create-gi, after: 1, times: 99, error: unknown}
  - {at: 60m, for: 12m, gpu: 1, kind: hang, on: create-gi, after: 1}
`

// TestRulesOnPartitionControl: its socket and its state folder cannot be used; an operation fails
// and cannot be rolled back; and one is stuck in the driver.
func TestRulesOnPartitionControl(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()

	socket := filepath.Join(dir, "c.sock")

	state := filepath.Join(dir, "state")
	for _, path := range []string{socket, state} {
		if err := os.WriteFile(path, []byte("in the way"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	r := newRollout(t, blunder, "--control.enabled", "--control.mode=apply", "--control.socket="+socket,
		"--control.state-dir="+state, "--poll.timeout=100ms")
	r.start("gpu-node-1", "mig-exporter-a")
	r.run(10 * time.Minute)
	r.free(socket, "read-only")
	r.run(15 * time.Minute)
	r.free(state, "idle")
	r.run(21 * time.Minute)

	if out, code := tryMigctl(t, socket, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4"); code != 4 {
		t.Fatalf("exit code %d\n%s", code, out)
	}

	r.run(40 * time.Minute)
	operations, _ := tryMigctl(t, socket, "operations", "-o", "json")
	_, id, _ := strings.Cut(operations, `"id": "`)
	id, _, _ = strings.Cut(id, `"`)
	migctl(t, socket, "rollback", "--yes", id)
	r.run(61 * time.Minute)

	if out, code := tryMigctl(t, socket, "apply", "--yes", "--gpus", "1", "--devices", "1g.5gb=4"); code != 4 {
		t.Fatalf("exit code %d\n%s", code, out)
	}

	r.run(75 * time.Minute)
	r.until("idle")
	r.run(100 * time.Minute)
	r.expectStory("MigControlOff", "MigControlReadOnly", "MigControlDegraded", "MigControlStuck",
		"MigControlOperationFailed",
		"GpuDown", "GpuReadErrors", "MigDriverCallHung")
}

// free removes what is in the way of partition control, which sees that by itself.
func (r *rollout) free(path, state string) {
	r.t.Helper()

	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}

	r.until(state)
}

// until waits until partition control is in a state, of which it learns by itself, or until go test
// ends the test.
func (r *rollout) until(state string) {
	r.t.Helper()

	want := []byte(`mig_control_state{state="` + state + `"} 1`)
	for !bytes.Contains(r.exporters[0].request(http.MethodGet, "/metrics"), want) {
	}
}
