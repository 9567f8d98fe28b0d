package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// idleGPU is a GPU without MIG that draws some watts and whose activity is known and 0.
func idleGPU(watts float64) gpu.GPU {
	return gpu.GPU{
		Facts: gpu.Facts{UUID: uuidA, Name: "NVIDIA H100 80GB HBM3"}, MIG: gpu.MIGState{Enabled: gpu.Some(false)},
		ActivitySource: gpu.ActivityGPM,
		Device:         gpu.Device{Activity: gpu.Activity{GraphicsEngine: gpu.Some(0.0), SM: gpu.Some(0.0)}},
		Readings:       gpu.Readings{PowerWatts: gpu.Some(watts), PCIe: gpu.PCIe{ReceiveBytes: gpu.Some(uint64(1 << 40))}},
	}
}

// idleSlices is idleGPU in MIG mode, with two instances whose activity is known and 0.
func idleSlices(watts float64) gpu.GPU {
	g := migGPU()
	g.Readings.PowerWatts, g.Readings.Processes = gpu.Some(watts), gpu.None[[]gpu.Process]()

	g.ActivitySource = gpu.ActivityGPM
	for i := range g.Instances {
		g.Instances[i].Activity = gpu.Activity{GraphicsEngine: gpu.Some(0.0), SM: gpu.Some(0.0)}
	}

	return g
}

// readEverySecond records readings a second apart and returns the idle power after the last of
// them.
func readEverySecond(tr *trackedGPU, list ...gpu.GPU) gpu.Opt[float64] {
	for _, g := range list {
		tr.recordReading(g, tr.last.LastRead.Add(time.Second))
	}

	return tr.last.Power.IdleWatts
}

// TestIdlePowerIsLearnedFromTwoWindows: the first window without work may have power of the work
// before it.
func TestIdlePowerIsLearnedFromTwoWindows(t *testing.T) {
	tr := newTestGPU()
	for _, step := range []struct{ watts, want float64 }{{90, 70}, {85, 85}, {95, 85}, {80, 80}} {
		if got := readEverySecond(tr, idleGPU(step.watts)); got != gpu.Some(step.want) {
			t.Errorf("at %v W: idle power %v, want %v", step.watts, got, step.want)
		}
	}

	busy := idleGPU(75)

	busy.Activity.SM = gpu.Some(0.5)
	if got := readEverySecond(tr, busy, idleGPU(75), busy, idleGPU(75)); got != gpu.Some(80.0) {
		t.Errorf("after single windows without work: %v, want 80", got)
	}
}

// TestShortWindowsAreOne: power is a mean over up to a second, so that readings in quick succession
// say no more than one.
func TestShortWindowsAreOne(t *testing.T) {
	tr := newTestGPU()
	at := time.Unix(1000, 0)
	read := func(after time.Duration, watts, activity float64) gpu.Opt[float64] {
		g := idleGPU(watts)
		g.Activity.SM = gpu.Some(activity)
		at = at.Add(after)
		tr.recordReading(g, at)

		return tr.last.Power.IdleWatts
	}

	read(time.Second, 600, 1)

	for n := range 9 {
		if got := read(100*time.Millisecond, 500-50*float64(n), 0); got != gpu.Some(70.0) {
			t.Errorf("%d ms after the work: idle power %v, want the default of 70", 100*(n+1), got)
		}
	}

	if got := read(100*time.Millisecond, 85, 0); got != gpu.Some(85.0) {
		t.Errorf("a second after the work: idle power %v, want 85", got)
	}
}

// TestAnOutageIsNoWindow: what ran while the GPU did not answer is unknown, and its power may be
// in the reading after.
func TestAnOutageIsNoWindow(t *testing.T) {
	tr := newTestGPU()
	readEverySecond(tr, idleGPU(80))
	tr.markDown(gpu.ErrTimeout, tr.last.LastRead.Add(time.Second))

	if got := readEverySecond(tr, idleGPU(500)); got != gpu.Some(70.0) {
		t.Errorf("after one window: idle power %v, want the default of 70", got)
	}

	if got := readEverySecond(tr, idleGPU(85)); got != gpu.Some(85.0) {
		t.Errorf("after two: idle power %v, want 85", got)
	}
}

// TestWorkIsNotTakenForIdle: whichever reading shows work, and if no activity is known, power says
// nothing of an idle GPU, however short the list of processes is.
func TestWorkIsNotTakenForIdle(t *testing.T) {
	moved := uint64(1 << 40)

	for name, tt := range map[string]struct {
		slices bool
		work   func(g *gpu.GPU)
	}{
		"graphics engine": {work: func(g *gpu.GPU) { g.Activity.GraphicsEngine = gpu.Some(0.98) }},
		"DRAM":            {work: func(g *gpu.GPU) { g.Activity.DRAM = gpu.Some(0.01) }},
		"utilization":     {work: func(g *gpu.GPU) { g.Readings.Utilization = gpu.Some(0.01) }},
		"memory copy":     {work: func(g *gpu.GPU) { g.Readings.MemoryCopy = gpu.Some(0.01) }},
		"decoder":         {work: func(g *gpu.GPU) { g.Readings.Media.Decoder = gpu.Some(0.3) }},
		"PCIe counter": {work: func(g *gpu.GPU) {
			moved += 4 << 20
			g.Readings.PCIe.ReceiveBytes = gpu.Some(moved)
		}},
		"PCIe rate": {work: func(g *gpu.GPU) { g.Rates.PCIeTransmit = gpu.Some(4e6) }},
		"nothing is known": {work: func(g *gpu.GPU) {
			g.Activity = gpu.Activity{}
			g.ActivitySource = gpu.ActivityUnknown
			g.Readings.Processes = gpu.Some([]gpu.Process{})
		}},
		"only FP64 is known": {work: func(g *gpu.GPU) { g.Activity = gpu.Activity{FP64: gpu.Some(0.0)} }},
		"only copies are known": {work: func(g *gpu.GPU) {
			g.Activity, g.Readings.MemoryCopy = gpu.Activity{DRAM: gpu.Some(0.0)}, gpu.Some(0.0)
		}},
		"a slice": {slices: true, work: func(g *gpu.GPU) { g.Instances[1].Activity.GraphicsEngine = gpu.Some(0.98) }},
		"a part of a slice": {slices: true,
			work: func(g *gpu.GPU) { g.Instances[0].ComputeInstances[1].Activity.SM = gpu.Some(0.5) }},
		"an engine of a slice": {slices: true, work: func(g *gpu.GPU) { g.Instances[0].Media.Encoder = gpu.Some(0.5) }},
		"a slice is not known": {slices: true, work: func(g *gpu.GPU) { g.Instances[1].Activity = gpu.Activity{} }},
		"slices are not seen": {slices: true, work: func(g *gpu.GPU) {
			g.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrNoPermission, Remembered: true}}
		}},
		"the mode is not known": {work: func(g *gpu.GPU) {
			g.MIG.Enabled = gpu.None[bool]()
			g.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrUnavailable}}
		}},
	} {
		tr := newTestGPU()

		for range 5 {
			g := idleGPU(373)
			if tt.slices {
				g = idleSlices(373)
				g.Name = "NVIDIA H100 80GB HBM3"
			}

			tt.work(&g)

			if got := readEverySecond(tr, g); got != gpu.Some(70.0) {
				t.Errorf("%s: idle power %v, want the default", name, got)
			}
		}
	}

	if got := readEverySecond(newTestGPU(), idleSlices(60), idleSlices(60)); got != gpu.Some(60.0) {
		t.Errorf("idle slices: idle power %v, want 60", got)
	}
}

// TestMonitoringIsNoWork: what reading the GPU transfers does not keep it from being idle.
func TestMonitoringIsNoWork(t *testing.T) {
	tr := newTestGPU()
	bytes := uint64(1 << 40)

	for range 3 {
		g := idleGPU(80)
		bytes += 40_000
		g.Readings.PCIe.ReceiveBytes = gpu.Some(bytes)
		g.Activity.DRAM = gpu.Some(0.00002)
		readEverySecond(tr, g)
	}

	if got := tr.last.Power.IdleWatts; got != gpu.Some(80.0) {
		t.Errorf("idle power %v, want 80", got)
	}
}

// TestIdlePowerIsDroppedWithItsEvidence: other rights, another PID namespace or another source may
// see work that was not seen before. A reading that lacks activity, or that differs alone, changes
// nothing.
func TestIdlePowerIsDroppedWithItsEvidence(t *testing.T) {
	failed := func(reading gpu.Reading, err error) func(g *gpu.GPU) {
		return func(g *gpu.GPU) {
			g.Errors = []gpu.ReadError{{Reading: reading, Err: err, Remembered: true}}
			g.Activity.SM = gpu.Some(0.9)
		}
	}
	for name, change := range map[string]func(g *gpu.GPU){
		"rights":        failed(gpu.ReadingMemory, gpu.ErrNoPermission),
		"PID namespace": failed(gpu.ReadingProcesses, gpu.ErrPIDNamespace),
		"source": func(g *gpu.GPU) {
			g.ActivitySource = gpu.ActivityUnknown // the driver's utilization is left
			g.Activity, g.Readings.Utilization = gpu.Activity{}, gpu.Some(0.9)
		},
		"MIG mode": func(g *gpu.GPU) { g.MIG.Enabled, g.Readings.Utilization = gpu.Some(true), gpu.Some(0.9) },
	} {
		tr := newTestGPU()
		readEverySecond(tr, idleGPU(50), idleGPU(50))
		other := idleGPU(300)
		change(&other)
		nothing := idleGPU(300)
		nothing.Activity = gpu.Activity{}
		nothing.ActivitySource = gpu.ActivityUnknown
		busy := idleGPU(300)

		busy.Activity.SM = gpu.Some(0.9)
		if got := readEverySecond(tr, nothing, nothing, nothing, other, busy, other); got != gpu.Some(50.0) {
			t.Errorf("%s: idle power %v after single readings, want 50", name, got)
		}

		if got := readEverySecond(tr, other); got != gpu.Some(70.0) {
			t.Errorf("%s: idle power %v, want the default again", name, got)
		}
	}
}

// TestAProfilersWindowCountsOnce: polls are more frequent than the profiler's windows.
func TestAProfilersWindowCountsOnce(t *testing.T) {
	tr := newTestGPU()
	ofDCGM := idleGPU(50)
	ofDCGM.ActivitySource = gpu.ActivityDCGM

	tr.profiling.Time = time.Unix(10, 0)
	if got := readEverySecond(tr, ofDCGM, ofDCGM, ofDCGM); got != gpu.Some(70.0) {
		t.Errorf("one window in three readings: idle power %v, want the default", got)
	}

	tr.profiling.Time = time.Unix(11, 0)
	if got := readEverySecond(tr, ofDCGM); got != gpu.Some(50.0) {
		t.Errorf("two windows: idle power %v, want 50", got)
	}
}

func TestIdlePowerDefaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit gpu.Opt[float64]
		want  gpu.Opt[float64]
	}{
		{"NVIDIA A100-PCIE-40GB", gpu.Some(250.0), gpu.Some(34.0)},
		{"NVIDIA A100-SXM4-40GB", gpu.Some(400.0), gpu.Some(52.0)},
		{"some future GPU", gpu.Some(1000.0), gpu.Some(100.0)},
		{"some future GPU", gpu.None[float64](), gpu.None[float64]()},
	} {
		g := gpu.GPU{Facts: gpu.Facts{Name: tt.name},
			Readings: gpu.Readings{SlowReadings: gpu.SlowReadings{PowerLimitWatts: tt.limit}, PowerWatts: gpu.Some(20.0)}}
		if got := readEverySecond(newTestGPU(), g); got != tt.want {
			t.Errorf("%s with limit %v: idle %v, want %v", tt.name, tt.limit, got, tt.want)
		}
	}
}
