package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// TestFindingsAreCheckNodes: the page shows what check-node has in capitals.
func TestFindingsAreCheckNodes(t *testing.T) {
	for _, c := range checkNodeCases {
		// Only check-node knows which call hangs, and that a folder of partition control is not there.
		// With a library of another version than the driver there is no page.
		if c.name == "hang" || c.name == "control" || c.name == "no-match" {
			continue
		}

		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"--sim.scenario=" + write(t, "node.yaml", "version: 1\n"+c.scenario+"\n")}, c.args...)

			report, err := checkNode(t.Context(), configOf(t, args...), log.NewNopLogger())
			if err != nil {
				t.Fatal(err)
			}

			x := runInProcess(t, args...)
			for range 2*profiledCheckPolls - 1 {
				pollOnce(t, x)
			}

			failing := slices.DeleteFunc(slices.Clone(report.Checks), func(c nodeCheck) bool { return !c.fails() })
			want := []web.Finding{}

			for _, c := range joinChecks(failing) {
				want = append(want, web.Finding{
					Missing: c.State == checkMissing, Name: c.Name, Found: timeless(c.Found), Remedy: c.Remedy,
				})
			}

			got := slices.Clone(*x.findings())
			for i := range got {
				got[i].Found = timeless(got[i].Found)
			}

			cmptest.Equal(t, "findings", got, want)
			cmptest.Equal(t, "complete", len(want) == 0, c.code == 0)
		})
	}
}

// TestFindingsLast: what was so for one poll is no finding, and nothing is before two judgements.
func TestFindingsLast(t *testing.T) {
	x := runInProcess(t, "--sim.scenario="+write(t, "node.yaml", `version: 1
node: {}
gpus: [{model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}]
faults:
  - {kind: lost, gpu: 0, at: 10500ms, for: 1s}
  - {kind: no-permission, reading: activity, at: 20s}
`))

	names := func() string {
		found := x.findings()
		if found == nil {
			return "not known"
		}

		var list []string
		for _, f := range *found {
			list = append(list, f.Name)
		}

		return strings.Join(list, ", ")
	}

	at := time.Second
	for _, want := range []struct {
		at    time.Duration
		names string
	}{
		{6 * time.Second, "not known"},
		{7 * time.Second, ""},
		{11 * time.Second, ""}, // the GPU is lost now
		{15 * time.Second, ""},
		{19 * time.Second, ""},
		{23 * time.Second, ""}, // there is no activity now
		{27 * time.Second, "gpu 0 traffic, gpu 0 instance 1 activity"},
	} {
		for ; at < want.at; at += time.Second {
			pollOnce(t, x)
		}

		cmptest.Equal(t, at.String(), names(), want.names)
	}
}
