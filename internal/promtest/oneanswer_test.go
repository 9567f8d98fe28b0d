package promtest

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// expectOneAnswer fails the test unless all that name underused GPUs name the same ones now: the
// alerts, the fleet's table and its number, migctl recommend, and migctl fleet. By evidence
// that is not complete all of them say so.
func (r *rollout) expectOneAnswer(socket, want string, provisional bool) {
	r.t.Helper()
	recommended, index := r.recommended(socket, provisional)
	answers := map[string]string{
		"migctl recommend": recommended, "migctl fleet": r.askedFleet(index, provisional),
		"GpuRightsizingCandidate": r.gpusOf("GpuRightsizingCandidate"), "GpuUnderused": r.gpusOf("GpuUnderused"),
	}

	// Each of the two alerts is for one age of the evidence.
	silent := "GpuUnderused"
	if provisional {
		silent = "GpuRightsizingCandidate"
	}

	if answers[silent] != "" {
		r.t.Errorf("%s fires for GPUs %q", silent, answers[silent])
	}

	delete(answers, silent)

	f := &fleet{Prometheus: r.Prometheus}
	board := loadDashboards(r.t)["mig-fleet"]
	v := view{from: r.now().Add(-time.Hour), to: r.now(), step: fleetStep, set: map[string]string{}}

	known := "advisor, a week"
	if provisional {
		known = "advisor, not complete"
	}

	var rows []string
	for _, s := range f.query(r.t, board.panel(r.t, underusedPanel), "Known", v).series {
		rows = append(rows, s.Metric.Get("gpu"))
		if s.Metric.Get("known") != known {
			r.t.Errorf("the row of GPU %s is known by %q", s.Metric.Get("gpu"), s.Metric.Get("known"))
		}
	}

	slices.Sort(rows)
	answers["the table"] = strings.Join(rows, " ")

	for who, got := range answers {
		if got != want {
			r.t.Errorf("%s names GPUs %q, want %q", who, got, want)
		}
	}

	if n := f.query(r.t, board.panel(r.t, underusedStat), "A", v).totalAt(r.now()); n != float64(len(strings.Fields(want))) {
		r.t.Errorf("the number is %v, want that of %q", n, want)
	}
}

// recommended returns the GPUs for which migctl recommend has a slice, and the index of each GPU by
// UUID.
func (r *rollout) recommended(socket string, provisional bool) (gpus string, index map[string]string) {
	r.t.Helper()

	var report struct {
		Devices []struct {
			GPU, Action                  string
			Index                        int
			Provisional, MediaNotChecked bool
		}
	}
	if err := json.Unmarshal([]byte(migctl(r.t, socket, "recommend", "-o", "json")), &report); err != nil {
		r.t.Fatal(err)
	}

	var list []string

	index = map[string]string{}
	for _, d := range report.Devices {
		index[d.GPU] = strconv.Itoa(d.Index)
		if d.Action == "slice" && d.Provisional == provisional && !d.MediaNotChecked {
			list = append(list, index[d.GPU])
		}
	}

	slices.Sort(list)

	return strings.Join(list, " "), index
}

// askedFleet returns the GPUs that migctl fleet says could be slices.
func (r *rollout) askedFleet(index map[string]string, provisional bool) string {
	r.t.Helper()
	_, url := serveAPI(r.t, r.Prometheus)

	var list []string

	for _, g := range askFleet(r.t, url, "1d", r.now()).GPUs {
		if g.Action != "slice" {
			continue
		}

		if g.Provisional != provisional {
			r.t.Errorf("migctl fleet: GPU %s is provisional: %v", index[g.UUID], g.Provisional)
		}

		list = append(list, index[g.UUID])
	}

	slices.Sort(list)

	return strings.Join(list, " ")
}

// TestOneAnswerOnOneDay: after a day and a half the shipped story of underused GPUs has one answer,
// that of the advisor by little evidence, and none of the GPUs that it keeps whole is in any.
func TestOneAnswerOnOneDay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "control.sock")
	n := newRollout(t, readFile(t, "../../testdata/scenarios/h100-underused.yaml"), advisorPolls, "--control.enabled",
		"--control.socket="+socket, "--control.state-dir="+dir)
	n.start("gpu-node-1:9401", "mig-exporter-a")
	n.exporters[0].target.keep = nil
	n.runLong(36 * time.Hour)

	n.expectOneAnswer(socket, "0 1 2 5", true)

	const says = "No workload is to move yet: 4 slices are recommended provisionally, by evidence that is not complete yet " +
		"(less than seven days), for GPU 0, 1, 2, 5."
	if out := oneLine(migctl(t, socket, "recommend")); !strings.Contains(out, says) {
		t.Errorf("want %q in:\n%s", says, out)
	}

	n.expectSummary("GpuUnderused", "GPU 1 of gpu-node-1:9401 is larger than its work needs, by evidence that is not "+
		"complete yet: 4.545% of its SMs are active on average (held by search/embedder-0).")
}
