package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// runBinary runs the built program to its end and returns its output and exit code.
func runBinary(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// checkNodeCases are simulated nodes with what check-node says of them.
var checkNodeCases = []struct {
	name     string // of the golden file
	scenario string
	args     []string
	code     int
}{
	{name: "complete", scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0, {gi: 3g.40gb@4, ci: []}]}]"},
	// Activity of an A100 is DCGM's alone.
	{name: "no-dcgm", scenario: "node: {}\ngpus: [{model: A100-SXM4-40GB, mig: true, layout: [3g.20gb@0]}]", code: 1},
	{name: "dcgm", scenario: "node: {}\ngpus: [{model: A100-SXM4-40GB, mig: true, layout: [3g.20gb@0]}]",
		args: []string{"--dcgm.mode=embedded"}},
	{name: "not-asked", scenario: "node: {kubernetes: false, persistenceMode: false}\ngpus: [{model: A100-SXM4-40GB}]",
		args: []string{"--profiling.source=off", "--kubernetes.socket="}},
	{name: "unprivileged", code: 1, scenario: "node: {privileged: false}\n" +
		"gpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}, {model: H100-SXM5-80GB}]"},
	{name: "no-driver", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB}]\nfaults: [{kind: no-driver}]"},
	{name: "lost", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB}, {model: H100-SXM5-80GB}]\n" +
		"faults: [{kind: lost, gpu: 1, at: 1s}, {kind: kubelet-down}]"},
	{name: "kernel-log", args: []string{"--xid.kernel-log"}, code: 1, scenario: "node: {privileged: false}\n" +
		"gpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}, {model: H100-SXM5-80GB}]\n" +
		"faults: [{kind: xid, gpu: 1, xid: 79}, {kind: xid, gpu: 1, xid: 119}]"},
	{name: "no-kernel-log", args: []string{"--xid.kernel-log"}, code: 1,
		scenario: "node: {kernelLog: false}\ngpus: [{model: H100-SXM5-80GB}]"},
	{name: "confidential", code: 1,
		scenario: "node: {confidentialComputing: true, persistenceMode: false}\ngpus: [{model: H100-SXM5-80GB}]"},
}

func TestGoldenCheckNode(t *testing.T) {
	for _, c := range checkNodeCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append(checkNodeArgs(t, c.scenario), c.args...)
			out, errOut, code := runBinary(t, nil, args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d\n%s", code, c.code, errOut)
			}

			report, calls, _ := strings.Cut(out, "\ncalls of the driver")
			report = regexp.MustCompile(`/tmp/mig-exporter-sim-\d+`).ReplaceAllString(report, "DIR")
			compareGolden(t, "check-node."+c.name+".txt", []byte(report), func(b []byte) string { return string(b) })
			cmptest.HasTexts(t, calls, "\nnvmlSystemGetConfComputeState ")
		})
	}
}

// checkNodeArgs returns the arguments for check-node on a scenario, which is given without its version.
func checkNodeArgs(t *testing.T, scenario string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	writeFile(t, path, "version: 1\n"+scenario+"\n")
	return []string{"check-node", "--driver=sim", "--sim.clock=step", "--sim.scenario=" + path, "--log.level=error"}
}

// TestCheckNodeChangesNothing: of the driver it calls functions that read alone, and it writes no file, even with the
// flags of partition control.
func TestCheckNodeChangesNothing(t *testing.T) {
	root := t.TempDir()
	state := filepath.Join(root, "state")
	args := append(checkNodeArgs(t, "node: {}\ngpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}]"),
		"-o", "json", "--control.enabled", "--control.mode=apply", "--control.state-dir="+state,
		"--control.socket="+filepath.Join(root, "control.sock"))
	args[slices.Index(args, "--sim.clock=step")] = "--sim.clock=real" // a stepped clock is moved, and that is saved
	shared := filepath.Join(root, "shared")

	// The first run makes the node, which the second one must leave as it is.
	if _, errOut, code := runBinary(t, []string{"MIG_SIM_STATE=" + shared}, args...); code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	before, err := os.ReadFile(shared)
	if err != nil {
		t.Fatal(err)
	}

	out, errOut, code := runBinary(t, []string{"MIG_SIM_STATE=" + shared}, args...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	after, err := os.ReadFile(shared)
	if err != nil {
		t.Fatal(err)
	}
	cmptest.Equal(t, "the layout of the node", string(after), string(before))
	for _, path := range []string{state, filepath.Join(root, "control.sock")} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s was created", path)
		}
	}

	var report struct {
		Complete bool
		Calls    []struct {
			Function string
			Calls    int
			Seconds  *float64
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	reads := regexp.MustCompile(`^nvml(Device|System|GpuInstance|ComputeInstance)Get|^nvmlInit$` +
		`|^nvmlGpm(QueryDeviceSupport|SampleAlloc|SampleGet|MigSampleGet|MetricsGet|SampleFree)$` +
		`|^nvmlEventSetCreate$|^nvmlDeviceRegisterEvents$`)
	for _, c := range report.Calls {
		if !reads.MatchString(c.Function) || c.Calls == 0 || c.Seconds == nil {
			t.Errorf("%+v: expected a function that reads, with its calls and seconds", c)
		}
	}
	if !report.Complete || len(report.Calls) < 20 {
		t.Errorf("complete: %v, %d functions", report.Complete, len(report.Calls))
	}
}

// TestCheckNodePrintsHostileText: what a driver or a kubelet says cannot control a terminal or add a line.
func TestCheckNodePrintsHostileText(t *testing.T) {
	report := nodeReport{Checks: []nodeCheck{{Name: "gpu 0", State: checkMissing, Asked: true,
		Found: "A100\x1b[2J\nok  forged\t\u202etxt\xff", Remedy: "a\rb"}}}
	var text, document bytes.Buffer
	if err := errors.Join(report.writeText(&text), report.writeJSON(&document)); err != nil {
		t.Fatal(err)
	}

	cmptest.HasTexts(t, text.String(), `A100\x1b[2J\nok  forged\t\u202etxt`, `a\rb`, "MISSING  gpu 0")
	for _, r := range "\x1b\r\u202e\t" {
		if strings.ContainsRune(text.String(), r) {
			t.Errorf("%q is in the text", r)
		}
	}
	if !json.Valid(document.Bytes()) || strings.Contains(document.String(), "\x1b") {
		t.Errorf("invalid JSON: %s", document.Bytes())
	}
}
