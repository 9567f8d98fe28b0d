package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestReportIsShort: the text has one line for all instances of a GPU of which it says the same, and each remedy once.
// The document has a check for each instance.
func TestReportIsShort(t *testing.T) {
	var report nodeReport
	for _, name := range []string{"gpu 0", "gpu 1"} {
		for _, id := range []gpu.InstanceID{13, 7, 8, 9, 1, 10, 3} {
			c := nodeCheck{Name: "x", gpu: name, instance: gpu.Some(id)}.about("activity")
			c.State, c.Asked, c.Found, c.Remedy = checkMissing, true, "none", "use DCGM"
			if id == 3 {
				c.State, c.Asked, c.Found, c.Remedy, c.Name = checkOK, true, "by DCGM", "", "gpu 0 instance 3 activity"
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

// TestCheckNodeFailsOtherwise: the exit code of a node that cannot be checked is not that of one that lacks something.
func TestCheckNodeFailsOtherwise(t *testing.T) {
	_, errOut, code := runBinary(t, nil, "check-node", "--driver=sim", "--sim.scenario=/nonexistent.yaml")
	cmptest.Equal(t, "exit code", code, exitNotChecked)
	cmptest.HasTexts(t, errOut, "/nonexistent.yaml")
}

// TestCheckNodeOfASlowGPU: a GPU whose last reading is older than the last poll is not said to answer.
func TestCheckNodeOfASlowGPU(t *testing.T) {
	last := gpu.GPU{Facts: gpu.Facts{Name: "H100"}, Up: true}
	last.LastRead = last.LastRead.Add(1)
	s := &gpu.Snapshot{GPUs: []gpu.GPU{last}, HungCalls: 1}
	j := nodeJudge{cfg: &Config{Profiling: profilingOff}, last: s, lastPoll: last.LastRead.Add(6e9)}
	j.judge()

	states := map[string]checkState{}
	for _, c := range j.checks {
		if c.fails() {
			states[c.Name] = c.State
		}
	}
	cmptest.Equal(t, "a slow GPU", states["gpu 0"], checkUnknown)
	cmptest.Equal(t, "a reading that hangs", states["driver-calls"], checkMissing)
}
