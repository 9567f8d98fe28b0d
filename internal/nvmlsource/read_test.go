package nvmlsource_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	whole    = "  - {model: A100-40GB}"
	twoCIs   = `  - {model: A100-40GB, mig: true, layout: [{gi: "3g.20gb@0", ci: ["1c", "2c"]}, {gi: "3g.20gb@4", ci: []}]}`
	twoWhole = "  - {model: A100-40GB, count: 2}"
)

// errorOf returns the first error of a reading.
func errorOf(errs []gpu.ReadError, reading gpu.Reading) error {
	for _, e := range errs {
		if e.Reading == reading {
			return e.Err
		}
	}

	return nil
}

func TestFactsOfAWholeGPU(t *testing.T) {
	n := newNode(t, "", whole)

	g := n.read(n.discover()[0])
	if g.VBIOS == "" || g.Serial == "" {
		t.Errorf("facts: %+v", g.Facts)
	}

	cmptest.Equal(t, "facts", g.Facts, gpu.Facts{
		UUID: g.UUID, Index: 0, Minor: gpu.Some(0), PCIBusID: "00000000:07:00.0", Name: "NVIDIA A100-SXM4-40GB",
		Architecture: "Ampere",
		Serial:       g.Serial, VBIOS: g.VBIOS, SMs: gpu.Some(108), Profiles: g.Profiles,
		ReportsUnavailable: true, ReportsRecovery: true,
	})
	cmptest.Equal(t, "the GPU is up", g.Up, true)
	cmptest.Equal(t, "errors", g.Errors, nil)
	cmptest.Equal(t, "instances", g.Instances, nil)
	cmptest.Equal(t, "MIG", g.MIG.Enabled, gpu.Some(false))
	cmptest.Equal(t, "power limit in watts", g.Readings.PowerLimitWatts, gpu.Some(400.0))
	cmptest.Equal(t, "temperature thresholds", g.Readings.TemperatureThresholds,
		[]gpu.TemperatureThreshold{{Kind: "shutdown", Celsius: 92}, {Kind: "slowdown", Celsius: 89},
			{Kind: "mem_max", Celsius: 95}})
	cmptest.Equal(t, "memory", g.Readings.Memory.Total, gpu.Some(uint64(40960<<20)))

	if clock := g.Readings.ClockHertz.Memory; clock != gpu.Some(1215e6) {
		t.Errorf("memory clock %v Hz", clock)
	}
}

// TestThresholdsThatTheDriverDoesNotKnow are asked for once and are no error.
func TestThresholdsThatTheDriverDoesNotKnow(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	n.spy.set("GetTemperatureThreshold", nvml.ERROR_INVALID_ARGUMENT)

	for i, want := range []int{3, 0} {
		n.spy.taken()

		g := n.read(id)
		if g.Readings.TemperatureThresholds != nil || len(g.Errors) > 0 {
			t.Errorf("thresholds %v, errors %v", g.Readings.TemperatureThresholds, g.Errors)
		}

		if made := n.spy.taken()["GetTemperatureThreshold"]; made != want {
			t.Errorf("slow tier %d makes %d calls, want %d", i, made, want)
		}

		n.advance(15 * time.Second)
	}
}

// The profiles of a GPU with MIG off have names, although its driver reports none then.
func TestProfilesAreNamedWithMIGOnAndOff(t *testing.T) {
	n := newNode(t, "", whole+"\n"+twoCIs)
	ids := n.discover()

	off := n.read(ids[0]).Profiles

	on := n.read(ids[1]).Profiles
	if len(off) == 0 || len(off) != len(on) {
		t.Fatalf("%d profiles with MIG off, %d with MIG on", len(off), len(on))
	}

	for i := range on {
		if off[i].Name != on[i].Name {
			t.Errorf("profile %d is %q with MIG off and %q with MIG on", on[i].ID, off[i].Name, on[i].Name)
		}

		if len(on[i].Placements) == 0 || on[i].MemorySlices != on[i].Placements[0].Size {
			t.Errorf("%s: placements %v, %d memory slices", on[i].Name, on[i].Placements, on[i].MemorySlices)
		}
	}
}

// A30's driver reports a wrong number of instances for a profile.
func TestMostInstancesFollowFromPlacements(t *testing.T) {
	n := newNode(t, "", "  - {model: A30}")

	most := map[string]int{}
	for _, p := range n.read(n.discover()[0]).Profiles {
		most[p.Name] = p.MaxInstances
	}

	for name, want := range map[string]int{"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1} {
		if most[name] != want {
			t.Errorf("%s: %d instances, want %d", name, most[name], want)
		}
	}
}

func TestSecondReadAsksNothingThatStandsStill(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.read(id)
	first := n.spy.taken()
	static := []string{
		"GetName", "GetArchitecture", "GetSerial", "GetVbiosVersion", "GetMinorNumber", "GetPciInfo", "GetNumGpuCores",
		"GetGpuInstanceProfileInfo", "GetGpuInstancePossiblePlacements", "GetMaxMigDeviceCount",
	}
	// the tree's details, too
	slow := []string{"GetEnforcedPowerLimit", "GetTemperatureThreshold", "GetTotalEccErrors", "MIG.GetName",
		"MIG.GetAttributes"}

	unsupported := []string{"GetUtilizationRates"}
	for _, call := range append(append(static, slow...), unsupported...) {
		if first[call] == 0 {
			t.Errorf("the first read makes no call of %s", call)
		}
	}

	n.read(id)

	second := n.spy.taken()
	for _, call := range append(append(static, slow...), unsupported...) {
		if second[call] != 0 {
			t.Errorf("the second read calls %s", call)
		}
	}

	if second["MIG.GetMemoryInfo"] != 1 {
		t.Errorf("memory of one GPU instance read %d times, want once", second["MIG.GetMemoryInfo"])
	}

	n.advance(15 * time.Second)
	n.read(id)

	third := n.spy.taken()
	for _, call := range append(static, unsupported...) {
		if third[call] != 0 {
			t.Errorf("the slow tier calls %s", call)
		}
	}

	for _, call := range slow {
		if third[call] == 0 {
			t.Errorf("the slow tier makes no call of %s", call)
		}
	}
}

func TestDriverCallsCountsEveryCall(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	n.read(id)
	before := n.source.DriverCalls()
	n.read(id)
	// MIG mode, memory, utilization, power, energy, temperature, four clocks, clock events,
	// performance state, fields
	if calls := n.source.DriverCalls() - before; calls != 13 {
		t.Errorf("a read of a whole GPU makes %d calls, want 13", calls)
	}

	before = n.source.DriverCalls()
	n.discover()

	if calls := n.source.DriverCalls() - before; calls != 1 {
		t.Errorf("a discovery without change makes %d calls, want 1", calls)
	}
}

func TestUnsupportedIsAskedAgainAfterTheLayoutChanges(t *testing.T) {
	n := newNode(t, "", twoCIs)

	id := n.discover()[0]
	if g := n.read(id); g.Readings.Utilization.Present() || len(g.Errors) != 0 {
		t.Fatalf("utilization %v, errors %v", g.Readings.Utilization, g.Errors)
	}

	n.spy.taken()

	g := n.read(id)
	if n.spy.taken()["GetUtilizationRates"] != 0 {
		t.Error("what is not supported is asked again")
	}

	if err := n.DestroyGPUInstance(0, g.Instances[1].ID); err != nil {
		t.Fatal(err)
	}

	n.read(id)

	if n.spy.taken()["GetUtilizationRates"] != 1 {
		t.Error("what is not supported is not asked again although the layout has changed")
	}
}

func TestOneFailedReadingIsAnErrorAndNothingElseIsMissing(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	n.spy.set("GetPowerUsage", nvml.ERROR_UNKNOWN)
	n.spy.set("GetEnforcedPowerLimit", nvml.ERROR_TIMEOUT)

	for range 2 { // what failed in the slow tier stays until the next
		g := n.read(id)
		if len(g.Errors) != 2 {
			t.Fatalf("errors: %v", g.Errors)
		}

		cmptest.Equal(t, "first error", g.Errors[0].Err, gpu.ErrDriver)
		cmptest.Equal(t, "second error", g.Errors[1].Err, gpu.ErrTimeout)
		cmptest.Equal(t, "power", g.Readings.PowerWatts, gpu.None[float64]())
		cmptest.Equal(t, "power limit", g.Readings.PowerLimitWatts, gpu.None[float64]())
		cmptest.Equal(t, "there is energy", g.Readings.EnergyJoules.Present(), true)
		cmptest.Equal(t, "the GPU is up", g.Up, true)

		if !strings.Contains(g.Errors[0].Err.Error(), "nvmlDeviceGetPowerUsage") {
			t.Errorf("the error does not name the function: %v", g.Errors[0].Err)
		}
	}
}

// TestTimeOfTheEnergyCounter: power is derived from its growth, and what is read before it may take
// long.
func TestTimeOfTheEnergyCounter(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	first := n.read(id).Readings
	n.spy.do("GetMigMode", func() { n.advance(2 * time.Second) })
	second := n.read(id).Readings

	cmptest.Equal(t, "time between both", second.EnergyAt.Sub(first.EnergyAt), 2*time.Second)

	n.spy.set("GetTotalEnergyConsumption", nvml.ERROR_NOT_SUPPORTED)
	cmptest.Equal(t, "time of none", n.read(id).Readings.EnergyAt, time.Time{})
}

func TestProfilesWithoutAnEnd(t *testing.T) {
	n := newNode(t, "", whole)
	n.spy.set("GetGpuInstanceProfileInfo", nvml.ERROR_NOT_SUPPORTED)

	g := n.read(n.discover()[0])
	if g.Profiles != nil || len(g.Errors) != 0 {
		t.Errorf("profiles %v, errors %v", g.Profiles, g.Errors)
	}
}

// A profile that the driver does not have, by any of the codes for that, costs only itself.
func TestGPUInstanceProfileThatIsAbsent(t *testing.T) {
	all := newNode(t, "", whole)
	want := all.read(all.discover()[0]).Profiles

	for _, code := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED, nvml.ERROR_INVALID_ARGUMENT} {
		const call = "GetGpuInstanceProfileInfo"
		n := newNode(t, "", whole)
		n.spy.do(call, func() {
			n.spy.set(call, code)
			n.spy.do(call, func() { n.spy.set(call, nvml.SUCCESS) })
		})

		g := n.read(n.discover()[0])
		if len(g.Profiles) != len(want)-1 || g.Profiles[0].Name != want[1].Name || len(g.Errors) != 0 {
			t.Errorf("code %d: profiles %v, errors %v", code, g.Profiles, g.Errors)
		}
	}
}

// A driver that refuses all profiles has not said that there are none: they are not kept as a list of
// none, so the next layout has them.
func TestGPUInstanceProfilesThatAreUnknown(t *testing.T) {
	const call = "GetGpuInstanceProfileInfo"

	for _, code := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED, nvml.ERROR_INVALID_ARGUMENT} {
		n := newNode(t, "", twoCIs)
		id := n.discover()[0]
		n.spy.set(call, code)

		_, failed, err := n.source.Actuator().Layouts(t.Context())
		if err != nil || failed[id] == nil {
			t.Errorf("code %d: %v, %v: expected a GPU whose layout cannot be read", code, failed, err)
		}

		if g := n.read(id); len(g.Profiles) != 0 {
			t.Errorf("code %d: profiles %v", code, g.Profiles)
		}

		n.spy.set(call, nvml.SUCCESS)

		if got := n.layout(0); len(got.Profiles) == 0 || len(got.Instances) != 2 {
			t.Errorf("code %d, and then all profiles: %+v", code, got)
		}
	}
}

// What could still be created follows from the placements of all profiles: some of them are none.
func TestPlacementsOfAllProfilesOrNone(t *testing.T) {
	n := newNode(t, "", twoCIs)
	const call = "GetGpuInstancePossiblePlacements"
	n.spy.do(call, func() {
		n.spy.do(call, func() { n.spy.set(call, nvml.ERROR_UNKNOWN) })
	})
	id := n.discover()[0]

	g := n.read(id)
	for _, p := range g.Profiles {
		if len(p.Placements) > 0 || p.MemorySlices != 0 {
			t.Errorf("one question failed: %+v", p)
		}
	}

	if len(g.Profiles) == 0 || !errors.Is(errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrDriver) {
		t.Errorf("profiles %+v, errors %v", g.Profiles, g.Errors)
	}

	n.spy.set(call, nvml.SUCCESS)
	n.advance(15 * time.Second)

	g = n.read(id)
	for _, p := range g.Profiles {
		if len(p.Placements) == 0 || p.MemorySlices == 0 {
			t.Errorf("all are answered: %+v", p)
		}
	}

	if len(g.Errors) != 0 {
		t.Errorf("errors %v", g.Errors)
	}
}

// Without the right to see placements, facts that are known are not read with every slow tier.
func TestFactsThatAreKnownAreNotReadAgain(t *testing.T) {
	n := newNode(t, "", whole)
	n.spy.set("GetGpuInstancePossiblePlacements", nvml.ERROR_NO_PERMISSION)
	n.spy.set("GetSerial", nvml.ERROR_UNKNOWN)
	id := n.discover()[0]
	first := n.read(id)
	n.spy.taken()
	n.advance(time.Minute)
	second := n.read(id)

	calls := n.spy.taken()
	for _, call := range []string{"GetName", "GetArchitecture", "GetVbiosVersion", "GetMinorNumber", "GetPciInfo",
		"GetNumGpuCores", "GetGpuInstanceProfileInfo"} {
		if calls[call] != 0 {
			t.Errorf("%s is asked again", call)
		}
	}

	if calls["GetSerial"] != 1 || calls["GetGpuInstancePossiblePlacements"] != 1 {
		t.Errorf("calls %v; want what failed asked again", calls)
	}

	cmptest.Equal(t, "facts", second.Facts, first.Facts)
	cmptest.Equal(t, "SMs", second.SMs, gpu.Some(108))
	cmptest.Equal(t, "errors", len(second.Errors), len(first.Errors))
}

// A call for fields that fails as a whole is an error of everything it asks for; what is seldom
// read stays.
func TestFieldsThatFailAsAWhole(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]

	before := n.read(id).Readings
	if len(before.NVLink.Errors) == 0 {
		t.Error("no errors of NVLink are read")
	}

	cmptest.Equal(t, "there are bytes of PCIe", before.PCIe.TransmitBytes.Present(), true)
	cmptest.Equal(t, "there is a temperature of the memory", before.MemoryCelsius.Present(), true)
	n.advance(15 * time.Second)
	n.spy.set("GetFieldValues", nvml.ERROR_UNKNOWN)

	g := n.read(id)
	for _, reading := range []gpu.Reading{gpu.ReadingTemperature, gpu.ReadingPCIe, gpu.ReadingNVLink} {
		if !errors.Is(errorOf(g.Errors, reading), gpu.ErrDriver) {
			t.Errorf("no error of %s in %v", reading, g.Errors)
		}
	}

	cmptest.Equal(t, "temperature of the memory", g.Readings.MemoryCelsius, gpu.None[float64]())
	cmptest.Equal(t, "errors of NVLink", g.Readings.NVLink.Errors, before.NVLink.Errors)
	cmptest.Equal(t, "recovery action", g.Readings.RecoveryAction, before.RecoveryAction)
	n.spy.set("GetFieldValues", nvml.ERROR_NO_PERMISSION)
	n.read(id)
	n.spy.taken()

	g = n.read(id)
	if n.spy.taken()["GetFieldValues"] != 0 || !errors.Is(errorOf(g.Errors, gpu.ReadingPCIe), gpu.ErrNoPermission) {
		t.Errorf("denied fields are asked again at once; errors %v", g.Errors)
	}

	for _, e := range g.Errors {
		if e.Reading == gpu.ReadingPCIe && !e.Remembered {
			t.Errorf("a denial that holds is a new failure: %v", g.Errors)
		}
	}
}

func TestFactThatFailedIsReadAgainWithTheSlowTier(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	n.spy.set("GetSerial", nvml.ERROR_UNKNOWN)

	if g := n.read(id); g.Serial != "" || errorOf(g.Errors, gpu.ReadingInventory) == nil {
		t.Fatalf("serial %q, errors %v", g.Serial, g.Errors)
	}

	n.spy.set("GetSerial", nvml.SUCCESS)

	if g := n.read(id); g.Serial != "" {
		t.Error("facts are read again at once")
	}

	n.advance(15 * time.Second)

	if g := n.read(id); g.Serial == "" || len(g.Errors) != 0 {
		t.Errorf("serial %q, errors %v", g.Serial, g.Errors)
	}
}
