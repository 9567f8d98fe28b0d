package promtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// What dashboards show as wrong or idle is what alerts fire for.

// alertExpr returns the expression of an alert that is shipped.
func alertExpr(t *testing.T, name string) string {
	t.Helper()

	for _, r := range shippedAlerts(t) {
		if r.Alert == name {
			return r.Expr
		}
	}

	t.Fatalf("there is no alert %s", name)

	return ""
}

// alerts returns the labels, joined, of what an alert has fired for without a pause since then, at
// the end of a view.
func (f *fleet) alerts(t *testing.T, name string, pause time.Duration, v view, by ...string) []string {
	t.Helper()
	var kept map[string]string // text of the labels by all of them

	for at := v.to.Add(-pause); !at.After(v.to); at = at.Add(time.Minute) {
		result, err := f.EvalAt(alertExpr(t, name), at)
		if err != nil {
			t.Fatal(err)
		}

		now := map[string]string{}

		for _, s := range result {
			if _, before := kept[s.Metric.String()]; before || kept == nil {
				now[s.Metric.String()] = joined(s.Metric, by...)
			}
		}

		kept = now
	}

	return slices.Sorted(maps.Values(kept))
}

// joined returns the values of labels.
func joined(of labels.Labels, names ...string) string {
	return strings.Join(labelValues(of, names), " ")
}

func labelValues(of labels.Labels, names []string) []string {
	values := make([]string, 0, len(names))
	for _, name := range names {
		values = append(values, of.Get(name))
	}

	return values
}

// colors returns the colors of the values of a table's column.
func (p grafanaPanel) colors(t *testing.T, title string) map[string]string {
	t.Helper()
	colors := map[string]string{}

	for _, o := range p.FieldConfig.Overrides {
		for _, property := range o.Properties {
			if o.Matcher.Options != title || property.ID != "mappings" {
				continue
			}

			var list []struct{ Options json.RawMessage }
			if err := json.Unmarshal(property.Value, &list); err != nil {
				t.Fatal(err)
			}

			var named map[string]struct{ Color string }
			if err := json.Unmarshal(list[0].Options, &named); err != nil {
				t.Fatal(err)
			}

			for value, shown := range named {
				colors[value] = shown.Color
			}
		}
	}

	return colors
}

// TestXIDColors: an XID is red if an alert says that the GPU or the node has to be reset, amber
// otherwise, and has one row: that of the slice that the driver blames, else that of the GPU.
func TestXIDColors(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	const xids = 200
	v := loadBad(t, f, "xids", func(since time.Duration) string {
		var b strings.Builder

		for xid := range xids {
			on := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, xid, xid)
			slice := on + `,gpu_instance="1",mig_profile="3g.40gb"`
			seen := (scraped().Add(badRuns - time.Minute)).Unix()
			fmt.Fprintf(&b, "nvidia_gpu_up%[1]s} 1\nnvidia_gpu_xid_last_timestamp_seconds%[1]s,xid=\"%[2]d\"} %[3]d\n", on, xid, seen)

			if xid%2 == 0 {
				fmt.Fprintf(&b, "nvidia_gpu_mig_enabled%[1]s} 1\nnvidia_mig_gpu_instance_up%[2]s} 1\nnvidia_mig_gpu_instance_info%[2]s,placement=\"0:4\"} 1\n"+
					"nvidia_mig_compute_instance_info%[2]s,compute_instance=\"0\"} 1\nnvidia_mig_gpu_instance_xid_last_timestamp_seconds%[2]s,xid=\"%[3]d\"} %[4]d\n",
					on, slice, xid, seen)
			}
		}

		return b.String()
	})
	f.recordRules(t, alertRecords, v.to, v.to, time.Minute)
	fatal := map[string]bool{}

	for _, name := range []string{"GpuXidNode", "GpuXidHardware"} {
		for _, gpu := range f.alerts(t, name, 0, v, "gpu") {
			fatal[gpu] = true
		}
	}

	if len(fatal) < 20 {
		t.Fatalf("alerts fire for %d XIDs", len(fatal))
	}

	for board, title := range map[string]string{"mig-node": "GPUs and slices, and the pods that hold them", "mig-fleet": "Problems and affected pods"} {
		p := loadDashboards(t)[board].panel(t, title)
		colors := p.colors(t, "State")
		found := map[string]int{}

		for _, s := range f.query(t, p, "State", v).series {
			color := colors[fmt.Sprint(s.Floats[0].F)]
			if color == "transparent" {
				continue
			}

			gpu := s.Metric.Get("gpu")

			want := colors["8"] // as a GPU that is slowed down
			if fatal[gpu] {
				want = colors["1"] // as a GPU that does not answer
			}

			if color != want {
				t.Errorf("%s: XID %s is %s on %s, want %s", board, gpu, color, s.Metric.Get("slice"), want)
			}

			found[gpu]++
		}

		for gpu, n := range found {
			if n != 1 {
				t.Errorf("%s: XID %s has %d rows", board, gpu, n)
			}
		}

		if len(found) != xids {
			t.Errorf("%s: %d of %d XIDs have a row", board, len(found), xids)
		}
	}
}

// TestRolledOutNodeIsNotGone: where instance is an address, a new pod of the exporter is a new
// instance. It has the GPUs of the old one, which is not without data; a node whose GPUs are seen
// nowhere is.
func TestRolledOutNodeIsNotGone(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	to := scraped().Add(badRuns)
	old := fleetNode{name: "10.0.0.1:9400"}
	replaced := fleetNode{name: "10.0.0.2:9400"}
	dead := fleetNode{name: "10.0.0.3:9400"}

	serve := func(node fleetNode, uuid string, at time.Time) {
		on := fmt.Sprintf(`{gpu="0",uuid="%s"`, uuid)
		f.addScrapeOf(t, node.target("pod"), at, Text, []byte("nvidia_gpu_up"+on+"} 1\nnvidia_gpu_info"+on+",name=\"A30\",pci_bus_id=\"0\"} 1\n"+
			"nvidia_gpu_pod_info"+on+",namespace=\"ml\",pod=\"train-0\",container=\"c\",sharing=\"exclusive\",confirmed=\"true\"} 1\n"))
	}
	for at := scraped().Add(scrapeInterval); !at.After(to); at = at.Add(scrapeInterval) {
		first := at.Before(scraped().Add(badRuns / 2))
		if first {
			serve(old, "GPU-a", at)
			serve(dead, "GPU-b", at)
			continue
		}

		serve(replaced, "GPU-a", at)

		for _, node := range []fleetNode{old, dead} {
			if f.targets[node.target("pod").String()].seen != nil {
				f.removeTarget(t, node.target("pod"), at)
			}
		}
	}

	f.recordAll(t, 5*time.Minute, to)
	v := view{from: scraped(), to: to, step: fleetStep, set: map[string]string{}}

	board := loadDashboards(t)["mig-fleet"]
	if n := f.query(t, board.panel(t, "Nodes without data"), "A", v).series[0].Floats[0].F; n != 1 {
		t.Errorf("%v nodes without data, want one", n)
	}

	var gone []string

	for _, s := range f.query(t, board.panel(t, "Problems and affected pods"), "State", v).series {
		if s.Metric.Get("slice") == "(node)" {
			gone = append(gone, s.Metric.Get("instance"))
		}
	}

	if !slices.Equal(gone, []string{dead.name}) {
		t.Errorf("rows of nodes without data: %q, want %s", gone, dead.name)
	}
}

// idleDevice is a device, and how it was used.
type idleDevice struct {
	pods  []string
	slice bool
	busy  float64
	more  func(d *idleDevice, since time.Duration) // what is different at a time
}

func idleDevices() []idleDevice {
	before := func(end time.Duration, change func(d *idleDevice)) func(*idleDevice, time.Duration) {
		return func(d *idleDevice, since time.Duration) {
			if since < end {
				change(d)
			}
		}
	}

	return []idleDevice{
		{pods: []string{"idle"}},
		{pods: []string{"slice"}, slice: true},
		{pods: []string{"nearly"}, busy: 0.009},
		{pods: []string{"busy"}, busy: 0.02},
		// No SM is active while memory is copied.
		{pods: []string{"copies"}, busy: 0.3},
		{pods: []string{"stopped"}, slice: true, more: before(3*time.Minute, func(d *idleDevice) { d.busy = 0.5 })},
		{pods: []string{"recent"}, more: before(20*time.Minute, func(d *idleDevice) { d.busy = 0.5 })},
		{pods: []string{"wakes"}, more: func(d *idleDevice, since time.Duration) {
			if since > badRuns-2*time.Minute {
				d.busy = 0.5
			}
		}},
		{pods: []string{"follower"}, more: before(40*time.Minute, func(d *idleDevice) { d.pods = []string{"leader"} })},
		{pods: []string{"one", "two"}},
		{pods: []string{"unconfirmed"}},
		{},
	}
}

func (d idleDevice) serve(i int) string {
	on := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, i, i)

	family := "nvidia_gpu_"
	text := "nvidia_gpu_up" + on + "} 1\n"
	held := 0

	if d.slice {
		text += "nvidia_gpu_mig_enabled" + on + "} 1\n"
		on += `,gpu_instance="1",mig_profile="3g.40gb"`
		family = "nvidia_mig_gpu_instance_"
		text = text + "nvidia_mig_gpu_instance_info" + on + ",placement=\"0:4\"} 1\n"
	}

	if len(d.pods) > 0 {
		held = 1
	}

	text += fmt.Sprintf("%[1]sallocated%[2]s} %[3]d\n%[1]sgraphics_engine_activity_ratio%[2]s} %[4]v\n%[1]ssm_activity_ratio%[2]s} 0\n", family, on, held, d.busy)

	sharing := "exclusive"
	if len(d.pods) > 1 {
		sharing = "time-slicing"
	}

	for _, pod := range d.pods {
		text += fmt.Sprintf("%spod_info%s,namespace=\"ml\",pod=\"%s\",container=\"c\",sharing=\"%s\",confirmed=\"%v\"} 1\n", family, on, pod, sharing, pod != "unconfirmed")
	}

	return text
}

// TestIdlePanelsAgreeWithTheAlerts: what the fleet and the workloads call idle is what
// GpuAllocatedIdle and MigSliceAllocatedIdle fire for.
func TestIdlePanelsAgreeWithTheAlerts(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	v := loadBad(t, f, "idle", func(since time.Duration) string {
		text := ""

		for i, d := range idleDevices() {
			if d.more != nil {
				d.more(&d, since)
			}

			text += d.serve(i)
		}

		return text
	})
	f.recordAll(t, time.Minute, v.to)
	want := append(f.alerts(t, "GpuAllocatedIdle", time.Hour, v, "gpu"), f.alerts(t, "MigSliceAllocatedIdle", time.Hour, v, "gpu")...)
	slices.Sort(want)

	if !slices.Equal(want, []string{"0", "1", "2", "5", "9"}) {
		t.Fatalf("alerts fire for %q", want)
	}

	boards := loadDashboards(t)
	got := map[string]bool{}

	pods := []string{}
	for _, s := range f.query(t, boards["mig-fleet"].panel(t, "Idle devices and their pods"), "Busy", v).series {
		got[s.Metric.Get("gpu")], pods = true, append(pods, s.Metric.Get("pod"))
	}

	if devices := slices.Sorted(maps.Keys(got)); !slices.Equal(devices, want) {
		t.Errorf("idle devices %q, alerts fire for %q", devices, want)
	}

	slices.Sort(pods)

	if !slices.Equal(pods, []string{"idle", "nearly", "one", "slice", "stopped", "two"}) {
		t.Errorf("pods of idle devices %q", pods)
	}

	if n := f.query(t, boards["mig-fleet"].panel(t, "Held and idle for an hour"), "A", v).totalAt(v.to); n != float64(len(want)) {
		t.Errorf("%v are held and idle, alerts fire for %d", n, len(want))
	}

	var marked []string

	for _, s := range f.query(t, boards["mig-workloads"].panel(t, "All pods with a GPU or slice"), "State", v).series {
		if s.Floats[0].F == 3 {
			marked = append(marked, s.Metric.Get("pod"))
		}
	}

	slices.Sort(marked)

	if !slices.Equal(marked, pods) {
		t.Errorf("pods marked idle %q, want %q", marked, pods)
	}
}
