package promtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
)

// ruledFleet is some targets with one Prometheus.
type ruledFleet struct {
	*Prometheus
	*ruler
	t       *testing.T
	at      time.Time
	targets []*scrapeTarget
}

func newFleet(t *testing.T, nodes ...string) *ruledFleet {
	t.Helper()
	e := NewPrometheus(t)

	f := &ruledFleet{Prometheus: e, ruler: newRuler(t, e.db, scraped(), rules.EngineQueryFunc(e.promql, e.db)), t: t,
		at: scraped()}
	for _, node := range nodes {
		f.targets = append(f.targets, &scrapeTarget{engine: e, target: target{labels: labels.FromStrings(
			"instance", node, "job", "mig-exporter", "namespace", "monitoring", "pod", "mig-exporter-"+node, "container",
			"mig-exporter")}})
	}

	return f
}

// run lets minutes pass. Each target is scraped in each; one whose exposition is empty does not
// answer.
func (f *ruledFleet) run(minutes int, exposition func(node string, minute int) string) {
	f.t.Helper()

	for m := range minutes {
		f.at = f.at.Add(time.Minute)
		for _, x := range f.targets {
			if text := exposition(x.labels.Get("instance"), m); text != "" {
				x.scrape(f.t, f.at, Text, []byte(text))
			} else {
				x.failScrape(f.t, f.at)
			}
		}

		f.eval(f.at)
	}
}

// expectFiring fails the test unless these alerts fire now, each given as its name and the target.
func (f *ruledFleet) expectFiring(want ...string) {
	f.t.Helper()
	var got []string

	for name, story := range f.fired {
		for _, a := range story.now {
			got = append(got, strings.TrimSpace(name+" "+a.Labels.Get("instance")))
		}
	}

	slices.Sort(got)
	slices.Sort(want)

	if !slices.Equal(got, want) {
		f.t.Errorf("%s fire, want %s", got, want)
	}
}

// wellNode is what a node with one GPU, held by a pod, says when all is well.
func wellNode(node, uuid, pod string, at time.Time) string {
	return fmt.Sprintf(`mig_exporter_build_info{version="1"} 1
mig_exporter_snapshot_timestamp_seconds %d
mig_exporter_source_up{source="kubelet"} 1
mig_exporter_source_up{source="nvml"} 1
nvidia_gpu_info{gpu="0",uuid=%[2]q,name="H100",pci_bus_id="1b"} 1
nvidia_gpu_up{gpu="0",uuid=%[2]q} 1
nvidia_gpu_allocated{gpu="0",uuid=%[2]q} 1
nvidia_gpu_mig_enabled{gpu="0",uuid=%[2]q} 0
nvidia_gpu_mig_pending{gpu="0",uuid=%[2]q} 0
nvidia_gpu_xids_total{gpu="0",uuid=%[2]q} 0
nvidia_gpu_pod_info{gpu="0",uuid=%[2]q,namespace="ml",pod="%[3]s",container="main",sharing="exclusive",confirmed="true"} 1
nvidia_gpu_graphics_engine_activity_ratio{gpu="0",uuid=%[2]q} 0.7
`, at.Unix(), uuid, pod)
}

// TestRulesWithoutData: if there is nothing, one alert says so, and no rule fails.
func TestRulesWithoutData(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.run(14, nil)
	f.expectFiring()
	f.run(10, nil)
	f.expectFiring("MigExporterAbsent")
}

// TestRulesWithOneNodeMissing: of three nodes one is named, and the others stay silent.
func TestRulesWithOneNodeMissing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b", "c")
	f.run(30, func(node string, m int) string {
		if node == "b" && m >= 10 {
			return ""
		}

		return wellNode(node, "GPU-"+node, "train-"+node, f.at)
	})
	f.expectFiring("MigExporterDown b")
}

// TestRulesOverAScrapeGap: of 20 minutes without Prometheus nothing is left, and an old XID is not
// reported again.
func TestRulesOverAScrapeGap(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	xid := f.at.Add(2 * time.Minute).Unix()
	exposition := func(node string, _ int) string {
		return wellNode(node, "GPU-a", "train", f.at) +
			fmt.Sprintf("nvidia_gpu_xid_last_timestamp_seconds{gpu=\"0\",uuid=\"GPU-a\",xid=\"79\"} %d\n", xid)
	}
	f.run(15, exposition)
	f.expectFiring()

	if f.fired["GpuXidNode"] == nil {
		t.Error("the XID was not reported")
	}

	f.at = f.at.Add(20 * time.Minute)
	for range 10 {
		f.run(1, exposition)
		f.expectFiring()
	}
}

// TestRulesOverCounterResets: counters that start again, as after a restart of the node, are no
// events.
func TestRulesOverCounterResets(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	f.run(40, func(node string, m int) string {
		n := 1000
		if m >= 20 {
			n = 0
		}

		text := wellNode(node, "GPU-a", "train", f.at)
		for _, family := range []string{
			`nvidia_gpu_clock_event_seconds_total{reason="hw_power_brake_slowdown",%s} %d`,
			`nvidia_gpu_clock_event_seconds_total{reason="hw_thermal_slowdown",%s} %d`,
			`nvidia_gpu_ecc_errors_total{severity="uncorrected",lifetime="volatile",location="sram",%s} %d`,
			`nvidia_gpu_read_errors_total{reading="device",reason="lost",%s} %d`,
			`nvidia_gpu_read_errors_total{reading="events",reason="other",%s} %d`,
			`nvidia_gpu_mig_layout_changes_total{%s} %d`,
		} {
			text += fmt.Sprintf(family, `gpu="0",uuid="GPU-a"`, n) + "\n"
		}

		return text + "mig_control_state{state=\"idle\"} 1\n"
	})
	f.expectFiring()

	if len(f.fired) > 0 {
		f.log()
		t.Error("alerts fired")
	}
}

// TestRulesOnAReplacedGPU: another GPU at the same index is none that is missing; the pod that is
// named with it is its own.
func TestRulesOnAReplacedGPU(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	f.run(60, func(node string, m int) string {
		switch {
		case m < 20:
			return wellNode(node, "GPU-old", "before", f.at)
		case m < 30:
			return ""
		case m < 45:
			return wellNode(node, "GPU-new", "after", f.at)
		}

		return strings.Replace(wellNode(node, "GPU-new", "after", f.at), `nvidia_gpu_up{gpu="0",uuid="GPU-new"} 1`,
			`nvidia_gpu_up{gpu="0",uuid="GPU-new"} 0`, 1)
	})
	f.expectFiring("GpuDown a")

	if got := f.firingNow("GpuDown")[0].Annotations.Get("summary"); got != "GPU 0 of a does not answer (held by "+
		"ml/after)." {
		t.Errorf("%q", got)
	}

	if f.fired["GpuMissing"] != nil {
		t.Error("GpuMissing fired")
	}
}

// TestRulesOnHostilePods: names that no API server admits, should another source have them, are
// text in the annotations, and neither PromQL nor templates. They are the labels of alerts about
// pods.
func TestRulesOnHostilePods(t *testing.T) {
	t.Parallel()
	pods := map[string]string{}
	var nodes, want []string

	for i, pod := range []string{
		`quo"te`, `back\slash`, `{{ .Labels }}`, `{{ query "up" }}`, `"} or up{a="`, `brace}`, `<b>`, `$value`,
		"line\nbreak", "𝒰nicode", `%s%q`,
	} {
		node := fmt.Sprintf("n%d", i)
		pods[node] = pod
		nodes = append(nodes, node)
		want = append(want, "GpuAllocatedIdle "+node, "GpuXidApplication "+node)
	}

	f := newFleet(t, nodes...)
	f.run(90, func(node string, _ int) string {
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(pods[node])
		text := strings.Replace(wellNode(node, "GPU-"+node, quoted, f.at), "} 0.7", "} 0", 1)

		return text + fmt.Sprintf("nvidia_gpu_xid_last_timestamp_seconds{gpu=\"0\",uuid=\"GPU-%s\",xid=\"31\"} %d\n", node,
			f.start.Add(85*time.Minute).Unix())
	})
	f.expectFiring(want...)

	for _, name := range []string{"GpuAllocatedIdle", "GpuXidApplication"} {
		for _, a := range f.firingNow(name) {
			pod := pods[a.Labels.Get("instance")]
			if summary := a.Annotations.Get("summary"); !strings.Contains(summary, "(held by ml/"+pod+")") ||
				a.Labels.Get("pod") != pod {
				t.Errorf("%q: %s of pod %q: %q", pod, name, a.Labels.Get("pod"), summary)
			}
		}
	}
}

// TestRulesWhileAnExporterIsReplaced: for a while two targets serve one GPU, and name two pods as
// its holder. No rule fails, and the pod that is named as idle is never the exporter's own, whose
// labels the scrape adds.
func TestRulesWhileAnExporterIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "old", "new")
	f.run(150, func(node string, m int) string {
		if node == "old" && m > 80 || node == "new" && m < 70 {
			return ""
		}

		pod := "first"
		if node == "new" {
			pod = "second"
		}

		return strings.Replace(wellNode(node, "GPU-a", pod, f.at), "} 0.7", "} 0", 1)
	})
	f.expectFiring("GpuAllocatedIdle new", "MigExporterDown old")

	for alert := range f.fired["GpuAllocatedIdle"].alerts {
		if !strings.Contains(alert, `namespace="ml"`) || strings.Contains(alert, `pod="mig-exporter`) {
			t.Errorf("the alert is about %s", alert)
		}
	}
}
