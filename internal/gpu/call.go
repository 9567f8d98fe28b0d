package gpu

import "time"

// CallClass says whom a call of the driver's library keeps waiting while it runs.
type CallClass string

// The classes. A library call becomes control requests to the kernel driver. A control takes the
// API lock for writing and the locks of all GPUs, unless its flags say that it only reads or needs
// one GPU alone (open kernel modules 595.45.04: rmapi/control.h and rmapi/control.c).
const (
	// CallExclusive keeps every process on the node from entering the driver: no allocation, no
	// launch set-up, no other call goes on meanwhile.
	CallExclusive CallClass = "exclusive"
	// CallOneGPU shares the API lock and takes the lock of its GPU alone.
	CallOneGPU CallClass = "gpu"
	// CallShared shares all locks that it takes.
	CallShared CallClass = "shared"
	// CallMapped reads or computes in memory of the process and does not enter the driver.
	CallMapped CallClass = "mapped"
	// CallUnknown is every call of which we could not find out the locks: the library is closed.
	// It may be exclusive.
	CallUnknown CallClass = "unknown"
)

// CallClasses returns all classes, the most expensive first, except that CallUnknown is last.
func CallClasses() []CallClass {
	return []CallClass{CallExclusive, CallOneGPU, CallShared, CallMapped, CallUnknown}
}

// CallUse counts the calls of one class.
type CallUse struct {
	Class CallClass
	Calls uint64
	Took  time.Duration // all calls together
}

// ClassifiedCalls returns the classes of the functions of NVML that this project calls, by their
// names in nvml.h without a version.
func ClassifiedCalls() map[string]CallClass {
	all := map[string]CallClass{}

	for _, group := range []struct {
		class     CallClass
		functions []string
	}{
		{CallExclusive, exclusiveCalls()},
		{CallOneGPU, oneGPUCalls()},
		{CallMapped, mappedCalls()},
		{CallUnknown, unknownCalls()},
	} {
		for _, function := range group.functions {
			all[function] = group.class
		}
	}

	return all
}

// exclusiveCalls returns the calls whose controls carry neither API_LOCK_READONLY nor
// GPU_LOCK_DEVICE_ONLY.
func exclusiveCalls() []string {
	return []string{
		// GET_PIDS and GET_PID_INFO have the flag NON_PRIVILEGED alone, and walk all clients and
		// their objects (gpu_rmapi.c 833, rmapi/control.c 911-990). Others measured 4.5 ms for the
		// graphics list of an RTX 4090, with all other threads waiting in the kernel
		// (flightlessmango/MangoHud#2104).
		"nvmlDeviceGetComputeRunningProcesses",
		"nvmlDeviceGetGraphicsRunningProcesses",
		"nvmlDeviceGetMPSComputeRunningProcesses",

		// ExecPartitionsGet and GetActivePartitionIds have the flags 0x10008: NON_PRIVILEGED and
		// GSP_PLUGIN_FOR_VGPU_GSP.
		"nvmlGpuInstanceGetComputeInstances",
	}
}

// oneGPUCalls returns the calls whose controls share the API lock and take the lock of one GPU.
func oneGPUCalls() []string {
	return []string{
		// GetPartitions has the flags 0x10118: API_LOCK_READONLY, GPU_LOCK_DEVICE_ONLY,
		// NON_PRIVILEGED and GSP_PLUGIN_FOR_VGPU_GSP. We assume that the closed library sends no
		// other control.
		"nvmlDeviceGetGpuInstances",
	}
}

// mappedCalls returns the calls that work in memory of the process.
func mappedCalls() []string {
	return []string{
		// GPM is said to read samples from a buffer that the driver has mapped into the process. We
		// assume that: no source that we could read shows it; a trace of the system calls on a real
		// GPU would. nvmlGpmMetricsGet computes metrics from two samples that the caller holds.
		"nvmlGpmSampleGet",
		"nvmlGpmMigSampleGet",
		"nvmlGpmSampleAlloc",
		"nvmlGpmSampleFree",
		"nvmlGpmMetricsGet",
	}
}

// unknownCalls returns the calls whose locks neither the source of the kernel driver nor a
// measurement shows.
func unknownCalls() []string {
	return []string{
		"nvmlInit",
		"nvmlInitNoAttach",
		"nvmlShutdown",
		"nvmlSystemGetConfComputeState",
		"nvmlSystemGetCudaDriverVersion",
		"nvmlSystemGetDriverVersion",
		"nvmlSystemGetNVMLVersion",

		"nvmlEventSetCreate",
		"nvmlEventSetFree",
		"nvmlEventSetWait",
		"nvmlDeviceRegisterEvents",
		"nvmlSystemEventSetWait",

		"nvmlDeviceGetCount",
		"nvmlDeviceGetHandleByIndex",
		"nvmlDeviceGetHandleByPciBusId",
		"nvmlDeviceGetMinorNumber",
		"nvmlDeviceGetName",
		"nvmlDeviceGetPciInfo",
		"nvmlDeviceGetSerial",
		"nvmlDeviceGetUUID",
		"nvmlDeviceGetVbiosVersion",
		"nvmlDeviceGetArchitecture",
		"nvmlDeviceGetCudaComputeCapability",
		"nvmlDeviceGetNumGpuCores",

		"nvmlDeviceGetClockInfo",
		"nvmlDeviceGetComputeMode",
		"nvmlDeviceGetCurrPcieLinkGeneration",
		"nvmlDeviceGetCurrPcieLinkWidth",
		"nvmlDeviceGetCurrentClocksEventReasons",
		"nvmlDeviceGetDecoderUtilization",
		"nvmlDeviceGetEncoderUtilization",
		"nvmlDeviceGetEnforcedPowerLimit",
		"nvmlDeviceGetFanSpeed",
		"nvmlDeviceGetFieldValues",
		"nvmlDeviceGetGpuFabricInfoV",
		"nvmlDeviceGetJpgUtilization",
		"nvmlDeviceGetMarginTemperature",
		"nvmlDeviceGetMemoryErrorCounter",
		"nvmlDeviceGetMemoryInfo",
		"nvmlDeviceGetNumFans",
		"nvmlDeviceGetOfaUtilization",
		"nvmlDeviceGetPcieReplayCounter",
		"nvmlDeviceGetPersistenceMode",
		"nvmlDeviceGetPerformanceState",
		"nvmlDeviceGetPowerUsage",
		"nvmlDeviceGetProcessUtilization",
		"nvmlDeviceGetRemappedRows",
		"nvmlDeviceGetTemperature",
		"nvmlDeviceGetTemperatureThreshold",
		"nvmlDeviceGetTotalEccErrors",
		"nvmlDeviceGetTotalEnergyConsumption",
		"nvmlDeviceGetUtilizationRates",

		// This one does not use the buffer of mappedCalls.
		"nvmlGpmQueryDeviceSupport",

		"nvmlDeviceGetAttributes",
		"nvmlDeviceGetComputeInstanceId",
		"nvmlDeviceGetGpuInstanceId",
		"nvmlDeviceGetGpuInstancePossiblePlacements",
		"nvmlDeviceGetGpuInstanceProfileInfo",
		"nvmlDeviceGetMaxMigDeviceCount",
		"nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetMigMode",
		"nvmlGpuInstanceGetComputeInstancePossiblePlacements",
		"nvmlGpuInstanceGetComputeInstanceProfileInfo",
		"nvmlGpuInstanceGetInfo",
		"nvmlComputeInstanceGetInfo",

		"nvmlDeviceSetMigMode",
		"nvmlDeviceCreateGpuInstanceWithPlacement",
		"nvmlGpuInstanceDestroy",
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement",
		"nvmlComputeInstanceDestroy",
	}
}
