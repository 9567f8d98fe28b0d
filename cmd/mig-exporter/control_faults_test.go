package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What operators see when partition control meets a fault, from outside.

const faultyRecut = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus:
- {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
- {model: A100-40GB}
`

func TestAStepFails(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRecut+
		"faults: [{gpu: 0, kind: change-fails, on: create-ci, after: 1, times: 1, error: unknown}]\n"))
	out := c.must(1, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	if !strings.Contains(out, "rolled back") && !strings.Contains(out, "rolled-back") {
		t.Errorf("migctl does not say that it was rolled back:\n%s", out)
	}
	s := c.scrape()
	s.expect(t, "rolled back", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="3g.20gb"`)
	s.expect(t, "rolled back", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="2g.10gb"`)
	s.expect(t, "rolled back", -1, "nvidia_mig_gpu_instance_processes", `mig_profile="1g.5gb"`)
	s.expect(t, "rolled back", 1, "mig_control_operations_total", `verb="apply"`, `result="rolled-back"`)
	s.expect(t, "rolled back", 1, "mig_control_state", `state="idle"`)
	if at := s.of("mig_control_last_error_timestamp_seconds"); len(at) != 1 || at[0] == 0 {
		t.Errorf("the time of the last error is %v", at)
	}
}

// A roll-back that fails leaves the node degraded, until it succeeds.
func TestTheRollbackFails(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRecut+
		"faults: [{for: 10s, gpu: 0, kind: change-fails, on: create-gi, after: 1, times: 99, error: unknown}]\n"))
	out := c.must(4, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	ids, states := c.operations()
	if !slices.Equal(states, []string{"apply degraded"}) || !strings.Contains(out, "migctl rollback "+ids[0]) {
		t.Errorf("%q; migctl does not say what to do:\n%s", states, out)
	}
	c.scrape().expect(t, "degraded", 1, "mig_control_state", `state="degraded"`)
	c.must(4, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1") // not before it is mended
	c.advance(11 * time.Second)
	c.must(0, "rollback", "--yes", ids[0])
	s := c.scrape()
	s.expect(t, "mended", 1, "mig_control_state", `state="idle"`)
	s.expect(t, "mended", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="3g.20gb"`)
	s.expect(t, "mended", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="2g.10gb"`)
}

// A GPU whose operation cannot be rolled back can be changed again once its layout is accepted as it stands.
func TestAccept(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRecut+
		"faults: [{for: 10s, gpu: 0, kind: change-fails, on: create-gi, after: 1, times: 99, error: unknown}]\n"))
	c.must(4, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	ids, _ := c.operations()
	if out := c.must(2, "rollback", "--abandon", "--yes", ids[0]); !strings.Contains(out, "migctl accept "+ids[0]) {
		t.Errorf("migctl does not name the command that replaces --abandon:\n%s", out)
	}
	c.must(0, "accept", "--yes", ids[0])
	if _, states := c.operations(); slices.Equal(states, []string{"apply degraded"}) {
		t.Errorf("%q", states)
	}
	c.advance(11 * time.Second)
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1")
	c.scrape().expect(t, "afterwards", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="7g.40gb"`)
}

// While a change hangs in the driver, metrics of the other GPUs go on, and nothing else is begun.
func TestAChangeHangs(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRecut+
		"faults: [{for: 60s, gpu: 0, kind: hang, on: create-gi, after: 1}]\n"),
		"--control.call-timeout=1s", "--poll.interval=100ms")
	c.must(4, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	c.advance(time.Second)
	s := c.scrape()
	s.expect(t, "stuck", 1, "mig_control_state", `state="stuck"`)
	s.expect(t, "stuck", 1, "nvidia_gpu_up", `gpu="1"`)
	if n := s.of("mig_exporter_hung_driver_calls"); len(n) != 1 || n[0] < 1 {
		t.Errorf("hung driver calls: %v", n)
	}
	if out := c.must(1, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1"); !strings.Contains(out, "cannot be read") {
		t.Errorf("migctl does not say why nothing else is begun:\n%s", out)
	}
	c.advance(70 * time.Second)
	c.until("the operation ends when the call has returned", func(s series) bool {
		return slices.Equal(s.of("mig_control_state", `state="idle"`), []float64{1})
	})
	s = c.scrape()
	s.expect(t, "over", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="3g.20gb"`)
	s.expect(t, "over", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="2g.10gb"`)
	s.expect(t, "over", -1, "nvidia_mig_gpu_instance_processes", `mig_profile="1g.5gb"`)
}

// A second program on the same state folder does not start; nor does it harm the first.
func TestOneControllerPerNode(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRecut))
	second := launchAnyhow(t, "--driver=sim", "--sim.scenario="+write(t, "s.yaml", faultyRecut), "--web.listen-address=127.0.0.1:0",
		"--control.enabled", "--control.socket="+filepath.Join(c.dir, "d.sock"), "--control.state-dir="+filepath.Join(c.dir, "state"))
	for range second.lines() {
	}
	if code := second.exitCode(); code != exitFailure || !strings.Contains(second.logText(), "another process") {
		t.Errorf("exit code %d:\n%s", code, second.logText())
	}
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
}

// With a damaged journal nothing is changed, and everything that asks is answered.
func TestACorruptJournal(t *testing.T) {
	scenario := write(t, "s.yaml", faultyRecut)
	c := controlNode(t, scenario)
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	if code := c.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	path := filepath.Join(c.dir, "state", "journal")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 0x55
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c = controlNodeIn(t, c.dir, scenario)
	c.advance(time.Second)
	c.scrape().expect(t, "damaged", 1, "mig_control_state", `state="read-only"`)
	c.must(0, "plan", "--gpus", "0", "--devices", "7g.40gb=1")
	if out := c.must(1, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1"); !strings.Contains(out, "journal") {
		t.Errorf("migctl does not say why:\n%s", out)
	}
	if out := c.must(0, "operations"); !strings.Contains(out, "read-only") || !strings.Contains(out, "corrupt") {
		t.Errorf("the list of operations does not say what is wrong:\n%s", out)
	}
	now, err := os.ReadFile(path)
	if err != nil || !slices.Equal(now, text) {
		t.Errorf("the damaged journal was changed: %v", err)
	}
	if r := c.get("/-/ready"); r.status != http.StatusOK {
		t.Errorf("ready: %d", r.status)
	}
}

// TestRestore: after a reboot the layout of the last operation comes back, where --control.restore asks for it.
func TestRestore(t *testing.T) {
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "node.json"))
	scenario := write(t, "s.yaml", faultyRecut+"faults: [{at: 30s, kind: reboot}]\n")
	c := controlNode(t, scenario)
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=2,3g.20gb=1")
	c.advance(31 * time.Second)
	c.scrape().expect(t, "rebooted", -1, "nvidia_mig_gpu_instance_processes")
	if code := c.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	c = controlNodeIn(t, c.dir, scenario, "--control.restore")
	ids, _ := c.operations() // the latest first
	c.must(0, "operations", "--follow", ids[0])
	if _, states := c.operations(); !slices.Contains(states, "restore succeeded") {
		t.Errorf("%q", states)
	}
	s := c.scrape()
	if n := len(s.of("nvidia_mig_gpu_instance_processes", `mig_profile="1g.5gb"`)); n != 2 {
		t.Errorf("%d of 1g.5gb, want 2", n)
	}
	s.expect(t, "restored", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="3g.20gb"`)
}
