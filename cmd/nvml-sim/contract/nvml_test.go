package contract

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// open initialises the library that the environment names a scenario for.
func open(t *testing.T) nvml.Interface {
	t.Helper()

	l := nvml.New(nvml.WithLibraryPath(built("libnvidia-ml.so.1")))
	if ret := l.Init(); ret != nvml.SUCCESS {
		t.Fatalf("nvmlInit: %s", l.ErrorString(ret))
	}

	return l
}

// ok gives the value of a call that must succeed.
func ok[T any](t *testing.T) func(T, nvml.Return) T {
	return func(v T, ret nvml.Return) T {
		t.Helper()

		if ret != nvml.SUCCESS {
			t.Fatalf("return code %d", ret)
		}

		return v
	}
}

// want holds the return code of a call.
func want(t *testing.T, about string, got, wanted nvml.Return) {
	t.Helper()

	if got != wanted {
		t.Errorf("%s: return code %d, want %d", about, got, wanted)
	}
}

func code[T any](_ T, ret nvml.Return) nvml.Return { return ret }

func TestInventory(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarios+"dgx-a100-mixed.yaml", "MIG_SIM_CLOCK=step") {
		return
	}

	l := open(t)
	if got := ok[string](t)(l.SystemGetDriverVersion()); got != "580.95.05" {
		t.Errorf("driver %q", got)
	}

	if got := ok[int](t)(l.SystemGetCudaDriverVersion_v2()); got != 13000 {
		t.Errorf("CUDA %d", got)
	}

	count := ok[int](t)(l.DeviceGetCount())
	if count != 8 {
		t.Errorf("%d GPUs", count)
	}

	for i := range count {
		d := ok[nvml.Device](t)(l.DeviceGetHandleByIndex(i))
		pci := ok[nvml.PciInfo](t)(d.GetPciInfo())
		uuid := ok[string](t)(d.GetUUID())
		serial := ok[string](t)(d.GetSerial())

		bus := text(pci.BusId[:])
		for about, other := range map[string]nvml.Device{
			"UUID":           ok[nvml.Device](t)(l.DeviceGetHandleByUUID(uuid)),
			"serial":         ok[nvml.Device](t)(l.DeviceGetHandleBySerial(serial)),
			"PCI":            ok[nvml.Device](t)(l.DeviceGetHandleByPciBusId(bus)),
			"PCI, lower":     ok[nvml.Device](t)(l.DeviceGetHandleByPciBusId(strings.ToLower(bus[4:]))),
			"PCI, no domain": ok[nvml.Device](t)(l.DeviceGetHandleByPciBusId(bus[9:])),
		} {
			if other != d {
				t.Errorf("GPU %d by %s is another", i, about)
			}
		}

		if index := ok[int](t)(d.GetIndex()); index != i {
			t.Errorf("index %d of GPU %d", index, i)
		}

		if name := ok[string](t)(d.GetName()); name != "NVIDIA A100-SXM4-40GB" {
			t.Errorf("name %q", name)
		}

		ok[uint32](t)(d.GetPowerManagementDefaultLimit())
		ok[nvml.BAR1Memory](t)(d.GetBAR1MemoryInfo())
		ok[nvml.Pstates](t)(d.GetPerformanceState())
		want(t, "fan", code(d.GetFanSpeed()), nvml.ERROR_NOT_SUPPORTED)
		checkMIGDevices(t, l, d)
	}

	want(t, "index beyond the last", code(l.DeviceGetHandleByIndex(8)), nvml.ERROR_INVALID_ARGUMENT)
	want(t, "unknown UUID", code(l.DeviceGetHandleByUUID("GPU-0")), nvml.ERROR_NOT_FOUND)
	want(t, "unknown serial", code(l.DeviceGetHandleBySerial("0")), nvml.ERROR_NOT_FOUND)
	want(t, "unknown PCI id", code(l.DeviceGetHandleByPciBusId("0000:FF:00.0")), nvml.ERROR_NOT_FOUND)
	want(t, "no PCI id", code(l.DeviceGetHandleByPciBusId("there")), nvml.ERROR_INVALID_ARGUMENT)
	want(t, "shutdown", l.Shutdown(), nvml.SUCCESS)
}

func text(array []int8) string {
	var b []byte

	for _, c := range array {
		if c == 0 {
			break
		}

		b = append(b, byte(c))
	}

	return string(b)
}

func checkMIGDevices(t *testing.T, l nvml.Interface, d nvml.Device) {
	t.Helper()

	whole := ok[string](t)(d.GetUUID())
	for k := range ok[int](t)(d.GetMaxMigDeviceCount()) {
		m, ret := d.GetMigDeviceHandleByIndex(k)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}

		uuid := ok[string](t)(ok[nvml.Device](t)(m, ret).GetUUID())
		if parent := ok[nvml.Device](t)(m.GetDeviceHandleFromMigDeviceHandle()); parent != d {
			t.Errorf("%s is of another GPU", uuid)
		}

		if is := ok[bool](t)(m.IsMigDeviceHandle()); !is {
			t.Errorf("%s is no MIG device", uuid)
		}

		if index := ok[int](t)(m.GetIndex()); index != k {
			t.Errorf("index %d of MIG device %d", index, k)
		}

		gi := ok[int](t)(m.GetGpuInstanceId())
		ci := ok[int](t)(m.GetComputeInstanceId())

		legacy := "MIG-" + whole + "/" + string(rune('0'+gi%10)) + "/" + string(rune('0'+ci))
		if gi > 9 {
			legacy = "MIG-" + whole + "/1" + legacy[len("MIG-"+whole+"/"):]
		}

		for _, id := range []string{uuid, legacy} {
			if other := ok[nvml.Device](t)(l.DeviceGetHandleByUUID(id)); other != m {
				t.Errorf("%s is another", id)
			}
		}

		if a := ok[nvml.DeviceAttributes](t)(m.GetAttributes()); a.MultiprocessorCount == 0 || a.MemorySizeMB == 0 {
			t.Errorf("attributes %+v", a)
		}

		want(t, "utilization of a MIG device", code(m.GetUtilizationRates()), nvml.ERROR_NOT_SUPPORTED)
		want(t, "power of a MIG device", code(m.GetPowerUsage()), nvml.ERROR_NOT_SUPPORTED)
		want(t, "profiles of a MIG device", code(m.GetGpuInstanceProfileInfo(0)), nvml.ERROR_INVALID_ARGUMENT)
	}
}

// versionsAndRoom prints return codes, and what was written.
const versionsAndRoom = `
#include <dlfcn.h>
#include <stdio.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"
#define SAY(value) printf("%d ", value)
#define GET(type, name) type (*name)() = (type (*)())dlsym(library, #name)
int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW);
	GET(int, nvmlInit_v2); GET(int, nvmlDeviceGetHandleByIndex_v2); GET(int, nvmlDeviceGetMemoryInfo_v2);
	GET(int, nvmlDeviceGetTemperatureV); GET(int, nvmlDeviceGetName); GET(int, nvmlDeviceGetComputeRunningProcesses_v3);
	GET(int, nvmlDeviceGetComputeRunningProcesses); GET(int, nvmlDeviceGetGpuInstanceProfileInfoV); GET(int, nvmlDeviceGetPciInfo_v3);
	GET(int, nvmlDeviceGetMigMode); GET(int, nvmlDeviceGetPciInfoExt); GET(int, nvmlShutdown);
	nvmlDevice_t d, none = {(void *)5};
	nvmlMemory_v2_t memory = {.version = 7};
	nvmlTemperature_t temperature = {.version = nvmlTemperature_v1, .sensorType = 1};
	nvmlGpuInstanceProfileInfo_v2_t profile = {.version = 9};
	nvmlProcessInfo_v1_t processes[2];
	nvmlPciInfoExt_v1_t pci = {.version = nvmlPciInfoExt_v1};
	unsigned n = 0, two = 2;
	char name[4];
	SAY(nvmlInit_v2());
	SAY(nvmlDeviceGetHandleByIndex_v2(0, &d));
	SAY(nvmlDeviceGetMemoryInfo_v2(d, &memory));
	SAY(nvmlDeviceGetTemperatureV(d, &temperature));
	SAY(nvmlDeviceGetName(d, name, 4));
	SAY(nvmlDeviceGetComputeRunningProcesses_v3(d, &n, 0));
	SAY(n);
	SAY(nvmlDeviceGetComputeRunningProcesses(d, &two, processes));
	SAY(two);
	SAY((int)(processes[0].usedGpuMemory >> 20));
	SAY(nvmlDeviceGetGpuInstanceProfileInfoV(d, 0, &profile));
	SAY(nvmlDeviceGetPciInfo_v3(none, &pci));
	SAY(nvmlDeviceGetMigMode(d, &n, 0));
	SAY(nvmlDeviceGetPciInfoExt(d, &pci));
	SAY(nvmlShutdown());
	SAY(nvmlShutdown());
	SAY(nvmlDeviceGetName(d, name, 4));
	puts(pci.busId);
	return 0;
}`

// Versions and room: what the caller says of its structs and buffers is looked at.
func TestVersionsAndRoom(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, `
version: 1
gpus: [{model: A100-40GB}]
workloads: [{name: work, memory: 1GiB, sm: 10}]
pods: [{name: a, resource: nvidia.com/gpu, workload: work}]
`)) {
		return
	}

	l := open(t)

	d := ok[nvml.Device](t)(l.DeviceGetHandleByIndex(0))
	if m := ok[nvml.Memory_v2](t)(d.GetMemoryInfo_v2()); m.Total != 40960<<20 || m.Total != m.Free+m.Reserved+m.Used {
		t.Errorf("memory %+v", m)
	}

	if m := ok[nvml.Memory](t)(d.GetMemoryInfo()); m.Total != 40960<<20 || m.Total != m.Free+m.Used {
		t.Errorf("memory %+v", m)
	}

	processes := ok[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses())
	for i := range processes {
		processes[i].Pid = 0 // any
	}

	cmptest.Equal(t, "processes", processes, []nvml.ProcessInfo{
		{UsedGpuMemory: 1 << 30, GpuInstanceId: 0xFFFFFFFF, ComputeInstanceId: 0xFFFFFFFF},
	})
	program := compile(t, versionsAndRoom, "-ldl", "-I", strings.TrimSuffix(nvmlHeader(t), "/nvml.h"))
	out, err := exec.Command(program, built("libnvidia-ml.so.1")).CombinedOutput()

	const expected = "0 0 25 2 7 7 1 0 1 1024 2 2 2 0 0 1 1 00000000:07:00.0\n"
	if err != nil || string(out) != expected {
		t.Errorf("%v\n%swant\n%s", err, out, expected)
	}
}

const emptyA100 = "version: 1\ngpus: [{model: A100-40GB, mig: true}, {model: H100-80GB}]\n"

// The rules of placement, as operators know them: the small ones first leave no room for the large
// one.
func TestPlacementRules(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, emptyA100)) {
		return
	}

	d := ok[nvml.Device](t)(open(t).DeviceGetHandleByIndex(0))

	create := func(ids ...uint32) (made []nvml.GpuInstance, ret nvml.Return) {
		for _, id := range ids {
			gi, ret := d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: id})
			if ret != nvml.SUCCESS {
				return made, ret
			}

			made = append(made, gi)
		}

		return made, nvml.SUCCESS
	}
	for _, c := range []struct {
		ids []uint32
		ret nvml.Return
	}{
		{[]uint32{19, 19, 14, 9}, nvml.ERROR_INSUFFICIENT_RESOURCES},
		{[]uint32{9, 19, 14, 19}, nvml.SUCCESS},
		{[]uint32{9, 9, 9}, nvml.ERROR_INSUFFICIENT_RESOURCES},
		{[]uint32{77}, nvml.ERROR_INVALID_ARGUMENT},
	} {
		made, ret := create(c.ids...)
		want(t, "creation", ret, c.ret)

		for _, gi := range made {
			want(t, "destruction", gi.Destroy(), nvml.SUCCESS)
			want(t, "destruction for a second time", gi.Destroy(), nvml.ERROR_NOT_FOUND)
		}
	}
}

func TestMIGManagement(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, emptyA100)) {
		return
	}

	l := open(t)
	d := ok[nvml.Device](t)(l.DeviceGetHandleByIndex(0))
	profile := ok[nvml.GpuInstanceProfileInfo](t)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE))
	v3 := ok[nvml.GpuInstanceProfileInfo_v3](t)(d.GetGpuInstanceProfileInfoV(nvml.GPU_INSTANCE_PROFILE_3_SLICE).V3())
	cmptest.Equal(t, "profile's name", text(v3.Name[:]), "MIG 3g.20gb")
	cmptest.Equal(t, "its id", v3.Id, profile.Id)
	cmptest.Equal(t, "its memory in MiB", v3.MemorySizeMB, profile.MemorySizeMB)

	if v2 := ok[nvml.GpuInstanceProfileInfo_v2](t)(d.GetGpuInstanceProfileInfoByIdV(int(profile.Id)).
		V2()); text(v2.Name[:]) != "MIG 3g.20gb" || v2.Id != 9 {
		t.Errorf("profile by id %+v", v2)
	}

	want(t, "a kind of profile that there is not", code(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_COUNT)),
		nvml.ERROR_INVALID_ARGUMENT)
	want(t, "a kind that the GPU does not have", code(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_8_SLICE)),
		nvml.ERROR_NOT_SUPPORTED)
	places := ok[[]nvml.GpuInstancePlacement](t)(d.GetGpuInstancePossiblePlacements(&profile))
	slices.SortFunc(places, func(a, b nvml.GpuInstancePlacement) int { return int(a.Start) - int(b.Start) })

	if !slices.Equal(places, []nvml.GpuInstancePlacement{{Start: 0, Size: 4}, {Start: 4, Size: 4}}) {
		t.Errorf("placements %v", places)
	}

	want(t, "a size that the profile does not have",
		code(d.CreateGpuInstanceWithPlacement(&profile, &nvml.GpuInstancePlacement{Start: 4, Size: 2})),
		nvml.ERROR_INVALID_ARGUMENT)
	gi := ok[nvml.GpuInstance](t)(d.CreateGpuInstanceWithPlacement(&profile,
		&nvml.GpuInstancePlacement{Start: 4, Size: 4}))
	want(t, "the same place again",
		code(d.CreateGpuInstanceWithPlacement(&profile, &nvml.GpuInstancePlacement{Start: 4, Size: 4})),
		nvml.ERROR_INSUFFICIENT_RESOURCES)

	info := ok[nvml.GpuInstanceInfo](t)(gi.GetInfo())
	if info.Device != d {
		t.Errorf("GPU of the instance: got %v, want %v", info.Device, d)
	}

	cmptest.Equal(t, "profile of the GPU instance", info.ProfileId, 9)
	cmptest.Equal(t, "start of the GPU instance", info.Placement.Start, 4)

	if left := ok[int](t)(d.GetGpuInstanceRemainingCapacity(&profile)); left != 1 {
		t.Errorf("%d more", left)
	}

	if list := ok[[]nvml.GpuInstance](t)(d.GetGpuInstances(&profile)); len(list) != 1 || list[0] != gi {
		t.Errorf("list %v", list)
	}

	if one := ok[nvml.GpuInstance](t)(d.GetGpuInstanceById(int(info.Id))); one != gi {
		t.Error("by id it is another")
	}

	want(t, "an id that there is not", code(d.GetGpuInstanceById(3)), nvml.ERROR_NOT_FOUND)
	checkComputes(t, d, gi)
	want(t, "destruction", gi.Destroy(), nvml.SUCCESS)
	want(t, "a stale GPU instance", code(gi.GetInfo()), nvml.ERROR_NOT_FOUND)
	checkModes(t, l)
}

// checkComputes makes, lists and destroys compute instances of a 3g.20gb.
func checkComputes(t *testing.T, d nvml.Device, gi nvml.GpuInstance) {
	t.Helper()
	two := ok[nvml.ComputeInstanceProfileInfo](t)(gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE,
		0))
	cmptest.Equal(t, "slices of the compute profile", two.SliceCount, 2)
	cmptest.Equal(t, "SMs of the compute profile", two.MultiprocessorCount, 28)
	cmptest.Equal(t, "instances of the compute profile", two.InstanceCount, 1)

	for name, got := range map[string]string{
		"MIG 2c.3g.20gb": text(slices.Clone(first(ok[nvml.ComputeInstanceProfileInfo_v2](t)(
			gi.GetComputeInstanceProfileInfoV(nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, 0).V2()).Name))),
		"MIG 3g.20gb": text(slices.Clone(first(ok[nvml.ComputeInstanceProfileInfo_v3](t)(
			gi.GetComputeInstanceProfileInfoV(nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 0).V3()).Name))),
	} {
		if got != name {
			t.Errorf("compute profile %q, want %q", got, name)
		}
	}

	want(t, "a compute profile too large",
		code(gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE, 0)), nvml.ERROR_NOT_SUPPORTED)
	want(t, "no compute profile", code(gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_COUNT, 0)),
		nvml.ERROR_INVALID_ARGUMENT)

	if places := ok[[]nvml.ComputeInstancePlacement](t)(gi.GetComputeInstancePossiblePlacements(&two)); len(
		places) != 2 || places[1].Start != 1 {
		t.Errorf("placements %v", places)
	}

	ci := ok[nvml.ComputeInstance](t)(gi.CreateComputeInstanceWithPlacement(&two,
		&nvml.ComputeInstancePlacement{Start: 1, Size: 2}))
	want(t, "no room", code(gi.CreateComputeInstance(&two)), nvml.ERROR_INSUFFICIENT_RESOURCES)

	if left := ok[int](t)(gi.GetComputeInstanceRemainingCapacity(&two)); left != 0 {
		t.Errorf("room for %d more", left)
	}

	one := ok[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: 0}))

	info := ok[nvml.ComputeInstanceInfo](t)(ci.GetInfo())
	if info.Device != d {
		t.Errorf("GPU of the compute instance: got %v, want %v", info.Device, d)
	}

	if info.GpuInstance != gi {
		t.Errorf("GPU instance of the compute instance: got %v, want %v", info.GpuInstance, gi)
	}

	cmptest.Equal(t, "profile of the compute instance", info.ProfileId, two.Id)
	cmptest.Equal(t, "start of the compute instance", info.Placement.Start, 1)

	if list := ok[[]nvml.ComputeInstance](t)(gi.GetComputeInstances(&two)); len(list) != 1 || list[0] != ci {
		t.Errorf("list %v", list)
	}

	if by := ok[nvml.ComputeInstance](t)(gi.GetComputeInstanceById(int(info.Id))); by != ci {
		t.Error("by id it is another")
	}

	m := ok[nvml.Device](t)(d.GetMigDeviceHandleByIndex(0))
	ok[string](t)(m.GetUUID())
	want(t, "a GPU instance with compute instances", gi.Destroy(), nvml.ERROR_IN_USE)
	want(t, "destruction", ci.Destroy(), nvml.SUCCESS)
	want(t, "destruction", one.Destroy(), nvml.SUCCESS)
	want(t, "a stale compute instance", code(ci.GetInfo()), nvml.ERROR_NOT_FOUND)
	want(t, "a stale MIG device", code(m.GetUUID()), nvml.ERROR_INVALID_ARGUMENT)
}

func first(name [96]int8) []int8 { return name[:] }

// checkModes: a GPU with an instance is in use.
func checkModes(t *testing.T, l nvml.Interface) {
	t.Helper()
	hopper := ok[nvml.Device](t)(l.DeviceGetHandleByIndex(1))
	want(t, "named profiles with MIG off", code(hopper.GetGpuInstanceProfileInfoV(0).V2()), nvml.ERROR_NOT_SUPPORTED)
	want(t, "activation", ok[nvml.Return](t)(hopper.SetMigMode(nvml.DEVICE_MIG_ENABLE)), nvml.SUCCESS)
	ok[nvml.GpuInstance](t)(hopper.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 19}))

	if activation, ret := hopper.SetMigMode(nvml.DEVICE_MIG_DISABLE); ret != nvml.SUCCESS ||
		activation != nvml.ERROR_IN_USE {
		t.Errorf("with an instance: %d, activation %d", ret, activation)
	}
}

func TestRights(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, `
version: 1
node: {privileged: false, driver: "470.57.02", cuda: "11.4", migUUIDs: legacy}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4"]}]
`)) {
		return
	}

	d := ok[nvml.Device](t)(open(t).DeviceGetHandleByIndex(0))

	profile := ok[nvml.GpuInstanceProfileInfo](t)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE))
	for about, ret := range map[string]nvml.Return{
		"placements": code(d.GetGpuInstancePossiblePlacements(&profile)),
		"capacity":   code(d.GetGpuInstanceRemainingCapacity(&profile)),
		"list":       code(d.GetGpuInstances(&profile)),
		"create":     code(d.CreateGpuInstance(&profile)),
		"memory":     code(d.GetMemoryInfo()),
		"processes":  code(d.GetComputeRunningProcesses()),
	} {
		want(t, about, ret, nvml.ERROR_NO_PERMISSION)
	}

	m := ok[nvml.Device](t)(d.GetMigDeviceHandleByIndex(0))
	if uuid := ok[string](t)(m.GetUUID()); !strings.HasPrefix(uuid, "MIG-GPU-") || !strings.HasSuffix(uuid, "/2/0") {
		t.Errorf("UUID %s", uuid)
	}

	if memory := ok[nvml.Memory](t)(m.GetMemoryInfo()); memory.Total != 20096<<20 {
		t.Errorf("memory %+v", memory)
	}

	want(t, "a call that drivers before R510 do not have", code(d.GetMemoryInfo_v2()), nvml.ERROR_FUNCTION_NOT_FOUND)
}

// In a PID namespace of its own the driver lists nothing of what runs, with success.
func TestProcessesOutsideTheHostsPIDNamespace(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, `
version: 1
node: {pidNamespace: container, kubernetes: false}
gpus: [{model: H100-80GB}, {model: H100-80GB, mig: true, layout: ["3g.40gb@4"]}]
workloads: [{name: w, memory: 4GiB, sm: 20}]
processes: [{gpu: 0, workload: w}, {device: "1/3g.40gb@4", workload: w}]
`)) {
		return
	}

	l := open(t)
	d := ok[nvml.Device](t)(l.DeviceGetHandleByIndex(0))
	split := ok[nvml.Device](t)(l.DeviceGetHandleByIndex(1))

	m := ok[nvml.Device](t)(split.GetMigDeviceHandleByIndex(0))
	for about, list := range map[string][]nvml.ProcessInfo{
		"GPU":          ok[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses()),
		"GPU with MIG": ok[[]nvml.ProcessInfo](t)(split.GetComputeRunningProcesses()),
		"MIG device":   ok[[]nvml.ProcessInfo](t)(m.GetComputeRunningProcesses()),
		"MPS":          ok[[]nvml.ProcessInfo](t)(d.GetMPSComputeRunningProcesses()),
	} {
		if len(list) != 0 {
			t.Errorf("%s: processes %+v, want none", about, list)
		}
	}

	want(t, "utilization of processes", code(d.GetProcessUtilization(0)), nvml.ERROR_NOT_FOUND)
}

// Another process cuts the GPU: this one gets the event, and sees it with its next call.
func TestEventsAcrossProcesses(t *testing.T) {
	const cutter = "NVML_SIM_TEST_CUT"

	dir := t.TempDir()
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, emptyA100), "MIG_SIM_STATE="+dir+"/state.json") {
		return
	}

	l := open(t)
	d := ok[nvml.Device](t)(l.DeviceGetHandleByIndex(0))

	profile := &nvml.GpuInstanceProfileInfo{Id: 9, InstanceCount: 2}
	if os.Getenv(cutter) != "" {
		ok[nvml.ComputeInstance](t)(ok[nvml.GpuInstance](t)(d.CreateGpuInstance(profile)).
			CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: 2}))

		return
	}

	set := ok[nvml.EventSet](t)(l.EventSetCreate())
	want(t, "an event that there is not", d.RegisterEvents(nvml.EventTypeFatalPoisonError|nvml.EventMigConfigChange,
		set), nvml.ERROR_NOT_SUPPORTED)
	want(t, "nothing registered", code(set.Wait(0)), nvml.ERROR_TIMEOUT)
	want(t, "registration", d.RegisterEvents(nvml.EventMigConfigChange, set), nvml.SUCCESS)
	other := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")

	other.Env = append(os.Environ(), cutter+"=1")
	if out, err := other.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	e := ok[nvml.EventData](t)(set.Wait(60_000))
	if e.Device != d {
		t.Errorf("GPU of the event: got %v, want %v", e.Device, d)
	}

	cmptest.Equal(t, "type of the event", e.EventType, nvml.EventMigConfigChange)
	cmptest.Equal(t, "GPU instance of the event", e.GpuInstanceId, 2)
	cmptest.Equal(t, "compute instance of the event", e.ComputeInstanceId, 0xFFFFFFFF)

	if list := ok[[]nvml.GpuInstance](t)(d.GetGpuInstances(profile)); len(list) != 1 {
		t.Errorf("%d GPU instances", len(list))
	}

	ok[string](t)(ok[nvml.Device](t)(d.GetMigDeviceHandleByIndex(0)).GetUUID())
	waiting := make(chan nvml.Return)
	second := ok[nvml.EventSet](t)(l.EventSetCreate())
	go func() { waiting <- code(second.Wait(60_000)) }()
	want(t, "freeing", set.Free(), nvml.SUCCESS)
	want(t, "a set that was freed", code(set.Wait(0)), nvml.ERROR_INVALID_ARGUMENT)
	want(t, "shutdown", l.Shutdown(), nvml.SUCCESS)
	// It was waiting, or came too late: either way it does not hang.
	if ret := <-waiting; ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("waiting at shutdown: %d", ret)
	}
}

// Fields are answered one by one.
func TestFieldValues(t *testing.T) {
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, emptyA100), "MIG_SIM_CLOCK=step") {
		return
	}

	d := ok[nvml.Device](t)(open(t).DeviceGetHandleByIndex(1))
	values := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_MEMORY_TEMP}, {FieldId: 9999}, {FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 99},
		{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION},
	}
	want(t, "fields", d.GetFieldValues(values), nvml.SUCCESS)

	for i, ret := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_INVALID_ARGUMENT,
		nvml.SUCCESS} {
		want(t, "field", nvml.Return(values[i].NvmlReturn), ret)
	}

	if celsius := *(*uint32)(unsafe.Pointer(&values[0].Value)); celsius < 30 || celsius > 50 {
		t.Errorf("memory at %d C", celsius)
	}
}
