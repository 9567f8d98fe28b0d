package promtest

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// A fleet is several simulated nodes under one Prometheus. The nodes run once, and all queries are asked of that run.

type fleetNode struct {
	name     string // its instance label
	scenario string
	args     []string
	format   Format
	ends     time.Duration // of its reports; 0: it goes on
	gap      [2]time.Duration
}

const (
	fleetRuns = 2 * time.Hour
	fleetStep = time.Minute // of panels
)

func fleetNodes(t *testing.T) []fleetNode {
	t.Helper()
	scenario := func(name string) string {
		text, err := os.ReadFile("../../testdata/scenarios/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	mixed := scenario("dgx-a100-mixed")
	return []fleetNode{
		{name: "mixed", scenario: mixed, args: []string{"--dcgm.mode=embedded"}},
		{name: "underused", scenario: scenario("h100-underused"), format: Protobuf},
		{name: "full", scenario: scenario("h100-56"), gap: [2]time.Duration{30 * time.Minute, 40 * time.Minute}},
		{name: "shared", scenario: scenario("mps-and-timeslicing")},
		{name: "a30", scenario: scenario("a30")},
		{name: "bare", scenario: bareNode},
		{name: "sick", scenario: sickNode},
		{name: "chaos", scenario: chaos(t)},
		{name: "gone", scenario: scenario("gke-h100-3g"), ends: 80 * time.Minute},
		{name: "dcgm", scenario: mixed, args: []string{"--dcgm.mode=embedded", "--metrics.names=dcgm"}},
	}
}

// bareNode has no kubelet, and GPUs with nothing to tell activity.
const bareNode = `version: 1
node: {hostname: bare, kubernetes: false}
seed: 77
gpus: [{model: A30, mig: true, layout: ["2g.12gb@0", "1g.6gb@2"]}, {model: A30}]
workloads: [{name: train, memory: 8GiB, sm: 20}]
processes: [{device: "0/2g.12gb@0", workload: train}, {gpu: 1, workload: train}]
`

// sickNode is sick at the end: GPU 0 lost, GPU 1 wants to be drained after an XID of a slice, GPU 2 is healthy and idle.
const sickNode = `version: 1
node: {hostname: sick, kubernetes: true}
seed: 78
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {model: H100-80GB}
workloads: [{name: serve, memory: 30GiB, sm: 80, dram: 0.5, tensor: 0.4}]
pods:
  - {namespace: prod, name: serve-0, resource: nvidia.com/gpu, device: "0", workload: serve}
  - {namespace: prod, name: slice-0, resource: nvidia.com/mig-3g.40gb, device: "1/3g.40gb@0", workload: serve}
faults:
  - {at: 110m, gpu: 0, kind: lost}
  - {at: 115m, gpu: 1, kind: xid, xid: 94, gi: 1, ci: 0, recovery: drain_and_reset}
`

func (n fleetNode) target() labels.Labels {
	return labels.FromStrings("cluster", "sim", "instance", n.name, "job", "mig-exporter")
}

// fleet is the Prometheus that scraped the nodes, and what each served last, in text.
type fleet struct {
	*Engine
	last       map[string]exposition
	ruleSample int64 // most samples that one evaluation of a rule read
}

// runFleet runs all nodes for fleetRuns, scrapes them, and evaluates the recording rules of the dashboards.
func runFleet(t *testing.T, nodes []fleetNode) *fleet {
	t.Helper()
	e := Open(t)
	f := &fleet{Engine: e, last: map[string]exposition{}}
	for _, node := range nodes {
		n := startNode(t, node.scenario, node.args...)
		for n.elapsed < fleetRuns {
			n.elapsed += scrapeInterval
			n.request(http.MethodPost, "/-/sim/advance?by="+scrapeInterval.String())
			if node.ends > 0 && n.elapsed > node.ends || n.elapsed > node.gap[0] && n.elapsed <= node.gap[1] {
				e.down(t, node.target(), n.now())
				continue
			}
			e.scrape(t, n, node)
		}
		x, err := readExposition(n.get("/metrics", Text))
		if err != nil {
			t.Fatal(err)
		}
		f.last[node.name] = x
	}
	f.control(t)
	f.ruleSample = f.recordRules(t, dashboardRules, scraped().Add(time.Minute), fleetEnd())
	return f
}

// control adds a node with partition control as it is served: an operation that succeeds, one that fails and leaves it degraded.
func (f *fleet) control(t *testing.T) {
	t.Helper()
	node := fleetNode{name: "control"}
	for at := scraped().Add(scrapeInterval); !at.After(fleetEnd()); at = at.Add(scrapeInterval) {
		in, succeeded, failed := "idle", 0, 0
		if at.After(scraped().Add(30 * time.Minute)) {
			succeeded = 1
		}
		if at.After(scraped().Add(90 * time.Minute)) {
			in, failed = "degraded", 1
		}
		text := fmt.Sprintf("mig_control_operations_total{verb=\"apply\",result=\"succeeded\"} %d\nmig_control_operations_total{verb=\"apply\",result=\"failed\"} %d\n", succeeded, failed)
		for _, state := range []string{"idle", "running", "degraded", "stuck", "read-only", "off"} {
			value := 0
			if state == in {
				value = 1
			}
			text += fmt.Sprintf("mig_control_state{state=%q} %d\n", state, value)
		}
		f.LoadFrom(t, node.target(), at, Text, []byte(text))
	}
}

// scrape loads what the node serves now, with what Prometheus adds to a scrape.
func (e *Engine) scrape(t *testing.T, n *scrapedNode, node fleetNode) {
	t.Helper()
	format := node.format
	if format == "" {
		format = Text
	}
	body := n.get("/metrics", format)
	e.LoadFrom(t, node.target(), n.now(), format, body)
	e.report(t, node.target(), n.now(), 1, strings.Count(string(body), "\n"))
}

// report adds the series that Prometheus itself makes of a scrape.
func (e *Engine) report(t *testing.T, of labels.Labels, at time.Time, up float64, samples int) {
	t.Helper()
	app := e.db.Appender(t.Context())
	for name, value := range map[string]float64{"up": up, "scrape_duration_seconds": 0.01, "scrape_samples_scraped": float64(samples)} {
		b := labels.NewBuilder(of)
		b.Set("__name__", name)
		if _, err := app.Append(0, b.Labels(), at.UnixMilli(), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// down is a scrape that failed.
func (e *Engine) down(t *testing.T, of labels.Labels, at time.Time) {
	t.Helper()
	e.LoadFrom(t, of, at, Text, nil)
	e.report(t, of, at, 0, 0)
}

// end is when all nodes were scraped last.
func fleetEnd() time.Time { return scraped().Add(fleetRuns) }
