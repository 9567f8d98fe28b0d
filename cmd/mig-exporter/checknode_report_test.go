package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestReportIsShort: the text has one line for all instances of a GPU of which it says the same,
// and each remedy once. The document has a check for each instance.
func TestReportIsShort(t *testing.T) {
	var report nodeReport

	for _, name := range []string{"gpu 0", "gpu 1"} {
		for _, id := range []gpu.InstanceID{13, 7, 8, 9, 1, 10, 3} {
			c := nodeCheck{Name: "x", gpu: name, instance: gpu.Some(id)}.about("activity")

			c.State = checkMissing
			c.Asked = true
			c.Found = "none"

			c.Remedy = "use DCGM"
			if id == 3 {
				c.State = checkOK
				c.Asked = true
				c.Found = "by DCGM"
				c.Remedy = ""
				c.Name = "gpu 0 instance 3 activity"
			}

			report.Checks = append(report.Checks, c)
		}
	}

	var text, document bytes.Buffer
	if err := errors.Join(report.writeText(&text), report.writeJSON(&document)); err != nil {
		t.Fatal(err)
	}

	lines, _, _ := strings.Cut(text.String(), "\n\n")
	cmptest.Equal(t, "text", lines, strings.Join([]string{
		"MISSING  gpu 0 instances 1, 7-10, 13 activity  none",
		"                                               -> use DCGM",
		"ok       gpu 0 instance 3 activity             by DCGM",
		"MISSING  gpu 1 instances 1, 7-10, 13 activity  none",
		"ok       gpu 0 instance 3 activity             by DCGM"}, "\n"))

	var decoded struct{ Checks []map[string]any }
	if err := json.Unmarshal(document.Bytes(), &decoded); err != nil || len(decoded.Checks) != 14 {
		t.Errorf("%v, %d checks in the document, want 14", err, len(decoded.Checks))
	}

	for _, c := range report.Checks {
		if strings.Contains(c.Name, "instances") {
			t.Errorf("writing changed the report: %s", c.Name)
		}
	}
}

// TestCheckNodeFailsOtherwise: the exit code of a node that cannot be checked is not that of one
// that lacks something.
func TestCheckNodeFailsOtherwise(t *testing.T) {
	_, errOut, code := runBinary(t, nil, "check-node", "--driver=sim", "--sim.scenario=/nonexistent.yaml")
	cmptest.Equal(t, "exit code", code, exitNotChecked)
	cmptest.HasTexts(t, errOut, "/nonexistent.yaml")
}

// TestCheckNodeOfASlowGPU: a GPU whose last reading is older than the last poll is not said to
// answer.
func TestCheckNodeOfASlowGPU(t *testing.T) {
	last := gpu.GPU{Facts: gpu.Facts{Name: "H100"}, Device: gpu.Device{Up: true}}
	last.LastRead = last.LastRead.Add(1)
	s := &gpu.Snapshot{GPUs: []gpu.GPU{last}, HungCalls: 1}
	j := nodeJudge{cfg: &Config{Profiling: ProfilingConfig{Source: profilingOff}}, last: s, lastPoll: last.LastRead.Add(6e9)}

	states := failedChecks(&j)
	cmptest.Equal(t, "a slow GPU", states["gpu 0"], checkUnknown)
	cmptest.Equal(t, "a reading that hangs", states["driver-calls"], checkMissing)
}

// failedChecks returns the states of the checks that fail, by name.
func failedChecks(j *nodeJudge) map[string]checkState {
	j.judge()
	states := map[string]checkState{}

	for _, c := range j.checks {
		if c.fails() {
			states[c.Name] = c.State
		}
	}

	return states
}

// TestCheckNodeOfSilentSources: a kubelet, an API server and jobs that have not answered yet are
// not taken for ones that are not there.
func TestCheckNodeOfSilentSources(t *testing.T) {
	cfg := &Config{
		Profiling:  ProfilingConfig{Source: profilingOff},
		Kubernetes: KubernetesConfig{Socket: "/kubelet.sock", NodeName: "n"},
		JobDir:     "/jobs",
	}
	silent := nodeJudge{cfg: cfg, last: &gpu.Snapshot{}}
	none := nodeJudge{cfg: cfg, last: &gpu.Snapshot{}, host: hostFacts{noKubelet: true}}

	container := nodeJudge{cfg: cfg, last: &gpu.Snapshot{Sources: []gpu.SourceState{
		{Name: gpu.SourceKubelet, Err: fmt.Errorf("%w: set a flag", gpu.ErrNotConfigured)}}}}

	cmptest.Equal(t, "in a container", failedChecks(&container), map[string]checkState{"driver": checkMissing,
		"api-server": checkUnknown, "batch-jobs": checkUnknown})

	for _, c := range container.checks {
		if c.Name == "kubelet" && (c.State != checkUnknown || !strings.Contains(c.Remedy, "--kubernetes.socket= ")) {
			t.Errorf("the kubelet of a container: %+v", c)
		}
	}

	cmptest.Equal(t, "silent", failedChecks(&silent), map[string]checkState{
		"driver": checkMissing, "kubelet": checkUnknown,
		"witness": checkUnknown, "api-server": checkUnknown, "batch-jobs": checkUnknown})
	cmptest.Equal(t, "without a kubelet", failedChecks(&none), map[string]checkState{"driver": checkMissing,
		"api-server": checkUnknown, "batch-jobs": checkUnknown})
}

// TestCheckNodeOfUnknownInstances: instances that could not be listed are not taken for none.
func TestCheckNodeOfUnknownInstances(t *testing.T) {
	of := gpu.GPU{Device: gpu.Device{Up: true}, MIG: gpu.MIGState{Enabled: gpu.Some(true)}}
	of.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrDriver}}
	j := nodeJudge{cfg: &Config{}, last: &gpu.Snapshot{GPUs: []gpu.GPU{of}}}

	cmptest.Equal(t, "activity", failedChecks(&j)["gpu 0 activity"], checkUnknown)
}

// TestCheckNodeNamesUnlistedGPUs: a GPU that has fallen off the bus is in the kernel driver's list
// alone.
func TestCheckNodeNamesUnlistedGPUs(t *testing.T) {
	var of gpu.GPU
	of.PCIBusID = "00000000:1B:00.0"
	j := nodeJudge{cfg: &Config{}, last: &gpu.Snapshot{GPUs: []gpu.GPU{of}},
		host: hostFacts{bound: gpu.Some([]string{"0000:1b:00.0", "0000:43:00.0"})}}
	j.judgeBound()

	if len(j.checks) != 1 || j.checks[0].fails() || !strings.HasSuffix(j.checks[0].Found, "listed: 0000:43:00.0") {
		t.Errorf("got %+v, want a line that names the other GPU", j.checks)
	}
}

// TestCheckNodeWithoutProfiling: instances that do not answer are reported although their activity
// is not asked for.
func TestCheckNodeWithoutProfiling(t *testing.T) {
	of := gpu.GPU{Device: gpu.Device{Up: true}, MIG: gpu.MIGState{Enabled: gpu.Some(true)}, Instances: []gpu.GPUInstance{{ID: 3}}}
	j := nodeJudge{cfg: &Config{Profiling: ProfilingConfig{Source: profilingOff}}, last: &gpu.Snapshot{GPUs: []gpu.GPU{of}}}

	cmptest.Equal(t, "the instance", failedChecks(&j)["gpu 0 instance 3"], checkMissing)
}
