package promtest

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
)

// A fleet is several simulated nodes under one Prometheus. The nodes run once, and all queries are
// asked of that run.

type fleetNode struct {
	name     string // its instance label
	scenario string
	args     []string
	format   Format
	ends     time.Duration // of its reports; 0: it goes on
	foreign  bool          // it is scraped as dcgm-exporter's chart has it
	replaced time.Duration // when a new pod of its exporter is scraped, beside the old one for overlap; 0: never
	gap      [2]time.Duration
}

const (
	fleetRuns = 2 * time.Hour
	fleetStep = time.Minute // of panels
	overlap   = 2 * time.Minute
)

func fleetNodes(t *testing.T) []fleetNode {
	t.Helper()
	scenario := func(name string) string {
		return readFile(t, "../../testdata/scenarios/"+name+".yaml")
	}
	mixed := scenario("dgx-a100-mixed")
	late := fleetRuns - overlap/2

	return []fleetNode{
		// Exporters are replaced in the middle of the run, or so late that both pods are scraped at
		// its end.
		{name: "mixed", scenario: mixed, args: []string{"--dcgm.address=embedded"}, replaced: time.Hour},
		{name: "underused", scenario: scenario("h100-underused"), format: Protobuf, replaced: late},
		{name: "full", scenario: scenario("h100-56"), gap: [2]time.Duration{30 * time.Minute, 40 * time.Minute},
			replaced: late},
		{name: "shared", scenario: scenario("mps-and-timeslicing"), replaced: late},
		{name: "a30", scenario: scenario("a30"), replaced: late},
		{name: "bare", scenario: bareNode, replaced: late},
		{name: "sick", scenario: sickNode, replaced: 114 * time.Minute},
		{name: "chaos", scenario: chaos(t)},
		{name: "gone", scenario: scenario("gke-h100-3g"), ends: 50 * time.Minute},
		{name: "dcgm", scenario: mixed, args: []string{"--dcgm.address=embedded", "--metrics.names=dcgm"}, replaced: late},
		{name: "foreign", scenario: mixed, args: []string{"--dcgm.address=embedded", "--metrics.names=dcgm"}, replaced: late,
			foreign: true},
	}
}

// bareNode has no kubelet, and GPUs with nothing to measure activity.
const bareNode = `version: 1
node: {hostname: bare, kubernetes: false}
seed: 77
gpus: [{model: A30, mig: true, layout: ["2g.12gb@0", "1g.6gb@2"]}, {model: A30}]
workloads: [{name: train, memory: 8GiB, sm: 20}]
processes: [{device: "0/2g.12gb@0", workload: train}, {gpu: 1, workload: train}]
`

// sickNode is sick at the end: GPUs 0 and 3 lost, the latter with MIG, GPU 1 wants to be drained
// after an XID of a slice, GPU 2 is healthy and idle.
const sickNode = `version: 1
node: {hostname: sick, kubernetes: true}
seed: 78
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
workloads: [{name: serve, memory: 30GiB, sm: 80, dram: 0.5, tensor: 0.4}]
pods:
  - {namespace: prod, name: serve-0, resource: nvidia.com/gpu, device: "0", workload: serve}
  - {namespace: prod, name: slice-0, resource: nvidia.com/mig-3g.40gb, device: "1/3g.40gb@0", workload: serve}
  - {namespace: prod, name: slice-1, resource: nvidia.com/mig-3g.40gb, device: "3/3g.40gb@0", workload: serve}
faults:
  - {at: 110m, gpu: 0, kind: lost}
  - {at: 110m, gpu: 3, kind: lost}
  - {at: 115m, gpu: 1, kind: xid, xid: 94, gi: 1, ci: 0, recovery: drain_and_reset}
`

// target is the labels that the scrapes of a pod of the exporter add, as a PodMonitor with
// honorLabels does: the exporter's own namespace, pod and container are on all series that have
// none.
func (n fleetNode) target(pod string) labels.Labels {
	return labels.FromStrings("cluster", "sim", "instance", n.name, "job", "mig-exporter",
		"namespace", "gpu-monitoring", "pod", "mig-exporter-"+pod, "container", "mig-exporter", "endpoint", "metrics")
}

// fleet is the Prometheus that scraped the nodes, and what each served last, in text.
type fleet struct {
	*Prometheus
	last       map[string]exposition
	ruleSample int64 // most samples that one evaluation of a rule read
}

// runFleet runs all nodes for fleetRuns, scrapes them, and evaluates the recording rules of the
// dashboards.
func runFleet(t *testing.T, nodes []fleetNode) *fleet {
	t.Helper()
	e := NewPrometheus(t)
	f := &fleet{Prometheus: e, last: map[string]exposition{}}

	for _, node := range nodes {
		n := startNode(t, node.scenario, node.args...)
		for n.elapsed < fleetRuns {
			n.elapsed += scrapeInterval
			n.request(http.MethodPost, "/-/sim/advance?by="+scrapeInterval.String())

			if node.ends > 0 && n.elapsed > node.ends || n.elapsed > node.gap[0] && n.elapsed <= node.gap[1] {
				e.addFailedScrape(t, node.target("old"), n.now())
				continue
			}

			e.scrapePods(t, n, node)
		}

		x, err := readExposition(n.get("/metrics", Text))
		if err != nil {
			t.Fatal(err)
		}

		f.last[node.name] = x
	}

	f.control(t)
	f.advised(t)
	f.ruleSample = f.recordAll(t, 5*time.Minute, fleetEnd())

	return f
}

// control adds a node with partition control as it is served: an operation that succeeds, one that
// fails and leaves it degraded.
func (f *fleet) control(t *testing.T) {
	t.Helper()
	node := fleetNode{name: "control"}

	for at := scraped().Add(scrapeInterval); !at.After(fleetEnd()); at = at.Add(scrapeInterval) {
		in := "idle"
		succeeded := 0
		failed := 0

		if at.After(scraped().Add(30 * time.Minute)) {
			succeeded = 1
		}

		if at.After(scraped().Add(90 * time.Minute)) {
			in = "degraded"
			failed = 1
		}

		text := fmt.Sprintf("mig_control_operations_total{verb=\"apply\",result=\"succeeded\"} "+
			"%d\nmig_control_operations_total{verb=\"apply\",result=\"failed\"} %d\n", succeeded, failed)

		for _, state := range []string{"idle", "running", "degraded", "stuck", "read-only", "off"} {
			value := 0
			if state == in {
				value = 1
			}

			text += fmt.Sprintf("mig_control_state{state=%q} %d\n", state, value)
		}

		f.AddScrapeFrom(t, node.target("old"), at, Text, []byte(text))
	}
}

// scrapePods scrapes the pods of the node's exporter that there are now.
func (e *Prometheus) scrapePods(t testing.TB, n *scrapedNode, node fleetNode) {
	t.Helper()

	if node.format == "" {
		node.format = Text
	}

	body := n.get("/metrics", node.format)
	if node.foreign {
		body = asDCGMExporter(body)
	}

	before := node.target("old")

	after := node.target("new")
	if node.replaced == 0 || n.elapsed <= node.replaced+overlap {
		e.addScrapeOf(t, before, n.now(), node.format, body)
	}

	if node.replaced > 0 && n.elapsed > node.replaced {
		e.addScrapeOf(t, after, n.now(), node.format, body)
	}

	if node.replaced > 0 && n.elapsed == node.replaced+overlap {
		// Series that both serve, since they have pods of their own, go on.
		for hash := range e.targets[after.String()].seen {
			delete(e.targets[before.String()].seen, hash)
		}

		e.removeTarget(t, before, n.now().Add(scrapeInterval/2))
	}
}

// asDCGMExporter makes of an exposition in text what Prometheus gets of dcgm-exporter as its chart
// installs it: without honor_labels, so that labels that the target has too are renamed, and
// without the reserved memory, which is not in its default list.
func asDCGMExporter(body []byte) []byte {
	body = regexp.MustCompile(`([{,])(namespace|pod|container)="`).ReplaceAll(body, []byte(`${1}exported_$2="`))
	return regexp.MustCompile(`(?m)^DCGM_FI_DEV_FB_RESERVED\{.*\n`).ReplaceAll(body, nil)
}

// addScrapeOf adds a scrape of a target, with the series that Prometheus itself adds.
func (e *Prometheus) addScrapeOf(t testing.TB, of labels.Labels, at time.Time, format Format, body []byte) {
	t.Helper()
	e.AddScrapeFrom(t, of, at, format, body)
	e.addScrapeSeries(t, of, at, 1, float64(strings.Count(string(body), "\n")))
}

// removeTarget marks all series of a target stale.
func (e *Prometheus) removeTarget(t testing.TB, of labels.Labels, at time.Time) {
	t.Helper()
	e.AddScrapeFrom(t, of, at, Text, nil)
	stale := math.Float64frombits(value.StaleNaN)
	e.addScrapeSeries(t, of, at, stale, stale)
}

// addScrapeSeries adds the series that Prometheus itself adds for a scrape.
func (e *Prometheus) addScrapeSeries(t testing.TB, of labels.Labels, at time.Time, up, samples float64) {
	t.Helper()
	app := e.db.Appender(t.Context())

	for name, value := range map[string]float64{"up": up, "scrape_duration_seconds": min(samples, 0.01),
		"scrape_samples_scraped": samples} {
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

// addFailedScrape adds a scrape without an answer.
func (e *Prometheus) addFailedScrape(t *testing.T, of labels.Labels, at time.Time) {
	t.Helper()
	e.AddScrapeFrom(t, of, at, Text, nil)
	e.addScrapeSeries(t, of, at, 0, 0)
}

// fleetEnd returns the time of the last scrape of all nodes.
func fleetEnd() time.Time { return scraped().Add(fleetRuns) }
