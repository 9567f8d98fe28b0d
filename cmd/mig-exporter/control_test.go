package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Partition control from outside: the built program with its socket, and the built migctl.

// controlled is a program with partition control.
type controlled struct {
	*program
	dir string // of the socket and the state
}

// controlNode launches a simulated node with partition control and waits until that answers.
func controlNode(t *testing.T, scenario string, args ...string) *controlled {
	t.Helper()

	dir, err := os.MkdirTemp("", "ctl-") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	return controlNodeIn(t, dir, scenario, args...)
}

// planOnly is the flag of a program that may not apply.
const planOnly = "--control.mode=plan"

func controlNodeIn(t *testing.T, dir, scenario string, args ...string) *controlled {
	t.Helper()

	if !slices.Contains(args, planOnly) {
		args = append(args, "--control.mode=apply")
	}

	c := &controlled{dir: dir, program: launch(t, append([]string{
		"--driver=sim", "--sim.clock=step", "--sim.scenario=" + scenario, "--control.enabled",
		"--collectors=+instance_processes",
		"--control.socket=" + filepath.Join(dir, "c.sock"), "--control.state-dir=" + filepath.Join(dir, "state"),
	}, args...)...)}
	c.waitFor("partition control is listening")

	return c
}

// migctl runs the command line, and returns what it prints and its exit code.
func (c *controlled) migctl(args ...string) (output string, code int) {
	c.t.Helper()

	return runMigctl(c.t, filepath.Join(c.dir, "c.sock"), args...)
}

// runMigctl runs the command line on the socket of partition control, and returns what it prints and
// its exit code.
func runMigctl(t testing.TB, socket string, args ...string) (output string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), migctlBinary, args...)
	cmd.Env = append(os.Environ(), "MIGCTL_ADDRESS=unix://"+socket)
	out, err := cmd.CombinedOutput()

	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}

	return string(out), cmd.ProcessState.ExitCode()
}

// must runs a command that ends with an exit code.
func (c *controlled) must(code int, args ...string) string {
	c.t.Helper()

	out, got := c.migctl(args...)
	if got != code {
		c.t.Fatalf("migctl %s: exit code %d, want %d\n%s\n%s", strings.Join(args, " "), got, code, out, c.logText())
	}

	return out
}

// operations are the verbs and states of what was done, the latest first.
func (c *controlled) operations() (ids, states []string) {
	c.t.Helper()

	var list struct {
		Operations []struct{ ID, Verb, State string }
	}
	if err := json.Unmarshal([]byte(c.must(0, "operations", "-o", "json")), &list); err != nil {
		c.t.Fatal(err)
	}

	for _, o := range list.Operations {
		ids, states = append(ids, o.ID), append(states, o.Verb+" "+o.State)
	}

	return ids, states
}

const repartitionScenario = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
- {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
- {model: H100-80GB, mig: true, layout: ["3g.40gb@4"]}
- {model: A100-40GB}
- {model: H100-80GB}
workloads:
- {name: serve, memory: 2GiB, sm: 10}
pods:
- {namespace: ml, name: stays, container: main, resource: nvidia.com/mig-3g.20gb, workload: serve}
- {namespace: ml, name: comes, container: main, resource: nvidia.com/mig-1g.5gb, workload: serve, at: 10s}
`

func TestControlIsOffByDefault(t *testing.T) {
	p := simulate(t, "a30")
	for _, path := range []string{"/api/v1/operations", "/api/v1/plans", "/api/v1/layouts", "/api/v1/openapi.yaml"} {
		if r := p.get(path); r.status != http.StatusNotFound {
			t.Errorf("%s on the metrics listener: %d", path, r.status)
		}
	}

	if bytes.Contains(p.get("/metrics").body, []byte("mig_control_")) {
		t.Error("there are metrics of partition control, which is off")
	}
}

// The metrics listener changes nothing, also while partition control is on.
func TestControlIsNotOnTheMetricsListener(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", repartitionScenario))

	for _, path := range []string{"/api/v1/operations", "/api/v1/plans", "/api/v1/gpus/0/mig-mode"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
			if r := c.request(method, path, nil); r.status != http.StatusNotFound {
				t.Errorf("%s %s: %d", method, path, r.status)
			}
		}
	}
}

// TestLayoutChange: series, pods and activity follow an operation in the next poll.
func TestLayoutChange(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", repartitionScenario), "--dcgm.address=embedded")
	for range 6 {
		c.advance(time.Second)
	}

	old := []string{`gpu="0"`, `mig_profile="2g.10gb"`}
	c.scrape().expect(t, "before", 0, "nvidia_mig_gpu_instance_allocated", old...)
	c.scrape().expect(t, "before", 1, "nvidia_mig_gpu_instance_allocated", `gpu="0"`, `mig_profile="3g.20gb"`)

	out := c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "3g.20gb=1,1g.5gb=2")
	if !strings.Contains(out, "succeeded") || !strings.Contains(out, "migctl rollback ") {
		t.Errorf("migctl says neither that it succeeded nor how to undo it:\n%s", out)
	}

	s := c.scrape() // no poll has been asked for since
	s.expect(t, "at once", -1, "nvidia_mig_gpu_instance_allocated", old...)

	if n := len(s.of("nvidia_mig_gpu_instance_allocated", `gpu="0"`, `mig_profile="1g.5gb"`)); n != 2 {
		t.Errorf("%d series of the new instances, want 2", n)
	}

	s.expect(t, "at once", 1, "mig_control_operations_total", `verb="apply"`, `result="succeeded"`)
	s.expect(t, "at once", 1, "mig_control_state", `state="idle"`)

	for range 8 { // the pod comes, and DCGM's values of the new layout
		c.advance(time.Second)
	}

	s = c.scrape()
	s.expect(t, "later", 1, "nvidia_mig_gpu_instance_pod_info", `pod="comes"`, `mig_profile="1g.5gb"`)
	s.expect(t, "later", 1, "nvidia_mig_gpu_instance_pod_info", `pod="stays"`, `mig_profile="3g.20gb"`)

	if n := len(s.of("nvidia_mig_gpu_instance_sm_activity_ratio", `gpu="0"`)); n != 3 {
		t.Errorf("activity of %d instances, want 3", n)
	}

	// What a pod holds by now is not destroyed to undo the operation.
	ids, _ := c.operations()
	if out := c.must(1, "rollback", "--yes", ids[0]); !strings.Contains(out, "ml/comes") {
		t.Errorf("the rollback does not name what is in the way:\n%s", out)
	}

	c.scrape().expect(t, "after a rollback that is refused", 1, "nvidia_mig_gpu_instance_pod_info", `pod="comes"`)
}

func TestRollback(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", repartitionScenario))
	c.advance(2 * time.Second) // the kubelet's list is settled
	c.must(0, "apply", "--yes", "--gpus", "1", "--devices", "1g.10gb=3")
	before := len(c.scrape().of("nvidia_mig_gpu_instance_allocated", `gpu="1"`))
	ids, _ := c.operations()
	c.must(0, "rollback", "--yes", ids[0])

	s := c.scrape()
	if n := len(s.of("nvidia_mig_gpu_instance_allocated", `gpu="1"`, `mig_profile="3g.40gb"`)); before != 3 || n != 1 {
		t.Errorf("%d instances, then %d of the layout before; want 3 and 1", before, n)
	}

	if _, states := c.operations(); !slices.Equal(states, []string{"rollback succeeded", "apply succeeded"}) {
		t.Errorf("%q", states)
	}
}

// In a pass-through machine the mode of an Ampere GPU waits for a reset.
func TestMIGModeInAPassThroughMachine(t *testing.T) {
	c := controlNode(t,
		write(t, "s.yaml", strings.Replace(repartitionScenario, "hostname: n", "hostname: n, passThrough: true", 1)))
	c.advance(2 * time.Second) // the kubelet's list is settled

	if out := c.must(0, "mode", "on", "--yes", "2"); !strings.Contains(out, "waits for reset") {
		t.Errorf("what it waits for is not said:\n%s", out)
	}

	c.scrape().expect(t, "Ampere", 0, "nvidia_gpu_mig_enabled", `gpu="2"`)
}

// A plan is void when the node has changed since.
func TestStalePlan(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", repartitionScenario+
		"faults: [{at: 5s, gpu: 1, kind: external-reconfigure, layout: [\"1g.10gb@0\"]}]\n"))
	c.advance(2 * time.Second) // the kubelet's list is settled

	var plan struct{ ID, Hash string }
	if err := json.Unmarshal([]byte(c.must(0, "plan", "--gpus", "1", "--devices", "7g.80gb=1", "-o", "json")),
		&plan); err != nil {
		t.Fatal(err)
	}

	c.advance(6 * time.Second)

	if out := c.must(1, "apply", "--yes", "--plan", plan.ID, "--hash", plan.Hash); !strings.Contains(out, "plan again") {
		t.Errorf("migctl does not say what to do:\n%s", out)
	}

	if ids, _ := c.operations(); len(ids) != 0 {
		t.Errorf("operations %q", ids)
	}

	c.scrape().expect(t, "after", 0, "nvidia_mig_gpu_instance_allocated", `gpu="1"`, `mig_profile="1g.10gb"`)
}

// Without --control.mode=apply there are plans, and nothing else.
func TestPlanMode(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", repartitionScenario), planOnly)
	c.advance(2 * time.Second) // the kubelet's list is settled

	if out := c.must(1, "apply", "--yes", "--gpus", "1", "--devices", "7g.80gb=1"); !strings.Contains(out,
		"--control.mode=apply") {
		t.Errorf("migctl does not say why:\n%s", out)
	}

	c.must(1, "mode", "on", "--yes", "3")
	c.scrape().expect(t, "after", 0, "nvidia_mig_gpu_instance_allocated", `gpu="1"`, `mig_profile="3g.40gb"`)
}

func TestMIGMode(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", repartitionScenario), "--dcgm.address=embedded")
	c.advance(2 * time.Second) // the kubelet's list is settled
	c.must(0, "mode", "on", "--yes", "2", "3")
	c.scrape().expect(t, "Ampere, at once", 1, "nvidia_gpu_mig_enabled", `gpu="2"`)
	c.scrape().expect(t, "Hopper, at once", 1, "nvidia_gpu_mig_enabled", `gpu="3"`)

	if out := c.must(1, "mode", "off", "--yes", "0"); !strings.Contains(out, "3g.20gb") {
		t.Errorf("the current instances are not named:\n%s", out)
	}

	for range 4 {
		c.advance(time.Second)
	}

	c.scrape().expect(t, "afterwards", 1, "mig_exporter_source_up", `source="dcgm"`)
}
