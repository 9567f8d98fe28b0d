package web

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

const (
	begunAnew = "the kubelet started again 4 s ago and does not list the pod of this exporter yet"
	notListed = "listed until the kubelet started again, 4 s ago"
)

// forgottenFixture is a node whose kubelet has just started again and lists the pods of GPU 3
// alone.
func forgottenFixture() *gpu.Snapshot {
	snap := nodeFixture()
	snap.GPUs = []gpu.GPU{wholeGPU(0), freeGPU(1), mixedGPU(2), splitGPU(3), sharedGPU(4)}
	snap.HoldersIncomplete = begunAnew
	unconfirm := func(holders []gpu.Holder) gpu.Opt[bool] {
		for i := range holders {
			holders[i].Unconfirmed, holders[i].PodUID = notListed, "7c1e"
		}

		return gpu.None[bool]()
	}

	for i := range snap.GPUs {
		g := &snap.GPUs[i]
		if i == 3 {
			continue
		}

		g.Allocated = unconfirm(g.Holders)
		for j := range g.Instances {
			gi := &g.Instances[j]

			gi.Allocated = unconfirm(gi.Holders)
			for k := range gi.ComputeInstances {
				gi.ComputeInstances[k].Allocated = unconfirm(gi.ComputeInstances[k].Holders)
			}
		}
	}

	idle := &snap.GPUs[3].Instances[0].ComputeInstances[1]
	idle.Holders = nil
	idle.Allocated = gpu.None[bool]()
	idle.Processes = gpu.Some(0)

	for i := range 13 {
		snap.Unmatched = append(snap.Unmatched,
			unmatched(fmt.Sprintf("MIG-GPU-5c1f6a2e-0000-4d1b-9f00-000000000002/%d/0", i), fmt.Sprintf("etl-%d", i)))
	}

	return snap
}

func TestPageUnknownHolders(t *testing.T) {
	page := showPage(t, Options{State: true}, forgottenFixture())

	text := pageText(page)
	for _, want := range []string{
		"Not all holders are known " + begunAnew,
		"14 device ids without a device", "MIG-0b5a4ff2-54f4-5c7d-8f0e-9d3f0f5d5f4a nvidia.com/mig-4g.20gb batch/etl-1 main",
		"/8/0 nvidia.com/mig-4g.20gb batch/etl-8 main and 4 more, in the JSON Restart the device plugin",
		"Free 0 held by nothing, 2 unknown",
		"Held by vision/resnet-0 unconfirmed Batch jobs job 90210 Unconfirmed: vision/resnet-0 (" + notListed + ")",
		"Unknown: not known whether a pod holds it GPU 2", "unknown whether held",
		"2g.10gb GI 5 at 2:2 MIG-6f7d2a10-0000-5e11-8a00-000000005000 20 MiB of 10 GiB 0 % 0 % 0 % ≈ 40 W unknown", "ml/notebook-7d9c unconfirmed",
		"Unconfirmed: ml/notebook-7d9c, serving/triton-llm-6c7f8d9b5-x2x4z (" + notListed + ")",
		"1c.3g.20gb CI 0 MIG-6f7d2a10-0000-5e11-8a00-000000002000 65 % 65 % ml/embed-0 2c.3g.20gb CI 1 MIG-6f7d2a10-0000-5e11-8a00-000000002001 – unknown",
		"hub/jupyter-ben notebook (1) unconfirmed 13 GiB",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}

	for _, want := range []string{`<span class="badge warn" title="` + notListed + `">unconfirmed</span>`,
		`class="block s2 unknown" data-key="gi-5.2"`, `title="GPU instance 5, 2g.10gb at 2:2, about 40 W, not known whether a pod holds it">`,
		`class="w2 unknown" title="compute instance 1, 2c.3g.20gb, not known whether a pod holds it"`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the page", want)
		}
	}

	if strings.Contains(page, "Free: ") || strings.Contains(page, `<span class="muted">free`) ||
		strings.Contains(page, `<span class="pod">free`) {
		t.Errorf("a device is shown as free:\n%s", text)
	}
}

// TestFreeByConfirmation: a device that is free by an operator's confirmation alone says so.
func TestFreeByConfirmation(t *testing.T) {
	snap := forgottenFixture()
	snap.GPUs = []gpu.GPU{freeGPU(1), splitGPU(3)}
	free := gpu.Some(false)
	snap.GPUs[0].Allocated, snap.GPUs[0].ConfirmedFree = free, true
	gi := &snap.GPUs[1].Instances[0]
	gi.Holders, gi.Allocated = nil, gpu.None[bool]()
	gi.ComputeInstances[1].Processes = gpu.Some(0)
	gi.ComputeInstances[1].Holders, gi.ComputeInstances[1].Allocated, gi.ComputeInstances[1].ConfirmedFree = nil, free,
		true

	text := pageText(showPage(t, Options{State: true}, snap))
	for _, want := range []string{"Free: nothing holds it, as an operator has confirmed",
		"2c.3g.20gb CI 1 MIG-6f7d2a10-0000-5e11-8a00-000000002001 – free, as an operator has confirmed"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}

	body := get(testHandler(Options{State: true}, publish(snap), nil, prometheus.NewRegistry()),
		"/api/v1/node").Body.String()
	if n := strings.Count(body, `"allocated":false,"confirmedFree":true`); n != 2 ||
		strings.Count(body, "confirmedFree") != 2 {
		t.Errorf("%d devices are free by confirmation, want 2, and nothing of the others:\n%s", n, body)
	}
}

// TestPageWithoutKubelet: on a node without a kubelet processes and jobs alone say what is held, and
// nothing is said of pods.
func TestPageWithoutKubelet(t *testing.T) {
	snap := nodeFixture()
	snap.Sources = snap.Sources[:1]
	snap.Unmatched = nil
	snap.GPUs = []gpu.GPU{bareGPU(0), unprivilegedGPU(1)}

	snap.GPUs[1].Instances[0].Allocated = gpu.None[bool]()

	text := pageText(showPage(t, Options{State: true}, snap))
	cmptest.HasTexts(t, text, "whole GPU unknown", "3g .20gb free", "free unknown whether held")
	cmptest.LacksTexts(t, text, "a pod", "no pod", "Free ")
}

func TestPageUnknownSharing(t *testing.T) {
	snap := nodeFixture()
	g := wholeGPU(0)
	g.Holders = append(g.Holders, holder("", "", "nvidia.com/gpu")...)
	g.Holders[0].Sharing, g.Holders[1].Sharing, g.Holders[1].PodUID = gpu.SharingUnknown, gpu.SharingUnknown, "7c1e"
	snap.GPUs = []gpu.GPU{g}

	const want = "Shared by 2 containers (not known how) vision/resnet-0 main pod 7c1e main"
	if text := pageText(showPage(t, Options{State: true}, snap)); !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}

func TestStateUnknownHolders(t *testing.T) {
	snap := forgottenFixture()
	snap.GPUs = snap.GPUs[:1]
	snap.Unmatched = []gpu.Assignment{unmatched(strings.Repeat("ü", 1000)+"\xff", "\xff")}
	h := testHandler(Options{State: true}, publish(snap), nil, prometheus.NewRegistry())

	body := get(h, "/api/v1/node").Body.String()
	for _, want := range []string{
		`"holdersIncomplete":"` + begunAnew + `"`,
		`"unmatchedDevices":[{"id":"` + strings.Repeat("ü", nodedoc.MaxText) +
			`…","resource":"nvidia.com/mig-4g.20gb","namespace":"batch","pod":"\ufffd","container":"main"}]`,
		`"pod":"resnet-0","podUID":"7c1e","container":"main"`,
		`"sharing":"exclusive","confirmed":false,"unconfirmedReason":"` + notListed + `"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}

	if !json.Valid([]byte(body)) || strings.Contains(body, `"allocated"`) {
		t.Errorf("no JSON, or allocated is known:\n%s", body)
	}

	snap = nodeFixture()
	snap.Unmatched = nil
	h = testHandler(Options{State: true}, publish(snap), nil, prometheus.NewRegistry())

	body = get(h, "/api/v1/node").Body.String()
	if !strings.Contains(body, `"unmatchedDevices":[]`) {
		t.Errorf("there are unmatched devices:\n%s", body)
	}

	for _, unwanted := range []string{"onfirmed", "holdersIncomplete"} {
		if strings.Contains(body, unwanted) {
			t.Errorf("all holders are known, but the state has %q:\n%s", unwanted, body)
		}
	}
}

func TestShortText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "GPU-1": "GPU-1", strings.Repeat("ü", nodedoc.MaxText): strings.Repeat("ü", nodedoc.MaxText),
		strings.Repeat("\xff", nodedoc.MaxText) + "\xff": "\uFFFD…", "a\xff\xfeb": "a\uFFFDb",
	} {
		if got := nodedoc.ShortText(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
