package promtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
)

// healthy is a node that is used as it should be: slices and a GPU that work in waves, one after
// the other of a batch's pods, and a free GPU that partition control repartitions. DCGM profiles
// the A100.
const healthy = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {model: A100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {model: A100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
workloads:
  - {name: serve, memory: 60GiB, sm: {sine: {min: 30, max: 120, period: 24h}}, dram: 0.5, tensor: 0.4}
  - {name: slice, memory: 20GiB, sm: {sine: {min: 5, max: 50, period: 24h}}, dram: 0.4, tensor: 0.3}
  - {name: small, memory: 20GiB, sm: {sine: {min: 5, max: 30, period: 24h}}, dram: 0.4, tensor: 0.3}
  - {name: batch, memory: 30GiB, sm: {steps: [{at: 0s, value: 45}, {at: 50m, value: 0}], repeat: 60m}, dram: 0.9, tensor: 0.5}
pods:
  - {namespace: chat, name: llm-0, resource: nvidia.com/gpu, device: "0", workload: serve}
  - {namespace: chat, name: small-0, resource: nvidia.com/mig-3g.40gb, device: "1/3g.40gb@0", workload: slice}
  - {namespace: chat, name: small-1, resource: nvidia.com/mig-3g.40gb, device: "2/3g.40gb@0", workload: small}
`

const (
	day  = 24 * time.Hour
	span = 240 // evaluations that are queried at once
	held = 5   // minutes for which what the node says is stored: it is stepped by as much
)

// TestRulesAreSilentOnAHealthyNode: not one alert fires in three days, evaluated every minute. Pods
// of a batch hand a slice to each other, and on the first day partition control changes a layout,
// the exporter's pod is replaced, and then its container restarted. What follows is longer than the
// two days that rules look back, and the hour for which they wait.
func TestRulesAreSilentOnAHealthyNode(t *testing.T) {
	t.Parallel()

	scenario := healthy
	for i := range 10 {
		scenario += fmt.Sprintf("  - {namespace: batch, name: job-%d, resource: nvidia.com/mig-3g.40gb, device: "+
			"\"1/3g.40gb@4\", workload: batch, at: %dm, for: 28798s}\n", i, 480*i)
	}

	dir := t.TempDir()
	socket := filepath.Join(dir, "c.sock")
	n := newRollout(t, scenario, "--dcgm.address=embedded", "--control.enabled", "--control.mode=apply",
		"--control.socket="+socket,
		"--control.state-dir="+filepath.Join(dir, "state"))
	n.start("gpu-node-1", "mig-exporter-a")
	n.runLong(8 * time.Hour)
	migctl(t, socket, "apply", "--yes", "--gpus", "3", "--devices", "2g.20gb=2,3g.40gb=1")
	n.runLong(16 * time.Hour)
	n.stopPod(false)
	n.start("gpu-node-1", "mig-exporter-b")
	n.runLong(day)
	n.stopPod(false)
	n.start("gpu-node-1", "mig-exporter-b") // the same pod: its container was restarted
	n.runLong(day + 52*time.Hour)
	n.expectStory()

	for query, want := range map[string]float64{
		`sum(max_over_time(nvidia_gpu_mig_layout_changes_total{gpu="3"}[6d]))`:                                       1,
		`count(nvidia_mig_gpu_instance_up{gpu="3"} == 1)`:                                                            3,
		`count(nvidia_mig_gpu_instance_graphics_engine_activity_ratio{gpu="2"})`:                                     2,
		`sum(max_over_time(mig_control_operations_total{verb="apply",result="succeeded",pod="mig-exporter-a"}[6d]))`: 1,
		`count(count by (pod) (last_over_time(mig_control_state{state="idle"}[6d]) == 1))`:                           2,
	} {
		if got, err := singleValue(n.EvalAt(query, n.now())); err != nil || got != want {
			t.Errorf("%s: got %v (%v), want %v", query, got, err, want)
		}
	}
}

// migctl runs the command line of partition control, which must succeed, and returns its output.
func migctl(t *testing.T, socket string, args ...string) string {
	t.Helper()

	out, code := tryMigctl(t, socket, args...)
	if code != 0 {
		t.Fatalf("migctl %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}

	return out
}

func tryMigctl(t *testing.T, socket string, args ...string) (out string, code int) {
	t.Helper()

	path, err := program()
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(path), "migctl"), args...)
	cmd.Env = append(os.Environ(), "MIGCTL_ADDRESS=unix://"+socket)

	text, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}

	return string(text), cmd.ProcessState.ExitCode()
}

// runLong lets the node run for days, whole spans of them, with one exporter. The node is stepped
// by five minutes and its exposition stored for each of them; the rules are evaluated every minute.
// A node that runs so does from its beginning.
func (r *rollout) runLong(until time.Duration) {
	r.t.Helper()

	if r.ahead == nil {
		r.ahead = &rangeQueries{Prometheus: r.Prometheus, of: map[string]map[int64]promql.Vector{}}
		r.ruler = newRuler(r.t, r.db, r.ruler.start, r.ahead.query)
	}

	x := r.exporters[0]
	for r.elapsed < until {
		r.ahead.from = r.now().Add(time.Minute)
		for range span / held {
			x.request(http.MethodPost, "/-/sim/advance?by="+(held*time.Minute).String())
			exposition := x.request(http.MethodGet, "/metrics")

			for i := range held {
				r.elapsed += time.Minute
				x.target.later = time.Duration(i+1-held) * time.Minute
				x.target.scrape(r.t, r.now(), Text, exposition)
			}
		}

		r.ahead.to = r.now()
		r.evalSpan(r.ahead)
	}
}

// rangeQueries answers the instant queries of rules from range queries of the same engine, over the
// time from one to another: it parses and looks up series once for many evaluations, which is what
// makes a week affordable.
type rangeQueries struct {
	*Prometheus
	from, to time.Time
	of       map[string]map[int64]promql.Vector // by expression and time; those of this span
}

func (q *rangeQueries) query(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
	if vectors, ok := q.of[expr]; ok {
		return vectors[at.UnixMilli()], nil
	}

	return rules.EngineQueryFunc(q.promql, q.db)(ctx, expr, at) // a template's
}

// ask runs the range query of a rule.
func (q *rangeQueries) ask(expr string) error {
	ctx := context.Background()

	query, err := q.promql.NewRangeQuery(ctx, q.db, nil, expr, q.from, q.to, time.Minute)
	if err != nil {
		return err
	}
	defer query.Close()

	matrix, err := query.Exec(ctx).Matrix()
	if err != nil {
		return err
	}

	vectors := map[int64]promql.Vector{}

	for _, s := range matrix {
		for _, p := range s.Floats {
			vectors[p.T] = append(vectors[p.T], promql.Sample{T: p.T, F: p.F, Metric: s.Metric})
		}
	}

	q.of[expr] = vectors

	return nil
}

// evalSpan evaluates the groups at every minute of the span, the groups of recording rules before
// those that read what they recorded.
func (r *ruler) evalSpan(q *rangeQueries) {
	r.t.Helper()
	clear(q.of)

	for _, recording := range []bool{true, false} {
		for _, g := range r.groups {
			if g.HasAlertingRules() == recording {
				continue
			}

			for _, rule := range g.Rules() {
				if err := q.ask(rule.Query().String()); err != nil {
					r.t.Fatalf("%s: %v", rule.Name(), err)
				}
			}

			for at := q.from; !at.After(q.to); at = at.Add(time.Minute) {
				r.evalGroup(g, at)
			}
		}
	}
}
