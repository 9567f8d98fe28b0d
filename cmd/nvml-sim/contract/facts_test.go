package contract

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// The facts of a node: answers of which nvml.h leaves open what they are, so that no check can hold
// them. They are printed, for a person to compare with docs/compatibility.md. Asking for them
// changes nothing.

// facts asks a driver, which was initialised within a time, for everything that is open. Windows of
// GPM last for as long as pass takes.
func facts(lib nvmlsource.Library, initTook time.Duration, pass func()) []string {
	list := []string{fmt.Sprintf("nvmlInit took %.3f s", initTook.Seconds())}

	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return append(list, "nvmlDeviceGetCount: "+codeText(ret))
	}

	for i := range count {
		d, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			list = append(list, fmt.Sprintf("GPU %d: %s", i, codeText(ret)))
			continue
		}

		for _, line := range slices.Concat(gpuFacts(d), eventFacts(lib, d), instanceFacts(lib, d, pass)) {
			list = append(list, fmt.Sprintf("GPU %d: %s", i, line))
		}
	}

	return list
}

// codeText names the codes that tell something.
func codeText(ret nvml.Return) string {
	name, known := map[nvml.Return]string{
		nvml.SUCCESS: "ok", nvml.ERROR_INVALID_ARGUMENT: "invalid argument", nvml.ERROR_NOT_SUPPORTED: "not supported",
		nvml.ERROR_NO_PERMISSION: "no permission", nvml.ERROR_NOT_FOUND: "not found",
		nvml.ERROR_FUNCTION_NOT_FOUND: "function not found",
	}[ret]
	if !known {
		return fmt.Sprintf("code %d", ret)
	}

	return name
}

// answerText is an answer, or its code.
func answerText[T any](answer T, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return codeText(ret)
	}

	return fmt.Sprint(answer)
}

// gpuFacts are the facts of a GPU as a whole.
func gpuFacts(d nvmlsource.Device) []string {
	current, _, migRet := d.GetMigMode()
	memory, memoryRet := d.GetMemoryInfo()
	began := time.Now()
	processes, processesRet := d.GetComputeRunningProcesses()
	took := time.Since(began)

	list := []string{
		"name " + answerText(d.GetName()) + ", MIG mode " + answerText(current, migRet) + ", persistence mode " +
			answerText(d.GetPersistenceMode()),
		"power in mW " + answerText(d.GetPowerUsage()) + ", energy in mJ " + answerText(d.GetTotalEnergyConsumption()),
		"processes " + answerText(len(processes), processesRet) + fmt.Sprintf(", listed in %.6f s", took.Seconds()),
		"memory used, reserved and total in MiB " + memoryText(memory, memoryRet),
		"temperature margin " + answerText(d.GetMarginTemperature()) + ", threshold of slowdown " +
			answerText(d.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)),
		"volatile ECC " + eccText(d),
	}

	fields := []struct {
		name      string
		id, scope uint32
	}{
		{"T.Limit offset of shutdown", nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, 0},
		{"T.Limit offset of slowdown", nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, 0},
		{"PCIe bytes sent", nvml.FI_DEV_PCIE_COUNT_TX_BYTES, 0},
		{"NVLinks", nvml.FI_DEV_NVLINK_LINK_COUNT, 0},
		{"NVLink KiB sent, all links", nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF},
		{"NVLink bytes sent, link 0", nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, 0},
		{"NVLink bytes sent, all links as a scope", nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, 0xFFFFFFFF},
		{"rows remapped, by field", nvml.FI_DEV_REMAPPED_COR, 0},
	}
	for _, f := range fields {
		values := []nvml.FieldValue{{FieldId: f.id, ScopeId: f.scope}}
		if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
			list = append(list, f.name+": "+codeText(ret))
			continue
		}

		number := int64(binary.NativeEndian.Uint64(values[0].Value[:])) //nolint:gosec // printed, whatever it is
		if nvml.ValueType(values[0].ValueType) == nvml.VALUE_TYPE_SIGNED_INT {
			number = int64(int32(number)) //nolint:gosec // the union's half that is used
		}

		list = append(list, fmt.Sprintf("%s (type %d): %s", f.name, values[0].ValueType,
			answerText(number, nvml.Return(int32(values[0].NvmlReturn)))))
	}

	return list
}

func memoryText(m nvml.Memory_v2, ret nvml.Return) string {
	return answerText(fmt.Sprintf("%d, %d, %d", m.Used>>20, m.Reserved>>20, m.Total>>20), ret)
}

// eccText has the errors since the driver was loaded, by location.
func eccText(e nvmlsource.Entity) string {
	var parts []string

	for name, location := range map[string]nvml.MemoryLocation{
		"SRAM": nvml.MEMORY_LOCATION_SRAM, "DRAM": nvml.MEMORY_LOCATION_DRAM,
	} {
		corrected := answerText(e.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC, location))
		uncorrected := answerText(e.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, location))
		parts = append(parts, name+" corrected "+corrected+", uncorrected "+uncorrected)
	}

	slices.Sort(parts)

	return strings.Join(parts, "; ")
}

// eventFacts are which events a GPU lets this process register. They are never waited for.
func eventFacts(lib nvmlsource.Library, d nvmlsource.Device) []string {
	var list []string

	for _, e := range []struct {
		name string
		kind uint64
	}{
		{"XIDs", nvml.EventTypeXidCriticalError}, {"MIG changes", nvml.EventMigConfigChange},
		{"unavailable GPUs", nvml.EventTypeGpuUnavailableError}, {"recovery actions", nvml.EventTypeGpuRecoveryAction},
	} {
		set, ret := lib.EventSetCreate()
		if ret == nvml.SUCCESS {
			ret = d.RegisterEvents(e.kind, set)
			set.Free()
		}

		list = append(list, "events of "+e.name+": "+codeText(ret))
	}

	return list
}

// instanceFacts are the facts of the GPU instances and MIG devices.
func instanceFacts(lib nvmlsource.Library, d nvmlsource.Device, pass func()) []string {
	var list []string

	for profile := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(profile)
		if ret != nvml.SUCCESS {
			continue
		}

		instances, ret := d.GetGpuInstances(info.Id, int(max(info.InstanceCount, 1)))
		if ret != nvml.SUCCESS {
			list = append(list, fmt.Sprintf("GPU instances of profile %d: %s", info.Id, codeText(ret)))
			continue
		}

		for _, gi := range instances {
			list = append(list, instanceFact(lib, d, gi, pass))
		}
	}

	most, ret := d.GetMaxMigDeviceCount()
	for i := range most {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}

		memory, memoryRet := m.GetMemoryInfo()
		processes, processesRet := m.GetComputeRunningProcesses()
		list = append(list, fmt.Sprintf("MIG device %d: processes %s, memory used, reserved and total in MiB %s; volatile ECC %s",
			i, answerText(len(processes), processesRet), memoryText(memory, memoryRet), eccText(m)))
	}

	if ret != nvml.SUCCESS {
		list = append(list, "number of MIG devices: "+codeText(ret))
	}

	return list
}

// instanceFact says what GPM answers about an instance: of one without a compute instance it should
// answer nothing.
func instanceFact(lib nvmlsource.Library, d nvmlsource.Device, gi nvmlsource.GPUInstance, pass func()) string {
	info, ret := gi.GetInfo()
	if ret != nvml.SUCCESS {
		return "a GPU instance: " + codeText(ret)
	}

	computeInstances, ret := gi.GetComputeInstances()
	line := fmt.Sprintf("GPU instance %d at %d:%d, compute instances %s", info.ID, info.Placement.Start, info.Placement.Size,
		answerText(len(computeInstances), ret))

	before, ret := lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return line + ", GPM samples: " + codeText(ret)
	}

	defer before.Free()

	after, ret := lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return line + ", GPM samples: " + codeText(ret)
	}

	defer after.Free()

	ret = d.GpmMigSampleGet(int(info.ID), before)
	if ret == nvml.SUCCESS {
		pass()
		ret = d.GpmMigSampleGet(int(info.ID), after)
	}

	if ret != nvml.SUCCESS {
		return line + ", GPM: " + codeText(ret)
	}

	metrics := []nvmlsource.GPMMetric{
		{ID: uint32(nvml.GPM_METRIC_GRAPHICS_UTIL)}, {ID: uint32(nvml.GPM_METRIC_PCIE_RX_PER_SEC)},
	}
	if ret = lib.GpmMetricsGet(before, after, metrics); ret != nvml.SUCCESS {
		return line + ", GPM metrics: " + codeText(ret)
	}

	return line + ", GPM: activity " + answerText(metrics[0].Value, metrics[0].Return) + " %, PCIe received " +
		answerText(metrics[1].Value, metrics[1].Return) + " MiB/s"
}

// gpmWindow is the least time between two samples (nvml.h).
const gpmWindow = 100 * time.Millisecond

// pidsVariable makes this test binary, in a PID namespace of its own, print what the driver lists
// there.
const pidsVariable = "NVML_CONTRACT_PIDS"

// TestFactsOfTheHardware prints what this machine's driver answers. It fails for nothing but the
// lack of a GPU.
func TestFactsOfTheHardware(t *testing.T) {
	if os.Getenv(hardwareVariable) == "" && os.Getenv(pidsVariable) == "" {
		t.Skip("NOT TESTED: it prints what a real driver answers; make test-hardware runs it")
	}

	lib := nvmlsource.Open("libnvidia-ml.so.1")
	before, kernelErr := nvrmLines()
	began := time.Now()

	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("nvmlInit: %s", codeText(ret))
	}

	defer lib.Shutdown()
	list := facts(lib, time.Since(began), func() { <-time.After(gpmWindow) })

	if os.Getenv(pidsVariable) != "" {
		for _, line := range list {
			if strings.Contains(line, ": processes ") {
				counted, _, _ := strings.Cut(line, ",")
				fmt.Println("in a PID namespace of its own, " + counted)
			}
		}

		return
	}

	list = append(list, elsewhere())

	after, err := nvrmLines()
	switch {
	case kernelErr != nil || err != nil:
		list = append(list, fmt.Sprintf("NVRM lines of the kernel's log: %v", kernelErr))
	default:
		list = append(list, fmt.Sprintf("NVRM lines of the kernel's log: %d, %d of them by this test", len(after),
			max(len(after)-len(before), 0)))
	}

	t.Log("\n" + strings.Join(list, "\n"))
}

// elsewhere runs this test in a PID namespace of its own, which takes root. The driver leaves out
// there the processes that it does not contain.
func elsewhere() string {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFactsOfTheHardware$", "-test.count=1")
	cmd.Env = append(os.Environ(), pidsVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}

	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("in a PID namespace of its own: %v", err)
	}

	return strings.TrimSpace(strings.ReplaceAll(string(out), "PASS\n", ""))
}

// nvrmLines returns the driver's lines of the kernel's log. They can have names of processes: they
// are only counted.
func nvrmLines() ([]string, error) {
	const readAll = 3 // SYSLOG_ACTION_READ_ALL of syslog(2)
	log := make([]byte, 4<<20)

	n, err := syscall.Klogctl(readAll, log)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log: %w", err)
	}

	lines := strings.Split(string(log[:n]), "\n")

	return slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, "NVRM:") }), nil
}

// TestFactsOfTheSimulation: the facts are asked for and printed, those that are not answered as
// well.
func TestFactsOfTheSimulation(t *testing.T) {
	for scenario, want := range map[string][]string{
		scenarios + "b200-power.yaml": {
			"nvmlInit took 1.500 s", "GPU 0: name NVIDIA B200, MIG mode 1, persistence mode 1",
			"GPU 0: power in mW not supported, energy in mJ ", "GPU 1: power in mW not supported, energy in mJ not supported", "GPU 2: power in mW ",
			"GPU 0: MIG device 0: processes 1, memory used, reserved and total in MiB ",
			"GPU 2: NVLink KiB sent, all links (type 3): not supported", "GPU 2: NVLink bytes sent, link 0 (type 3): ",
			"all links as a scope (type 3): invalid argument", "GPU 0: events of unavailable GPUs: ok",
			"GPU 0: temperature margin ", "threshold of slowdown not supported",
			"GPU 0: GPU instance 3 at 0:2, compute instances 1, GPM: ",
		},
		scenarioFile(t, "version: 1\nnode: {privileged: false}\ngpus: [{model: H100-80GB, mig: true, layout: [{gi: 3g.40gb@4, ci: []}]}]"): {
			"GPU 0: processes no permission, listed in ", "volatile ECC DRAM corrected 0, uncorrected 0; SRAM corrected 0",
			"GPU instances of profile 9: no permission", "memory used, reserved and total in MiB no permission",
		},
		scenarioFile(t, "version: 1\ngpus: [{model: H100-80GB, mig: true, layout: [{gi: 3g.40gb@4, ci: []}]}]"): {
			"GPU 0: GPU instance 2 at 4:4, compute instances 0, GPM: code ",
		},
	} {
		s := simulated(t, scenario, filepath.Join(t.TempDir(), "state"))
		if ret := s.lib.Init(); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}

		cmptest.HasTexts(t, strings.Join(facts(s.lib, 1500*time.Millisecond, s.pass), "\n"), want...)

		if ret := s.lib.Shutdown(); ret != nvml.SUCCESS {
			t.Error(ret)
		}
	}
}
