package migctl

import (
	"net/http"
	"strings"
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

// TestHiddenProcessesAreNoError: without hostPID no process of any GPU is known. That is how it was
// configured, so it is a note, and the only error is that of another reading.
func TestHiddenProcessesAreNoError(t *testing.T) {
	hide := func(doc *nodedoc.Document) {
		for i := range doc.GPUs {
			doc.GPUs[i].Errors = []nodedoc.Error{{Reading: gpu.ReadingProcesses, Reason: gpu.ReasonPIDNamespace,
				Message: "processes are hidden"}}
		}
	}

	doc := busyNode(t)
	doc.GPUs = doc.GPUs[:1]
	doc.GPUs[0].MIGMode = nodedoc.Mode{Current: "disabled"}
	doc.GPUs[0].GPUInstances = nil
	hide(&doc)
	list := frameText(t, watching(120, 40, doc), true)
	cmptest.LacksTexts(t, list, "!", "error")

	detail := detailOf(t, func(doc *nodedoc.Document, _ *nodedoc.GPU) { hide(doc) })
	cmptest.HasTexts(t, detail, "processes "+nodedoc.ProcessesHidden)
	cmptest.LacksTexts(t, detail, "Readings that fail", "pid_namespace")

	drawnNode := drawn(func(p *page) { writeErrors(p, "  ", doc.GPUs[0].Errors) })
	cmptest.Equal(t, "migctl get", drawnNode, "  processes "+nodedoc.ProcessesHidden+"\n")

	doc.GPUs[0].Errors = append(doc.GPUs[0].Errors, nodedoc.Error{Reading: gpu.ReadingPower, Reason: gpu.ReasonOther})
	cmptest.HasTexts(t, frameText(t, watching(120, 40, doc), true), "!GPU 0", "1 error,")
}

// TestOnceSaysWhatItCounts: a picture has no node to open, so it has the warnings that its line counts, each once.
func TestOnceSaysWhatItCounts(t *testing.T) {
	nodes := map[string]*gpu.Snapshot{
		"a": {Hostname: "a", Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}}},
		"b": {Hostname: "b", Unread: []int{3}},
	}

	var urls []string

	for _, name := range []string{"a", "b"} {
		_, address := serve(t, map[string]http.HandlerFunc{"GET /node": answer(nodedoc.New(nodes[name]))})
		urls = append(urls, "--url="+address)
	}

	got := runner{}.run(t, "", append([]string{"top", "--once"}, urls...)...)
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.HasTexts(t, flat(got.out), "a 0 GPUs, 0 slices driver - ! 2 warnings", "! a: nvml is not available: no NVIDIA driver",
		"! a: it is not known yet which GPUs this node has: no NVIDIA driver", "! b: 1 GPU has not been read yet")
	fits(t, got.out)

	got = runner{}.run(t, "", "top", "--once", urls[0])
	cmptest.Equal(t, "lines of warnings of one node", strings.Count(got.out, "\n! "), 2)
	cmptest.LacksTexts(t, got.out, "a: ")
}
