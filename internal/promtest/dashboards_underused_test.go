package promtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const underusedPanel = "Whole GPUs for which a slice would do"

// underusedGPU is a GPU that is a candidate for MIG, or that fails one condition for it.
type underusedGPU struct {
	pod              string
	sm, busy, memory float64
	more             func(g *underusedGPU, since time.Duration) // what is different at a time
	sharing          string
	unconfirmed, mig bool
	absent           bool
}

const underusedRuns = 50 * time.Hour

func underusedGPUs() []underusedGPU {
	well := func(pod string) underusedGPU {
		return underusedGPU{pod: pod, sm: 0.1, busy: 0.2, memory: 0.3, sharing: "exclusive"}
	}
	with := func(pod string, change func(g *underusedGPU)) underusedGPU {
		g := well(pod)
		change(&g)
		return g
	}
	at := func(pod string, change func(g *underusedGPU, since time.Duration)) underusedGPU {
		return with(pod, func(g *underusedGPU) { g.more = change })
	}
	return []underusedGPU{
		well("candidate"),
		with("nearly", func(g *underusedGPU) { g.sm, g.busy, g.memory = 0.29, 0.49, 0.44 }),
		with("sm", func(g *underusedGPU) { g.sm = 0.31 }),
		with("busy", func(g *underusedGPU) { g.busy = 0.51 }),
		with("idle", func(g *underusedGPU) { g.busy = 0.004 }),
		with("memory", func(g *underusedGPU) { g.memory = 0.46 }),
		with("shared", func(g *underusedGPU) { g.sharing = "time-slicing" }),
		with("unconfirmed", func(g *underusedGPU) { g.unconfirmed = true }),
		with("mig", func(g *underusedGPU) { g.mig = true }),
		well("two"), well("two"),
		at("peak", func(g *underusedGPU, since time.Duration) {
			if since > 20*time.Hour && since < 21*time.Hour {
				g.memory = 0.5
			}
		}),
		at("new", func(g *underusedGPU, since time.Duration) {
			if since < 36*time.Hour {
				g.pod = "before"
			}
		}),
		at("back", func(g *underusedGPU, since time.Duration) { g.absent = since > 12*time.Hour && since < 24*time.Hour }),
	}
}

func (g underusedGPU) serve(i int) string {
	if g.absent {
		return ""
	}
	on, mig := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, i, i), 0
	if g.mig {
		mig = 1
	}
	return fmt.Sprintf("nvidia_gpu_up%[1]s} 1\nnvidia_gpu_mig_enabled%[1]s} %[2]d\nnvidia_gpu_sm_activity_ratio%[1]s} "+
		"%[3]v\n"+
		"nvidia_gpu_graphics_engine_activity_ratio%[1]s} %[4]v\nnvidia_gpu_memory_used_bytes%[1]s} "+
		"%[5]v\nnvidia_gpu_memory_total_bytes%[1]s} 1\n"+
		"nvidia_gpu_pod_info%[1]s,namespace=\"ml\",pod=\"%[6]s\",container=\"c\",sharing=\"%[7]s\",confirmed=\"%[8]v\"} 1\n",
		on, mig, g.sm, g.busy, g.memory, g.pod, g.sharing, !g.unconfirmed)
}

// TestUnderusedPanelAgreesWithTheAlert: the table of candidates for MIG lists the GPUs and pods for which
// GpuUnderused fires.
func TestUnderusedPanelAgreesWithTheAlert(t *testing.T) {
	t.Parallel()
	f, node := &fleet{Prometheus: NewPrometheus(t)}, fleetNode{name: "days"}
	end := scraped().Add(underusedRuns)
	for since := 2 * time.Minute; since <= underusedRuns; since += 2 * time.Minute {
		text := ""
		for i, g := range underusedGPUs() {
			if g.more != nil {
				g.more(&g, since)
			}
			text += g.serve(i)
		}
		f.AddScrapeFrom(t, node.target("old"), scraped().Add(since), Text, []byte(text))
		// storage takes no samples that are much older than its last
		if to := scraped().Add(since); since%(10*time.Hour) == 0 {
			f.recordRules(t, alertRecords, to.Add(5*time.Minute-10*time.Hour), to, 5*time.Minute)
		}
	}

	fires, err := f.EvalAt(alertExpr(t, "GpuUnderused"), end)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range fires {
		want = append(want, s.Metric.Get("gpu")+" "+s.Metric.Get("namespace")+"/"+s.Metric.Get("pod"))
	}
	slices.Sort(want)
	if got := strings.Join(want, ", "); got != "0 ml/candidate, 1 ml/nearly" {
		t.Errorf("the alert fires for %s", got)
	}
	p := loadDashboards(t)["mig-fleet"].panel(t, underusedPanel)
	for ref, value := range map[string]float64{"Mean": 0.1, "Highest": 0.1, "Memory": 0.3} {
		var got []string
		a := f.query(t, p, ref, view{from: end.Add(-time.Hour), to: end, step: fleetStep})
		if n := a.samples / int64(len(underusedGPUs())) * 8 * fleetSize; n > mostSamples {
			t.Errorf("%s reads %d samples of %d nodes with eight GPUs, want at most %d", ref, n, fleetSize, mostSamples)
		}
		for _, s := range a.series {
			got = append(got, s.Metric.Get("gpu")+" "+s.Metric.Get("namespace")+"/"+s.Metric.Get("pod"))
			if s.Metric.Get("pod") == "candidate" && !same(s.Floats[0].F, value) {
				t.Errorf("%s of the candidate is %v, want %v", ref, s.Floats[0].F, value)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %q, the alert fires for %q", ref, got, want)
		}
	}
}
