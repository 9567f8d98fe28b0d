package migctl

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// documentedGPUs are three nodes of eight H100 with what a fleet has: services of which many do
// little, training, GPUs that nothing holds. One of them does not show how media engines are used.
func documentedGPUs() []fakeGPU {
	var gpus []fakeGPU
	add := func(count int, namespace, pod string, g fakeGPU) {
		for i := range count {
			at := len(gpus)
			g.uuid, g.node = fmt.Sprintf("GPU-5e%06d-0000", at), fmt.Sprintf("node-%d", at/8)

			g.mediaUnread = at >= 16 // of node-2
			g.cluster = "a"
			g.model = "NVIDIA H100 80GB HBM3"
			g.namespace = namespace

			g.pod = pod
			if pod != "trainer" {
				g.pod = fmt.Sprintf("%s-%d", pod, i)
				g.owner = "Deployment/" + pod
			}

			gpus = append(gpus, g)
		}
	}

	const gib = 1 << 30
	add(7, "serving", "classifier", fakeGPU{busy: 0.2, sms: 0.016, dram: 0.01, memory: 6 * gib})
	add(3, "serving", "embedder", fakeGPU{busy: 0.35, sms: 0.04, dram: 0.05, memory: 15 * gib})
	add(2, "serving", "llm", fakeGPU{busy: 0.6, sms: 0.4, dram: 0.3, memory: 72 * gib})
	add(2, "serving", "diffusion", fakeGPU{busy: 0.05, sms: 0.049, dram: 0.02, memory: 9 * gib})
	add(2, "training", "trainer", fakeGPU{busy: 0.9, sms: 0.85, dram: 0.5, memory: 60 * gib})
	add(2, "research", "reranker", fakeGPU{busy: 0.4, sms: 0.15, dram: 0.06, memory: 16 * gib})
	add(1, "research", "notebook", fakeGPU{memory: gib})
	add(1, "research", "profiled-not", fakeGPU{busy: 0.3, sms: -1, dram: 0.1, memory: 8 * gib})
	add(1, "research", "ranker", fakeGPU{busy: 0.3, sms: 0.14, dram: 0.04, memory: 30 * gib})
	add(3, "", "", fakeGPU{})

	return gpus
}

// TestFleetSampleOfThePage: what docs/fleet.md shows is what the program prints of documentedGPUs.
func TestFleetSampleOfThePage(t *testing.T) {
	url := fakePrometheus(t, documentedGPUs()...)
	got := runner{}.run(t, defaultAddress, "fleet", "--prometheus.url="+url, "--time=2026-01-08T00:00:00Z", "--price=H100=2.5")
	cmptest.Equal(t, "exit code and errors", outcome{code: got.code, err: got.err}, outcome{})
	fits(t, got.out)
	updateSample(t, "docs/fleet.md", strings.ReplaceAll(got.out, url, "http://prometheus:9090"))
}

// TestTopSampleOfThePage: what docs/top.md shows is what the program draws.
func TestTopSampleOfThePage(t *testing.T) {
	updateSample(t, "docs/top.md", frameText(t, press(watching(80, 24, busyNode(t)), "Tab Tab j"), true))
}

// updateSample compares the first sample of a page, or writes it.
func updateSample(t *testing.T, name, want string) {
	t.Helper()

	const fence = "```text\n"

	text := docPage(t, name)
	before, rest, _ := strings.Cut(text, fence)

	sample, after, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatalf("%s has no sample", name)
	}

	if *update {
		if err := os.WriteFile("../../../"+name, []byte(before+fence+want+"```\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}

		return
	}

	cmptest.Equal(t, "the sample of "+name+" (-update writes it)", sample, want)
}
