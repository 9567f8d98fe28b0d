package web

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// detailsOf returns a GPU's details as lines.
func detailsOf(g *gpu.GPU) string {
	var lines strings.Builder
	for _, d := range gpuDetails(g) {
		lines.WriteString(d.Label + ": " + d.Value + "\n")
	}

	return lines.String()
}

// TestDetails: what a GPU reports is there in words, and what it does not report is left out.
func TestDetails(t *testing.T) {
	g := wholeGPU(0)
	g.Totals.ClockEvents = append(g.Totals.ClockEvents, gpu.ReasonSeconds{Reason: "hw_slowdown"})
	cmptest.Equal(t, "all", detailsOf(&g), `Clocks: SM 1410 MHz, memory 1215 MHz, video 1275 MHz
Clocks held back by: the power limit (12 s in all since the exporter started)
Performance state: P0
Memory temperature: 72 °C
Fans: 35 %
Media engines: encoder 0 %, decoder 40 %
PCIe: generation 4 ×16, in 1.5 GB/s, out 0 kB/s, 3 replays
NVLink: in 20.0 GB/s, out 10.0 GB/s, 2 replay errors
ECC errors: 5 corrected in device memory
Remapped rows: 1 for correctable, 0 for uncorrectable errors, pending: the next reset takes them into use
`)

	bare := bareGPU(0)
	cmptest.Equal(t, "nothing", detailsOf(&bare), "")

	bare.Readings.ECC = []gpu.ECCCount{{Severity: "corrected", Location: "sram"}}
	cmptest.Equal(t, "total", eccText(append(bare.Readings.ECC,
		gpu.ECCCount{Severity: "corrected", Location: "total", Count: 5})), "5 corrected in total")

	bare.Readings.RemappedRows = gpu.Some(gpu.RemappedRows{})
	bare.Totals.ClockEvents = []gpu.ReasonSeconds{{Reason: "gpu_idle"}}
	cmptest.Equal(t, "none so far", detailsOf(&bare), "Clocks held back by: nothing\nECC errors: none\nRemapped rows: none\n")
}

// TestClockEventsHaveWords: each reason that the driver may report is explained.
func TestClockEventsHaveWords(t *testing.T) {
	for _, r := range gpu.ClockEventReasons() {
		if words := nodedoc.ClockEventText(r.Name); words == spellOut(r.Name) {
			t.Errorf("%s has no words", r.Name)
		}
	}

	cmptest.Equal(t, "a new one", nodedoc.ClockEventText("some_new_reason"), "some new reason")
}

// TestXIDs: an XID has its number, its name, and the instances that it named.
func TestXIDs(t *testing.T) {
	g := mixedGPU(0)
	at := fixtureTime
	g.Totals.XIDErrors = []gpu.XIDCount{
		{XID: 94, Counter: gpu.Counter{Value: 3}, Last: at}, {XID: 999, Counter: gpu.Counter{Value: 1}},
	}
	g.Instances[0].XIDErrors = []gpu.XIDCount{{XID: 94, Counter: gpu.Counter{Value: 1}, Last: at}}
	g.Instances[2].XIDErrors = []gpu.XIDCount{{XID: 94, Counter: gpu.Counter{Value: 2}, Last: at}}

	mark := func(id gpu.InstanceID, generation uint64) history.Mark {
		return history.Mark{Kind: history.MarkXID, UUID: g.UUID, XID: 94, GPUInstance: gpu.Some(id), Generation: generation}
	}
	other := mark(3, 1)
	other.UUID = "GPU-other"
	marks := []history.Mark{mark(7, 2), mark(7, 1), mark(7, 1), other}

	cmptest.Equal(t, "XIDs", xidViews(&g, marks), []xidView{
		{XID: 94, Name: "Contained memory error", Count: "3", Last: "2026-03-04T05:06:07Z",
			Instances: "GI 7, GI 1, GI 7 (gone)"},
		{XID: 999, Count: "1"},
	})

	released := g
	released.Instances = nil // as poll hides them
	released.Released = gpu.Some(gpu.Release{Since: at, Cause: gpu.ReleasedByOperator})
	cmptest.Equal(t, "instances of a released GPU", xidViews(&released, marks)[0].Instances, "GI 7")

	snap := nodeFixture()
	snap.GPUs = []gpu.GPU{g}
	page := showPage(t, Options{State: true}, snap)
	cmptest.HasTexts(t, pageText(page), "docs/faults.md says what to do",
		"94 Contained memory error 3 2026-03-04T05:06:07Z GI 7, GI 1")
	cmptest.HasTexts(t, page, `href="https://github.com/mig-exporter/mig-exporter/blob/main/docs/faults.md#the-table"`)
}
