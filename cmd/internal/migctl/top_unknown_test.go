package migctl

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// detailOf returns the detail of a node's first GPU, after change.
func detailOf(t *testing.T, change func(*nodedoc.Document, *nodedoc.GPU)) string {
	t.Helper()

	doc := busyNode(t)
	change(&doc, &doc.GPUs[0])

	return flat(frameText(t, press(watching(120, 60, doc), "Home j Enter"), true))
}

// TestDetailLeavesOutAnUnknownLinkWidth: no width is not a width of 0.
func TestDetailLeavesOutAnUnknownLinkWidth(t *testing.T) {
	for width, want := range map[gpu.Opt[int]]string{
		gpu.None[int](): "PCIe generation 5 ", gpu.Some(16): "PCIe generation 5 x16",
	} {
		got := detailOf(t, func(_ *nodedoc.Document, g *nodedoc.GPU) {
			g.PCIe = nodedoc.PCIe{LinkGeneration: gpu.Some(5), LinkWidth: width}
		})
		cmptest.HasTexts(t, got, want)
		cmptest.LacksTexts(t, got, "x0")
	}
}

// TestDetailSaysWhyActivityIsUnknown: in the words of the page, and only what is known.
func TestDetailSaysWhyActivityIsUnknown(t *testing.T) {
	for want, change := range map[string]func(*nodedoc.Document, *nodedoc.GPU){
		"SM activity not known ": func(_ *nodedoc.Document, g *nodedoc.GPU) { g.Up = false },
		"SM activity not known: this GPU reports it by DCGM alone, and no DCGM is configured": func(
			*nodedoc.Document, *nodedoc.GPU) {
		},
		"SM activity not known: no connection": func(doc *nodedoc.Document, _ *nodedoc.GPU) {
			doc.Node.Sources = []nodedoc.SourceState{{Name: gpu.SourceDCGM, Error: "no connection"}}
		},
		"SM activity not known yet: it takes two readings": func(_ *nodedoc.Document, g *nodedoc.GPU) {
			g.Activity.Source = gpu.ActivityGPM
		},
	} {
		got := detailOf(t, func(doc *nodedoc.Document, g *nodedoc.GPU) {
			doc.Node.Sources = nil
			g.Activity = nodedoc.Activity{}
			change(doc, g)
		})
		cmptest.HasTexts(t, got, want)
		cmptest.LacksTexts(t, got, "neither the driver")
	}
}
