package promtest

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
)

// healthy is a node that is used as it should be: slices and a GPU that work in waves, one after the other of a batch's pods, and a free GPU.
const healthy = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {model: H100-80GB}
workloads:
  - {name: serve, memory: 60GiB, sm: {sine: {min: 30, max: 120, period: 24h}}, dram: 0.5, tensor: 0.4}
  - {name: slice, memory: 20GiB, sm: {sine: {min: 5, max: 50, period: 24h}}, dram: 0.4, tensor: 0.3}
  - {name: batch, memory: 30GiB, sm: {steps: [{at: 0s, value: 45}, {at: 50m, value: 0}], repeat: 60m}, dram: 0.9, tensor: 0.5}
pods:
  - {namespace: chat, name: llm-0, resource: nvidia.com/gpu, device: "0", workload: serve}
  - {namespace: chat, name: small-0, resource: nvidia.com/mig-3g.40gb, device: "1/3g.40gb@0", workload: slice}
`

const (
	week = 7 * 24 * time.Hour
	span = 240 // evaluations that are queried at once
	held = 5   // minutes for which what the node says is stored: it is stepped by as much
)

// TestRulesAreSilentOnAHealthyNode: not one alert fires in a week, evaluated every minute. Pods of a batch hand a slice to each other.
func TestRulesAreSilentOnAHealthyNode(t *testing.T) {
	t.Parallel()
	scenario := healthy
	for i := range 21 {
		scenario += fmt.Sprintf("  - {namespace: batch, name: job-%d, resource: nvidia.com/mig-3g.40gb, device: \"1/3g.40gb@4\", workload: batch, at: %dm, for: 28798s}\n", i, 480*i)
	}
	n := startRuledNode(t, scenario)
	n.runLong(week)
	n.expectStory()
}

// runLong lets a fresh node run for days, whole spans of them. The node is stepped by five minutes and its exposition stored for each of them;
// the rules are evaluated every minute.
func (n *ruledNode) runLong(until time.Duration) {
	t := n.scrapedNode.t
	t.Helper()
	ahead := &rangeQueries{Engine: n.Engine, of: map[string]map[int64]promql.Vector{}}
	n.ruler = newRuler(t, n.db, scraped(), ahead.query)
	for n.elapsed < until {
		ahead.from = n.now().Add(time.Minute)
		for range span / held {
			n.request(http.MethodPost, "/-/sim/advance?by="+(held*time.Minute).String())
			exposition := n.request(http.MethodGet, "/metrics")
			for i := range held {
				n.elapsed += time.Minute
				n.target.later = time.Duration(i+1-held) * time.Minute
				n.target.scrape(t, n.now(), Text, exposition)
			}
		}
		ahead.to = n.now()
		n.evalSpan(ahead)
	}
}

// rangeQueries answers the instant queries of rules from range queries of the same engine, over the time from one to another: it parses and looks
// up series once for many evaluations, which is what makes a week affordable.
type rangeQueries struct {
	*Engine
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

// evalSpan evaluates the groups at every minute of the span, the groups of recording rules before those that read what they recorded.
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
