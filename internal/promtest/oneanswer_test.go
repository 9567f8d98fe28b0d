package promtest

import (
	"encoding/json"
	"fmt"
	"net/http"
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

// askedFleet returns the GPUs that migctl fleet says could be slices, without those whose use of media engines
// is unknown.
func (r *rollout) askedFleet(index map[string]string, provisional bool) string {
	r.t.Helper()
	_, url := serveAPI(r.t, r.Prometheus)

	var list []string

	for _, g := range askFleet(r.t, url, "1d", r.now()).GPUs {
		if g.Action != "slice" || g.MediaNotChecked {
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

// nearlyAdvised returns a node with a free GPU, and one whose start is seen, so that a slice would
// do for it. With others, there are two besides that stay whole but for one reason: the use of media
// engines cannot be read, or no start was seen.
func nearlyAdvised(others bool) string {
	const head = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 2
gpus:
  - {model: H100-80GB, count: %d}
workloads:
  - {name: seen, memory: {steps: [{at: 0s, value: 500MiB}, {at: 1s, value: 7GiB}]}, width: 40, busy: {sine: {min: 0.08, max: 0.22, period: 12m}}, bandwidth: 0.0909}
  - {name: unread, memory: {steps: [{at: 0s, value: 500MiB}, {at: 1s, value: 16GiB}]}, width: 50, busy: 0.4, bandwidth: 0.152}
  - {name: settled, memory: 7GiB, width: 40, busy: {sine: {min: 0.08, max: 0.22, period: 12m}}, bandwidth: 0.0909}
pods:
  - {namespace: a, name: seen-0, owner: StatefulSet/seen, resource: nvidia.com/gpu, device: "0", workload: seen}
`

	if !others {
		return fmt.Sprintf(head, 2)
	}

	return fmt.Sprintf(head, 4) + `  - {namespace: a, name: unread-0, owner: StatefulSet/unread, resource: nvidia.com/gpu, device: "1", workload: unread}
  - {namespace: a, name: settled-0, owner: StatefulSet/settled, resource: nvidia.com/gpu, device: "2", workload: settled}
faults:
  - {kind: not-supported, gpu: 1, reading: media}
`
}

// TestOneAnswerOfWhatStaysWhole: GPUs for which a slice would do but for one reason are in none of
// the answers, and in the dashboard's table with that reason. Once the evidence is complete, the one
// whose start was seen gains nothing if it moves alone.
func TestOneAnswerOfWhatStaysWhole(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		others bool
		after  time.Duration
		want   string
		kept   []string
	}{
		"alone":  {false, 172 * time.Hour, "", []string{"0 no-gain"}},
		"others": {true, 36 * time.Hour, "0", []string{"1 media-not-checked", "2 start-unseen"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			socket := filepath.Join(dir, "control.sock")
			n := newRollout(t, nearlyAdvised(c.others), advisorPolls, "--control.enabled", "--control.socket="+socket,
				"--control.state-dir="+dir)
			n.start("gpu-node-1:9401", "mig-exporter-a")
			n.exporters[0].target.keep = nil

			for ; n.elapsed < c.after-36*time.Hour; n.elapsed += 15 * time.Minute { // before there is a Prometheus
				n.exporters[0].request(http.MethodPost, "/-/sim/advance?by=15m")
			}

			n.runLong(c.after)

			n.expectOneAnswer(socket, c.want, c.others)
			n.expectKept(c.kept)
		})
	}
}

// expectKept fails the test unless the dashboard's table of the GPUs that stay whole has these now,
// with their reasons.
func (r *rollout) expectKept(want []string) {
	r.t.Helper()
	f := &fleet{Prometheus: r.Prometheus}
	p := loadDashboards(r.t)["mig-rightsizing"].panel(r.t, "GPUs that stay whole")
	v := view{from: r.now().Add(-time.Hour), to: r.now(), step: fleetStep, set: map[string]string{}}
	var kept []string

	for _, s := range f.query(r.t, p, "Reason", v).series {
		kept = append(kept, joined(s.Metric, "gpu", "reason"))
	}

	slices.Sort(kept)

	if !slices.Equal(kept, want) {
		r.t.Errorf("GPUs that stay whole are %q, want %q", kept, want)
	}
}
