package web

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// pageText is a page without style, script and tags, its white space collapsed.
func pageText(page string) string {
	page = regexp.MustCompile(`(?s)<(style|script|head)\b.*?</(style|script|head)>`).ReplaceAllString(page, " ")
	page = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")

	return strings.Join(strings.Fields(page), " ")
}

func showPage(t *testing.T, opts Options, snap *gpu.Snapshot) string {
	t.Helper()

	w := get(testHandler(opts, publish(snap), nil, prometheus.NewRegistry()), "/")
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("got %d %v", w.Code, w.Header())
	}

	return w.Body.String()
}

func TestPageShowsTheNode(t *testing.T) {
	page := showPage(t, Options{State: true, Simulated: true, Version: "1.2.3"}, nodeFixture())

	text := pageText(page)
	for _, want := range []string{
		"mig-exporter 1.2.3", "dgx-a100", "simulated node", "driver 580.95.05", "CUDA 13.0", "nvml", "kubelet stale",
		"Read 1 s ago",
		"GPUs 8 1 does not answer", "Free 2 held by nothing",
		"GPU 0 A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB GPU-5c1f6a2e-0000-4d1b-9f00-000000000000 00000000:07:00.0", "row remap pending", "2 XIDs", "1 unavailable event", "2 recovery events", "Memory 31 GiB of 40 GiB 78 %",
		"SM activity 75 % 75 % Utilization 87 %", "Power 318 W of 400 W",
		"Temperature 61 °C", "Held by vision/resnet-0",
		"Free: nothing holds it",
		"1g.5gb GI 7 at 0:1 MIG-6f7d2a10-0000-5e11-8a00-000000007000 3 GiB of 5 GiB 60 % 102 % 100 % ≈ 20 W ml/notebook-7d9c job 7 job 8",
		"2g.10gb GI 5 at 2:2 MIG-6f7d2a10-0000-5e11-8a00-000000005000 20 MiB of 10 GiB 0 % 0 % 0 % ≈ 40 W",
		"2g.10gb GI 1 at 4:2 MIG-6f7d2a10-0000-5e11-8a00-000000001000 9 GiB of 10 GiB 90 % – ≈ 40 W", "SM activity 31 % 31 % Power 172 W", "ml/notebook-7d9c",
		"not given to an instance ≈ 72 W", "Could still hold 1 × 1g.5gb. Stranded: 1 memory slice.",
		"1c.3g.20gb CI 0 MIG-6f7d2a10-0000-5e11-8a00-000000002000 65 % 65 % ml/embed-0", "2c.3g.20gb CI 1 MIG-6f7d2a10-0000-5e11-8a00-000000002001 – ml/train-0", "no compute instance", "Nothing more fits.",
		"lost", "It last answered 96 s ago. Its readings are dropped.", "device: get handle: GPU is lost",
		"Shared by 2 containers (time-slicing)", "hub/jupyter-ben notebook (1) 13 GiB",
		"MIG pending", "needs reset", "row remap: get remapped rows: no permission",
		"Where the instances lie on the GPU is not known",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}

	for _, want := range []string{`class="block s4 held"`, `class="block s1 stranded"`,
		`class="block s2 free"`, `class="block s1 room"`, `<details class="gpu down"`, `class="strip u8"`,
		`title="GPU instance 7, 1g.5gb at 0:1, about 20 W, ml/notebook-7d9c, job 7, job 8"`,
		`href="metrics"`, `href="api/v1/node"`, `href="-/ready"`, `href="-/healthy"`, `<meter min="0" max="100" value="78"`,
		fmt.Sprintf(`data-taken="%d" data-rendered="%d">1 s ago<`, fixtureTime.UnixMilli(), fixtureTime.Add(time.Second).UnixMilli())} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the page", want)
		}
	}
}

// TestPageGPUWithoutHandle shows what there is to say: the index and the reason.
func TestPageGPUWithoutHandle(t *testing.T) {
	snap := nodeFixture()
	snap.GPUs = []gpu.GPU{wholeGPU(0), {Facts: gpu.Facts{Index: 1},
		Device: gpu.Device{Errors: []gpu.ReadError{{Reading: gpu.ReadingDevice, Err: fmt.Errorf("get handle: %w", gpu.ErrLost)}}}}}
	page := showPage(t, Options{State: true}, snap)

	const want = "Unknown model The driver counts this GPU but returns no handle for it. device: get handle: " +
		"GPU is lost"
	if text := pageText(page); !strings.HasSuffix(text, want) || !strings.Contains(text, "GPU 1 Unknown model lost") || !strings.Contains(text, "GPUs 2 1 does not answer") {
		t.Errorf("no %q in\n%s", want, text)
	}

	if n := strings.Count(page, "GPU-5c1f6a2e-0000-4d1b-9f00-000000000000</span>"); n != 1 {
		t.Errorf("the UUID of the other GPU is there %d times", n)
	}
}

// TestPageUnknownActivity: unknown activity is a dash without a bar, not 0.
func TestPageUnknownActivity(t *testing.T) {
	snap := nodeFixture()
	split := splitGPU(0)
	split.Instances[0].Activity, split.Instances[0].ComputeInstances[0].Activity = gpu.Activity{},
		gpu.Activity{SM: gpu.Some(math.NaN())}
	snap.GPUs = []gpu.GPU{split}
	page := showPage(t, Options{State: true}, snap)

	text := pageText(page)
	for _, want := range []string{"SM activity – Power", "15 GiB of 20 GiB 75 % – ≈ 60 W", "CI 0 MIG-6f7d2a10-0000-5e11-8a00-000000002000 – ml/embed-0",
		"CI 1 MIG-6f7d2a10-0000-5e11-8a00-000000002001 – ml/train-0"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}

	if strings.Contains(page, `aria-label="SM activity"`) {
		t.Error("there is a bar for an unknown activity")
	}
}

// TestPageModeOff: what a GPU could be partitioned into with MIG on is no room that it has.
func TestPageModeOff(t *testing.T) {
	snap := nodeFixture()
	g := freeGPU(0)
	g.Profiles = a100Profiles()
	g.Capacity = gpu.Some(gpu.Capacity{Profiles: []gpu.ProfileCapacity{{Name: "1g.5gb", Max: 7}}})
	snap.GPUs = []gpu.GPU{g}

	page := showPage(t, Options{State: true}, snap)
	for _, unwanted := range []string{`class="block s1 room"`, "Nothing more fits", "Could still hold", "1g.5gb"} {
		if strings.Contains(page, unwanted) {
			t.Errorf("%s is on the page", unwanted)
		}
	}
}

// TestPageEscapes: names come from drivers and clusters and may hold anything.
func TestPageEscapes(t *testing.T) {
	const evil = "\"><script>alert(1)</script>'\xff\n<img src=x onerror=alert(2)>{{.}}"
	snap := nodeFixture()
	snap.Hostname = evil

	snap.Driver = gpu.Some(gpu.Driver{Version: evil, CUDA: evil})
	for i := range snap.GPUs {
		g := &snap.GPUs[i]
		g.Name, g.UUID, g.PCIBusID = evil, gpu.UUID(evil), evil
		g.Holders = holder(evil, evil, evil)

		g.Errors = []gpu.ReadError{{Reading: gpu.Reading(evil), Err: gpu.ErrDriver}}
		for j := range g.Instances {
			g.Instances[j].Profile = evil

			g.Instances[j].Holders = holder(evil, evil, evil)
			for k := range g.Instances[j].ComputeInstances {
				g.Instances[j].ComputeInstances[k].Profile, g.Instances[j].ComputeInstances[k].UUID = evil, evil
			}
		}
	}

	page := showPage(t, Options{State: true, Version: evil}, snap)
	if n := strings.Count(page, "<script>"); n != 1 {
		t.Errorf("%d scripts, not the page's one", n)
	}

	if strings.Contains(page, "<img") || strings.Contains(page, `"">`) {
		t.Error("a name broke out of its place")
	}
}

// TestPageOfContainer: a kubelet that is not configured is no fault, and the page says once what to
// set.
func TestPageOfContainer(t *testing.T) {
	snap := nodeFixture()
	why := fmt.Errorf("%w: set --kubernetes.socket=", gpu.ErrNotConfigured)
	snap.Sources = []gpu.SourceState{{Name: gpu.SourceNVML, Up: true}, {Name: gpu.SourceKubelet, Err: why}}
	snap.HoldersIncomplete = "the kubelet is " + why.Error()
	snap.Unmatched = nil
	page := showPage(t, Options{State: true}, snap)

	cmptest.HasTexts(t, page, `<span class="badge plain" title="not-configured: set --kubernetes.socket=">kubelet not-configured</span>`,
		`<section class="notice plain" role="status">`, "Holders are not known",
		"<p>the kubelet is not-configured: set --kubernetes.socket=</p>")
	cmptest.LacksTexts(t, page, `<section class="notice warn" role="status">`, "kubelet down")
}

// TestPagePolicy: the policy allows the page's own style and script, by their hashes, and nothing
// from elsewhere.
func TestPagePolicy(t *testing.T) {
	w := get(testHandler(Options{State: true}, publish(nodeFixture()), nil, prometheus.NewRegistry()), "/")

	policy := w.Header().Get("Content-Security-Policy")

	page := w.Body.String()
	for _, tag := range []string{"style", "script"} {
		inline := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(page, -1)
		if len(inline) != 1 {
			t.Fatalf("%d %s elements", len(inline), tag)
		}

		sum := sha256.Sum256([]byte(inline[0][1]))
		if want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("the policy %q has no %s", policy, want)
		}
	}

	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}

	loads := regexp.MustCompile(`(?:src|<(?:[b-z]\w*)[^>]* href)="(?:https?:)?//|style="|\son\w+="|url\(`)
	if found := loads.FindString(page); found != "" {
		t.Errorf("the page loads or runs %q, which the policy forbids", found)
	}
}

func TestPageWithoutDriver(t *testing.T) {
	snap := &gpu.Snapshot{Time: fixtureTime, Hostname: "laptop",
		Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}}}

	text := pageText(showPage(t, Options{State: true}, snap))
	for _, want := range []string{"No NVIDIA driver answers on this node", "nvml down",
		"To look around without a GPU, start the simulated node: mig-exporter --driver=sim"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestPageNotices(t *testing.T) {
	up := []gpu.SourceState{{Name: gpu.SourceNVML, Up: true}}
	lost := nodeFixture()

	lost.Sources = []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrVersionMismatch}}
	for want, snap := range map[string]*gpu.Snapshot{
		"Reading the node for the first time": nil,
		"The driver answers, but lists no GPU": {Time: fixtureTime,
			Sources: up},
		"Readings have stalled The readings shown here are 2 " +
			"min old.": {Time: fixtureTime.Add(-2 * time.Minute), Sources: up},
		"The NVIDIA driver no longer answers driver and library version mismatch The exporter": lost,
	} {
		if text := pageText(showPage(t, Options{State: true, ReadyMaxAge: 15 * time.Second}, snap)); !strings.Contains(text,
			want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestPageWithoutState shows links and nothing of the node.
func TestPageWithoutState(t *testing.T) {
	page := showPage(t, Options{Pprof: true}, nodeFixture())
	for _, href := range []string{"metrics", "-/ready", "-/healthy", "debug/pprof/"} {
		if !strings.Contains(page, `href="`+href+`"`) {
			t.Errorf("no link to %s", href)
		}
	}

	for _, secret := range []string{"dgx-a100", "A100", "resnet", "api/v1/node", "<script>"} {
		if strings.Contains(page, secret) {
			t.Errorf("%q is on the page", secret)
		}
	}
}

func TestPageGzip(t *testing.T) {
	h := testHandler(Options{State: true}, publish(nodeFixture()), nil, prometheus.NewRegistry())

	plain := get(h, "/")

	packed := get(h, "/", "Accept-Encoding", "gzip")
	if packed.Header().Get("Content-Encoding") != "gzip" || string(gunzip(t, packed.Body.Bytes())) != plain.Body.String() {
		t.Error("the gzip coding differs from the plain page")
	}
}

// TestPageOfGPUsThatWereNotRead: right after the start, GPUs that are not there yet are not no
// GPUs.
func TestPageOfGPUsThatWereNotRead(t *testing.T) {
	snap := nodeFixture()
	snap.GPUs = []gpu.GPU{wholeGPU(0)}
	snap.Unread = []int{1, 2}
	cmptest.HasTexts(t, pageText(showPage(t, Options{State: true}, snap)),
		"2 of 3 GPUs have not been read yet Their first readings are under way: GPU 1, GPU 2.")

	snap.GPUs = nil
	snap.Unread = []int{0}
	text := pageText(showPage(t, Options{State: true}, snap))
	cmptest.HasTexts(t, text, "1 of 1 GPUs have not been read yet")
	cmptest.LacksTexts(t, text, "lists no GPU")
}

// TestPageOfStretchedReadings: the page and the JSON say how often the GPUs are read, and why.
func TestPageOfStretchedReadings(t *testing.T) {
	snap := nodeFixture()
	snap.Pace = gpu.Pace{
		Fast: gpu.TierPace{Configured: time.Second, Now: 5 * time.Second},
		Slow: gpu.TierPace{Configured: 15 * time.Second, Now: 15 * time.Second},
	}
	cmptest.HasTexts(t, pageText(showPage(t, Options{State: true}, snap)), "read less often than configured",
		"power are read every 5s instead of 1s; what is dear or seldom changes every 15s, as configured.")
	cmptest.Equal(t, "JSON", *nodedoc.New(snap).Node.ReadEvery, nodedoc.ReadEvery{
		FastSeconds: 5, FastConfiguredSeconds: 1, SlowSeconds: 15, SlowConfiguredSeconds: 15,
	})

	snap.Pace.Fast.Now = time.Second
	cmptest.LacksTexts(t, pageText(showPage(t, Options{State: true}, snap)), "less often")
}

// TestTotalsSayWhatTheyLack: a total of the node has the GPUs of which both the value and its limit
// are known, and says how many others there are.
func TestTotalsSayWhatTheyLack(t *testing.T) {
	newGPU := func(watts, limit gpu.Opt[float64], used, total gpu.Opt[uint64]) gpu.GPU {
		g := gpu.GPU{Device: gpu.Device{Up: true}}
		g.Readings.PowerWatts = watts
		g.Readings.PowerLimitWatts = limit
		g.Readings.Memory = gpu.Memory{Used: used, Total: total}

		return g
	}
	watts, limit := gpu.Some(300.0), gpu.Some(1000.0)
	used, total := gpu.Some[uint64](1<<29), gpu.Some[uint64](1<<30)
	known := newGPU(watts, limit, used, total)
	noValue := newGPU(gpu.None[float64](), limit, gpu.None[uint64](), total)
	noLimit := newGPU(watts, gpu.None[float64](), used, gpu.None[uint64]())

	for _, tt := range []struct {
		gpus []gpu.GPU
		want string
	}{
		{[]gpu.GPU{known, known}, "1 GiB of 2 GiB; 600 W limit 2000 W"},
		{[]gpu.GPU{known, noValue}, "512 MiB of 1 GiB, without 1 GPU; 300 W limit 1000 W, without 1 GPU"},
		{[]gpu.GPU{known, noLimit, noLimit}, "512 MiB of 1 GiB, without 2 GPUs; 300 W limit 1000 W, without 2 GPUs"},
		{[]gpu.GPU{noValue, noLimit}, ""},
	} {
		var shown []string

		for _, tile := range tilesOf(tt.gpus...) {
			if tile.Label == "Power" || tile.Label == "Memory used" {
				shown = append(shown, tile.Value+" "+tile.Note)
			}
		}

		cmptest.Equal(t, "tiles", strings.Join(shown, "; "), tt.want)
	}
}

// TestPageOfSlicedNode: the largest node that is common has a row for each GPU, closed, in an
// answer that is not large; a node of one GPU shows it opened.
func TestPageOfSlicedNode(t *testing.T) {
	h := testHandler(Options{State: true}, publish(slicedNode()), nil, prometheus.NewRegistry())

	if size := len(get(h, "/", "Accept-Encoding", "gzip").Body.Bytes()); size > 45<<10 {
		t.Errorf("the page of 56 slices has %d bytes", size)
	}

	page := get(h, "/").Body.String()
	cmptest.Equal(t, "rows", strings.Count(page, `<details class="gpu"`), 8)
	cmptest.Equal(t, "slices", strings.Count(page, `class="block s1 held"`), 56)
	cmptest.LacksTexts(t, page, " open>")

	snap := nodeFixture()
	snap.GPUs = snap.GPUs[:1]
	cmptest.HasTexts(t, showPage(t, Options{State: true}, snap), " open>")
}

// TestPageFindsByNames: what a reader may look for is in the row and the slices: names, and what is
// wrong.
func TestPageFindsByNames(t *testing.T) {
	page := showPage(t, Options{State: true}, nodeFixture())
	cmptest.HasTexts(t, page,
		`data-find="gpu-2 NVIDIA A100-SXM4-40GB GPU-5c1f6a2e-0000-4d1b-9f00-000000000002 00000000:17:00.0"`,
		`data-find="1g.5gb gi-7 ml/notebook-7d9c job 7 job 8 MIG-6f7d2a10-0000-5e11-8a00-000000007000"`,
		`data-find="3g.20gb gi-2 MIG-6f7d2a10-0000-5e11-8a00-000000002000 ml/embed-0 `+
			`MIG-6f7d2a10-0000-5e11-8a00-000000002001 ml/train-0"`)

	var unhealthy []string
	for _, m := range regexp.MustCompile(`<details class="gpu[^>]*data-index="(\d)"[^>]*data-is="unhealthy"`).FindAllStringSubmatch(page, -1) {
		unhealthy = append(unhealthy, m[1])
	}

	cmptest.Equal(t, "unhealthy", strings.Join(unhealthy, ","), "0,4,6")
}

// tilesOf returns the tiles of a node with some GPUs.
func tilesOf(gpus ...gpu.GPU) []tile {
	snap := &gpu.Snapshot{GPUs: gpus}
	doc := nodedoc.New(snap)

	return nodeTiles(snap, &doc)
}

// TestPageTwoGPUsOfOneIndex: a GPU that is lost stays for a while beside the one that has its index
// now. No id is there twice.
func TestPageTwoGPUsOfOneIndex(t *testing.T) {
	snap := nodeFixture()
	lost := downGPU(1)
	lost.UUID = "GPU-lost"
	snap.GPUs = []gpu.GPU{wholeGPU(0), lost, wholeGPU(1)}
	page := showPage(t, Options{State: true}, snap)

	seen := map[string]bool{}

	for _, id := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if seen[id[1]] {
			t.Errorf("id %q is there twice", id[1])
		}

		seen[id[1]] = true
	}

	cmptest.Equal(t, "labels", strings.Count(page, `aria-labelledby="gpu-GPU-`), 3)
}
