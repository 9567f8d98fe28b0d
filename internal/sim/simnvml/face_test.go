package simnvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// start makes a scenario look like NVML, on a stepped clock.
func start(t *testing.T, text string) (nvmlsource.Library, *sim.Node) {
	t.Helper()

	s, err := sim.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { n.Close() })

	l := New(n)
	if ret := l.Init(); ret != nvml.SUCCESS {
		t.Fatalf("init: %v", ret)
	}

	return l, n
}

func handle(t *testing.T, l nvmlsource.Library, index int) nvmlsource.Device {
	t.Helper()

	d, ret := l.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatalf("GPU %d: %v", index, ret)
	}

	return d
}

func advance(t *testing.T, n *sim.Node, by time.Duration) {
	t.Helper()

	if err := n.Advance(by); err != nil {
		t.Fatal(err)
	}
}

// ok fails the test if a call does not succeed.
func ok[T any](t *testing.T) func(v T, ret nvml.Return) T {
	return func(v T, ret nvml.Return) T {
		t.Helper()

		if ret != nvml.SUCCESS {
			t.Errorf("got return code %d, want success", ret)
		}

		return v
	}
}

// want fails the test if a call returns another code.
func want[T any](t *testing.T, code nvml.Return, what string) func(v T, ret nvml.Return) {
	return func(_ T, ret nvml.Return) {
		t.Helper()

		if ret != code {
			t.Errorf("%s: return code %d, want %d", what, ret, code)
		}
	}
}

const twoHalves = `
version: 1
node: {kubernetes: false}
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0", {gi: "3g.20gb@4", ci: [1c, 2c]}]}
  - {model: A100-40GB}
workloads: [{name: w, memory: 4GiB, sm: 20, dram: 0.5}]
processes: [{device: 0/3g.20gb@4/1, workload: w}, {gpu: 1, workload: w}]
`

func TestInventory(t *testing.T) {
	l, _ := start(t, twoHalves)
	if n := ok[int](t)(l.DeviceGetCount()); n != 2 {
		t.Errorf("%d GPUs", n)
	}

	want[nvmlsource.Device](t, nvml.ERROR_INVALID_ARGUMENT, "index 2")(l.DeviceGetHandleByIndex(2))

	d := handle(t, l, 0)
	if name := ok[string](t)(d.GetName()); name != "NVIDIA A100-SXM4-40GB" {
		t.Errorf("name %q", name)
	}

	if uuid := ok[string](t)(d.GetUUID()); !strings.HasPrefix(uuid, "GPU-") {
		t.Errorf("UUID %q", uuid)
	}

	if arch := ok[nvml.DeviceArchitecture](t)(d.GetArchitecture()); arch != nvml.DEVICE_ARCH_AMPERE {
		t.Errorf("architecture %d", arch)
	}

	want[int](t, nvml.ERROR_NOT_SUPPORTED, "cores with MIG on")(d.GetNumGpuCores())

	if cores := ok[int](t)(handle(t, l, 1).GetNumGpuCores()); cores != 6912 {
		t.Errorf("%d cores", cores)
	}

	pci := ok[nvml.PciInfo](t)(d.GetPciInfo())
	var busID []byte

	for _, c := range pci.BusId {
		if c == 0 {
			break
		}

		busID = append(busID, byte(c))
	}

	if string(busID) != "00000000:07:00.0" || pci.PciDeviceId != 0x20B010DE {
		t.Errorf("PCI %s %x", busID, pci.PciDeviceId)
	}

	if cuda := ok[int](t)(l.SystemGetCudaDriverVersion()); cuda != 13000 {
		t.Errorf("CUDA %d", cuda)
	}
}

func TestReadingsWithMIGOnAndOff(t *testing.T) {
	l, n := start(t, twoHalves)
	advance(t, n, time.Second)
	split := handle(t, l, 0)
	whole := handle(t, l, 1)

	want[nvml.Utilization](t, nvml.ERROR_NOT_SUPPORTED, "utilization with MIG")(split.GetUtilizationRates())

	if u := ok[nvml.Utilization](t)(whole.GetUtilizationRates()); u.Gpu == 0 || u.Memory == 0 {
		t.Errorf("utilization %+v", u)
	}

	want[uint64](t, nvml.ERROR_NOT_SUPPORTED,
		"volatile ECC of an A100 with MIG")(split.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC))
	ok[uint64](t)(split.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC))
	ok[uint64](t)(whole.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC,
		nvml.MEMORY_LOCATION_SRAM))
	want[uint64](t, nvml.ERROR_NOT_SUPPORTED, "ECC of textures")(whole.GetMemoryErrorCounter(
		nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_TEXTURE_MEMORY))

	if _, _, _, _, ret := split.GetRemappedRows(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("remapped rows with instances: %d", ret)
	}

	if _, _, _, _, ret := whole.GetRemappedRows(); ret != nvml.SUCCESS {
		t.Errorf("remapped rows without: %d", ret)
	}

	if n := ok[int](t)(whole.GetMaxMigDeviceCount()); n != 0 {
		t.Errorf("%d MIG devices at most with MIG off", n)
	}

	milliwatts := ok[uint32](t)(whole.GetPowerUsage())

	millijoules := ok[uint64](t)(whole.GetTotalEnergyConsumption())
	if milliwatts < 60_000 {
		t.Errorf("%d mW, want 60 W or more", milliwatts)
	}

	if least, most := uint64(milliwatts)*98/100, uint64(milliwatts)*102/100; millijoules < least || millijoules > most {
		t.Errorf("%d mW gave %d mJ in a second, want %d to %d", milliwatts, millijoules, least, most)
	}

	memory := ok[nvml.Memory_v2](t)(whole.GetMemoryInfo())
	if memory.Version == 0 {
		t.Error("memory of the older call, want that of version 2")
	}

	cmptest.Equal(t, "MiB of memory", memory.Total>>20, 40960)
	cmptest.Equal(t, "used, free and reserved memory", memory.Used+memory.Free+memory.Reserved, memory.Total)
	want[uint32](t, nvml.ERROR_INVALID_ARGUMENT, "no such clock")(whole.GetClockInfo(nvml.CLOCK_COUNT))
}

func TestMemoryOfAnOldDriver(t *testing.T) {
	l, _ := start(t, "version: 1\nnode: {driver: \"460.91.03\"}\ngpus: [{model: A100-PCIE-40GB}]\n")
	memory := ok[nvml.Memory_v2](t)(handle(t, l, 0).GetMemoryInfo())
	cmptest.Equal(t, "version (0 is the older call), reserved memory and MiB in all",
		[3]uint64{uint64(memory.Version), memory.Reserved, memory.Total >> 20}, [3]uint64{0, 0, 40536})
	cmptest.Equal(t, "used and free memory", memory.Used+memory.Free, memory.Total)
}

func TestProcesses(t *testing.T) {
	l, _ := start(t, twoHalves)
	split := handle(t, l, 0)

	list := ok[[]nvml.ProcessInfo](t)(split.GetComputeRunningProcesses())
	if len(list) != 1 {
		t.Fatalf("processes %+v, want one", list)
	}

	cmptest.Equal(t, "process under MIG", list[0],
		nvml.ProcessInfo{Pid: list[0].Pid, GpuInstanceId: 2, ComputeInstanceId: 1, UsedGpuMemory: 4 << 30})

	whole := ok[[]nvml.ProcessInfo](t)(handle(t, l, 1).GetComputeRunningProcesses())
	if len(whole) != 1 {
		t.Fatalf("processes %+v, want one", whole)
	}

	cmptest.Equal(t, "instances of a process on a whole GPU",
		[2]uint32{whole[0].GpuInstanceId, whole[0].ComputeInstanceId},
		[2]uint32{nvmlsource.NoInstance, nvmlsource.NoInstance})
	owned := 0

	for index := range 7 {
		m, ret := split.GetMigDeviceHandleByIndex(index)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}

		owned += len(ok[[]nvml.ProcessInfo](t)(m.GetComputeRunningProcesses()))
	}

	if owned != 1 {
		t.Errorf("MIG devices have %d processes, want each its own", owned)
	}
}

// TestProcessesOutsideTheHostsPIDNamespace: the driver says with success that nothing runs, and
// refuses to destroy what something runs on.
func TestProcessesOutsideTheHostsPIDNamespace(t *testing.T) {
	l, n := start(t, `
version: 1
node: {pidNamespace: container, kubernetes: false}
gpus: [{model: H100-80GB, count: 2}, {model: H100-80GB, mig: true, layout: ["3g.40gb@4"]}]
workloads: [{name: w, memory: 4GiB, sm: 20}]
processes: [{gpu: 0, workload: w}, {device: "2/3g.40gb@4", workload: w}]
`)
	advance(t, n, time.Second)
	busy := handle(t, l, 0)
	split := handle(t, l, 2)

	slice := ok[nvmlsource.MIGDevice](t)(split.GetMigDeviceHandleByIndex(0))
	for list, processes := range map[string][]nvml.ProcessInfo{
		"of a GPU":             ok[[]nvml.ProcessInfo](t)(busy.GetComputeRunningProcesses()),
		"of clients of MPS":    ok[[]nvml.ProcessInfo](t)(busy.GetMPSComputeRunningProcesses()),
		"of a GPU with MIG":    ok[[]nvml.ProcessInfo](t)(split.GetComputeRunningProcesses()),
		"of a MIG device":      ok[[]nvml.ProcessInfo](t)(slice.GetComputeRunningProcesses()),
		"of a GPU without any": ok[[]nvml.ProcessInfo](t)(handle(t, l, 1).GetComputeRunningProcesses()),
	} {
		if len(processes) != 0 {
			t.Errorf("processes %s: %+v, want none", list, processes)
		}
	}

	want[[]nvml.ProcessUtilizationSample](t, nvml.ERROR_NOT_FOUND, "samples of utilization")(busy.GetProcessUtilization(0))

	if used := ok[nvml.Memory_v2](t)(busy.GetMemoryInfo()).Used; used < 4<<30 {
		t.Errorf("%d bytes in use, want those of the hidden process too", used)
	}

	if err := n.DestroyComputeInstance(2, 2, 0); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("destroying what a hidden process runs on: %v, want %v", err, gpu.ErrInUse)
	}
}

func TestMPSClientsAreListedApart(t *testing.T) {
	l, _ := start(t, `
version: 1
gpus: [{model: A100-80GB, sharing: {kind: mps, replicas: 2}}]
workloads: [{name: w, memory: 4GiB, sm: 20}]
pods: [{name: a, resource: nvidia.com/gpu, workload: w}, {name: b, resource: nvidia.com/gpu, workload: w}]
`)

	d := handle(t, l, 0)
	if mode := ok[nvml.ComputeMode](t)(d.GetComputeMode()); mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
		t.Errorf("compute mode %d", mode)
	}

	server := ok[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses())

	clients := ok[[]nvml.ProcessInfo](t)(d.GetMPSComputeRunningProcesses())
	if len(server) != 1 || len(clients) != 2 {
		t.Errorf("%d and %d processes, want the server and two clients", len(server), len(clients))
	}

	if drawing := ok[[]nvml.ProcessInfo](t)(d.GetGraphicsRunningProcesses()); len(drawing) != 0 {
		t.Errorf("%d graphics processes", len(drawing))
	}
}

func TestFaultsBecomeReturnCodes(t *testing.T) {
	for fault, code := range map[string]nvml.Return{
		"lost":                            nvml.ERROR_GPU_IS_LOST,
		"reset-required":                  nvml.ERROR_RESET_REQUIRED,
		"version-mismatch":                nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		"no-driver":                       nvml.ERROR_DRIVER_NOT_LOADED,
		"not-supported, reading: power":   nvml.ERROR_NOT_SUPPORTED,
		"no-permission, reading: power":   nvml.ERROR_NO_PERMISSION,
		"no-permission, reading: ecc":     nvml.SUCCESS,
		"xid, xid: 13, gpu: 0, for: 1m":   nvml.SUCCESS,
		"not-supported, reading: memory ": nvml.SUCCESS,
	} {
		l, n := start(t, "version: 1\ngpus: [{model: A30}]\nfaults: [{at: 1s, kind: "+fault+"}]\n")
		d := handle(t, l, 0)
		advance(t, n, time.Second)
		want[uint32](t, code, fault)(d.GetPowerUsage())
	}

	l, n := start(t, "version: 1\ngpus: [{model: A30}]\nfaults: [{at: 1s, kind: version-mismatch}]\n")
	advance(t, n, time.Second)
	want[int](t, nvml.ERROR_LIB_RM_VERSION_MISMATCH, "count")(l.DeviceGetCount())
	n.Close()
	want[int](t, nvml.ERROR_UNINITIALIZED, "count of a closed node")(l.DeviceGetCount())
}

// values asks for fields and returns them by id; a field that failed has its code instead.
func values(t *testing.T, d nvmlsource.Device, scope uint32, ids ...uint32) (numbers []uint64, codes []nvml.Return) {
	t.Helper()

	fields := make([]nvml.FieldValue, len(ids))
	for i, id := range ids {
		fields[i].FieldId, fields[i].ScopeId = id, scope
	}

	if ret := d.GetFieldValues(fields); ret != nvml.SUCCESS {
		t.Fatalf("field values: %d", ret)
	}

	for _, f := range fields {
		numbers = append(numbers, binary.NativeEndian.Uint64(f.Value[:]))
		codes = append(codes, nvml.Return(f.NvmlReturn))
	}

	return numbers, codes
}

// allLinks is the scope that asks for the total over all links.
const allLinks = 0xFFFFFFFF

// TestFieldIDs: the simulation has the numbers of nvml.h without go-nvml; here are their names.
func TestFieldIDs(t *testing.T) {
	want := []uint32{
		nvml.FI_DEV_ECC_CURRENT, nvml.FI_DEV_ECC_PENDING,
		nvml.FI_DEV_PERF_POLICY_POWER, nvml.FI_DEV_PERF_POLICY_THERMAL,
		nvml.FI_DEV_MEMORY_TEMP, nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, nvml.FI_DEV_ENERGY,
		nvml.FI_DEV_PCIE_REPLAY_COUNTER, nvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER,
		nvml.FI_DEV_PCIE_COUNT_TX_BYTES, nvml.FI_DEV_PCIE_COUNT_RX_BYTES,
		nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT,
		nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT,
		nvml.FI_DEV_RESET_STATUS, nvml.FI_DEV_DRAIN_AND_RESET_STATUS, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION,
		nvml.FI_DEV_NVLINK_LINK_COUNT,
		nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
		nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_RX,
		nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES,
		nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
		nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
		nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
		nvml.FI_DEV_REMAPPED_COR, nvml.FI_DEV_REMAPPED_UNC,
		nvml.FI_DEV_REMAPPED_PENDING, nvml.FI_DEV_REMAPPED_FAILURE,
		nvml.FI_DEV_POWER_AVERAGE, nvml.FI_DEV_POWER_INSTANT, nvml.FI_DEV_POWER_MIN_LIMIT,
		nvml.FI_DEV_POWER_MAX_LIMIT, nvml.FI_DEV_POWER_DEFAULT_LIMIT, nvml.FI_DEV_POWER_CURRENT_LIMIT,
		nvml.FI_DEV_POWER_REQUESTED_LIMIT,
	}
	_, n := start(t, "version: 1\ngpus: [{model: B200}]\n")

	for id := range uint32(nvml.FI_MAX + 1) {
		wrong := nvml.ERROR_NOT_SUPPORTED
		if id == 0 || id == nvml.FI_MAX {
			wrong = nvml.ERROR_INVALID_ARGUMENT
		}

		if slices.Contains(want, id) {
			wrong = nvml.SUCCESS
		}

		_, err := n.Field(id)
		cmptest.Equal(t, fmt.Sprintf("field %d", id), returnOf(err), wrong)
	}
}

// TestFieldsOfNVLink5: from NVLink 5 on there is a counter for each link, and no total.
func TestFieldsOfNVLink5(t *testing.T) {
	l, n := start(t, `
version: 1
gpus: [{model: B200}]
workloads: [{name: w, memory: 1GiB, sm: 60, nvlink: 180MiB}]
pods: [{name: p, resource: nvidia.com/gpu, workload: w}]
`)
	advance(t, n, 100*time.Second)
	b200 := handle(t, l, 0)
	const sent, received = nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES

	numbers, codes := values(t, b200, 17, sent, received, nvml.FI_DEV_NVLINK_LINK_COUNT)
	cmptest.Equal(t, "the last link, and the number of links", numbers, []uint64{1000 << 20, 1000 << 20, 18})
	cmptest.Equal(t, "codes", codes, []nvml.Return{nvml.SUCCESS, nvml.SUCCESS, nvml.SUCCESS})

	for scope, want := range map[uint32]nvml.Return{18: nvml.ERROR_INVALID_ARGUMENT, allLinks: nvml.ERROR_INVALID_ARGUMENT} {
		_, codes := values(t, b200, scope, sent)
		cmptest.Equal(t, fmt.Sprint("link ", scope), codes[0], want)
	}

	_, codes = values(t, b200, allLinks, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL)
	cmptest.Equal(t, "totals", codes, []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED})
}

func TestFieldValues(t *testing.T) {
	l, n := start(t, `
version: 1
gpus: [{model: H100-80GB}, {model: A100-PCIE-40GB}, {model: RTX-PRO-6000}]
workloads: [{name: w, memory: 1GiB, sm: 60, pcie: 50MiB, nvlink: 180MiB}]
pods: [{name: p, resource: nvidia.com/gpu, workload: w}]
faults: [{at: 5s, gpu: 1, kind: xid, xid: 79, recovery: drain}, {gpu: 2, kind: not-supported, reading: pcie}]
`)
	const tx, rx = nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX
	advance(t, n, 100*time.Second)
	h100 := handle(t, l, 0)
	a100 := handle(t, l, 1)
	rtx := handle(t, l, 2)

	number, _ := values(t, h100, allLinks, tx, rx, nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_TX)
	cmptest.Equal(t, "KiB of data over NVLink, each way", number[:2], []uint64{18000 << 10, 18000 << 10})

	if number[2] <= number[0] {
		t.Errorf("%d KiB raw over NVLink, want more than the %d of data", number[2], number[0])
	}

	if one, _ := values(t, h100, 3, tx); one[0] != 1000<<10 {
		t.Errorf("one link: %d KiB, want an eighteenth", one[0])
	}

	if _, codes := values(t, h100, 18, tx); codes[0] != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("link 18 of 18: %d", codes[0])
	}

	if _, codes := values(t, a100, allLinks, tx,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL); codes[0] != nvml.ERROR_NOT_SUPPORTED || codes[1] != codes[0] {
		t.Errorf("NVLink of a PCIe GPU: %v", codes)
	}

	_, codes := values(t, h100, 0, nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES)
	cmptest.Equal(t, "a counter of NVLink 5 on an H100", codes[0], nvml.ERROR_NOT_SUPPORTED)
	before, _ := values(t, h100, 0, nvml.FI_DEV_PCIE_COUNT_RX_BYTES, nvml.FI_DEV_PCIE_COUNT_TX_BYTES)
	const sent = uint64(100 * 50 << 20)
	const wrapped = sent - 1<<32 // at 32 bits
	cmptest.Equal(t, "bytes over PCIe, each way", before, []uint64{wrapped, wrapped})

	_, codes = values(t, rtx, 0, nvml.FI_DEV_PCIE_COUNT_RX_BYTES, nvml.FI_DEV_MEMORY_TEMP, 9999, nvml.FI_DEV_RETIRED_SBE,
		nvml.FI_DEV_GET_GPU_RECOVERY_ACTION)
	if !slices.Equal(codes, []nvml.Return{
		nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED,
		nvml.SUCCESS,
	}) {
		t.Errorf("each field has its own code; got %v", codes)
	}

	number, codes = values(t, a100, 0, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.FI_DEV_MEMORY_TEMP)
	cmptest.Equal(t, "code of the recovery action", codes[0], nvml.SUCCESS)
	cmptest.Equal(t, "recovery action", number[0], uint64(nvml.GPU_RECOVERY_ACTION_DRAIN_P2P))

	if number[1] < 30 {
		t.Errorf("memory at %d degrees Celsius, want 30 or more", number[1])
	}
}

func TestEvents(t *testing.T) {
	l, n := start(t, twoHalves+"faults: [{at: 1m, gpu: 0, kind: xid, xid: 31, gi: 2, ci: 1}]\n")
	d := handle(t, l, 0)
	set := ok[nvmlsource.EventSet](t)(l.EventSetCreate())

	other := ok[nvmlsource.EventSet](t)(l.EventSetCreate())
	if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError|nvml.EventTypePowerSourceChange,
		set); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("a mask with an unsupported type: %d", ret)
	}

	if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError, other); ret != nvml.SUCCESS {
		t.Errorf("register: %d", ret)
	}

	advance(t, n, time.Minute)
	want[nvmlsource.Event](t, nvml.ERROR_TIMEOUT, "a set for which nothing was registered")(set.Wait(0))
	e := ok[nvmlsource.Event](t)(other.Wait(0))
	cmptest.Equal(t, "event", e, nvmlsource.Event{
		Device: e.Device, Type: nvml.EventTypeXidCriticalError, Data: 31, GPUInstanceID: 2, ComputeInstanceID: 1,
	})

	if uuid := ok[string](t)(e.Device.GetUUID()); uuid != ok[string](t)(d.GetUUID()) {
		t.Errorf("event of %s", uuid)
	}

	if ret := d.RegisterEvents(nvml.EventMigConfigChange, set); ret != nvml.SUCCESS {
		t.Errorf("register: %d", ret)
	}

	if err := n.DestroyComputeInstance(0, 2, 0); err != nil {
		t.Fatal(err)
	}

	if e := ok[nvmlsource.Event](t)(set.Wait(0)); e.Type != nvml.EventMigConfigChange {
		t.Errorf("event %+v", e)
	}

	for range 2 {
		if ret := set.Free(); ret != nvml.SUCCESS {
			t.Errorf("free: %d", ret)
		}
	}

	want[nvmlsource.Event](t, nvml.ERROR_UNINITIALIZED, "a freed set")(set.Wait(1000))
}

func TestWaitEndsWithTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, n := start(t, twoHalves)
		set := ok[nvmlsource.EventSet](t)(l.EventSetCreate())
		done := make(chan nvml.Return, 1)
		begin := time.Now()
		go func() {
			_, ret := set.Wait(3_600_000)
			done <- ret
		}()
		synctest.Wait()
		n.Close()

		if ret := <-done; ret != nvml.ERROR_UNINITIALIZED || time.Since(begin) != 0 {
			t.Errorf("returned %d after %s", ret, time.Since(begin))
		}
	})
}
