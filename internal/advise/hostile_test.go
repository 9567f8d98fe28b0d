package advise

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// hostileNames are names that Kubernetes would refuse, and that files and batch jobs can have
// nevertheless.
func hostileNames() []string {
	return []string{
		"a/b", "a", "\x00", "\xff\xfe", "\"}]", "line\nbreak", "{{.}}", "../../etc/passwd", "<script>",
		strings.Repeat("n", 5000), "mig-exporter.io/x",
	}
}

// TestHostileNames: names decide nothing but which evidence is whose, and they survive a
// checkpoint.
func TestHostileNames(t *testing.T) {
	a := New(fastOptions())
	var gpus []gpu.GPU

	for i, name := range hostileNames() {
		h := pod(name, "Deployment/"+name)
		h.Pod = name
		h.Name = name
		h.PodUID = name
		gpus = append(gpus, wholeGPU(t, "H100-80GB", i, load{busy: 0.5, sm: 0.02, gib: float64(1 + i)}, h))
	}

	// Namespace and name of these two would be one if they were joined.
	left := pod("a", "Deployment/left")
	right := pod("a/b", "Deployment/right")
	left.Pod = "b/c"
	right.Pod = "c"
	gpus = append(gpus, wholeGPU(t, "H100-80GB", 20, load{busy: 0.5, sm: 0.02, gib: 1}, left),
		wholeGPU(t, "H100-80GB", 21, load{busy: 0.5, sm: 0.02, gib: 1}, right))
	s := observeFor(a, start(), 30*time.Hour, gpus...)

	report := recommend(a, s)
	for i, r := range report.Devices {
		want := float64(gpus[i].Readings.Memory.Used.Or(0))
		if r.Action != ActionSlice || r.Evidence.MemoryBytes != want {
			t.Errorf("GPU %d of %.20q: %s %s with %v bytes; expected a slice, and %v",
				i, r.Workload.Owner, r.Action, r.Reason, r.Evidence.MemoryBytes, want)
		}
	}

	if text, err := json.Marshal(report); err != nil || !json.Valid(text) {
		t.Errorf("the report is no JSON: %v", err)
	}

	restored := restarted(t, a, s)
	cmptest.Equal(t, "workloads", len(restored.workloads), len(a.workloads))

	for key := range a.workloads {
		if restored.workloads[key] == nil {
			t.Errorf("%.40q is lost", key.Owner)
		}
	}
}

// TestAnotherModel: what was seen on one model is no evidence for another, even if the GPU keeps
// its UUID and its holder.
func TestAnotherModel(t *testing.T) {
	a := New(fastOptions())
	before := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.02, gib: 4}, pod("ml", "Deployment/a"))
	after := wholeGPU(t, "A100-40GB", 0, load{busy: 0.5, sm: 0.02, gib: 4}, pod("ml", "Deployment/a"))
	s := observeFor(a, start(), 30*time.Hour, before)
	cmptest.Equal(t, "before", recommend(a, s).Devices[0].Action, ActionSlice)
	s = observeFor(a, s.Time.Add(time.Minute), time.Hour, after)
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "reason", r.Reason, ReasonLittleEvidence)
	cmptest.Equal(t, "model of the evidence", r.Workload.Model, "A100-40GB")

	if h := r.Evidence.ObservedHours; h > 1.1 {
		t.Errorf("observed for %v h on the other model, want 1", h)
	}
}

// TestCountersThatAreSetBack: a counter that begins again, or that is missing for a moment, is no
// traffic; what it counts afterwards is.
func TestCountersThatAreSetBack(t *testing.T) {
	type totals struct{ receive, transmit gpu.Opt[gpu.Counter] }

	value := func(v float64) gpu.Opt[gpu.Counter] { return gpu.Some(gpu.Counter{Value: v}) }
	for _, c := range []struct {
		about  string
		totals []totals
		nvlink bool
		pcie   float64 // share of the link
	}{
		{"no traffic", []totals{{value(1e15), value(1e15)}, {value(1e15), value(1e15)}}, false, 0},
		{"set back", []totals{{value(1e15), value(1e15)}, {value(10), value(10)}, {value(20), value(20)}}, false, 0},
		{"set back to 0", []totals{{value(1e15), value(1e15)}, {value(0), value(0)}, {value(0), value(0)}}, false, 0},
		{"one is missing", []totals{{value(1e15), value(1e15)}, {gpu.None[gpu.Counter](), value(1e15)},
			{value(1e15), value(1e15)}}, false, 0},
		{"both are missing", []totals{{value(1e15), value(1e15)}, {}, {value(1e15), value(1e15)}}, false, 0},
		{"begins later", []totals{{}, {value(1e15), value(1e15)}}, false, 0},
		{"traffic after it was set back",
			[]totals{{value(1e15), value(1e15)}, {value(0), value(0)}, {value(96e9), value(96e9)}}, true, 0.1},
	} {
		a := New(fastOptions())
		g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.02, gib: 4}, pod("ml", "Deployment/a"))
		g.Readings.PCIe = gpu.PCIe{LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(4)}
		i := 0
		s := show(a, start(), 30*time.Hour, g, func(_ time.Time, g *gpu.GPU) {
			at := c.totals[min(i, len(c.totals)-1)]
			g.Totals.NVLinkReceive = at.receive
			g.Totals.NVLinkTransmit = at.transmit
			g.Totals.PCIeReceive = at.receive
			g.Totals.PCIeTransmit = at.transmit
			i++
		})
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, c.about+": NVLink", r.Reason == ReasonNVLink, c.nvlink)

		if got := r.Evidence.PCIeMax.Or(-1); math.Abs(got-c.pcie) > 1e-3 {
			t.Errorf("%s: PCIe traffic of %v of the link, want %v", c.about, got, c.pcie)
		}
	}
}

// TestCounterThatWraps: the driver's counter of 32 bits shows 4 GB of the 96 GB that the link moved
// in a minute, the rate all of them.
func TestCounterThatWraps(t *testing.T) {
	a := New(fastOptions())
	g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.02, gib: 4}, pod("ml", "Deployment/a"))
	g.Readings.PCIe = gpu.PCIe{LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(4)}
	g.Rates = gpu.LinkRates{PCIeReceive: gpu.Some(1.6e9), PCIeTransmit: gpu.Some(1.6e9)}
	counted := 0.

	s := show(a, start(), 30*time.Hour, g, func(_ time.Time, g *gpu.GPU) {
		counted += 2e9
		g.Totals.PCIeReceive = gpu.Some(gpu.Counter{Value: counted})
		g.Totals.PCIeTransmit = g.Totals.PCIeReceive
	})
	if got := recommend(a, s).Devices[0].Evidence.PCIeMax.Or(-1); math.Abs(got-0.1) > 1e-3 {
		t.Errorf("PCIe traffic of %v of the link, want 0.1", got)
	}
}
