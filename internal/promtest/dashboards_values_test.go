package promtest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
)

type (
	promqlSeries = promql.Series
	promqlPoint  = promql.FPoint
)

// total adds up the last points of an answer.
func (a answer) total() float64 { return a.totalAt(fleetEnd()) }

func (a answer) totalAt(end time.Time) float64 {
	sum := 0.0

	for _, s := range a.series {
		if last := s.Floats[len(s.Floats)-1]; last.T == end.UnixMilli() && !math.IsNaN(last.F) {
			sum += last.F
		}
	}

	return sum
}

func (x exposition) sum(family string, want ...string) float64 {
	sum := 0.0
	for _, s := range x.of(family, want...) {
		sum += s.value
	}

	return sum
}

// devices are the series of a family of GPU instances and of GPUs without MIG. A GPU with instances
// has MIG, whatever its mode says.
func (x exposition) devices(family string) []series {
	list := x.of("nvidia_mig_gpu_instance_" + family)
	for _, s := range x.of("nvidia_gpu_" + family) {
		on := "uuid=" + s.labels["uuid"]
		if x.sum("nvidia_gpu_mig_enabled", on) == 0 && len(x.of("nvidia_mig_gpu_instance_info", on)) == 0 {
			list = append(list, s)
		}
	}

	return list
}

// onDevices adds up a family over devices.
func (x exposition) onDevices(family string) float64 {
	sum := 0.0
	for _, s := range x.devices(family) {
		sum += s.value
	}

	return sum
}

// free counts the devices that could be held: free ones of GPUs that answer.
func (x exposition) free() float64 {
	n := 0.0

	for _, s := range x.devices("allocated") {
		if s.value == 0 {
			n += x.sum("nvidia_gpu_up", "uuid="+s.labels["uuid"])
		}
	}

	return n
}

// eventsOnce: an XID that both pods of an exporter count, as one replaces the other, is one.
func (f *fleet) eventsOnce(t *testing.T, boards map[string]grafanaDashboard) {
	for board, title := range map[string]string{"mig-node": "XIDs", "mig-fleet": "XIDs"} {
		most := 0.0

		for _, s := range f.query(t, boards[board].panel(t, title), "A", fleetView("sick")).series {
			for _, x := range s.Floats {
				most = max(most, x.F)
			}
		}

		if most < 0.9 || most > 1.5 {
			t.Errorf("%s, %s: %v of one", board, title, most)
		}
	}
}

// sums: what panels add up is what the nodes served, worked out without PromQL.
func (f *fleet) sums(t *testing.T, boards map[string]grafanaDashboard) {
	for _, node := range []string{"mixed", "full", "shared", "a30", "bare", "sick"} {
		x := f.last[node]
		for _, c := range []struct {
			board, title, ref string
			want              float64
		}{
			{"mig-node", "GPUs", "A", float64(len(x.of("nvidia_gpu_up")))},
			{"mig-node", "GPUs that do not answer", "A", float64(len(x.of("nvidia_gpu_up"))) - x.sum("nvidia_gpu_up")},
			{"mig-node", "Power", "A", x.sum("nvidia_gpu_power_watts")},
			{"mig-node", "Power by device", "A", x.sum("nvidia_gpu_power_watts")},
			{"mig-node", "Memory used", "A", x.onDevices("memory_used_bytes")},
			{"mig-node", "Devices", "A", x.onDevices("allocated")},
			{"mig-node", "Devices", "B", x.free()},
			{"mig-fleet", "Devices", "A", x.onDevices("allocated") + x.free()},
			{"mig-fleet", "All nodes", "Free", x.free()},
			{"mig-workloads", "Devices", "B", float64(len(x.devices("up")))},
			{"mig-node", "Memory slices: used, free, stranded", "A", x.sum("nvidia_gpu_mig_slices", "kind=memory")},
			{"mig-workloads", "Power", "A", x.sum("nvidia_gpu_container_power_estimate_watts")},
			{"mig-workloads", "Power", "B", x.sum("nvidia_gpu_power_watts")},
			{"mig-workloads", "Devices: held and free", "A", x.onDevices("allocated") + x.free()},
			{"mig-workloads", "Power, by namespace", "A", x.sum("nvidia_gpu_container_power_estimate_watts")},
			{"mig-workloads", "All pods with a GPU or slice", "Power", x.sum("nvidia_gpu_container_power_estimate_watts")},
			{"mig-workloads", "Power of each pod", "A", x.sum("nvidia_gpu_container_power_estimate_watts")},
			{"mig-node", "Room for more slices", "A", x.sum("nvidia_gpu_mig_profile_instances_available")},
			{"mig-fleet", "Room for more slices", "A", x.sum("nvidia_gpu_mig_profile_instances_available")},
			{"mig-fleet", "Power", "B", x.sum("nvidia_gpu_power_limit_watts")},
			{"mig-fleet", "Power", "C", x.sum("nvidia_gpu_power_unallocated_watts")},
			{"mig-fleet", "GPUs", "A", float64(len(x.of("nvidia_gpu_up")))},
			{"mig-fleet", "All nodes", "GPUs", float64(len(x.of("nvidia_gpu_up")))},
			{"mig-fleet", "All nodes", "Held", x.onDevices("allocated")},
			{"mig-exporter-health", "Exporters", "A", 1},
			{"mig-exporter-health", "Sources that do not answer", "A",
				float64(len(x.of("mig_exporter_source_up"))) - x.sum("mig_exporter_source_up")},
			{"mig-exporter-health", "All exporters", "Sources",
				float64(len(x.of("mig_exporter_source_up"))) - x.sum("mig_exporter_source_up")},
			{"mig-workloads", "Memory used, by namespace", "A", x.sum("nvidia_gpu_container_memory_used_bytes")},
			{"mig-workloads", "Memory used by each pod", "A", x.sum("nvidia_gpu_container_memory_used_bytes")},
			{"mig-workloads", "All pods with a GPU or slice", "Memory", x.sum("nvidia_gpu_container_memory_used_bytes")},
			{"mig-fleet", "Power now", "A", x.sum("nvidia_gpu_power_watts")},
			{"mig-fleet", "Power", "A", x.sum("nvidia_gpu_power_watts")},
			{"mig-fleet", "All nodes", "Power", x.sum("nvidia_gpu_power_watts")},
			{"mig-fleet", "Memory slices: used, free, stranded", "A", x.sum("nvidia_gpu_mig_slices", "kind=memory")},
			{"mig-fleet", "GPUs with stranded memory slices", "Slices",
				x.sum("nvidia_gpu_mig_slices", "kind=memory", "state=stranded")},
		} {
			v := fleetView(node)
			if strings.HasSuffix(c.title, " each pod") {
				v = v.with("pod", ".+") // more pods than are drawn without a choice
			}

			got := f.query(t, boards[c.board].panel(t, c.title), c.ref, v).total()
			if math.Abs(got-c.want) > 1e-6*math.Max(1, c.want) {
				t.Errorf("%s, %s on %s: %v, want %v", c.board, c.title, node, got, c.want)
			}
		}
	}

	f.energy(t, boards)
	f.dcgmSums(t, boards, "dcgm")
	f.dcgmSums(t, boards, "foreign")
}

// energy: adding power up by minutes agrees with the energy counters.
func (f *fleet) energy(t *testing.T, boards map[string]grafanaDashboard) {
	for _, node := range []string{"mixed", "a30"} {
		want := f.last[node].sum("nvidia_gpu_energy_joules_total") / 3.6e6

		got := f.query(t, boards["mig-fleet"].panel(t, "Energy in the time range"), "A", fleetView(node)).total()
		if math.Abs(got-want) > 0.05*want {
			t.Errorf("energy of %s: %v kWh, its counters say %v", node, got, want)
		}
	}
}

// dcgmSums: under dcgm-exporter's names the numbers of the same node are the same.
func (f *fleet) dcgmSums(t *testing.T, boards map[string]grafanaDashboard, node string) {
	x := f.last["mixed"]

	d := boards["mig-node-dcgm"]
	for _, c := range []struct {
		title string
		want  float64
		unit  float64
		near  float64
	}{
		{"GPUs", float64(len(x.of("nvidia_gpu_up"))), 1, 0},
		{"Power", x.sum("nvidia_gpu_power_watts"), 1, 1e-6},
		{"Power of each GPU", x.sum("nvidia_gpu_power_watts"), 1, 1e-6},
		{"Memory used", x.onDevices("memory_used_bytes"), 1 << 20, 0.001},
	} {
		got := f.query(t, d.panel(t, c.title), "A", fleetView(node)).total() * c.unit
		if math.Abs(got-c.want) > c.near*c.want {
			t.Errorf("%s on %s: %v, want %v", c.title, node, got, c.want)
		}
	}

	table := f.query(t, d.panel(t, "GPUs and slices, and the pods that hold them"), "Memory", fleetView(node))
	if shares := slices.DeleteFunc(table.series,
		func(s promqlSeries) bool { return math.IsNaN(s.Floats[0].F) }); len(shares) < 15 {
		t.Errorf("the table has the memory of %d devices on %s", len(shares), node)
	}

	held := map[string]bool{}
	for _, s := range f.query(t, d.panel(t, "Pods by device"), "A", fleetView(node)).series {
		held[s.Metric.Get("namespace")+"/"+s.Metric.Get("pod")] = true
	}

	for pod, want := range map[string]bool{
		"vision/resnet-7c9f-x2k4p": true, "gpu-monitoring/mig-exporter-old": false, "gpu-monitoring/mig-exporter-new": false,
	} {
		if held[pod] != want {
			t.Errorf("%s is a holder on %s: got %t, want %t", pod, node, held[pod], want)
		}
	}

	activity := f.query(t, d.panel(t, "Tensor activity of each device"), "A", fleetView(node))

	native := f.query(t, boards["mig-node"].panel(t, "Tensor activity of each device"), "A", fleetView("mixed"))
	if len(activity.series) < 15 || math.Abs(activity.total()-native.total()) > 0.001 {
		t.Errorf("tensor activity %v of %d devices, natively %v of %d", activity.total(), len(activity.series),
			native.total(), len(native.series))
	}
}

// states: the first table of each dashboard says what is wrong and whose it is, and nothing of what
// is well.
func (f *fleet) states(t *testing.T, boards map[string]grafanaDashboard) {
	xids := map[string]float64{}
	for _, s := range f.query(t, boards["mig-node-dcgm"].panel(t, "GPUs and slices, and the pods that hold them"), "XID",
		fleetView("dcgm")).series {
		xids[s.Metric.Get("gpu")+" "+s.Metric.Get("slice")] = s.Floats[0].F
	}

	for row, want := range map[string]float64{"3 1g.5gb#8": 13, "3 1g.5gb#7": 0, "3 (whole GPU)": 0} {
		if got, ok := xids[row]; !ok || got != want {
			t.Errorf("the last XID of %s is %v, want %v", row, got, want)
		}
	}

	table := boards["mig-node"].panel(t, "GPUs and slices, and the pods that hold them")
	state := func(node string) map[string]float64 {
		values := map[string]float64{}
		for _, s := range f.query(t, table, "State", fleetView(node)).series {
			values[s.Metric.Get("gpu")+" "+s.Metric.Get("slice")] = s.Floats[0].F
		}

		return values
	}

	sick := state("sick")
	for row, want := range map[string]float64{"0 (whole GPU)": 1, "1 (whole GPU)": 2, "1 3g.40gb@0:4": 6,
		"1 3g.40gb@4:4": 11, "2 (whole GPU)": 11, "3 (whole GPU)": 1, "3 3g.40gb@0:4": 1} {
		if sick[row] != want {
			t.Errorf("state of %s is %v, want %v", row, sick[row], want)
		}
	}

	if got := state("mixed")["4 3g.20gb@4:4"]; got != 7 {
		t.Errorf("state of a slice without a compute instance is %v", got)
	}

	if got := state("a30")["1 (whole GPU)"]; got != 9 {
		t.Errorf("state of a GPU whose MIG mode is pending is %v", got)
	}

	for _, node := range []string{"underused", "full", "shared", "bare"} {
		for row, got := range state(node) {
			if got != 11 {
				t.Errorf("state of %s on %s is %v, want ok", row, node, got)
			}
		}
	}

	f.holders(t, boards, table.Title)
	f.owners(t, boards["mig-workloads"].panel(t, "All pods with a GPU or slice"))
	f.problems(t, boards)
}

func (f *fleet) holders(t *testing.T, boards map[string]grafanaDashboard, title string) {
	for node, want := range map[string]map[string]string{
		"mixed": {
			"0 (whole GPU)": "vision/resnet-7c9f-x2k4p", "2 (whole GPU)": "by slice", "2 3g.20gb@4:4": "ml/notebook-ana",
			"4 3g.20gb@0:4": "2 pods", "3 1g.5gb@6:1": "free",
		},
		"dcgm": {"0 (whole GPU)": "vision/resnet-7c9f-x2k4p", "2 (whole GPU)": "by slice",
			"3 1g.5gb#12": "free or unknown"},
		"foreign": {"0 (whole GPU)": "vision/resnet-7c9f-x2k4p", "2 (whole GPU)": "by slice",
			"3 1g.5gb#12": "free or unknown"},
		"shared": {"0 (whole GPU)": "3 pods", "2 (whole GPU)": "ml/training-0"},
		"bare":   {"1 (whole GPU)": "n/a", "0 2g.12gb@0:2": "n/a"},
	} {
		board := "mig-node"
		if node == "dcgm" || node == "foreign" {
			board = "mig-node-dcgm"
		}

		got := map[string]string{}
		for _, s := range f.query(t, boards[board].panel(t, title), "Holder", fleetView(node)).series {
			got[s.Metric.Get("gpu")+" "+s.Metric.Get("slice")] = s.Metric.Get("holder")
		}

		for row, holder := range want {
			if got[row] != holder {
				t.Errorf("%s on %s is held by %q, want %q", row, node, got[row], holder)
			}
		}
	}
}

func (f *fleet) owners(t *testing.T, table grafanaPanel) {
	owner := map[string]string{}
	for _, s := range f.query(t, table, "Devices", fleetView("a30|shared")).series {
		owner[s.Metric.Get("pod")] = s.Metric.Get("workload")
	}

	if owner["tracker-0"] != "StatefulSet/tracker" {
		t.Errorf("owners: %v", owner)
	}
}

func (f *fleet) problems(t *testing.T, boards map[string]grafanaDashboard) {
	table := boards["mig-fleet"].panel(t, "Problems and affected pods")

	rows := func(node string) string {
		var list []string
		for _, s := range f.query(t, table, "State", fleetView(node)).series {
			list = append(list, s.Metric.Get("instance")+" "+s.Metric.Get("slice"))
		}

		return strings.Join(list, ", ")
	}
	if got := rows("underused|full|shared"); got != " (all that report)" {
		t.Errorf("problems of healthy nodes: %s", got)
	}

	// Gone for more than an hour.
	if got := rows("gone|shared"); got != "gone (node)" {
		t.Errorf("problems where a node stopped: %s", got)
	}

	if got := f.query(t, boards["mig-fleet"].panel(t, "Nodes without data"), "A",
		fleetView("gone|shared")).total(); got != 1 {
		t.Errorf("%v nodes without data, want 1", got)
	}

	if got := rows("sick"); strings.Count(got, "sick") != 6 {
		t.Errorf("problems of a sick node: %s", got)
	}
}

// The bounds of one query of a panel, for a fleet of 200 nodes of 56 slices, or of eight whole
// GPUs, and the default time range of the dashboard at 1,000 points. Prometheus' default limit, of
// samples in memory at a time, is 50 million.
const (
	fleetSize      = 200
	fleetPoints    = 1000
	mostSamples    = 15_000_000
	mostRuleSample = 20_000 // that an evaluation of a rule reads for one node
)

func (f *fleet) samplesOf200(t *testing.T, boards map[string]grafanaDashboard) {
	if f.ruleSample > mostRuleSample {
		t.Errorf("a rule reads %d samples for all these nodes, want at most %d", f.ruleSample, mostRuleSample)
	}

	for uid, d := range boards {
		for _, p := range d.all() {
			for _, target := range p.Targets {
				n := int64(0)

				for _, node := range []string{"full", "underused", "advised"} {
					n = max(n, f.samplesOf(t, uid, node, p, target))
				}

				t.Logf("%11d %s, %s, %s", n, uid, p.Title, target.RefID)

				if n > mostSamples {
					t.Errorf("%s, %s, %s: %d samples for %d nodes, want at most %d", uid, p.Title, target.RefID, n, fleetSize, mostSamples)
				}
			}
		}
	}
}

// samplesOf works out how many samples a query reads of fleetSize nodes like one of ours.
func (f *fleet) samplesOf(t *testing.T, uid, node string, p grafanaPanel, target grafanaTarget) int64 {
	t.Helper()
	v := fleetView(node)
	times := int64(1)
	v.to = v.to.Add(-2 * overlap) // no exporter is being replaced

	v.from = v.to
	if strings.Contains(target.Expr, "$__range") {
		v.from = v.to.Add(-time.Hour)
		times = 24 // of a day
	}

	if strings.Contains(target.Expr, "[1d]") {
		times = int64(24 * time.Hour / fleetRuns)
	}

	nodes := int64(fleetSize)
	if strings.HasPrefix(uid, "mig-node") {
		nodes = 1
	}

	// Of the pods that are drawn, each is on another node.
	if strings.Contains(target.Expr, "$most") {
		v = v.with("most", f.drawnFirst(t, target, v))
		nodes = drawnPods
	}

	n := f.query(t, p, target.RefID, v).samples * times * nodes
	if !target.Instant {
		n *= fleetPoints
	}

	return n
}

// drawnPods is how many pods the variable most has.
const drawnPods = 50

// drawnFirst returns a pattern for the first of the pods that are drawn, or for none if none is.
func (f *fleet) drawnFirst(t *testing.T, target grafanaTarget, v view) string {
	t.Helper()

	for _, x := range target.computed {
		if x.Name != "most" {
			continue
		}

		options, err := f.options(x, v)
		if err != nil || !strings.Contains(x.Definition, fmt.Sprintf("topk(%d, ", drawnPods)) {
			t.Fatalf("%s: got the options %q (%v), want the first %d", x.Definition, options, err, drawnPods)
		}

		return x.expand(options[:min(1, len(options))])
	}

	t.Fatal("there is no variable most")

	return ""
}
