package nvmlsource_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestTreeWithTwoComputeInstancesAndAnOrphan(t *testing.T) {
	n := newNode(t, "", twoCIs)

	g := n.read(n.discover()[0])
	if len(g.Instances) != 2 {
		t.Fatalf("%d GPU instances, want 2", len(g.Instances))
	}

	shared := g.Instances[0]
	orphan := g.Instances[1]
	want := gpu.GPUInstance{
		ID: orphan.ID, Profile: "3g.20gb", ProfileID: gpu.Some(uint32(9)),
		Placement:     gpu.Some(gpu.Placement{Start: 4, Size: 4}),
		ComputeSlices: gpu.Some(3), MemorySlices: gpu.Some(4), SMs: gpu.Some(42),
		Device:    gpu.Device{Up: true},
		Processes: gpu.Some(0),
		Memory:    gpu.Memory{Total: gpu.Some(uint64(20096 << 20))}, // its profile's; the use is unknown
	}
	cmptest.Equal(t, "orphan", orphan, want)
	want.ID, want.Placement = shared.ID, gpu.Some(gpu.Placement{Start: 0, Size: 4})
	want.Memory = shared.Memory
	want.ComputeInstances = shared.ComputeInstances
	cmptest.Equal(t, "GPU instance with compute instances", shared, want)

	if !shared.Memory.Used.Present() || len(shared.ComputeInstances) != 2 {
		t.Fatalf("shared: %+v", shared)
	}

	for i, want := range []gpu.ComputeInstance{
		{Profile: "1c.3g.20gb", SMs: gpu.Some(14), ComputeSlices: gpu.Some(1),
			Placement: gpu.Some(gpu.Placement{Start: 0, Size: 1})},
		{Profile: "2c.3g.20gb", SMs: gpu.Some(28), ComputeSlices: gpu.Some(2),
			Placement: gpu.Some(gpu.Placement{Start: 1, Size: 2})},
	} {
		ci := shared.ComputeInstances[i]
		if !strings.HasPrefix(string(ci.UUID), "MIG-") {
			t.Errorf("compute instance %d has the UUID %q", i, ci.UUID)
		}

		want.ID, want.UUID, want.Up, want.Processes = gpu.ComputeID(i), ci.UUID, true, gpu.Some(0)
		cmptest.Equal(t, "compute instance", ci, want)
	}
}

// computesOf returns how many compute instances each GPU instance has.
func computesOf(g gpu.GPU) []int {
	var counts []int
	for _, gi := range g.Instances {
		counts = append(counts, len(gi.ComputeInstances))
	}

	return counts
}

const oneProcess = `
workloads: [{name: job, memory: 2GiB, sm: 4}]
processes: [{device: "0/3g.20gb@0/1", workload: job}]`

// An old driver does not report where the processes of a GPU run; its MIG devices do.
func TestProcessesWithoutInstances(t *testing.T) {
	n := newNode(t, "", twoCIs+oneProcess)
	n.spy.oldProcesses = true
	id := n.discover()[0]
	n.advance(time.Second)
	g := n.read(id)
	computeInstances := g.Instances[0].ComputeInstances
	cmptest.Equal(t, "processes of the first compute instance", computeInstances[0].Processes, gpu.Some(0))
	cmptest.Equal(t, "processes of the second compute instance", computeInstances[1].Processes, gpu.Some(1))
	cmptest.Equal(t, "processes of the GPU", len(g.Readings.Processes.Or(nil)), 1)
	cmptest.Equal(t, "errors", g.Errors, nil)
	n.spy.set("MIG.GetComputeRunningProcesses", nvml.ERROR_UNKNOWN)
	g = n.readLists(id)
	ci := g.Instances[0].ComputeInstances[1]
	cmptest.Equal(t, "the compute instance is up", ci.Up, false)
	cmptest.Equal(t, "its processes", ci.Processes, gpu.None[int]())
	cmptest.Equal(t, "processes of the GPU instance", g.Instances[0].Processes, gpu.None[int]())
	cmptest.Equal(t, "processes of the GPU", g.Readings.Processes, gpu.None[[]gpu.Process]())
}

// Without privilege the tree is what the MIG devices report: no orphan and no placements, but
// profiles, memory and processes.
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
		if !gi.Memory.Used.Present() {
			t.Errorf("memory of the GPU instance: %+v", gi.Memory)
		}

		cmptest.Equal(t, "GPU instance", gi, gpu.GPUInstance{
			ID: gi.ID, Profile: "3g.20gb", ProfileID: gpu.Some(uint32(9)), ComputeSlices: gpu.Some(3), SMs: gpu.Some(42),
			Device: gpu.Device{Up: true},
			Memory: gi.Memory, Processes: gpu.Some(1), ComputeInstances: gi.ComputeInstances,
		})
		first := gi.ComputeInstances[0]
		second := gi.ComputeInstances[1]
		cmptest.Equal(t, "profile of the first compute instance", first.Profile, "1c.3g.20gb")
		cmptest.Equal(t, "processes of the first compute instance", first.Processes, gpu.Some(0))
		cmptest.Equal(t, "processes of the second compute instance", second.Processes, gpu.Some(1))

		if list := g.Readings.Processes.Or(nil); len(list) != 1 {
			t.Errorf("processes: %v, want one", list)
		} else {
			cmptest.Equal(t, "compute instance of the process", list[0].Compute, gpu.Some(second.ID))
		}

		if g.Readings.Memory.Total.Present() || !errors.Is(errorOf(g.Errors, gpu.ReadingMemory), gpu.ErrNoPermission) {
			t.Errorf("memory of the GPU %v, errors %v", g.Readings.Memory, g.Errors)
		}

		if !errors.Is(errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrNoPermission) ||
			errorOf(g.Errors, gpu.ReadingProcesses) != nil {
			t.Errorf("errors: %v", g.Errors)
		}
	}

	calls := n.spy.taken()
	if calls["GetMemoryInfo"] != 1 || calls["GetGpuInstances"] != 1 {
		t.Errorf("what is denied is asked in every read: %v", calls)
	}

	if lines := strings.Count(n.logged.String(), "no permission;"); lines != 3 {
		t.Errorf("logged %d times that permission is missing, want once for the tree, memory and events each:\n%s",
			lines, n.logged)
	}
}

func TestUnprivilegedWithMIGOnAndEmpty(t *testing.T) {
	n := newNode(t, ", privileged: false", "  - {model: A100-40GB, mig: true}")
	g := n.read(n.discover()[0])
	cmptest.Equal(t, "processes", g.Readings.Processes, gpu.Some([]gpu.Process{}))
	cmptest.Equal(t, "error of the processes", errorOf(g.Errors, gpu.ReadingProcesses), nil)
	cmptest.Equal(t, "instances", g.Instances, nil)
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
		t.Error("what was denied is asked again before a minute has passed")
	}

	n.advance(time.Minute)
	g := n.read(id)
	cmptest.Equal(t, "compute instances of each GPU instance", computesOf(g), []int{2, 0})
	cmptest.Equal(t, "errors", g.Errors, nil)

	if g.Profiles[0].Placements == nil {
		t.Error("the placements are still missing")
	}

	if !strings.Contains(n.logged.String(), "granted again") {
		t.Errorf("nothing logged about regained permission: %s", n.logged)
	}

	n.spy.set("GetGpuInstances", nvml.ERROR_NO_PERMISSION)
	n.read(id)

	if lines := strings.Count(n.logged.String(), "no permission;"); lines != 2 {
		t.Errorf("logged %d times that permission is missing, want 2", lines)
	}
}

// MIG devices that give no handle are said to be missing, once, beside what else of MIG is denied;
// and each right is said to be there again by itself.
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
	if strings.Count(log, "granted again") != 1 || strings.Count(log, "memory of MIG GPUs as a whole") != 1 {
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
	if got := computesOf(g); !slices.Equal(got, []int{2, 1}) {
		t.Fatalf("%v compute instances, want 2 and 1", got)
	}

	cmptest.Equal(t, "id of the created GPU instance", g.Instances[1].ID, made)
	cmptest.Equal(t, "its profile", g.Instances[1].Profile, "2g.10gb")
	cmptest.Equal(t, "profile of its compute instance", g.Instances[1].ComputeInstances[0].Profile, "2g.10gb")

	if len(before.Instances) != 2 || before.Instances[1].Profile != "3g.20gb" {
		t.Error("an earlier result was modified")
	}
}

// A GPU instance is replaced by one of another profile at the same place, with the same ids:
// 1g.10gb and 2g.10gb take two slices of memory each. Without the right to list GPU instances only
// the names of the MIG devices show them.
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
		cmptest.Equal(t, "profile before", before.Profile, "1g.10gb")
		cmptest.Equal(t, "profile after", after.Profile, "2g.10gb")
		cmptest.Equal(t, "SMs after", after.SMs, gpu.Some(28))

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
	cmptest.Equal(t, "MIG", g.MIG.Enabled, gpu.Some(true))
	cmptest.Equal(t, "GPU instances", len(g.Instances), 2)
	cmptest.Equal(t, "error of MIG", errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrNotSupported)
}

// A compute instance is replaced by a larger one with the same ids, in the old form of UUIDs, which
// has only ids.
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

// The layout changes between the scan of its tree and the reading of an instance: the result is of
// the new layout.
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
	if len(g.Instances) != 1 {
		t.Fatalf("instances %+v", g.Instances)
	}

	cmptest.Equal(t, "errors", g.Errors, nil)
	cmptest.Equal(t, "the instance is up", g.Instances[0].Up, true)
	cmptest.Equal(t, "profile", g.Instances[0].Profile, "2g.10gb")
	cmptest.Equal(t, "memory of 2g.10gb in MiB", g.Instances[0].Memory.Total.Or(0)>>20, 9984)
}

func TestInstanceThatStaysUnreadableIsDown(t *testing.T) {
	n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}`)
	id := n.discover()[0]
	n.read(id)
	n.spy.set("MIG.GetMemoryInfo", nvml.ERROR_NOT_FOUND)
	n.spy.taken()

	g := n.read(id)
	for _, gi := range g.Instances {
		cmptest.Equal(t, "the GPU instance is up", gi.Up, false)
		cmptest.Equal(t, "its error", errorOf(gi.Errors, gpu.ReadingMemory), gpu.ErrNotFound)
		cmptest.Equal(t, "its memory", gi.Memory.Total, gpu.None[uint64]())
	}

	cmptest.Equal(t, "GPU instances", len(g.Instances), 2)
	cmptest.Equal(t, "the GPU is up", g.Up, true)
	cmptest.Equal(t, "the GPU has a power reading", g.Readings.PowerWatts.Present(), true)

	if again := n.spy.taken()["MIG.GetMemoryInfo"]; again != 4 {
		t.Errorf("memory asked %d times, want twice for each of 2 instances", again)
	}

	n.spy.set("MIG.GetMemoryInfo", nvml.SUCCESS)

	if g := n.read(id); !g.Instances[0].Up || !g.Instances[1].Up {
		t.Errorf("instances: %+v", g.Instances)
	}
}

// An error while the tree is scanned must not look like a layout change: the last tree stays, with
// the error. What it was read by may stand for something else by now, and is not used.
func TestFailedScanKeepsTheTree(t *testing.T) {
	n := newNode(t, "", twoCIs).withoutReports()
	id := n.discover()[0]
	before := n.read(id)
	n.spy.taken()

	for _, call := range []string{"MIG.GetUUID", "GetMigDeviceHandleByIndex", "GetGpuInstances"} {
		n.spy.set(call, nvml.ERROR_UNKNOWN)
		g := n.read(id)
		cmptest.Equal(t, call+" fails: compute instances of each GPU instance", computesOf(g), []int{2, 0})
		cmptest.Equal(t, call+" fails: error of MIG", errorOf(g.Errors, gpu.ReadingMIG), gpu.ErrDriver)
		down := []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrDriver, Remembered: true}}

		for i, gi := range g.Instances {
			want := before.Instances[i]
			want.Up, want.Errors, want.Memory, want.Processes = false, down, gpu.Memory{}, gpu.None[int]()

			want.ComputeInstances = slices.Clone(want.ComputeInstances)
			for j := range want.ComputeInstances {
				ci := &want.ComputeInstances[j]
				ci.Up, ci.Errors, ci.Processes = false, down, gpu.None[int]()
			}

			cmptest.Equal(t, call+" fails: GPU instance", gi, want)
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
	cmptest.Equal(t, "MIG", g.MIG.Enabled, gpu.Some(false))
	cmptest.Equal(t, "instances", g.Instances, nil)
	cmptest.Equal(t, "there is utilization", g.Readings.Utilization.Present(), true)
	cmptest.Equal(t, "there are remapped rows", g.Readings.RemappedRows.Present(), true)
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
	g := n.read(id)
	cmptest.Equal(t, "compute instances of each GPU instance", computesOf(g), []int{2, 0})
	cmptest.Equal(t, "errors", g.Errors, nil)
}
