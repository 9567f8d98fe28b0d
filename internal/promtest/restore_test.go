package promtest

import (
	"bytes"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// restorable is a node whose GPUs have no instances when it boots.
const restorable = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus:
  - {model: A100-40GB, mig: true}
  - {model: A100-40GB, mig: true}
`

// refusing has a GPU on which nothing can be created for a while.
const refusing = restorable + `faults:
  - {for: 40m, gpu: 1, kind: change-fails, on: create-gi, times: 9999, error: unknown}
`

// TestRulesOnRestore: after a reboot one of two GPUs cannot be restored. The alert names it, and
// ends when it is.
func TestRulesOnRestore(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	socket := filepath.Join(dir, "c.sock")
	r := newRollout(t, restorable, "--control.enabled", "--control.mode=apply", "--control.restore",
		"--control.socket="+socket, "--control.state-dir="+filepath.Join(dir, "state"))
	r.start("gpu-node-1", "mig-exporter-a")
	r.run(5 * time.Minute)
	migctl(t, socket, "apply", "--yes", "--gpus", "all", "--devices", "3g.20gb=2")
	r.run(10 * time.Minute)

	r.reboot(refusing, "mig-exporter-a")
	r.until("idle")
	r.run(20 * time.Minute)

	if out, code := tryMigctl(t, socket, "restore", "--yes"); code == 0 {
		t.Errorf("migctl restore of a GPU that refuses:\n%s", out)
	}

	r.run(30 * time.Minute)
	r.expectSummary("MigControlNotRestored", "1 of the GPUs of gpu-node-1 lack the layout that they had before the reboot.")

	r.run(80 * time.Minute)

	for notRestored := []byte("mig_control_gpu_not_restored{"); bytes.Contains(
		r.exporters[0].request(http.MethodGet, "/metrics"), notRestored); {
	}

	r.run(120 * time.Minute)
	r.expectStory("MigControlNotRestored", "MigControlOperationFailed")

	if out := migctl(t, socket, "operations"); strings.Contains(out, "not restored") {
		t.Errorf("in the end:\n%s", out)
	}
}

// TestRulesOnUnsettled: a hook fails after a layout change. The alert fires as long as the
// operation is unsettled, and ends once an operator has said that nothing is left to be done.
func TestRulesOnUnsettled(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	socket := filepath.Join(dir, "c.sock")
	r := newRollout(t, restorable, "--control.enabled", "--control.mode=apply", `--control.hook=["false"]`,
		"--control.socket="+socket, "--control.state-dir="+filepath.Join(dir, "state"))
	r.start("gpu-node-1", "mig-exporter-a")
	r.run(5 * time.Minute)

	out, code := tryMigctl(t, socket, "apply", "--yes", "--gpus", "all", "--devices", "3g.20gb=2")

	operation := regexp.MustCompile(`migctl settled (\S+)`).FindStringSubmatch(out)
	if code != 6 || operation == nil {
		t.Fatalf("migctl apply: exit code %d, want 6 and the command that ends the wait:\n%s", code, out)
	}

	r.run(30 * time.Minute)
	r.expectSummary("MigControlUnsettled",
		"Layout changes on gpu-node-1 that the kubelet or a hook has not followed: 1.")

	migctl(t, socket, "settled", "--yes", operation[1])
	r.run(60 * time.Minute)
	r.expectStory("MigControlUnsettled")
}
