package capture

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// The types of answers that NVML has none of its own for.
type (
	none         struct{} // a return code and nothing else
	gpuName      string   // a GPU of the recording
	count        int      // how many handles there are
	capability   struct{ Major, Minor int }
	migMode      struct{ Current, Pending int }
	remappedRows struct {
		Correctable, Uncorrectable int
		Pending, Failure           bool
	}
	// fieldValue is a value of nvmlDeviceGetFieldValues: its type, and its bytes as the machine reads them.
	fieldValue struct {
		kind uint32
		bits uint64
	}
)

// question is a function of NVML as the driver seam has it.
type question struct {
	name   string
	args   []argument
	answer reflect.Type
}

// asks makes a question whose answer is of type T.
func asks[T any](name string, args ...argument) question {
	return question{name, args, reflect.TypeFor[T]()}
}

// nodeQuestions are put to the driver as a whole.
func nodeQuestions() []question {
	return []question{
		asks[none]("nvmlInit"),
		asks[string]("nvmlSystemGetDriverVersion"),
		asks[string]("nvmlSystemGetNVMLVersion"),
		asks[int]("nvmlSystemGetCudaDriverVersion"),
		asks[count]("nvmlDeviceGetCount"),
		asks[gpuName]("nvmlDeviceGetHandleByIndex", numberArg()),
		asks[none]("nvmlEventSetCreate"),
		asks[none]("nvmlGpmSampleAlloc"),
	}
}

// gpuQuestions are put to a physical GPU.
func gpuQuestions() []question {
	return []question{
		asks[string]("nvmlDeviceGetUUID"),
		asks[string]("nvmlDeviceGetName"),
		asks[nvml.Memory_v2]("nvmlDeviceGetMemoryInfo"),
		asks[[]nvml.ProcessInfo]("nvmlDeviceGetComputeRunningProcesses"),
		asks[nvml.DeviceArchitecture]("nvmlDeviceGetArchitecture"),
		asks[capability]("nvmlDeviceGetCudaComputeCapability"),
		asks[int]("nvmlDeviceGetNumGpuCores"),
		asks[string]("nvmlDeviceGetSerial"),
		asks[string]("nvmlDeviceGetVbiosVersion"),
		asks[int]("nvmlDeviceGetMinorNumber"),
		asks[nvml.PciInfo]("nvmlDeviceGetPciInfo"),
		asks[nvml.Utilization]("nvmlDeviceGetUtilizationRates"),
		asks[uint32]("nvmlDeviceGetPowerUsage"),
		asks[uint32]("nvmlDeviceGetEnforcedPowerLimit"),
		asks[uint64]("nvmlDeviceGetTotalEnergyConsumption"),
		asks[int]("nvmlDeviceGetTemperature"),
		asks[uint32]("nvmlDeviceGetClockInfo", clockArg()),
		asks[uint64]("nvmlDeviceGetCurrentClocksEventReasons"),
		asks[nvml.Pstates]("nvmlDeviceGetPerformanceState"),
		asks[int]("nvmlDeviceGetNumFans"),
		asks[uint32]("nvmlDeviceGetFanSpeed_v2", numberArg()),
		asks[uint32]("nvmlDeviceGetEncoderUtilization"),
		asks[uint32]("nvmlDeviceGetDecoderUtilization"),
		asks[uint32]("nvmlDeviceGetJpgUtilization"),
		asks[uint32]("nvmlDeviceGetOfaUtilization"),
		asks[none]("nvmlDeviceGetFieldValues"),
		asks[fieldValue]("nvmlDeviceGetFieldValues", fieldArg(), numberArg()),
		asks[int]("nvmlDeviceGetPcieReplayCounter"),
		asks[int]("nvmlDeviceGetCurrPcieLinkWidth"),
		asks[int]("nvmlDeviceGetCurrPcieLinkGeneration"),
		asks[uint64]("nvmlDeviceGetMemoryErrorCounter", severityArg(), lifetimeArg(), locationArg()),
		asks[uint64]("nvmlDeviceGetTotalEccErrors", severityArg(), lifetimeArg()),
		asks[remappedRows]("nvmlDeviceGetRemappedRows"),
		asks[nvml.ComputeMode]("nvmlDeviceGetComputeMode"),
		asks[[]nvml.ProcessInfo]("nvmlDeviceGetGraphicsRunningProcesses"),
		asks[[]nvml.ProcessInfo]("nvmlDeviceGetMPSComputeRunningProcesses"),
		asks[none]("nvmlDeviceRegisterEvents", eventArg()),
		asks[migMode]("nvmlDeviceGetMigMode"),
		asks[int]("nvmlDeviceGetMaxMigDeviceCount"),
		asks[none]("nvmlDeviceGetMigDeviceHandleByIndex", numberArg()),
		asks[nvml.GpuInstanceProfileInfo_v3]("nvmlDeviceGetGpuInstanceProfileInfo", numberArg()),
		asks[[]nvml.GpuInstancePlacement]("nvmlDeviceGetGpuInstancePossiblePlacements", numberArg()),
		asks[count]("nvmlDeviceGetGpuInstances", numberArg()),
		asks[[]nvml.ProcessUtilizationSample]("nvmlDeviceGetProcessUtilization"),
		asks[bool]("nvmlGpmQueryDeviceSupport"),
		asks[none]("nvmlGpmSampleGet"),
		asks[none]("nvmlGpmMigSampleGet", numberArg()),
		asks[none]("nvmlGpmMetricsGet", gpmArg()),
		asks[float64]("nvmlGpmMetricsGet", gpmArg(), metricArg()),
	}
}

// migQuestions are put to a MIG device.
func migQuestions() []question {
	return []question{
		asks[string]("nvmlDeviceGetUUID"),
		asks[string]("nvmlDeviceGetName"),
		asks[nvml.Memory_v2]("nvmlDeviceGetMemoryInfo"),
		asks[[]nvml.ProcessInfo]("nvmlDeviceGetComputeRunningProcesses"),
		asks[int]("nvmlDeviceGetGpuInstanceId"),
		asks[int]("nvmlDeviceGetComputeInstanceId"),
		asks[nvml.DeviceAttributes]("nvmlDeviceGetAttributes"),
		asks[none]("nvmlGpmSampleGet"),
		asks[none]("nvmlGpmMetricsGet", gpmArg()),
		asks[float64]("nvmlGpmMetricsGet", gpmArg(), metricArg()),
	}
}

// instanceQuestions are put to a GPU instance.
func instanceQuestions() []question {
	return []question{
		asks[nvmlsrc.GPUInstanceInfo]("nvmlGpuInstanceGetInfo"),
		asks[[]nvmlsrc.ComputeInstanceInfo]("nvmlGpuInstanceGetComputeInstances"),
	}
}

// argument is a number whose values have names, all or some of them.
type argument []argumentName

type argumentName struct {
	value uint64
	name  string
}

// named gives names to the numbers from 0.
func named(names ...string) argument {
	a := make(argument, 0, len(names))
	for i, name := range names {
		a = append(a, argumentName{uint64(i), name})
	}
	return a
}

// The names are those of nvml.h without the prefix that all of them have.
func numberArg() argument   { return nil }
func clockArg() argument    { return named("GRAPHICS", "SM", "MEM", "VIDEO") }
func severityArg() argument { return named("CORRECTED", "UNCORRECTED") }
func lifetimeArg() argument { return named("VOLATILE", "AGGREGATE") }

func locationArg() argument {
	return named("L1_CACHE", "L2_CACHE", "DEVICE_MEMORY", "REGISTER_FILE", "TEXTURE_MEMORY", "TEXTURE_SHM", "CBU", "SRAM")
}

func eventArg() argument {
	return argument{{nvml.EventTypeXidCriticalError, "XID_CRITICAL_ERROR"}, {nvml.EventMigConfigChange, "MIG_CONFIG_CHANGE"}}
}

// gpmArg is what a window of samples is of: a GPU instance by its id, or the entity itself.
func gpmArg() argument { return argument{{wholeEntity, "WHOLE"}} }

func metricArg() argument {
	return append(mediaArg(), argument{
		{uint64(nvml.GPM_METRIC_GRAPHICS_UTIL), "GRAPHICS_UTIL"},
		{uint64(nvml.GPM_METRIC_SM_UTIL), "SM_UTIL"},
		{uint64(nvml.GPM_METRIC_SM_OCCUPANCY), "SM_OCCUPANCY"},
		{uint64(nvml.GPM_METRIC_ANY_TENSOR_UTIL), "ANY_TENSOR_UTIL"},
		{uint64(nvml.GPM_METRIC_FP64_UTIL), "FP64_UTIL"},
		{uint64(nvml.GPM_METRIC_FP32_UTIL), "FP32_UTIL"},
		{uint64(nvml.GPM_METRIC_FP16_UTIL), "FP16_UTIL"},
		{uint64(nvml.GPM_METRIC_DRAM_BW_UTIL), "DRAM_BW_UTIL"},
		{uint64(nvml.GPM_METRIC_PCIE_TX_PER_SEC), "PCIE_TX_PER_SEC"},
		{uint64(nvml.GPM_METRIC_PCIE_RX_PER_SEC), "PCIE_RX_PER_SEC"},
		{uint64(nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC), "NVLINK_TOTAL_RX_PER_SEC"},
		{uint64(nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC), "NVLINK_TOTAL_TX_PER_SEC"},
	}...)
}

// mediaArg are the metrics of media engines, one for each engine: NVDEC_0_UTIL and so on.
func mediaArg() argument {
	var a argument
	for _, kind := range []struct {
		name        string
		first, last nvml.GpmMetricId
	}{
		{"NVDEC", nvml.GPM_METRIC_NVDEC_0_UTIL, nvml.GPM_METRIC_NVDEC_7_UTIL},
		{"NVJPG", nvml.GPM_METRIC_NVJPG_0_UTIL, nvml.GPM_METRIC_NVJPG_7_UTIL},
		{"NVOFA", nvml.GPM_METRIC_NVOFA_0_UTIL, nvml.GPM_METRIC_NVOFA_1_UTIL},
		{"NVENC", nvml.GPM_METRIC_NVENC_0_UTIL, nvml.GPM_METRIC_NVENC_3_UTIL},
	} {
		for id := kind.first; id <= kind.last; id++ {
			a = append(a, argumentName{uint64(id), fmt.Sprintf("%s_%d_UTIL", kind.name, id-kind.first)})
		}
	}
	return a
}

func fieldArg() argument {
	return argument{
		{nvml.FI_DEV_MEMORY_TEMP, "MEMORY_TEMP"},
		{nvml.FI_DEV_PCIE_COUNT_TX_BYTES, "PCIE_COUNT_TX_BYTES"},
		{nvml.FI_DEV_PCIE_COUNT_RX_BYTES, "PCIE_COUNT_RX_BYTES"},
		{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "NVLINK_THROUGHPUT_DATA_TX"},
		{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, "NVLINK_THROUGHPUT_DATA_RX"},
		{nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"},
		{nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"},
		{nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "NVLINK_REPLAY_ERROR_COUNT_TOTAL"},
		{nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "NVLINK_RECOVERY_ERROR_COUNT_TOTAL"},
		{nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, "GET_GPU_RECOVERY_ACTION"},
	}
}

// fieldQuestion names a field with its scope: a link, or 4294967295 for all of them.
func fieldQuestion(id, scope uint32) string {
	return fmt.Sprintf("nvmlDeviceGetFieldValues(%s, %d)", fieldArg().name(uint64(id)), scope)
}

// name is that of a value, or its number.
func (a argument) name(value uint64) string {
	for _, n := range a {
		if n.value == value {
			return n.name
		}
	}
	return strconv.FormatUint(value, 10)
}

// value reads a name or a number.
func (a argument) value(text string) (uint64, bool) {
	for _, n := range a {
		if n.name == text {
			return n.value, true
		}
	}
	v, err := strconv.ParseUint(text, 10, 64)
	return v, err == nil
}

// findQuestion reads a question as it is written, function(argument, ...), and returns it in the form that is asked.
func findQuestion(known []question, text string) (q question, canonical string, err error) {
	name, inner, hasArgs := strings.Cut(text, "(")
	var args []string
	if hasArgs {
		list, closed := strings.CutSuffix(inner, ")")
		if !closed {
			return q, "", fmt.Errorf("is not closed by a parenthesis")
		}
		args = strings.Split(list, ", ")
	}
	at := slices.IndexFunc(known, func(q question) bool { return q.name == name && len(q.args) == len(args) })
	if at < 0 {
		return q, "", fmt.Errorf("is no question that is put here")
	}
	q = known[at]
	for i, a := range q.args {
		v, ok := a.value(args[i])
		if !ok {
			return q, "", fmt.Errorf("has the argument %q, which is neither a number nor a name known here", args[i])
		}
		args[i] = a.name(v)
	}
	if len(args) > 0 {
		name += "(" + strings.Join(args, ", ") + ")"
	}
	return q, name, nil
}
