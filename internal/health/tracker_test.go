package health

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

var start = time.Unix(1_700_000_000, 0).UTC()

// healthyGPU is a GPU of which everything was read, and nothing is wrong.
func healthyGPU() gpu.GPU {
	g := gpu.GPU{Facts: gpu.Facts{UUID: "GPU-a"}, Device: gpu.Device{Up: true}}
	g.Totals.XIDs.Since = start

	return g
}

// node is a Snapshot of GPUs whose driver answers, at a time after the start.
func node(after time.Duration, gpus ...gpu.GPU) *gpu.Snapshot {
	for i := range gpus {
		gpus[i].Index = i
		if i > 0 && gpus[i].UUID != "" {
			gpus[i].UUID = gpu.UUID(fmt.Sprint("GPU-", i))
		}
	}

	return &gpu.Snapshot{
		Generation: 1, Time: start.Add(after), Driver: gpu.Some(gpu.Driver{Version: "580"}), GPUs: gpus,
		Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Up: true}},
	}
}

func xid(number uint64, after time.Duration) gpu.XIDCount {
	return gpu.XIDCount{XID: number, Counter: gpu.Counter{Value: 1, Since: start}, Last: start.Add(after)}
}

func down(err error) func(*gpu.GPU) {
	return func(g *gpu.GPU) {
		g.Up = false
		g.Errors = []gpu.ReadError{{Reading: gpu.ReadingDevice, Err: err}}
	}
}

func fails(reading gpu.Reading) func(*gpu.GPU) {
	return func(g *gpu.GPU) {
		g.Errors = []gpu.ReadError{{Reading: reading, Err: gpu.ErrNoPermission}}
	}
}

func hasXID(number uint64) func(*gpu.GPU) {
	return func(g *gpu.GPU) {
		g.Totals.XIDErrors = []gpu.XIDCount{xid(number, 0)}
		g.Totals.GPUXIDs = g.Totals.XIDErrors
	}
}

// codes lists the reasons of a verdict: "GPUHung" or "XIDNode 79".
func codes(v Verdict) string {
	texts := make([]string, 0, len(v.Reasons))
	for _, r := range v.Reasons {
		text := string(r.Code)
		if n, ok := r.XID.Get(); ok {
			text += fmt.Sprint(" ", n)
		}

		texts = append(texts, text)
	}

	return strings.Join(texts, ", ")
}

func summary(v Verdict) string {
	return fmt.Sprintf("%s %s: %s", v.State, v.Action, codes(v))
}

// TestJudgement has a case for each reason of a GPU.
func TestJudgement(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*gpu.GPU)
		want   string
	}{
		"nothing":         {func(*gpu.GPU) {}, "healthy none: "},
		"hung":            {down(gpu.ErrTimeout), "unhealthy reset: GPUHung"},
		"lost":            {down(fmt.Errorf("read: %w", gpu.ErrLost)), "unhealthy reboot: GPULost"},
		"reset required":  {down(gpu.ErrResetRequired), "unhealthy reset: GPUResetRequired"},
		"no driver":       {down(gpu.ErrNoDriver), "unknown none: GPUUnreadable"},
		"no reason given": {func(g *gpu.GPU) { g.Up = false }, "unknown none: GPUUnreadable"},
		"no handle": {func(g *gpu.GPU) {
			down(gpu.ErrDriver)(g)
			g.UUID = ""
		}, "unhealthy reboot: GPUNoHandle"},
		"no right to a handle": {func(g *gpu.GPU) {
			down(gpu.ErrNoPermission)(g)
			g.UUID = ""
		}, "unknown none: GPUUnreadable"},
		"released": {func(g *gpu.GPU) {
			g.Up = false
			g.Released = gpu.Some(gpu.Release{Since: start, Cause: gpu.ReleasedByOperator})
		}, "unknown none: GPUReleased"},

		"application's XID": {hasXID(31), "healthy none: "},
		"row remap XID":     {hasXID(63), "degraded reset: XIDMemory 63"},
		"firmware XID":      {hasXID(119), "unhealthy reset: XIDHardware 119"},
		"bus XID":           {hasXID(79), "unhealthy reboot: XIDNode 79"},
		"unlisted XID":      {hasXID(999), "degraded none: XIDOther 999"},
		"announcement":      {hasXID(154), "healthy none: "},
		"XID before start": {func(g *gpu.GPU) {
			g.Totals.XIDErrors = []gpu.XIDCount{{XID: 79, Last: start.Add(-time.Hour)}}
		}, "unknown none: XIDBeforeStart 79"},
		"XID before start, and the driver asks for nothing": {func(g *gpu.GPU) {
			g.Totals.XIDErrors = []gpu.XIDCount{{XID: 79, Last: start.Add(-time.Hour)}}
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryNone)
		}, "healthy none: "},
		"unavailable": {func(g *gpu.GPU) {
			g.Totals.Unavailable = gpu.Some(gpu.Counter{Value: 1})
		}, "unhealthy reset: GPUUnavailable"},

		"corrected errors": {func(g *gpu.GPU) {
			g.Readings.ECC = []gpu.ECCCount{{Severity: "corrected", Lifetime: "volatile", Count: 9}}
		}, "healthy none: "},
		"errors of earlier": {func(g *gpu.GPU) {
			g.Readings.ECC = []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "aggregate", Count: 9}}
		}, "healthy none: "},
		"uncorrectable errors": {func(g *gpu.GPU) {
			g.Readings.ECC = []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "volatile", Location: "sram", Count: 1}}
		}, "unhealthy reset: ECCUncorrectable"},
		"remapped": {func(g *gpu.GPU) {
			g.Readings.RemappedRows = gpu.Some(gpu.RemappedRows{Correctable: 2, Uncorrectable: 1})
		}, "healthy none: "},
		"remap pending": {func(g *gpu.GPU) {
			g.Readings.RemappedRows = gpu.Some(gpu.RemappedRows{Pending: true})
		}, "degraded reset: RowRemapPending"},
		"remap failed": {func(g *gpu.GPU) {
			g.Readings.RemappedRows = gpu.Some(gpu.RemappedRows{Failure: true, Pending: true})
		}, "unhealthy replace: RowRemapFailed, RowRemapPending"},

		"asks for nothing": {func(g *gpu.GPU) {
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryNone)
		}, "healthy none: "},
		"asks for a drain": {func(g *gpu.GPU) {
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryDrain)
		}, "unhealthy drain: RecoveryAction"},
		"asks for a reset": {func(g *gpu.GPU) {
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryDrainAndReset)
		}, "unhealthy reset: RecoveryAction"},
		"asks for a reboot": {func(g *gpu.GPU) {
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryReboot)
		}, "unhealthy reboot: RecoveryAction"},

		"fabric": {func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Status: gpu.Some(uint32(0)), Health: gpu.FabricHealthy})
		}, "healthy none: "},
		"fabric failed": {func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Status: gpu.Some(uint32(999))})
		}, "unhealthy reset: FabricFailed"},
		"fabric unhealthy": {func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Health: gpu.FabricUnhealthy})
		}, "unhealthy reset: FabricUnhealthy"},
		"fabric limited": {func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Health: gpu.FabricLimitedCapacity})
		}, "degraded none: FabricLimited"},
		"fabric not ready": {func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricInProgress})
		}, "degraded none: FabricNotReady"},

		"hot": {func(g *gpu.GPU) {
			g.Readings.TemperatureMarginCelsius = gpu.Some(2.0)
		}, "degraded none: TemperatureHigh"},
		"warm": {func(g *gpu.GPU) {
			g.Readings.TemperatureMarginCelsius = gpu.Some(3.0)
		}, "healthy none: "},
		"slowed down": {func(g *gpu.GPU) {
			g.Totals.ClockEvents = []gpu.ReasonSeconds{{Reason: "sw_thermal_slowdown", Active: true}, {Reason: "sw_power_cap", Active: true}}
		}, "degraded none: ThermalSlowdown"},
		"power brake": {func(g *gpu.GPU) {
			g.Totals.ClockEvents = []gpu.ReasonSeconds{{Reason: "hw_power_brake_slowdown", Active: true}, {Reason: "hw_slowdown"}}
		}, "degraded none: PowerBrake"},
		"mode pending": {func(g *gpu.GPU) {
			g.MIG.Enabled = gpu.Some(false)
			g.MIG.Pending = gpu.Some(true)
		}, "degraded reset: MIGModePending"},

		"no XIDs":                         {func(g *gpu.GPU) { g.Totals.XIDs = gpu.Counter{} }, "unknown none: XIDsNotReceived"},
		"no right to XIDs":                {fails(gpu.ReadingEvents), "unknown none: XIDsNotReceived"},
		"no right to ECC":                 {fails(gpu.ReadingECC), "unknown none: ECCUnreadable"},
		"no right to rows":                {fails(gpu.ReadingRowRemap), "unknown none: RowRemapUnreadable"},
		"no right to the recovery action": {fails(gpu.ReadingRecovery), "unknown none: RecoveryActionUnreadable"},
		"no right to the fabric":          {fails(gpu.ReadingFabric), "unknown none: FabricUnreadable"},
		"no right to processes":           {fails(gpu.ReadingProcesses), "healthy none: "},

		"worst of several": {func(g *gpu.GPU) {
			fails(gpu.ReadingECC)(g)
			hasXID(63)(g)
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryDrain)
		}, "unhealthy reset: RecoveryAction, ECCUnreadable, XIDMemory 63"},
	} {
		t.Run(name, func(t *testing.T) {
			g := healthyGPU()
			test.change(&g)

			tracker := New(0, start)
			tracker.Observe(node(time.Minute, g))

			report := tracker.Report(start.Add(time.Minute))
			cmptest.Equal(t, "GPU", summary(report.GPUs[0].Verdict), test.want)
			cmptest.Equal(t, "state of the node", report.State, report.GPUs[0].State)
			cmptest.Equal(t, "action of the node", report.Action, report.GPUs[0].Action)
		})
	}
}

// TestUnknownNode: without a driver, a Snapshot, a recent Snapshot or GPUs we do not know how the
// node is.
func TestUnknownNode(t *testing.T) {
	tracker := New(time.Minute, start)
	cmptest.Equal(t, "before the first", summary(tracker.Report(start).Verdict), "unknown none: NoReadingYet")

	withoutDriver := node(0)
	withoutDriver.Driver = gpu.None[gpu.Driver]()
	withoutDriver.Sources = []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}}
	tracker.Observe(withoutDriver)
	report := tracker.Report(start)
	cmptest.Equal(t, "without a driver", summary(report.Verdict), "unknown none: DriverUnavailable")
	cmptest.Equal(t, "message", report.Message, "the driver does not answer: no NVIDIA driver")

	tracker.Observe(node(0))
	cmptest.Equal(t, "without GPUs", summary(tracker.Report(start).Verdict), "unknown none: NoGPUs")

	unread := node(0, healthyGPU())
	unread.Unread = []int{1}
	tracker.Observe(unread)
	cmptest.Equal(t, "with an unread GPU", summary(tracker.Report(start).Verdict), "unknown none: FirstReading")

	unlisted := node(0, healthyGPU())
	unlisted.UnlistedXIDs = []gpu.LoggedXID{{XID: 79, Time: start}, {XID: 31, Time: start}}
	tracker.Observe(unlisted)
	cmptest.Equal(t, "with an XID of another GPU", summary(tracker.Report(start).Verdict),
		"unhealthy reboot: XIDOfUnlistedGPU 79")
}

// TestStale: an old Snapshot makes nothing better than unknown, and what was worse stays so.
func TestStale(t *testing.T) {
	tracker := New(time.Minute, start)
	split := healthyGPU()
	split.Instances = []gpu.GPUInstance{{ID: 1, Device: gpu.Device{Up: true}}}

	lost := healthyGPU()
	down(gpu.ErrLost)(&lost)
	tracker.Observe(node(0, split, lost))

	fresh := tracker.Report(start.Add(time.Minute))
	cmptest.Equal(t, "fresh", summary(fresh.GPUs[0].Verdict), "healthy none: ")

	stale := tracker.Report(start.Add(2 * time.Minute))
	cmptest.Equal(t, "node", summary(stale.Verdict), "unhealthy reboot: ReadingsStale")
	cmptest.Equal(t, "GPU 0", summary(stale.GPUs[0].Verdict), "unknown none: ReadingsStale")
	cmptest.Equal(t, "since", stale.GPUs[0].Since, start.Add(time.Minute))
	cmptest.Equal(t, "instance", summary(stale.GPUs[0].Instances[0].Verdict), "unknown none: ReadingsStale")
	cmptest.Equal(t, "GPU 1", summary(stale.GPUs[1].Verdict), "unhealthy reboot: GPULost, ReadingsStale")
	cmptest.Equal(t, "fresh again", summary(fresh.GPUs[0].Verdict), "healthy none: ")
}

// TestInstances: an instance has its own errors, and those of its GPU that are not another's.
func TestInstances(t *testing.T) {
	g := healthyGPU()
	g.Instances = []gpu.GPUInstance{
		{ID: 1, Device: gpu.Device{Up: true}, XIDErrors: []gpu.XIDCount{xid(94, 0)}},
		{ID: 2, Device: gpu.Device{Up: true}},
	}
	g.Totals.XIDErrors = []gpu.XIDCount{xid(94, 0)}
	g.Readings.ECC = []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "volatile", Location: "device_memory", Count: 1}}

	states := func(change func(*gpu.GPU)) []string {
		g := g
		g.Instances = slices.Clone(g.Instances)
		change(&g)

		tracker := New(0, start)
		tracker.Observe(node(0, g))

		judged := tracker.Report(start).GPUs[0]

		return []string{
			summary(judged.Verdict), summary(judged.Instances[0].Verdict), summary(judged.Instances[1].Verdict),
		}
	}

	cmptest.Equal(t, "contained", states(func(*gpu.GPU) {}), []string{
		"unhealthy reset: ECCUncorrectable, XIDMemory 94", "degraded reset: XIDMemory 94", "healthy none: ",
	})
	cmptest.Equal(t, "not attributed", states(func(g *gpu.GPU) { g.Instances[0].XIDErrors = nil }), []string{
		"unhealthy reset: ECCUncorrectable, XIDMemory 94", "unhealthy reset: ECCUncorrectable", "unhealthy reset: ECCUncorrectable",
	})
	cmptest.Equal(t, "uncontained", states(func(g *gpu.GPU) {
		g.Instances[0].XIDErrors = []gpu.XIDCount{xid(95, 0)}
		g.Totals.XIDErrors = g.Instances[0].XIDErrors
		g.Readings.ECC = nil
	}), []string{"unhealthy reset: XIDHardware 95", "unhealthy reset: XIDHardware 95", "unhealthy reset: XIDHardware 95"})
	cmptest.Equal(t, "one that does not answer", states(func(g *gpu.GPU) {
		g.Totals.XIDErrors = nil
		g.Readings.ECC = nil
		g.Instances[0].XIDErrors = nil
		g.Instances[1].Up = false
	}), []string{"healthy none: ", "healthy none: ", "unknown none: InstanceUnreadable"})
	cmptest.Equal(t, "its GPU hangs", states(func(g *gpu.GPU) {
		down(gpu.ErrTimeout)(g)
		g.Totals.XIDErrors = nil
		g.Instances[0].XIDErrors = nil
		g.Instances[0].Up = false
	}), []string{"unhealthy reset: GPUHung", "unhealthy reset: GPUHung", "unhealthy reset: GPUHung"})
}

// TestAllHang: where calls hang for every GPU, a reset of one does not help.
func TestAllHang(t *testing.T) {
	g := healthyGPU()
	down(gpu.ErrTimeout)(&g)

	tracker := New(0, start)
	tracker.Observe(node(0, g, g))
	cmptest.Equal(t, "two of two", summary(tracker.Report(start).GPUs[1].Verdict), "unhealthy reboot: GPUHung")
	tracker.Observe(node(0, g, healthyGPU()))
	cmptest.Equal(t, "one of two", summary(tracker.Report(start).GPUs[0].Verdict), "unhealthy reset: GPUHung")
	cmptest.Equal(t, "message", tracker.Report(start).Message, "GPU 0: driver calls for the GPU do not return")
}

// TestRecovery: an XID that asks for a reset stands until the GPU was seen reset.
func TestRecovery(t *testing.T) {
	struck := healthyGPU()
	hasXID(119)(&struck)

	for name, test := range map[string]struct {
		between []func(*gpu.GPU)
		want    string
	}{
		"nothing":                               {nil, "XIDHardware 119"},
		"it hung":                               {[]func(*gpu.GPU){down(gpu.ErrTimeout)}, "XIDHardware 119"},
		"it was lost":                           {[]func(*gpu.GPU){down(gpu.ErrLost)}, "XIDHardware 119"},
		"it wanted one":                         {[]func(*gpu.GPU){down(gpu.ErrResetRequired)}, ""},
		"it was released":                       {[]func(*gpu.GPU){released(false)}, "XIDHardware 119"},
		"it was unbound":                        {[]func(*gpu.GPU){released(true), released(false)}, ""},
		"energy goes on":                        {[]func(*gpu.GPU){energy(100), energy(110)}, "XIDHardware 119"},
		"energy was reset":                      {[]func(*gpu.GPU){energy(100), down(gpu.ErrTimeout), energy(1)}, ""},
		"energy was reset between two readings": {[]func(*gpu.GPU){energy(100), energy(1)}, ""},
		"the driver asks no more":               {[]func(*gpu.GPU){asks(gpu.RecoveryReset), asks(gpu.RecoveryNone)}, ""},
		"the driver does not say":               {[]func(*gpu.GPU){asks(gpu.RecoveryReset)}, "XIDHardware 119"},
		"the driver never asked":                {[]func(*gpu.GPU){asks(gpu.RecoveryNone)}, "XIDHardware 119"},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := New(0, start)
			at := time.Duration(0)

			for _, change := range append(test.between, func(*gpu.GPU) {}) {
				g := struck
				change(&g)

				tracker.Observe(node(at, g))
				at += time.Second
			}

			report := tracker.Report(start)
			cmptest.Equal(t, "reasons", codes(report.GPUs[0].Verdict), test.want)

			if test.want != "" {
				cmptest.Equal(t, "since", report.GPUs[0].Reasons[0].Since, start)
			}

			// The same XID again is a new one.
			again := struck
			again.Totals.XIDErrors = []gpu.XIDCount{xid(119, time.Hour)}
			tracker.Observe(node(time.Hour, again))
			cmptest.Equal(t, "after another", codes(tracker.Report(start).GPUs[0].Verdict), "XIDHardware 119")
		})
	}
}

func released(unbound bool) func(*gpu.GPU) {
	return func(g *gpu.GPU) {
		g.Up = false
		g.Released = gpu.Some(gpu.Release{Unbound: unbound})
	}
}

func energy(joules float64) func(*gpu.GPU) {
	return func(g *gpu.GPU) { g.Readings.EnergyJoules = gpu.Some(joules) }
}

func asks(action gpu.RecoveryAction) func(*gpu.GPU) {
	return func(g *gpu.GPU) { g.Readings.RecoveryAction = gpu.Some(action) }
}

// TestSince: a state and a reason keep the time at which they began, over changes of others; a clock
// that was set back leaves none in the future.
func TestSince(t *testing.T) {
	tracker := New(0, start)
	pending := healthyGPU()
	pending.Readings.RemappedRows = gpu.Some(gpu.RemappedRows{Pending: true})

	tracker.Observe(node(0, healthyGPU()))
	tracker.Observe(node(time.Minute, pending))
	pending.Readings.TemperatureMarginCelsius = gpu.Some(0.0)
	tracker.Observe(node(2*time.Minute, pending))

	v := tracker.Report(start).GPUs[0].Verdict
	cmptest.Equal(t, "state", v.Since, start.Add(time.Minute))
	cmptest.Equal(t, "first reason", v.Reasons[0].Since, start.Add(time.Minute))
	cmptest.Equal(t, "second reason", v.Reasons[1].Since, start.Add(2*time.Minute))

	tracker.Observe(node(-time.Hour, pending))
	v = tracker.Report(start).GPUs[0].Verdict
	cmptest.Equal(t, "state after the clock was set back", v.Since, start.Add(-time.Hour))
	cmptest.Equal(t, "reason after the clock was set back", v.Reasons[0].Since, start.Add(-time.Hour))

	tracker.Observe(node(0, healthyGPU()))
	tracker.Observe(node(time.Minute, pending))
	cmptest.Equal(t, "again", tracker.Report(start).GPUs[0].Reasons[0].Since, start.Add(time.Minute))
}

// TestOtherXIDEnds: an XID for which NVIDIA's catalog asks for nothing counts for a while.
func TestOtherXIDEnds(t *testing.T) {
	g := healthyGPU()
	hasXID(999)(&g)

	tracker := New(0, start)
	tracker.Observe(node(otherXIDFor-time.Second, g))
	cmptest.Equal(t, "before", summary(tracker.Report(start).GPUs[0].Verdict), "degraded none: XIDOther 999")
	tracker.Observe(node(otherXIDFor, g))
	cmptest.Equal(t, "after", summary(tracker.Report(start).GPUs[0].Verdict), "healthy none: ")
}

// TestDocument: the first keys of the document are those of the node. Scripts without a parser read
// them.
func TestDocument(t *testing.T) {
	lost := healthyGPU()
	down(gpu.ErrLost)(&lost)

	tracker := New(0, start)
	tracker.Observe(node(0, lost))

	text, err := json.Marshal(tracker.Report(start))
	if err != nil {
		t.Fatal(err)
	}

	if want := `{"apiVersion":"mig-exporter/v1","state":"unhealthy","action":"reboot","message":"GPU 0: the GPU is lost: ` +
		`it has fallen off the bus, or cannot be reached","since":`; !strings.HasPrefix(string(text), want) {
		t.Errorf("%s\nshould begin with %s", text, want)
	}
}
