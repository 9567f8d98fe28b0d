package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// What operators see when partition control meets a fault, from outside.

const faultyRepartition = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus:
- {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
- {model: A100-40GB}
`

func TestAStepFails(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRepartition+
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

// A rollback that fails leaves the node degraded, until it succeeds.
func TestTheRollbackFails(t *testing.T) {
	t.Parallel()

	c := controlNode(t, write(t, "s.yaml", faultyRepartition+
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

// A GPU whose operation cannot be rolled back can be changed again once its current layout is
// accepted.
func TestAccept(t *testing.T) {
	t.Parallel()

	c := controlNode(t, write(t, "s.yaml", faultyRepartition+
		"faults: [{for: 10s, gpu: 0, kind: change-fails, on: create-gi, after: 1, times: 99, error: unknown}]\n"))
	c.must(4, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")

	ids, _ := c.operations()
	if out := c.must(2, "rollback", "--abandon", "--yes", ids[0]); !strings.Contains(out, "migctl accept") {
		t.Errorf("migctl does not name the command that replaces --abandon:\n%s", out)
	}

	c.must(0, "accept", "--yes", ids[0])

	if _, states := c.operations(); !slices.Equal(states, []string{"apply accepted"}) {
		t.Errorf("%q", states)
	}

	c.advance(11 * time.Second)
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1")
	c.scrape().expect(t, "afterwards", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="7g.40gb"`)
}

// While a change hangs in the driver, metrics of the other GPUs go on, and nothing else is begun.
func TestAChangeHangs(t *testing.T) {
	t.Parallel()

	listening := make(chan struct{})
	logger := log.LoggerFunc(func(line ...any) error {
		if slices.Contains(line, any("partition control is listening")) {
			close(listening)
		}

		return nil
	})
	x := controlledNodeOn(t, logger, func(n *node) { n.control.CallTimeout = time.Second }, faultyRepartition+
		"faults: [{for: 60s, gpu: 0, kind: hang, on: create-gi, after: 1}]\n",
		"--poll.interval=100ms", "--collectors=+instance_processes")
	<-listening

	scrape := func() series {
		w := httptest.NewRecorder()
		x.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))

		return parseSeries(t, w.Body.Bytes())
	}
	apply := func(devices string) string {
		out, code := runMigctl(t, x.control.server.Socket, "apply", "--yes", "--gpus", "0", "--devices", devices)
		cmptest.Equal(t, "exit code for "+devices, code, 4)

		return out
	}

	apply("1g.5gb=4")
	pollOnce(t, x)
	s := scrape()
	s.expect(t, "stuck", 1, "mig_control_state", `state="stuck"`)
	s.expect(t, "stuck", 1, "nvidia_gpu_up", `gpu="1"`)

	if n := s.of("mig_exporter_hung_driver_calls"); len(n) != 1 || n[0] < 1 {
		t.Errorf("hung driver calls: %v", n)
	}

	cmptest.HasTexts(t, apply("7g.40gb=1"), "A driver call has not returned") // why nothing else is begun there

	advanceBy(t, x, 70*time.Second)

	for !slices.Equal(scrape().of("mig_control_state", `state="idle"`), []float64{1}) { // when the call has returned
		pollOnce(t, x)
	}

	s = scrape()
	s.expect(t, "over", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="3g.20gb"`)
	s.expect(t, "over", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="2g.10gb"`)
	s.expect(t, "over", -1, "nvidia_mig_gpu_instance_processes", `mig_profile="1g.5gb"`)
}

// TestOneControllerPerNode: a second program on the same state folder serves metrics and is
// read-only, does no harm to the first, and takes over when the first has ended.
func TestOneControllerPerNode(t *testing.T) {
	t.Parallel()

	scenario := write(t, "s.yaml", faultyRepartition)
	c := controlNode(t, scenario)
	c.idle() // it listens before it has locked the state folder
	second := &controlled{dir: t.TempDir(),
		program: launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario, "--control.enabled",
			"--control.mode=apply", "--control.socket="+filepath.Join(c.dir, "d.sock"),
			"--control.state-dir="+filepath.Join(c.dir, "state"))}
	second.waitFor("partition control is read-only")
	second.expectNote("partition control is read-only: the state folder cannot be used: state folder is in use by " +
		"another process")
	second.scrape().expect(t, "second", 1, "mig_control_state", `state="read-only"`)
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	c.stop()
	second.waitFor("is usable again")
	second.idle()
}

// idle waits until partition control has nothing to do.
func (c *controlled) idle() {
	c.t.Helper()
	c.until("partition control is idle", func(s series) bool {
		return slices.Equal(s.of("mig_control_state", `state="idle"`), []float64{1})
	})
}

// expectNote wants a line in what readiness says, which must be 200 all the same.
func (c *controlled) expectNote(note string) {
	c.t.Helper()
	c.advance(time.Millisecond) // there is a Snapshot then

	if r := c.get("/-/ready"); r.status != http.StatusOK || !strings.Contains(string(r.body), note) {
		c.t.Errorf("ready: %d %s, want %q", r.status, r.body, note)
	}
}

// TestStateFolderThatCannotBeUsed: metrics are served, plans are answered, changes are refused with
// the reason; and all is well without a restart when the folder can be used.
func TestStateFolderThatCannotBeUsed(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state"), []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}

	c := controlNodeIn(t, dir, write(t, "s.yaml", faultyRepartition))
	c.waitFor("partition control is read-only")
	c.expectNote("partition control is read-only: the state folder cannot be used: not a directory")
	c.must(0, "plan", "--gpus", "0", "--devices", "7g.40gb=1")

	if out := c.must(1, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1"); !strings.Contains(out,
		"not a directory") {
		t.Errorf("migctl does not say why:\n%s", out)
	}

	if err := os.Remove(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}

	c.waitFor("is usable again")
	c.must(0, "plan", "--gpus", "0", "--devices", "7g.40gb=1") // its line in the audit log shows that it is writable
	c.idle()
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1")
}

// TestAuditLogThatCannotBeWritten: changes are refused, and every place that shows the state says
// why, until it can be written.
func TestAuditLogThatCannotBeWritten(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRepartition))
	path := filepath.Join(c.dir, "state", "audit.jsonl")
	c.idle()

	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}

	c.must(1, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	c.expectNote("partition control is read-only: the audit log cannot be written: is a directory")
	c.until("it is read-only", func(s series) bool {
		return slices.Equal(s.of("mig_control_state", `state="read-only"`), []float64{1})
	})

	if out := c.must(0, "operations"); !strings.Contains(out, "the audit log cannot be written") {
		t.Errorf("the list of operations does not say why:\n%s", out)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}

	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	c.idle()
}

// TestStateFolderReplaced: it is deleted under the running program, before an operation and after
// it; the lock alone; and all of it is moved away. The operations that come are on disk, in the new
// folder.
func TestStateFolderReplaced(t *testing.T) {
	t.Parallel()

	scenario := write(t, "s.yaml", faultyRepartition)
	c := controlNode(t, scenario)
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=7") // the folder is in use then
	state := filepath.Join(c.dir, "state")

	for n, replace := range []func() error{
		func() error { return os.RemoveAll(state) },
		func() error { return os.Remove(filepath.Join(state, "lock")) },
		func() error { return os.Rename(state, state+".old") },
	} {
		if err := replace(); err != nil {
			t.Fatal(err)
		}

		c.must(0, "apply", "--yes", "--gpus", "0", "--devices", []string{"7g.40gb=1", "3g.20gb=2", "2g.10gb=3"}[n])
	}

	c.stop()
	c = controlNodeIn(t, c.dir, scenario)
	c.idle()

	if _, states := c.operations(); len(states) != 4 ||
		slices.ContainsFunc(states, func(s string) bool { return s != "apply succeeded" }) {
		t.Errorf("after a restart: %q", states)
	}
}

// TestSocketThatIsTaken: metrics are served, partition control is off, and serves when the path is
// free.
func TestSocketThatIsTaken(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	socket := filepath.Join(dir, "c.sock")
	if err := os.WriteFile(socket, []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}

	c := &controlled{dir: dir,
		program: launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+write(t, "s.yaml", faultyRepartition),
			"--control.enabled", "--control.socket="+socket, "--control.state-dir="+filepath.Join(dir, "state"))}
	c.waitFor("cannot serve the API of partition control")
	c.expectNote("partition control is off: --control.socket")
	c.scrape().expect(t, "taken", 1, "mig_control_state", `state="off"`)

	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}

	c.waitFor("partition control is listening")
	c.must(0, "operations")
	c.until("it is not off", func(s series) bool {
		return slices.Equal(s.of("mig_control_state", `state="off"`), []float64{0})
	})
}

// TestDamagedState: with damaged documents nothing is changed until the operator has accepted the
// current layout, and everything that asks is answered.
func TestDamagedState(t *testing.T) {
	t.Parallel()

	scenario := write(t, "s.yaml", faultyRepartition)
	c := controlNode(t, scenario)
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")

	if code := c.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}

	for _, name := range []string{"operation.0", "operation.1"} {
		path := filepath.Join(c.dir, "state", name)

		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		text[100] ^= 0x55
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	c = controlNodeIn(t, c.dir, scenario)
	c.until("it has read the folder", func(s series) bool {
		return slices.Equal(s.of("mig_control_state", `state="read-only"`), []float64{1})
	})
	c.must(0, "plan", "--gpus", "0", "--devices", "7g.40gb=1")

	ids, states := c.operations()
	if states[0] != "recovery degraded" {
		t.Fatalf("%q", states)
	}

	if out := c.must(1, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1"); !strings.Contains(out,
		"migctl accept "+ids[0]) {
		t.Errorf("migctl does not say what to do:\n%s", out)
	}

	c.must(0, "accept", "--yes", ids[0])
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1")
	c.stop()
	c = controlNodeIn(t, c.dir, scenario)
	c.idle()

	if _, states := c.operations(); !slices.Equal(states,
		[]string{"apply succeeded", "recovery accepted", "apply succeeded"}) {
		t.Errorf("after a restart: %q", states)
	}
}

// TestRestore: after a reboot the layout of the last operation comes back, where --control.restore
// asks for it.
func TestRestore(t *testing.T) {
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "node.json"))
	scenario := write(t, "s.yaml", faultyRepartition+"faults: [{at: 30s, kind: reboot}]\n")
	c := controlNode(t, scenario)
	c.advance(time.Millisecond) // the GPUs were polled then
	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=2,3g.20gb=1")
	c.advance(31 * time.Second)
	c.scrape().expect(t, "rebooted", -1, "nvidia_mig_gpu_instance_processes")

	if code := c.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}

	c = controlNodeIn(t, c.dir, scenario, "--control.restore")
	c.idle()
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
