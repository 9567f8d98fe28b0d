/*
 * The part of NVML's binary interface (API 13) that this library speaks. Every name is NVML's own behind "sim_" or
 * "SIM_"; a test holds sizes, offsets and values against nvml.h.
 */
#ifndef SIM_ABI_H
#define SIM_ABI_H

typedef unsigned int sim_u32;
typedef unsigned long long sim_u64;

enum {
	SIM_NVML_SUCCESS = 0,
	SIM_NVML_ERROR_UNINITIALIZED = 1,
	SIM_NVML_ERROR_INVALID_ARGUMENT = 2,
	SIM_NVML_ERROR_NOT_SUPPORTED = 3,
	SIM_NVML_ERROR_NO_PERMISSION = 4,
	SIM_NVML_ERROR_NOT_FOUND = 6,
	SIM_NVML_ERROR_INSUFFICIENT_SIZE = 7,
	SIM_NVML_ERROR_DRIVER_NOT_LOADED = 9,
	SIM_NVML_ERROR_TIMEOUT = 10,
	SIM_NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	SIM_NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	SIM_NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	SIM_NVML_ERROR_UNKNOWN = 999,

	SIM_NVML_CC_SYSTEM_ENVIRONMENT_PROD = 2,
	SIM_NVML_CC_SYSTEM_FEATURE_ENABLED = 1,

	SIM_NVML_FEATURE_DISABLED = 0,
	SIM_NVML_FEATURE_ENABLED = 1,
	SIM_NVML_DEVICE_MIG_ENABLE = 1,
	SIM_NVML_BRAND_NVIDIA = 14,
	SIM_NVML_BUS_TYPE_PCIE = 2,
	SIM_NVML_DEVICE_ADDRESSING_MODE_NONE = 0,
	SIM_NVML_DEVICE_ARCH_AMPERE = 7,
	SIM_NVML_DEVICE_ARCH_HOPPER = 9,
	SIM_NVML_DEVICE_ARCH_BLACKWELL = 10,
	SIM_NVML_COMPUTEMODE_DEFAULT = 0,
	SIM_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
	SIM_NVML_GPU_VIRTUALIZATION_MODE_NONE = 0,

	SIM_NVML_CLOCK_ID_CURRENT = 0,
	SIM_NVML_CLOCK_ID_CUSTOMER_BOOST_MAX = 3,

	SIM_NVML_TEMPERATURE_GPU = 0,
	SIM_NVML_GPU_FABRIC_STATE_COMPLETED = 3,
	SIM_NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY = 1,

	SIM_NVML_TOPOLOGY_INTERNAL = 0,
	SIM_NVML_TOPOLOGY_NODE = 40,
	SIM_NVML_TOPOLOGY_SYSTEM = 50,
	SIM_NVML_NVLINK_DEVICE_TYPE_SWITCH = 2,

	SIM_NVML_PCIE_UTIL_TX_BYTES = 0,
	SIM_NVML_PCIE_UTIL_RX_BYTES = 1,

	SIM_NVML_VOLATILE_ECC = 0,
	SIM_NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1,
	SIM_NVML_MEMORY_LOCATION_DEVICE_MEMORY = 2,
	SIM_NVML_MEMORY_LOCATION_SRAM = 7,

	SIM_NVML_UUID_TYPE_ASCII = 1,
	SIM_NVML_UUID_TYPE_BINARY = 2,

	SIM_NVML_GPU_INSTANCE_PROFILE_CAPS_GFX = 2,
	SIM_NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED = 0,

	SIM_nvmlSystemEventTypeGpuDriverUnbind = 0x1,
	SIM_nvmlSystemEventTypeGpuDriverBind = 0x2,

	SIM_nvmlClocksEventReasonGpuIdle = 0x1,
	SIM_nvmlClocksEventReasonSwPowerCap = 0x4,
	SIM_nvmlClocksEventReasonSwThermalSlowdown = 0x20,
};

/* A versioned struct begins with its version: its size, and its number in the highest byte. */
#define SIM_VERSION(type, number) ((sim_u32)(sizeof(type) | (number) << 24))

typedef struct {
	char busIdLegacy[16];
	sim_u32 domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} sim_nvmlPciInfo_t;

typedef struct {
	sim_u32 version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
	char busId[32];
} sim_nvmlPciInfoExt_v1_t;
#define SIM_nvmlPciInfoExt_v1 SIM_VERSION(sim_nvmlPciInfoExt_v1_t, 1)

typedef struct {
	sim_u64 total, free, used;
} sim_nvmlMemory_t;

typedef struct {
	sim_u32 version;
	sim_u64 total, reserved, free, used;
} sim_nvmlMemory_v2_t;
#define SIM_nvmlMemory_v2 SIM_VERSION(sim_nvmlMemory_v2_t, 2)

typedef struct {
	sim_u32 environment, ccFeature, devToolsMode;
} sim_nvmlConfComputeSystemState_t;

typedef struct {
	sim_u64 bar1Total, bar1Free, bar1Used;
} sim_nvmlBAR1Memory_t;

typedef struct {
	sim_u32 gpu, memory;
} sim_nvmlUtilization_t;

typedef struct {
	sim_u32 version;
	int sensorType;
	int temperature;
} sim_nvmlTemperature_v1_t;
#define SIM_nvmlTemperature_v1 SIM_VERSION(sim_nvmlTemperature_v1_t, 1)

typedef struct {
	sim_u32 version;
	int marginTemperature;
} sim_nvmlMarginTemperature_v1_t;
#define SIM_nvmlMarginTemperature_v1 SIM_VERSION(sim_nvmlMarginTemperature_v1_t, 1)

typedef struct {
  sim_u32 version;
  unsigned char clusterUuid[16];
  int status;
  sim_u32 cliqueId;
  unsigned char state;
  sim_u32 healthMask;
} sim_nvmlGpuFabricInfo_v2_t;
#define SIM_nvmlGpuFabricInfo_v2 SIM_VERSION(sim_nvmlGpuFabricInfo_v2_t, 2)

typedef struct {
  sim_u32 version;
  unsigned char clusterUuid[16];
  int status;
  sim_u32 cliqueId;
  unsigned char state;
  sim_u32 healthMask;
  unsigned char healthSummary;
} sim_nvmlGpuFabricInfo_v3_t;
#define SIM_nvmlGpuFabricInfo_v3 SIM_VERSION(sim_nvmlGpuFabricInfo_v3_t, 3)

typedef struct {
	sim_u32 version, value;
} sim_nvmlDeviceAddressingMode_v1_t;
#define SIM_nvmlDeviceAddressingMode_v1 SIM_VERSION(sim_nvmlDeviceAddressingMode_v1_t, 1)

typedef struct {
	sim_u64 l1Cache, l2Cache, deviceMemory, registerFile;
} sim_nvmlEccErrorCounts_t;

typedef struct {
	sim_u32 max, high, partial, low, none;
} sim_nvmlRowRemapperHistogramValues_t;

typedef struct {
	sim_u32 corrActiveRemaps, corrInactiveRemaps, uncActiveRemaps, uncInactiveRemaps, bPending, bFailureOccurred;
} sim_nvmlRemappedRowsInfo_v2_t;

typedef struct {
	sim_u32 pid;
	sim_u64 usedGpuMemory;
} sim_nvmlProcessInfo_v1_t;

/* Version 3 of the call has it too. */
typedef struct {
	sim_u32 pid;
	sim_u64 usedGpuMemory;
	sim_u32 gpuInstanceId, computeInstanceId;
} sim_nvmlProcessInfo_v2_t;

typedef struct {
	sim_u32 fieldId, scopeId;
	long long timestamp, latencyUsec;
	int valueType, nvmlReturn;
	sim_u64 value;
} sim_nvmlFieldValue_t;

typedef struct {
	void *device;
	sim_u64 eventType, eventData;
	sim_u32 gpuInstanceId, computeInstanceId;
} sim_nvmlEventData_t;

/* The set is a struct with nothing but a handle. */
typedef struct {
	sim_u32 version;
	void *set;
} sim_nvmlSystemEventSetCreateRequest_v1_t;
#define SIM_nvmlSystemEventSetCreateRequest_v1 SIM_VERSION(sim_nvmlSystemEventSetCreateRequest_v1_t, 1)

typedef struct {
	sim_u32 version;
	void *set;
} sim_nvmlSystemEventSetFreeRequest_v1_t;
#define SIM_nvmlSystemEventSetFreeRequest_v1 SIM_VERSION(sim_nvmlSystemEventSetFreeRequest_v1_t, 1)

typedef struct {
	sim_u32 version;
	sim_u64 eventTypes;
	void *set;
} sim_nvmlSystemRegisterEventRequest_v1_t;
#define SIM_nvmlSystemRegisterEventRequest_v1 SIM_VERSION(sim_nvmlSystemRegisterEventRequest_v1_t, 1)

typedef struct {
	sim_u64 eventType;
	sim_u32 gpuId;
} sim_nvmlSystemEventData_v1_t;

typedef struct {
	sim_u32 version, timeoutms;
	void *set;
	sim_nvmlSystemEventData_v1_t *data;
	sim_u32 dataSize, numEvent;
} sim_nvmlSystemEventSetWaitRequest_v1_t;
#define SIM_nvmlSystemEventSetWaitRequest_v1 SIM_VERSION(sim_nvmlSystemEventSetWaitRequest_v1_t, 1)

typedef struct {
	sim_u32 version, type;
	char value[41]; /* a union with 16 bytes */
} sim_nvmlUUID_v1_t;
#define SIM_nvmlUUID_v1 SIM_VERSION(sim_nvmlUUID_v1_t, 1)

typedef struct {
	sim_u32 version;
	char branch[80];
} sim_nvmlSystemDriverBranchInfo_v1_t;
#define SIM_nvmlSystemDriverBranchInfo_v1 SIM_VERSION(sim_nvmlSystemDriverBranchInfo_v1_t, 1)

typedef struct {
	sim_u32 version, isSupportedDevice;
} sim_nvmlGpmSupport_t;
#define SIM_NVML_GPM_SUPPORT_VERSION 1

typedef struct {
	char *shortName, *longName, *unit;
} sim_nvmlGpmMetricMetricInfo_t;

typedef struct {
	sim_u32 metricId;
	int nvmlReturn;
	double value;
	sim_nvmlGpmMetricMetricInfo_t metricInfo;
} sim_nvmlGpmMetric_t;

typedef struct {
	sim_u32 version, numMetrics;
	void *sample1, *sample2;
	sim_nvmlGpmMetric_t metrics[333];
} sim_nvmlGpmMetricsGet_t;
#define SIM_NVML_GPM_METRICS_GET_VERSION 1
#define SIM_NVML_GPM_METRIC_MAX 333

typedef struct {
	sim_u32 pid;
	sim_u64 timeStamp;
	sim_u32 smUtil, memUtil, encUtil, decUtil;
} sim_nvmlProcessUtilizationSample_t;

typedef struct {
	sim_u32 multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount;
	sim_u32 sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
	sim_u64 memorySizeMB;
} sim_nvmlDeviceAttributes_t;

typedef struct {
	sim_u32 start, size;
} sim_nvmlGpuInstancePlacement_t;

typedef struct {
	sim_u32 id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
	sim_u32 copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	sim_u64 memorySizeMB;
} sim_nvmlGpuInstanceProfileInfo_t;

typedef struct {
	sim_u32 version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
	sim_u32 copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	sim_u64 memorySizeMB;
	char name[96];
} sim_nvmlGpuInstanceProfileInfo_v2_t;
#define SIM_nvmlGpuInstanceProfileInfo_v2 SIM_VERSION(sim_nvmlGpuInstanceProfileInfo_v2_t, 2)

typedef struct {
	sim_u32 version, id, sliceCount, instanceCount, multiprocessorCount;
	sim_u32 copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	sim_u64 memorySizeMB;
	char name[96];
	sim_u32 capabilities;
} sim_nvmlGpuInstanceProfileInfo_v3_t;
#define SIM_nvmlGpuInstanceProfileInfo_v3 SIM_VERSION(sim_nvmlGpuInstanceProfileInfo_v3_t, 3)

typedef struct {
	void *device;
	sim_u32 id, profileId;
	sim_nvmlGpuInstancePlacement_t placement;
} sim_nvmlGpuInstanceInfo_t;

typedef struct {
	sim_u32 start, size;
} sim_nvmlComputeInstancePlacement_t;

typedef struct {
	sim_u32 id, sliceCount, instanceCount, multiprocessorCount;
	sim_u32 sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} sim_nvmlComputeInstanceProfileInfo_t;

typedef struct {
	sim_u32 version, id, sliceCount, instanceCount, multiprocessorCount;
	sim_u32 sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
	char name[96];
} sim_nvmlComputeInstanceProfileInfo_v2_t;
#define SIM_nvmlComputeInstanceProfileInfo_v2 SIM_VERSION(sim_nvmlComputeInstanceProfileInfo_v2_t, 2)

typedef struct {
	sim_u32 version, id, sliceCount, instanceCount, multiprocessorCount;
	sim_u32 sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
	char name[96];
	sim_u32 capabilities;
} sim_nvmlComputeInstanceProfileInfo_v3_t;
#define SIM_nvmlComputeInstanceProfileInfo_v3 SIM_VERSION(sim_nvmlComputeInstanceProfileInfo_v3_t, 3)

typedef struct {
	void *device;
	void *gpuInstance;
	sim_u32 id, profileId;
	sim_nvmlComputeInstancePlacement_t placement;
} sim_nvmlComputeInstanceInfo_t;

#endif
