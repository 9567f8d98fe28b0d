package nvmlsource_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestTreeWithTwoComputeInstancesAndAnOrphan(t *testing.T) {
	n := newNode(t, "", twoCIs)
	g := n.read(n.discover()[0])
	if len(g.Instances) != 2 {
		t.Fatalf("%d GPU instances, want 2", len(g.Instances))
	}
	shared, orphan := g.Instances[0], g.Instances[1]
	for _, gi := range g.Instances {
		if gi.Profile != "3g.20gb" || gi.ProfileID != gpu.Some(uint32(9)) || gi.SMs != gpu.Some(42) ||
			gi.ComputeSlices != gpu.Some(3) || gi.MemorySlices != gpu.Some(4) || !gi.Up {
			t.Errorf("GPU instance: %+v", gi)
		}
	}
	if shared.Placement != gpu.Some(gpu.Placement{Start: 0, Size: 4}) || orphan.Placement != gpu.Some(gpu.Placement{Start: 4, Size: 4}) {
		t.Errorf("placements %v, %v", shared.Placement, orphan.Placement)
	}
	if len(orphan.ComputeInstances) != 0 || orphan.Memory != (gpu.Memory{Total: gpu.Some(uint64(20096 << 20))}) { // its profile's; the use is not known
		t.Errorf("orphan: %+v", orphan)
	}
	if !shared.Memory.Total.Present() || len(shared.ComputeInstances) != 2 {
		t.Fatalf("shared: %+v", shared)
	}
	for i, want := range []struct {
		profile   string
		sms       int
		placement gpu.Placement
	}{{"1c.3g.20gb", 14, gpu.Placement{Start: 0, Size: 1}}, {"2c.3g.20gb", 28, gpu.Placement{Start: 1, Size: 2}}} {
		ci := shared.ComputeInstances[i]
		if ci.Profile != want.profile || ci.SMs != gpu.Some(want.sms) || ci.Placement != gpu.Some(want.placement) ||
			!strings.HasPrefix(string(ci.UUID), "MIG-") || ci.ID != gpu.ComputeID(i) || !ci.Up {
			t.Errorf("compute instance %d: %+v", i, ci)
		}
	}
}

const oneProcess = `
workloads: [{name: job, memory: 2GiB, sm: 4}]
processes: [{device: "0/3g.20gb@0/1", workload: job}]`

// An old driver does not say where the processes of a GPU run; its MIG devices do.
func TestProcessesWithoutInstances(t *testing.T) {
	n := newNode(t, "", twoCIs+oneProcess)
	n.spy.oldProcesses = true
	id := n.discover()[0]
	n.advance(time.Second)
	g := n.read(id)
	computes := g.Instances[0].ComputeInstances
	if computes[0].Processes != gpu.Some(0) || computes[1].Processes != gpu.Some(1) || len(g.Readings.Processes.Or(nil)) != 1 || len(g.Errors) != 0 {
		t.Errorf("compute instances %+v, processes %v, errors %v", computes, g.Readings.Processes, g.Errors)
	}
	n.spy.set("MIG.GetComputeRunningProcesses", nvml.ERROR_UNKNOWN)
	g = n.read(id)
	if ci := g.Instances[0].ComputeInstances[1]; ci.Up || ci.Processes.Present() || g.Instances[0].Processes.Present() || g.Readings.Processes.Present() {
		t.Errorf("instances %+v, processes %v", g.Instances, g.Readings.Processes)
	}
}

// Without rights the tree is what the MIG devices tell: no orphan and no placements, but profiles, memory and processes.
func TestUnprivilegedSeesLess(t *testing.T) {
	n := newNode(t, ", privileged: false", twoCIs+oneProcess)
	id := n.discover()[0]
	n.advance(time.Second)
	for range 3 {
		g := n.read(id)
		if len(g.Instances) != 1 || len(g.Instances[0].ComputeInstances) != 2 {
			t.Fatalf("instances: %+v", g.Instances)
		}
		gi := g.Instances[0]
		if gi.Profile != "3g.20gb" || gi.ProfileID != gpu.Some(uint32(9)) || gi.SMs != gpu.Some(42) || gi.ComputeSlices != gpu.Some(3) {
			t.Errorf("GPU instance: %+v", gi)
		}
		if gi.Placement.Present() || !gi.Memory.Used.Present() || !gi.Up || gi.Processes != gpu.Some(1) {
			t.Errorf("GPU instance: %+v", gi)
		}
		if gi.ComputeInstances[0].Processes != gpu.Some(0) || gi.ComputeInstances[1].Processes != gpu.Some(1) || gi.ComputeInstances[0].Profile != "1c.3g.20gb" {
			t.Errorf("compute instances: %+v", gi.ComputeInstances)
		}
		if list, ok := g.Readings.Processes.Get(); !ok || len(list) != 1 || list[0].Compute != gpu.Some(gpu.ComputeID(1)) {
			t.Errorf("processes: %v", g.Readings.Processes)
		}
		if g.Readings.Memory.Total.Present() || !errors.Is(errorOf(g.Errors, gpu.ReadingMemory), gpu.ErrNoPermission) {
			t.Errorf("memory of the GPU %v, errors %v", g.Readings.Memory, g.Errors)
		}
		if !errors.Is(errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrNoPermission) || errorOf(g.Errors, gpu.ReadingProcesses) != nil {
			t.Errorf("errors: %v", g.Errors)
		}
	}
	calls := n.spy.taken()
	if calls["GetMemoryInfo"] != 1 || calls["GetGpuInstances"] != 1 {
		t.Errorf("what is denied is asked in every read: %v", calls)
	}
	if lines := strings.Count(n.logged.String(), "No permission"); lines != 2 {
		t.Errorf("logged %d times that permission is missing, want once for the tree and once for memory:\n%s", lines, n.logged)
	}
}

func TestUnprivilegedWithMIGOnAndEmpty(t *testing.T) {
	n := newNode(t, ", privileged: false", "  - {model: A100-40GB, mig: true}")
	g := n.read(n.discover()[0])
	list, ok := g.Readings.Processes.Get()
	if !ok || len(list) != 0 || errorOf(g.Errors, gpu.ReadingProcesses) != nil || g.Instances != nil {
		t.Errorf("processes %v, instances %v, errors %v", g.Readings.Processes, g.Instances, g.Errors)
	}
}

func TestPrivilegeRegainedAndLostAgain(t *testing.T) {
	n := newNode(t, "", twoCIs)
	for _, call := range []string{"GetGpuInstances", "GetGpuInstancePossiblePlacements"} {
		n.spy.set(call, nvml.ERROR_NO_PERMISSION)
	}
	id := n.discover()[0]
	if g := n.read(id); len(g.Instances) != 1 || g.Profiles[0].Placements != nil {
		t.Fatalf("instances %+v, profile %+v", g.Instances, g.Profiles[0])
	}
	n.spy.set("GetGpuInstances", nvml.SUCCESS)
	n.spy.set("GetGpuInstancePossiblePlacements", nvml.SUCCESS)
	if g := n.read(id); len(g.Instances) != 1 {
		t.Error("what was denied is asked again before the slow tier")
	}
	n.advance(15 * time.Second)
	g := n.read(id)
	if len(g.Instances) != 2 || g.Profiles[0].Placements == nil || len(g.Errors) != 0 {
		t.Errorf("instances %+v, placements %v, errors %v", g.Instances, g.Profiles[0].Placements, g.Errors)
	}
	if !strings.Contains(n.logged.String(), "there again") {
		t.Errorf("nothing logged about regained permission: %s", n.logged)
	}
	n.spy.set("GetGpuInstances", nvml.ERROR_NO_PERMISSION)
	n.read(id)
	if lines := strings.Count(n.logged.String(), "No permission"); lines != 2 {
		t.Errorf("logged %d times that permission is missing, want 2", lines)
	}
}

// MIG devices that give no handle are said to be missing, once, beside what else of MIG is denied; and each right is said to
// be there again by itself.
func TestMIGDevicesThatAreDenied(t *testing.T) {
	n := newNode(t, "", twoCIs)
	n.spy.set("GetMigDeviceHandleByIndex", nvml.ERROR_NO_PERMISSION)
	n.spy.set("GetMemoryInfo", nvml.ERROR_NO_PERMISSION)
	id := n.discover()[0]
	for range 3 {
		if g := n.read(id); !errors.Is(errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrNoPermission) {
			t.Errorf("errors %v", g.Errors)
		}
	}
	if denied := strings.Count(n.logged.String(), "MIG devices, with all"); denied != 1 {
		t.Errorf("logged %d times:\n%s", denied, n.logged)
	}
	n.spy.set("GetMigDeviceHandleByIndex", nvml.SUCCESS)
	n.advance(15 * time.Second)
	n.read(id)
	n.advance(15 * time.Second)
	n.read(id)
	log := n.logged.String()
	if strings.Count(log, "there again") != 1 || strings.Count(log, "memory of MIG GPUs as a whole") != 1 {
		t.Errorf("logged:\n%s", log)
	}
}

func TestLayoutChangeShowsInTheNextRead(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	before := n.read(id)
	if err := n.DestroyGPUInstance(0, before.Instances[1].ID); err != nil { // the orphan
		t.Fatal(err)
	}
	if g := n.read(id); len(g.Instances) != 1 {
		t.Errorf("the orphan is still there: %+v", g.Instances)
	}
	made, err := n.CreateGPUInstance(0, 14, gpu.Some(4))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.CreateComputeInstance(0, made, 2); err != nil {
		t.Fatal(err)
	}
	g := n.read(id)
	if len(g.Instances) != 2 || g.Instances[1].Profile != "2g.10gb" || g.Instances[1].ID != made || len(g.Instances[1].ComputeInstances) != 1 {
		t.Errorf("instances: %+v", g.Instances)
	}
	if g.Instances[1].ComputeInstances[0].Profile != "2g.10gb" {
		t.Errorf("compute instance: %+v", g.Instances[1].ComputeInstances[0])
	}
	if len(before.Instances) != 2 || before.Instances[1].Profile != "3g.20gb" {
		t.Error("an earlier result was modified")
	}
}

// A GPU instance is replaced by one of another profile at the same place, with the same ids: 1g.10gb and 2g.10gb take two
// slices of memory each. Without the right to list GPU instances only the names of the MIG devices tell.
func TestLayoutChangeIntoAnotherProfileAtTheSamePlace(t *testing.T) {
	for _, listed := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_NO_PERMISSION} {
		n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: ["1g.10gb@0"]}`)
		n.spy.set("GetGpuInstances", listed)
		id := n.discover()[0]
		before := n.read(id).Instances[0]
		if err := errors.Join(n.DestroyComputeInstance(0, before.ID, 0), n.DestroyGPUInstance(0, before.ID)); err != nil {
			t.Fatal(err)
		}
		made, err := n.CreateGPUInstance(0, 14, gpu.Some(0))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.CreateComputeInstance(0, made, 1); err != nil {
			t.Fatal(err)
		}
		after := n.read(id).Instances[0]
		if before.Profile != "1g.10gb" || after.Profile != "2g.10gb" || after.SMs != gpu.Some(28) {
			t.Errorf("before %+v\nafter %+v", before, after)
		}
		if after.ID != before.ID || after.ComputeInstances[0].UUID != before.ComputeInstances[0].UUID {
			t.Errorf("the driver tells them apart: before %+v\nafter %+v", before, after)
		}
	}
}

// A driver that says 0 while MIG is only about to be on is asked again.
func TestMostMIGDevicesIsNotRememberedAsNone(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.spy.noMIGDevices = true
	n.read(id)
	n.spy.noMIGDevices = false
	if g := n.read(id); len(g.Instances) != 2 || len(g.Instances[0].ComputeInstances) != 2 {
		t.Errorf("instances: %+v", g.Instances)
	}
}

// Whether a GPU has MIG is asked every time, and one that has it does not lose it.
func TestMIGModeThatIsNotSupportedForAWhile(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.spy.set("GetMigMode", nvml.ERROR_NOT_SUPPORTED)
	if g := n.read(id); g.MIG.Enabled.Present() || len(g.Errors) != 0 {
		t.Errorf("MIG %+v, errors %v", g.MIG, g.Errors)
	}
	n.spy.set("GetMigMode", nvml.SUCCESS)
	if g := n.read(id); g.MIG.Enabled != gpu.Some(true) || len(g.Instances) != 2 {
		t.Errorf("MIG %+v, instances %+v", g.MIG, g.Instances)
	}
	n.spy.set("GetMigMode", nvml.ERROR_NOT_SUPPORTED)
	g := n.read(id)
	if g.MIG.Enabled != gpu.Some(true) || len(g.Instances) != 2 || errorOf(g.Errors, gpu.ReadingMIG) == nil {
		t.Errorf("MIG %+v, instances %+v, errors %v", g.MIG, g.Instances, g.Errors)
	}
}

// A compute instance is replaced by a larger one with the same ids, in the old form of UUIDs, which has only ids.
func TestLayoutChangeUnderLegacyUUIDs(t *testing.T) {
	n := newNode(t, ", migUUIDs: legacy", `  - {model: A100-40GB, mig: true, layout: [{gi: "3g.20gb@0", ci: ["1c"]}]}`)
	id := n.discover()[0]
	gi := n.read(id).Instances[0]
	if ci := gi.ComputeInstances[0]; ci.Profile != "1c.3g.20gb" || !strings.HasPrefix(string(ci.UUID), "MIG-GPU-") {
		t.Fatalf("compute instance: %+v", ci)
	}
	if err := n.DestroyComputeInstance(0, gi.ID, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := n.CreateComputeInstance(0, gi.ID, 2); err != nil {
		t.Fatal(err)
	}
	if ci := n.read(id).Instances[0].ComputeInstances[0]; ci.Profile != "2c.3g.20gb" || ci.SMs != gpu.Some(28) {
		t.Errorf("compute instance: %+v", ci)
	}
}

// The layout changes between the scan of its tree and the reading of an instance: the result is of the new layout.
func TestLayoutChangeInTheMiddleOfARead(t *testing.T) {
	n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}`)
	id := n.discover()[0]
	old := n.read(id).Instances[0]
	n.spy.do("MIG.GetMemoryInfo", func() {
		if err := errors.Join(n.DestroyComputeInstance(0, old.ID, 0), n.DestroyGPUInstance(0, old.ID)); err != nil {
			t.Error(err)
		}
		made, err := n.CreateGPUInstance(0, 14, gpu.Some(0))
		if err != nil {
			t.Error(err)
		}
		if _, err := n.CreateComputeInstance(0, made, 2); err != nil {
			t.Error(err)
		}
	})
	g := n.read(id)
	if len(g.Instances) != 1 || g.Instances[0].Profile != "2g.10gb" || !g.Instances[0].Up || len(g.Errors) != 0 {
		t.Fatalf("instances %+v, errors %v", g.Instances, g.Errors)
	}
	if total := g.Instances[0].Memory.Total.Or(0) >> 20; total != 9984 {
		t.Errorf("memory %d MiB, want that of 2g.10gb", total)
	}
}

func TestInstanceThatStaysUnreadableIsDown(t *testing.T) {
	n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}`)
	id := n.discover()[0]
	n.read(id)
	n.spy.set("MIG.GetMemoryInfo", nvml.ERROR_NOT_FOUND)
	n.spy.taken()
	g := n.read(id)
	for _, gi := range g.Instances {
		if gi.Up || !errors.Is(errorOf(gi.Errors, gpu.ReadingMemory), gpu.ErrNotFound) || gi.Memory.Total.Present() {
			t.Errorf("GPU instance: %+v", gi)
		}
	}
	if len(g.Instances) != 2 || !g.Up || !g.Readings.PowerWatts.Present() {
		t.Errorf("GPU: %+v", g)
	}
	if again := n.spy.taken()["MIG.GetMemoryInfo"]; again != 4 {
		t.Errorf("memory asked %d times, want twice for each of 2 instances", again)
	}
	n.spy.set("MIG.GetMemoryInfo", nvml.SUCCESS)
	if g := n.read(id); !g.Instances[0].Up || !g.Instances[1].Up {
		t.Errorf("instances: %+v", g.Instances)
	}
}

// An error while the tree is scanned must not look like a layout change: the last tree stands, with the error. What it was read
// by may stand for something else by now, and is not used.
func TestFailedScanKeepsTheTree(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.read(id)
	n.spy.taken()
	for _, call := range []string{"MIG.GetUUID", "GetMigDeviceHandleByIndex", "GetGpuInstances"} {
		n.spy.set(call, nvml.ERROR_UNKNOWN)
		g := n.read(id)
		if len(g.Instances) != 2 || len(g.Instances[0].ComputeInstances) != 2 || !errors.Is(errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrDriver) {
			t.Errorf("%s fails: instances %+v, errors %v", call, g.Instances, g.Errors)
		}
		for _, gi := range g.Instances {
			if gi.Up || gi.Memory.Used.Present() || gi.Processes.Present() || !errors.Is(errorOf(gi.Errors, gpu.ReadingMIG), gpu.ErrDriver) {
				t.Errorf("%s fails: GPU instance %+v", call, gi)
			}
			for _, ci := range gi.ComputeInstances {
				if ci.Up || ci.Processes.Present() || ci.UUID == "" {
					t.Errorf("%s fails: compute instance %+v", call, ci)
				}
			}
		}
		if n.spy.taken()["MIG.GetMemoryInfo"] != 0 {
			t.Errorf("%s fails: instances are read by handles of an earlier scan", call)
		}
		n.spy.set(call, nvml.SUCCESS)
	}
}

func TestDetailThatFailedIsReadAgain(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.spy.set("MIG.GetAttributes", nvml.ERROR_UNKNOWN)
	if g := n.read(id); g.Instances[0].ComputeInstances[0].SMs.Present() || errorOf(g.Errors, gpu.ReadingMIG) == nil {
		t.Fatalf("instances %+v, errors %v", g.Instances, g.Errors)
	}
	n.spy.taken()
	if g := n.read(id); errorOf(g.Errors, gpu.ReadingMIG) == nil || n.spy.taken()["MIG.GetAttributes"] != 0 {
		t.Errorf("errors %v; want the earlier one, and no question before the slow tier", g.Errors)
	}
	n.spy.set("MIG.GetAttributes", nvml.SUCCESS)
	n.advance(15 * time.Second)
	if g := n.read(id); g.Instances[0].ComputeInstances[0].SMs != gpu.Some(14) || len(g.Errors) != 0 {
		t.Errorf("instances %+v, errors %v", g.Instances, g.Errors)
	}
}

// MIG is turned off: the instances end, and what the driver withheld because of MIG is there.
func TestMIGModeChange(t *testing.T) {
	n := newNode(t, "", "  - {model: H100-80GB, mig: true}")
	id := n.discover()[0]
	if g := n.read(id); g.MIG.Enabled != gpu.Some(true) || g.Readings.Utilization.Present() {
		t.Fatalf("MIG %+v, utilization %v", g.MIG, g.Readings.Utilization)
	}
	if err := n.SetMIGMode(0, false); err != nil {
		t.Fatal(err)
	}
	g := n.read(id)
	if g.MIG.Enabled != gpu.Some(false) || !g.Readings.Utilization.Present() || g.Instances != nil || !g.Readings.RemappedRows.Present() {
		t.Errorf("MIG %+v, readings %+v", g.MIG, g.Readings)
	}
}

// A driver that lacks what tells the instances apart fails the scan like any other, and says why.
func TestScanThatIsNotSupported(t *testing.T) {
	for _, call := range []string{"MIG.GetUUID", "MIG.GetGpuInstanceId", "Instance.GetInfo"} {
		n := newNode(t, "", twoCIs)
		id := n.discover()[0]
		n.spy.set(call, nvml.ERROR_FUNCTION_NOT_FOUND)
		g := n.read(id)
		if len(g.Instances) != 0 || !errors.Is(errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrNotSupported) {
			t.Errorf("%s: instances %+v, errors %v", call, g.Instances, g.Errors)
		}
		n.spy.set(call, nvml.SUCCESS)
		if g := n.read(id); len(g.Instances) != 2 || len(g.Errors) != 0 {
			t.Errorf("%s is there again: instances %+v, errors %v", call, g.Instances, g.Errors)
		}
	}
}

// A device that is created again while the tree is scanned may show under two indexes. It is one.
func TestDeviceThatShowsTwice(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.spy.twice = true
	if g := n.read(id); len(g.Instances) != 2 || len(g.Instances[0].ComputeInstances) != 2 || len(g.Errors) != 0 {
		t.Errorf("instances %+v, errors %v", g.Instances, g.Errors)
	}
}
