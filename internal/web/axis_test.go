package web

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// draw writes an axis as one letter a unit: a, b, c for the GPU instances in order, . for free and
// x for stranded slices.
func draw(g *gpu.GPU) string {
	var b strings.Builder

	for _, s := range layOutAxis(g) {
		letter := "."
		if s.Stranded {
			letter = "x"
		}

		if s.Instance != nodedoc.Room {
			letter = string(rune('a' + s.Instance))
		}

		b.WriteString(strings.Repeat(letter, s.Size) + "|")
	}

	return b.String()
}

// viewOf returns the view of the one GPU of a node without a kubelet.
func viewOf(g *gpu.GPU) gpuView {
	snap := &gpu.Snapshot{GPUs: []gpu.GPU{*g}}
	doc := nodedoc.New(snap)
	v := viewer{snap: snap, doc: &doc, now: fixtureTime, health: judge(publish(snap))()}

	return v.newGPUView(0)
}

func TestAxis(t *testing.T) {
	place := func(g gpu.GPU, at ...gpu.Placement) gpu.GPU {
		g.Instances = nil
		for _, p := range at {
			g.Instances = append(g.Instances, gpu.GPUInstance{Placement: gpu.Some(p)})
		}

		g.Capacity = gpu.None[gpu.Capacity]()

		return g
	}
	empty := migGPU(0, 7, 1, 7, 3, 2)
	twelve := gpu.GPU{Facts: gpu.Facts{Profiles: []gpu.Profile{{Name: "1g.24gb",
		Placements: []gpu.Placement{{Start: 0, Size: 3}, {Start: 9, Size: 3}}}}}}
	noProfiles := gpu.GPU{Capacity: gpu.Some(gpu.Capacity{Memory: gpu.SliceCount{Used: 2, Free: 2}})}
	noProfiles.Instances = []gpu.GPUInstance{{Placement: gpu.Some(gpu.Placement{Start: 2, Size: 2})}}
	exhausted := place(migGPU(0, 0, 0, 0, 0, 0), gpu.Placement{Start: 0, Size: 4})

	exhausted.Capacity = gpu.Some(gpu.Capacity{Memory: gpu.SliceCount{Used: 4, Stranded: 4},
		Profiles: []gpu.ProfileCapacity{{Name: "1g.5gb"}, {Name: "2g.10gb"}, {Name: "3g.20gb"}}})
	for name, test := range map[string]struct {
		gpu  gpu.GPU
		want string
	}{
		"mixed, with the unit that no 1g reaches": {mixedGPU(0), "a|.|bb|cc|.|x|"},
		"full":                                {splitGPU(0), "aaaa|bbbb|"},
		"empty: 3g.20gb covers the last unit": {place(empty), "........|"},
		"adjacent instances stay apart": {place(empty, gpu.Placement{Start: 0, Size: 1},
			gpu.Placement{Start: 1, Size: 1}), "a|b|......|"},
		"12 units":                            {place(twelve, gpu.Placement{Start: 0, Size: 3}), "aaa|xxxxxx|...|"},
		"profiles withheld: nothing stranded": {noProfiles, "..|a" + "a|"},
		"free room that no profile can use":   {exhausted, "aaaa|xxxx|"},
		"placement withheld":                  {unprivilegedGPU(0), ""},
		"no MIG":                              {wholeGPU(0), ""},
		"placements overlap": {place(empty, gpu.Placement{Start: 0, Size: 4},
			gpu.Placement{Start: 3, Size: 2}), ""},
		"placement beyond the axis": {place(empty, gpu.Placement{Start: 7, Size: 2}), ""},
		"placement before the axis": {place(empty, gpu.Placement{Start: -1, Size: 2}), ""},
		"an axis longer than any that there is": {gpu.GPU{Capacity: gpu.Some(
			gpu.Capacity{Memory: gpu.SliceCount{Free: 1 << 20}})}, ""},
	} {
		if got := draw(&test.gpu); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestParts(t *testing.T) {
	split := splitGPU(0).Instances[0]
	orphan := splitGPU(0).Instances[1]
	half := split

	half.ComputeInstances = split.ComputeInstances[:1]
	for name, test := range map[string]struct {
		inst gpu.GPUInstance
		want string
	}{
		"two compute instances":        {split, "[w1 held:embed-0] [w2 held:train-0]"},
		"slices left over":             {half, "[w1 held:embed-0] [w2 none:]"},
		"no compute instance":          {orphan, "[w3 none:no compute instance]"},
		"all of it: the block says it": {mixedGPU(0).Instances[0], ""},
	} {
		var got []string

		doc := nodedoc.New(&gpu.Snapshot{GPUs: []gpu.GPU{{Instances: []gpu.GPUInstance{test.inst}}}})
		for _, p := range newPartViews(&test.inst, &doc.GPUs[0].GPUInstances[0], false) {
			got = append(got, fmt.Sprintf("[%s:%s]", p.Class, p.Text))
		}

		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestUseWithoutKubelet: where no kubelet gives devices out, what runs on one decides; without the
// host's PID namespace that is unknown of a device that shows no activity.
func TestUseWithoutKubelet(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(inst *gpu.GPUInstance)
		want   string // class of the block, and of its part if there is one
	}{
		{"nothing", func(*gpu.GPUInstance) {}, "free"},
		{"processes", func(inst *gpu.GPUInstance) {
			inst.Processes, inst.ComputeInstances[0].Processes = gpu.Some(1), gpu.Some(1)
		}, "held"},
		{"hidden processes, active", func(inst *gpu.GPUInstance) {
			inst.Activity, inst.ComputeInstances[0].Activity = busy(1), busy(1)
			inst.Processes, inst.ComputeInstances[0].Processes = gpu.None[int](), gpu.None[int]()
		}, "held"},
		{"hidden processes", func(inst *gpu.GPUInstance) {
			inst.Processes, inst.ComputeInstances[0].Processes = gpu.None[int](), gpu.None[int]()
		}, "unknown"},
		{"hidden processes, of which none has memory", func(inst *gpu.GPUInstance) {
			inst.Memory.Used = gpu.Some[uint64](5 * mib)
			inst.Processes, inst.ComputeInstances[0].Processes = gpu.None[int](), gpu.None[int]()
		}, "free"},
		{"a batch job", func(inst *gpu.GPUInstance) { inst.Jobs = []string{"7"} }, "held"},
		{"nothing can run", func(inst *gpu.GPUInstance) {
			inst.Processes = gpu.None[int]()
			inst.ComputeInstances = nil
		}, "free, w3 none"},
		{"hidden MIG devices", func(inst *gpu.GPUInstance) {
			inst.Processes = gpu.None[int]()
			inst.ComputeInstances = nil
			inst.ComputeInstancesHidden = true
		}, "unknown"},
	} {
		inst := instance(1, "3g.20gb", 3, 0, 4, 500*mib, nil)
		inst.Allocated, inst.ComputeInstances[0].Allocated = gpu.None[bool](), gpu.None[bool]()
		tt.change(&inst)
		g := migGPU(0, 0, 0, 0, 0, 0)
		g.Instances = []gpu.GPUInstance{inst}

		view := viewOf(&g)
		block := view.Axis[0]

		classes := []string{block.Class}
		for i := range block.Parts {
			classes = append(classes, block.Parts[i].Class)
		}

		if got := strings.Join(classes, ", "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}

		if isUnknown := block.Class == "unknown"; strings.Contains(block.Title, "whether anything runs") != isUnknown {
			t.Errorf("%s: title %q", tt.name, block.Title)
		}
	}
}

// TestUseBesideAKubelet: what no pod has is held all the same by a process or a batch job.
func TestUseBesideAKubelet(t *testing.T) {
	snap := nodeFixture()
	snap.GPUs = []gpu.GPU{freeGPU(0), freeGPU(1), freeGPU(2)}
	snap.GPUs[1].Readings.Processes = gpu.Some([]gpu.Process{{PID: 7}})
	snap.GPUs[2].Jobs = []string{"7"}
	text := pageText(showPage(t, Options{State: true}, snap))
	cmptest.HasTexts(t, text, "Free 1 held by nothing")
	cmptest.Equal(t, "free GPUs", strings.Count(text, "Free: nothing holds it"), 1)
}

// TestDownIsAWord: a slice that does not answer says so, and not by its color alone.
func TestDownIsAWord(t *testing.T) {
	snap := nodeFixture()
	mixed := mixedGPU(0)
	mixed.Instances[1].Up = false
	snap.GPUs = []gpu.GPU{mixed}

	text := pageText(showPage(t, Options{State: true}, snap))
	cmptest.HasTexts(t, text, "1g .5gb @0 notebook-7d9c", "2g .10gb @2 down free", "2g .10gb @4 triton-llm-6c7f8d9b5-x2x4z",
		"does not answer")
}

// TestOneWordForTheUse: strip, card, table and tile of a page agree on whether a device is held. A
// device whose memory is used, by processes that we cannot see, is not free.
func TestOneWordForTheUse(t *testing.T) {
	hidden := func(g gpu.GPU) gpu.GPU {
		g.Readings.Processes = gpu.None[[]gpu.Process]()
		return g
	}
	active := hidden(freeGPU(1))
	active.Activity = gpu.Activity{SM: gpu.Some(0.17)}

	sliced := hidden(mixedGPU(2))
	sliced.Instances = sliced.Instances[1:2]
	sliced.Allocated = gpu.Some(false)
	sliced.Activity = gpu.Activity{}
	slice := &sliced.Instances[0]
	slice.Memory.Used = gpu.Some[uint64](500 * mib)
	slice.Processes = gpu.None[int]()
	slice.ComputeInstances[0].Processes = gpu.None[int]()

	snap := nodeFixture()
	snap.GPUs = []gpu.GPU{hidden(freeGPU(0)), active, sliced}
	page := showPage(t, Options{State: true}, snap)
	text := pageText(page)

	cmptest.HasTexts(t, text, "Free 0 held by nothing, 2 unknown",
		"whole GPU unknown", "Unknown: no pod holds it, but not known whether anything else runs on it",
		"whole GPU held", "Held by an unknown process or pod",
		"2g .10gb @2 unknown", "≈ 40 W unknown")
	cmptest.LacksTexts(t, text, "Free: ", " free")

	slice.Activity = gpu.Activity{SM: gpu.Some(0.17)}
	text = pageText(showPage(t, Options{State: true}, snap))
	cmptest.HasTexts(t, text, "Free 0 held by nothing, 1 unknown", "2g .10gb @2 held",
		"≈ 40 W held by an unknown process or pod")
	cmptest.LacksTexts(t, text, "Free: ", " free")
}

// TestSliceIsAsHealthy: a slice is unhealthy for the filter if the health report says so. The XID of
// a program is no reason.
func TestSliceIsAsHealthy(t *testing.T) {
	xid := func(number uint64) []gpu.XIDCount {
		return []gpu.XIDCount{{XID: number, Counter: gpu.Counter{Value: 1}, Last: fixtureTime.Add(-time.Minute)}}
	}

	for _, tt := range []struct {
		name   string
		change func(g *gpu.GPU)
		want   string
	}{
		{"nothing", func(*gpu.GPU) {}, ""},
		{"an XID of a program", func(g *gpu.GPU) {
			g.Instances[0].XIDErrors = xid(31)
			g.Totals.XIDErrors = xid(31)
		}, ""},
		{"it does not answer", func(g *gpu.GPU) { g.Instances[0].Up = false }, "unhealthy"},
		{"its GPU has to be reset", func(g *gpu.GPU) {
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryReset)
		}, "unhealthy"},
	} {
		g := mixedGPU(0)
		tt.change(&g)
		snap := nodeFixture()
		snap.GPUs = []gpu.GPU{g}
		doc := nodedoc.New(snap)
		report := judge(publish(snap))()
		v := viewer{snap: snap, doc: &doc, now: fixtureTime, health: report}

		cmptest.Equal(t, tt.name, v.newGPUView(0).Axis[0].Is, tt.want)
		cmptest.Equal(t, tt.name+": healthy", report.GPUs[0].Instances[0].State == health.Healthy, tt.want == "")
	}
}
