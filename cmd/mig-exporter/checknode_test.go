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
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// runBinary runs the built program to its end and returns its output and exit code.
func runBinary(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = &out
	cmd.Stderr = &errOut
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
		args: []string{"--dcgm.address=embedded"}},
	{name: "not-asked", scenario: "node: {kubernetes: false, persistenceMode: false}\ngpus: [{model: A100-SXM4-40GB}]",
		args: []string{"--profiling.source=off", "--kubernetes.socket="}},
	{name: "unprivileged", code: 1, scenario: "node: {privileged: false}\n" +
		"gpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}, {model: H100-SXM5-80GB}]"},
	{name: "no-power", scenario: "node: {}\ngpus: [{model: B200, mig: true, layout: [2g.45gb@0]}]\n" +
		"faults: [{kind: not-supported, reading: energy}]"},
	{name: "no-driver", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB}]\nfaults: [{kind: no-driver}]"},
	{name: "lost", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB}, {model: H100-SXM5-80GB}]\n" +
		"faults: [{kind: lost, gpu: 1, at: 1s}, {kind: kubelet-down}]"},
	// The call hangs after the second of four polls: the reading of the last Snapshot is good.
	{name: "hang", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB}, {model: H100-SXM5-80GB}]\n" +
		"faults: [{kind: hang, gpu: 1, at: 1500ms}]"},
	// A pod without hostPID, as the chart makes it: nothing that is asked for is missing.
	{name: "container", scenario: "node: {pidNamespace: container}\ngpus: [{model: H100-SXM5-80GB}]"},
	{name: "container-process", code: 1, args: []string{"--collectors=+process"},
		scenario: "node: {pidNamespace: container}\ngpus: [{model: H100-SXM5-80GB}]"},
	{name: "taken-for-host", args: []string{"--collectors=+process", "--pid-namespace=host"},
		scenario: "node: {pidNamespace: container}\ngpus: [{model: H100-SXM5-80GB}]"},
	{name: "no-events", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB}]\n" +
		"faults: [{kind: not-supported, reading: events}]"},
	{name: "no-mig-mode", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}]\n" +
		"faults: [{kind: no-permission, reading: mig}]"},
	{name: "not-supported", code: 1, args: []string{"--collectors=+fabric,+media"},
		scenario: "node: {}\ngpus: [{model: A100-SXM4-40GB}, {model: H100-SXM5-80GB}]\n" +
			"faults: [{kind: not-supported, reading: power}, {kind: not-supported, reading: energy}, " +
			"{kind: not-supported, reading: media}]"},
	{name: "control", code: 1, scenario: "node: {privileged: false}\ngpus: [{model: H100-SXM5-80GB}]",
		args: []string{"--control.enabled", "--control.mode=apply", "--control.state-dir=/nonexistent",
			"--control.socket=/nonexistent/control.sock"}},
	{name: "dense", code: 1, scenario: "node: {}\ngpus: [{model: A100-SXM4-40GB, mig: true, count: 2, layout: [1g.5gb@0, " +
		"1g.5gb@1, 1g.5gb@2, {gi: 2g.10gb@4, ci: []}, 1g.5gb@6]}]"},
	{name: "kernel-log", args: []string{"--xid.kernel-log"}, code: 1, scenario: "node: {privileged: false}\n" +
		"gpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}, {model: H100-SXM5-80GB}]\n" +
		"faults: [{kind: xid, gpu: 1, xid: 79}, {kind: xid, gpu: 1, xid: 119}]"},
	{name: "kernel-log-lost", args: []string{"--xid.kernel-log"}, code: 1, scenario: "node: {}\n" +
		"gpus: [{model: H100-SXM5-80GB}, {model: H100-SXM5-80GB}]\nfaults: [{kind: xid, gpu: 1, xid: 119}, " +
		"{kind: xid, gpu: 1, xid: 79}, {kind: lost, gpu: 1}]"},
	{name: "no-kernel-log", args: []string{"--xid.kernel-log"}, code: 1,
		scenario: "node: {kernelLog: false}\ngpus: [{model: H100-SXM5-80GB}]"},
	// Refused activity is not that of an A100, and each part of a split instance is judged.
	{name: "no-activity", code: 1, args: []string{"--hpc.job-mapping-dir=/nonexistent"},
		scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0, {gi: 3g.40gb@4, ci: [1c, 2c]}]}]\n" +
			"faults: [{kind: no-permission, reading: activity}]"},
	{name: "no-match", code: 1, scenario: "node: {}\ngpus: [{model: H100-SXM5-80GB}]\nfaults: [{kind: version-mismatch}]"},
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

			compareGolden(t, "check-node."+c.name+".txt", []byte(timeless(out)), func(b []byte) string { return string(b) })
			cmptest.HasTexts(t, out, "\nnvmlSystemGetConfComputeState ")

			if c.name == "hang" { // by the clock of the machine, not the node's
				cmptest.HasTexts(t, out, ": not returned for ")
			}
		})
	}
}

// timeless replaces what differs from run to run: the name of the simulation's folder, and times,
// by which the functions of the driver are sorted.
func timeless(report string) string {
	report = regexp.MustCompile(`/tmp/mig-exporter-sim-\d+`).ReplaceAllString(report, "DIR")
	report = regexp.MustCompile(`\d+\.\d{6}`).ReplaceAllString(report, "N.NNNNNN")
	report = regexp.MustCompile(`returned for \d+\.\d s`).ReplaceAllString(report, "returned for N.N s")

	sections := strings.SplitAfter(report, "\n\n")
	for i, section := range sections {
		if title, body, ok := strings.Cut(section, "\n"); ok && strings.HasPrefix(title, "function of the driver") {
			lines := strings.SplitAfter(strings.TrimSuffix(body, "\n"), "\n")
			slices.Sort(lines)
			sections[i] = title + "\n" + strings.Join(lines, "") + "\n"
		}
	}

	return strings.Join(sections, "")
}

// checkNodeArgs returns the arguments for check-node on a scenario, which is given without its
// version.
func checkNodeArgs(t *testing.T, scenario string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	writeFile(t, path, "version: 1\n"+scenario+"\n")

	return []string{"check-node", "--driver=sim", "--sim.clock=step", "--sim.scenario=" + path, "--log.level=error"}
}

// TestCheckNodeChangesNothing: of the driver it calls functions that read alone, and it writes no
// file, even with the flags of partition control.
func TestCheckNodeChangesNothing(t *testing.T) {
	t.Parallel()

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

	checkCalls(t, out)
}

// checkCalls holds that all calls in a document of check-node only read, and add up.
func checkCalls(t *testing.T, document string) {
	t.Helper()

	var report struct {
		Complete bool
		Calls    []struct {
			Function string
			Class    gpu.CallClass
			Calls    int
			Seconds  *float64
		}
		CallClasses []classTime
	}
	if err := json.Unmarshal([]byte(document), &report); err != nil {
		t.Fatal(err)
	}

	reads := regexp.MustCompile(`^nvml(Device|System|GpuInstance|ComputeInstance)Get|^nvml(Init|Shutdown)$` +
		`|^nvmlGpm(QueryDeviceSupport|SampleAlloc|SampleGet|MigSampleGet|MetricsGet|SampleFree)$` +
		`|^nvmlEventSetCreate$|^nvmlDeviceRegisterEvents$`)
	for _, c := range report.Calls {
		if !reads.MatchString(c.Function) || c.Calls == 0 || c.Seconds == nil {
			t.Errorf("%+v: expected a function that reads, with its calls and seconds", c)
		}
	}

	sums := map[gpu.CallClass]int{}
	for _, c := range report.Calls {
		sums[c.Class] += c.Calls
		if c.Function == "nvmlDeviceGetFieldValues" && c.Calls > nodeCheckPolls {
			t.Errorf("%d calls of %s in %d polls: expected calls, not the fields of each", c.Calls, c.Function, nodeCheckPolls)
		}
	}

	for _, c := range report.CallClasses {
		cmptest.Equal(t, "calls that are "+string(c.Class), c.Calls, sums[c.Class])
	}

	if len(report.CallClasses) != len(sums) || sums[gpu.CallExclusive] == 0 {
		t.Errorf("classes %+v of the calls %v", report.CallClasses, sums)
	}

	if !report.Complete || len(report.Calls) < 20 {
		t.Errorf("complete: %v, %d functions", report.Complete, len(report.Calls))
	}
}

// TestCallTimes: a call that hangs is counted, and its time is unknown; a function without a known
// class may be exclusive.
func TestCallTimes(t *testing.T) {
	calls := newCallTimes()
	calls.EndCall("nvmlDeviceGetFutureReading", calls.BeginCall("nvmlDeviceGetFutureReading"))

	for range 3 {
		calls.BeginCall("nvmlDeviceGetGpuInstances")
	}

	open := calls.byFunction["nvmlDeviceGetGpuInstances"].open
	for i := range open {
		open[i] = open[i].Add(-time.Hour)
	}

	calls.EndCall("nvmlDeviceGetGpuInstances", open[1])

	list := calls.list()
	if len(list) != 2 || list[0].Seconds < 3600 || list[0].Seconds != list[0].MaxSeconds {
		t.Fatalf("got %+v, want the call of an hour first", list)
	}

	hangs := list[0]
	if len(hangs.Unreturned) != 2 || hangs.Unreturned[0] < 3600 || hangs.Calls != 3 || hangs.Class != gpu.CallOneGPU {
		t.Errorf("got %+v, want 2 of 3 calls that have not returned for an hour", hangs)
	}

	cmptest.Equal(t, "class of an unknown function", list[1].Class, gpu.CallUnknown)

	var text bytes.Buffer
	if err := (&nodeReport{Calls: list, CallClasses: sumClasses(list)}).writeText(&text); err != nil {
		t.Fatal(err)
	}

	cmptest.HasTexts(t, text.String(), "2 not returned for up to 360", "\ngpu      3 ", "\nunknown  1 ")
}

// TestCheckNodePrintsHostileText: what a driver or a kubelet says cannot control a terminal or add
// a line.
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
