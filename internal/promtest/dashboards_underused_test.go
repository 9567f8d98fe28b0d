package promtest

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"
)

const underusedPanel = "Whole GPUs that are larger than their work needs"

// underusedStat is the number of the rows of that table.
const underusedStat = "Larger than their work needs"

// underusedGPU is a GPU that is a candidate for MIG, or that fails one condition for it.
type underusedGPU struct {
	pod              string
	sm, busy, memory float64
	more             func(g *underusedGPU, since time.Duration) // what is different at a time
	sharing          string
	unconfirmed, mig bool
	absent           bool
	rejected         string // the advisor's reason
	owner            string
	unread           bool // SM activity and busy time are not served
	noMIG            bool // of a model that has none
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
		with("nearly", func(g *underusedGPU) { g.sm, g.busy, g.memory = 0.29, 0.49, 0.39 }),
		with("sm", func(g *underusedGPU) { g.sm = 0.31 }),
		with("wide", func(g *underusedGPU) { g.sm, g.busy = 0.25, 0.28 }),
		with("narrow-busy", func(g *underusedGPU) { g.sm, g.busy = 0.1, 0.95 }),
		with("half", func(g *underusedGPU) { g.sm, g.busy = 0.28, 0.51 }),
		with("idle", func(g *underusedGPU) { g.busy = 0.004 }),
		with("memory", func(g *underusedGPU) { g.memory = 0.41 }),
		with("shared", func(g *underusedGPU) { g.sharing = "time-slicing" }),
		with("unconfirmed", func(g *underusedGPU) { g.unconfirmed = true }),
		with("mig", func(g *underusedGPU) { g.mig = true }),
		well("two"), well("two"),
		at("peak", func(g *underusedGPU, since time.Duration) {
			if since > 20*time.Hour && since < 21*time.Hour {
				g.memory = 0.5
			}
		}),
		at("rolled", func(g *underusedGPU, since time.Duration) { g.pod = fmt.Sprintf("rolled-%d", since/(24*time.Hour)) }),
		at("new", func(g *underusedGPU, since time.Duration) {
			if since < 36*time.Hour {
				g.pod = ""
			}
		}),
		at("back", func(g *underusedGPU, since time.Duration) { g.absent = since > 12*time.Hour && since < 24*time.Hour }),
		with("rejected", func(g *underusedGPU) { g.rejected = "stretch" }),
		with("rank", func(g *underusedGPU) { g.owner = "PyTorchJob/train" }),
		with("provisional", func(g *underusedGPU) { g.sm, g.busy, g.rejected = 0.5, 0.9, "provisional" }),
	}
}

func (g underusedGPU) serve(i int) string {
	if g.absent {
		return ""
	}

	on := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, i, i)

	mig := 0
	if g.mig {
		mig = 1
	}

	held := ""
	if g.pod != "" {
		held = fmt.Sprintf("nvidia_gpu_pod_info%s,namespace=\"ml\",pod=%q,workload=%q,container=\"c\",sharing=%q,confirmed=\"%v\"} 1\n",
			on, g.pod, g.owner, g.sharing, !g.unconfirmed)
	}

	if g.rejected != "" {
		held += fmt.Sprintf("nvidia_gpu_rightsizing_rejected%s,reason=%q} 1\n", on, g.rejected)
	}

	if !g.unread {
		held += fmt.Sprintf("nvidia_gpu_sm_activity_ratio%[1]s} %[2]v\nnvidia_gpu_graphics_engine_activity_ratio%[1]s} %[3]v\n",
			on, g.sm, g.busy)
	}

	if !g.noMIG {
		held += fmt.Sprintf("nvidia_gpu_mig_enabled%s} %d\n", on, mig)
	}

	return held + fmt.Sprintf("nvidia_gpu_allocated%[1]s} %[3]d\nnvidia_gpu_up%[1]s} 1\n"+
		"nvidia_gpu_memory_used_bytes%[1]s} %[2]v\nnvidia_gpu_memory_total_bytes%[1]s} 1\n",
		on, g.memory, len(g.pod)/max(1, len(g.pod)))
}

// TestUnderusedPanelAgreesWithTheAlert: the fleet's table and its number list the GPUs for which
// GpuUnderused fires.
func TestUnderusedPanelAgreesWithTheAlert(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	end := f.recordGPUs(t, underusedGPUs(), underusedRuns)

	fires, err := f.EvalAt(alertExpr(t, "GpuUnderused"), end.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}

	var want []string

	for _, s := range fires {
		gpu, err := strconv.Atoi(s.Metric.Get("gpu"))
		if err != nil {
			t.Fatal(err)
		}

		want = append(want, underusedGPUs()[gpu].pod+" "+s.Metric.Get("evidence"))
	}

	slices.Sort(want)

	expected := []string{"back means", "candidate means", "narrow-busy means", "nearly means", "provisional provisional", "rolled means",
		"unconfirmed means"}
	if !slices.Equal(want, expected) {
		t.Errorf("the alert fires for %q, want %q", want, expected)
	}

	f.expectUnderused(t, want, end)
}

// recordGPUs scrapes a node every two minutes for a time, records the rules of the alerts meanwhile, and
// returns the time of the last scrape.
func (f *fleet) recordGPUs(t *testing.T, gpus []underusedGPU, runs time.Duration) time.Time {
	t.Helper()

	node := fleetNode{name: "days"}
	recorded := time.Duration(0)

	for since := 2 * time.Minute; since <= runs; since += 2 * time.Minute {
		text := ""

		for i, g := range gpus {
			if g.more != nil {
				g.more(&g, since)
			}

			text += g.serve(i)
		}

		f.AddScrapeFrom(t, node.target("old"), scraped().Add(since), Text, []byte(text))

		// Storage takes no samples that are much older than its last.
		if since == runs || since-recorded == 10*time.Hour {
			f.recordRules(t, alertRecords, scraped().Add(recorded+5*time.Minute), scraped().Add(since), 5*time.Minute)
			recorded = since
		}
	}

	end := scraped().Add(runs)
	f.recordRules(t, alertRecords, end.Add(time.Second), end.Add(time.Second), time.Minute) // what reads what was recorded

	return end
}

// expectUnderused fails the test unless the fleet's table has these rows, by pod and evidence, and
// its number is theirs.
func (f *fleet) expectUnderused(t *testing.T, want []string, end time.Time) {
	t.Helper()
	board := loadDashboards(t)["mig-fleet"]
	v := view{from: end.Add(-time.Hour), to: end.Add(time.Second), step: fleetStep}
	p := board.panel(t, underusedPanel)

	for ref, value := range map[string]float64{"Mean": 0.1, "Highest": 0.1, "Memory": 0.3, "Known": 1} {
		var got []string

		a := f.query(t, p, ref, v)
		if n := a.samples / int64(len(underusedGPUs())) * 8 * fleetSize; n > mostSamples {
			t.Errorf("%s reads %d samples of %d nodes with eight GPUs, want at most %d", ref, n, fleetSize, mostSamples)
		}

		for _, s := range a.series {
			gpu, err := strconv.Atoi(s.Metric.Get("gpu"))
			if err != nil {
				t.Fatal(err)
			}

			evidence := "means"
			if underusedGPUs()[gpu].rejected != "" {
				evidence = "provisional"
			}

			got = append(got, underusedGPUs()[gpu].pod+" "+evidence)
			if underusedGPUs()[gpu].pod == "candidate" && !same(s.Floats[0].F, value) {
				t.Errorf("%s of the candidate is %v, want %v", ref, s.Floats[0].F, value)
			}
		}

		slices.Sort(got)

		if !slices.Equal(got, want) {
			t.Errorf("%s lists %q, the alert fires for %q", ref, got, want)
		}
	}

	if n := f.query(t, board.panel(t, underusedStat), "A", v).totalAt(v.to); n != float64(len(want)) {
		t.Errorf("the number is %v, the alert fires for %d", n, len(want))
	}

	if n := f.query(t, board.panel(t, underusedStat), "B", v).totalAt(v.to); n != 1 {
		t.Errorf("of %v GPUs it is not known, want the new one alone", n)
	}
}

// TestUnderusedIsUnknown: no GPU counts as one that its work needs before that is known.
func TestUnderusedIsUnknown(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		hours            int
		rejected         string
		unread, noMIG    bool
		number, notKnown string
	}{
		{hours: 2, notKnown: "not known 1"},
		{hours: 2, rejected: "stretch", number: "GPUs 0"},
		{hours: 2, rejected: "provisional", number: "provisional 1"},
		{hours: 25, number: "GPUs 0"},
		{hours: 25, rejected: "start-unseen", notKnown: "not known 1"},
		{hours: 25, rejected: "no-activity", unread: true, notKnown: "not known 1"},
		{hours: 25, unread: true, notKnown: "not known 1"},
		{hours: 25, noMIG: true},
	} {
		g := underusedGPU{pod: "a", sm: 0.5, busy: 0.9, memory: 0.8, sharing: "exclusive", rejected: c.rejected,
			unread: c.unread, noMIG: c.noMIG}
		f := &fleet{Prometheus: NewPrometheus(t)}
		end := f.recordGPUs(t, []underusedGPU{g}, time.Duration(c.hours)*time.Hour)

		v := view{from: end.Add(-time.Hour), to: end.Add(time.Second), step: fleetStep}
		p := loadDashboards(t)["mig-fleet"].panel(t, underusedStat)

		for ref, want := range map[string]string{"A": c.number, "B": c.notKnown} {
			got := ""

			for _, s := range f.query(t, p, ref, v).series {
				evidence := s.Metric.Get("evidence")
				if ref == "B" {
					evidence = "not known"
				}

				got += fmt.Sprintf("%s %v", evidence, s.Floats[len(s.Floats)-1].F)
			}

			if got != want {
				t.Errorf("%+v: %s is %q", c, ref, got)
			}
		}
	}
}
