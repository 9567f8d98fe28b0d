package promtest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/tsdb"
)

// benchKind is a kind of node of a fleet.
type benchKind struct {
	fleetNode
	nodes int
	past  time.Duration // that the node has been through before Prometheus scrapes it
}

const (
	benchWarm   = 90 * time.Minute // rules look back for an hour
	benchPeriod = 2 * time.Hour    // that is repeated
	benchDays   = 7                // the longest default time range
	screenWidth = 1900             // pixels of a dashboard on a screen of 1,920
)

// benchFleets are fleets of 200 nodes of eight GPUs.
func benchFleets(t testing.TB) map[string][]benchKind {
	kind := func(nodes int, scenario string, args ...string) benchKind {
		text := readFile(t, "../../testdata/scenarios/"+scenario+".yaml")
		return benchKind{nodes: nodes, fleetNode: fleetNode{name: "node", scenario: text, args: args, format: Protobuf}}
	}

	whole := kind(80, "h100-underused")
	whole.past = 8 * 24 * time.Hour // so that the advisor has its answers

	return map[string][]benchKind{
		"slices": {kind(200, "h100-56")},
		"mixed": {
			whole,
			kind(60, "h100-56"),
			kind(40, "dgx-a100-mixed", "--dcgm.address=embedded"),
			kind(20, "dgx-a100-mixed", "--dcgm.address=embedded", "--metrics.names=dcgm"),
		},
	}
}

// BenchmarkPanels asks every query of every panel as Grafana does when a dashboard is opened, and
// evaluates each group of recording rules once. Panels have the names of their dashboards and
// titles; the queries of a panel follow one another.
func BenchmarkPanels(b *testing.B) {
	boards := loadDashboards(b)

	for name, kinds := range benchFleets(b) {
		b.Run(name, func(b *testing.B) {
			e, end := openFleet(b, kinds)

			for _, uid := range slices.Sorted(maps.Keys(boards)) {
				benchBoard(b, e, boards[uid], end)
			}

			checkRecorded(b, e, end)
			benchRules(b, e, end)
		})
	}
}

func benchBoard(b *testing.B, e *Prometheus, d grafanaDashboard, end time.Time) {
	span, err := model.ParseDuration(strings.TrimPrefix(d.Time.From, "now-"))
	if err != nil {
		b.Fatal(err)
	}

	v := view{from: end.Add(-time.Duration(span)), to: end, set: map[string]string{}}

	switch d.UID {
	case "mig-node":
		v.set["node"] = "node-0"
	case "mig-node-dcgm":
		v.set["node"] = "node-199"
	}

	for _, x := range d.computed() {
		v, err := e.compute(d.computed(), v, x.Definition)
		if err != nil {
			b.Fatal(err)
		}

		b.Run(d.UID+"/variable "+x.Name, func(b *testing.B) {
			benchmark(b, func() int {
				options, err := e.options(x, v)
				if err != nil {
					b.Fatal(err)
				}

				return len(options)
			})
		})
	}

	for _, p := range d.all() {
		points := screenWidth * p.GridPos.W / 24
		if p.MaxDataPoints > 0 {
			points = p.MaxDataPoints
		}

		v.step = grafanaStep(time.Duration(span) / time.Duration(points))
		benchPanel(b, e, d.UID+"/"+p.Title, p, v)

		// These have a line for each GPU or pod, and are looked at with some chosen.
		if p.MaxDataPoints > 0 {
			one := v
			one.set = map[string]string{"node": "node-0"}
			benchPanel(b, e, d.UID+"/"+p.Title+" (one node)", p, one)
		}
	}
}

// benchPanel measures the queries of a panel, one after the other. What variables are set to by a
// query has been asked before.
func benchPanel(b *testing.B, e *Prometheus, name string, p grafanaPanel, v view) {
	for _, target := range p.Targets {
		set, err := e.compute(target.computed, v, target.Expr)
		if err != nil {
			b.Fatal(err)
		}

		v = set
	}

	b.Run(name, func(b *testing.B) {
		benchmark(b, func() (rows int) {
			for _, target := range p.Targets {
				a, err := e.ask(target, v)
				if err != nil {
					b.Fatal(err)
				}

				rows += len(a.series)
			}

			return rows
		})
	})
}

// benchmark reports the medians of how long a run takes and of its processor time, garbage
// collection included: other programs on the machine make the former longer.
func benchmark(b *testing.B, run func() (rows int)) {
	var took, processor []time.Duration

	rows := 0

	for range b.N {
		began := time.Now()
		used := processorTime(b)
		rows = run()

		took = append(took, time.Since(began))
		processor = append(processor, processorTime(b)-used)
	}

	slices.Sort(took)
	slices.Sort(processor)
	b.ReportMetric(took[b.N/2].Seconds(), "p50-s")
	b.ReportMetric(processor[b.N/2].Seconds(), "cpu-s")
	b.ReportMetric(float64(rows), "series")
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// checkRecorded fails the benchmark if a rule gives other series of the whole fleet than those that
// were copied.
func checkRecorded(b *testing.B, e *Prometheus, end time.Time) {
	b.Helper()

	for _, file := range []string{alertRecords, dashboardRules} {
		for _, g := range ruleGroups(b, file) {
			for _, rule := range g.Rules {
				copies := e.vectorAt(b, rule.Record, end)
				if now := e.vectorAt(b, rule.Expr, end); !slices.Equal(now, copies) {
					b.Errorf("%s: %d series, and %d that were copied", rule.Record, len(now), len(copies))
				}
			}
		}
	}
}

// vectorAt returns the labels of an expression's series, without the name, in order.
func (e *Prometheus) vectorAt(b *testing.B, expr string, at time.Time) []string {
	b.Helper()

	a, err := e.ask(grafanaTarget{Expr: expr, Instant: true}, view{to: at})
	if err != nil {
		b.Fatal(err)
	}

	var list []string
	for _, s := range a.series {
		list = append(list, s.Metric.DropReserved(func(name string) bool { return name == model.MetricNameLabel }).String())
	}

	slices.Sort(list)

	return list
}

func benchRules(b *testing.B, e *Prometheus, end time.Time) {
	for _, file := range []string{alertRecords, dashboardRules} {
		for _, g := range ruleGroups(b, file) {
			b.Run("rules/"+g.Name, func(b *testing.B) {
				benchmark(b, func() (rows int) {
					for _, rule := range g.Rules {
						a, err := e.ask(grafanaTarget{Expr: rule.Expr, Instant: true}, view{to: end})
						if err != nil {
							b.Fatal(err)
						}

						rows += len(a.series)
					}

					return rows
				})
			})
		}
	}
}

// grafanaStep rounds the step of a query as Grafana does: it is the interval of scrapes at least.
func grafanaStep(step time.Duration) time.Duration {
	rounded := []time.Duration{
		30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
		15 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour,
	}
	for i, d := range rounded[:len(rounded)-1] {
		if step < (d+rounded[i+1])/2 {
			return d
		}
	}

	return time.Hour
}

// openFleet writes the blocks of a fleet, opens them, and appends what is newer. The result ends at
// the returned time.
func openFleet(b *testing.B, kinds []benchKind) (*Prometheus, time.Time) {
	b.Helper()

	dir := b.TempDir()
	end := scraped().Add(benchDays * 24 * time.Hour)

	var (
		fleet []copied
		nodes int
	)

	for _, k := range kinds {
		list := simulate(b, k, end)

		for range k.nodes {
			fleet = append(fleet, copyNode(list, fmt.Sprintf("node-%d", nodes))...)
			nodes++
		}
	}

	slices.SortFunc(fleet, func(a, b copied) int { return labels.Compare(a.labels, b.labels) })

	for i := range fleet[1:] {
		if labels.Equal(fleet[i].labels, fleet[i+1].labels) {
			b.Fatalf("two nodes have the series %s", fleet[i].labels)
		}
	}

	samples, err := writeFleet(dir, fleet, end.Add(-inHead))
	if err != nil {
		b.Fatal(err)
	}

	e := openBlocks(b, dir)

	newer, err := appendFleet(e.db, fleet, end.Add(-inHead))
	if err != nil {
		b.Fatal(err)
	}

	fmt.Fprintf(os.Stderr, "%s: %d nodes, %d series, %d samples, %d of them in memory\n", b.Name(), nodes, len(fleet), samples+newer, newer)

	debug.FreeOSMemory()

	return e, end
}

// openBlocks opens a folder with blocks, which stay as they are.
func openBlocks(b *testing.B, dir string) *Prometheus {
	b.Helper()

	opts := tsdb.DefaultOptions()
	opts.RetentionDuration = 0
	opts.WALSegmentSize = -1                                          // without a log: nothing is read again
	opts.MinBlockDuration = 2 * (inHead + time.Minute).Milliseconds() // a head takes what is half of it older than its newest

	db, err := tsdb.Open(dir, nil, nil, opts, tsdb.NewDBStats())
	if err != nil {
		b.Fatal(err)
	}

	db.DisableCompactions()

	return newPrometheus(b, db)
}

// simulate runs a node and returns what Prometheus has of it: what was scraped in the last period
// for a day, and what dashboards read over days, recorded series among it, for all of them. The
// last sample of all is at the end.
func simulate(b *testing.B, k benchKind, end time.Time) []storedSeries {
	b.Helper()

	start := "MIG_SIM_START=" + scraped().Add(-k.past).Format(time.RFC3339)

	args := append([]string{"--sim.scenario=" + scenarioFile(b, k.scenario)}, k.args...)
	if k.past > 0 {
		args = append(args, "--poll.interval=5m")
	}

	url, _ := launch(b, []string{start}, args...)
	n := &scrapedNode{Prometheus: NewPrometheus(b), t: b, url: url}

	for passed := time.Duration(0); passed < k.past; passed += 5 * time.Minute {
		n.request("POST", "/-/sim/advance?by=5m")
	}

	for n.elapsed < benchWarm+benchPeriod {
		n.elapsed += scrapeInterval
		n.request("POST", "/-/sim/advance?by="+scrapeInterval.String())
		n.scrapePods(b, n, k.fleetNode)
	}

	for _, file := range []string{alertRecords, dashboardRules} {
		n.recordGroups(b, ruleGroups(b, file))
	}

	list := n.stored(b, n.now().Add(-benchPeriod), n.now())
	week := readOverDays(b)

	for i := range list {
		s := &list[i]

		s.periods = int(24 * time.Hour / benchPeriod)
		if name := s.labels.Get(model.MetricNameLabel); strings.Contains(name, ":") || week[name] {
			s.periods *= benchDays
		}

		s.move(end.Sub(n.now()))
	}

	return list
}

// move moves a series in time.
func (s *storedSeries) move(by time.Duration) {
	for i := range s.samples {
		s.samples[i].at += by.Milliseconds()
		if s.isTime() {
			s.samples[i].value += by.Seconds()
		}
	}
}

// readOverDays are the families that the dashboard of a week reads as lines.
func readOverDays(t testing.TB) map[string]bool {
	families := map[string]bool{}

	for _, p := range loadDashboards(t)["mig-rightsizing"].all() {
		for _, target := range p.Targets {
			if target.Instant {
				continue
			}

			for _, name := range regexp.MustCompile(`\b(nvidia|mig)_\w+`).FindAllString(target.Expr, -1) {
				families[name] = true
			}
		}
	}

	return families
}

// recordGroups evaluates groups of recording rules at their intervals, from the first scrape on.
func (e *Prometheus) recordGroups(t testing.TB, groups []rulefmt.RuleGroup) {
	t.Helper()

	seen := map[string]map[uint64]labels.Labels{}

	for at := scraped().Add(time.Minute); !at.After(e.last); at = at.Add(time.Minute) {
		for _, g := range groups {
			if at.Sub(scraped())%cmp.Or(time.Duration(g.Interval), time.Minute) != 0 {
				continue
			}

			for _, rule := range g.Rules {
				seen[rule.Record], _ = e.record(t, rule, at, seen[rule.Record])
			}
		}
	}
}
