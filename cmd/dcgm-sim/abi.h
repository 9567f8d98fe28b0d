/*
 * The part of DCGM's binary interface (DCGM 4) that this library speaks. Every name is DCGM's own behind "sim_" or "SIM_";
 * a test holds sizes, offsets and values against the headers.
 */
#ifndef SIM_ABI_H
#define SIM_ABI_H

#include <stdint.h>

enum {
	SIM_DCGM_ST_OK = 0,
	SIM_DCGM_ST_BADPARAM = -1,
	SIM_DCGM_ST_GENERIC_ERROR = -3,
	SIM_DCGM_ST_NOT_CONFIGURED = -5,
	SIM_DCGM_ST_NOT_SUPPORTED = -6,
	SIM_DCGM_ST_INIT_ERROR = -7,
	SIM_DCGM_ST_NVML_ERROR = -8,
	SIM_DCGM_ST_UNINITIALIZED = -10,
	SIM_DCGM_ST_UNKNOWN_FIELD = -13,
	SIM_DCGM_ST_NO_DATA = -14,
	SIM_DCGM_ST_NOT_WATCHED = -16,
	SIM_DCGM_ST_CONNECTION_NOT_VALID = -21,
	SIM_DCGM_ST_MAX_LIMIT = -24,
	SIM_DCGM_ST_DUPLICATE_KEY = -26,
	SIM_DCGM_ST_REQUIRES_ROOT = -29,
	SIM_DCGM_ST_PROFILING_NOT_SUPPORTED = -36,
	SIM_DCGM_ST_VER_MISMATCH = -12,

	SIM_DCGM_FE_GPU = 1,
	SIM_DCGM_FE_GPU_I = 4,
	SIM_DCGM_FE_GPU_CI = 5,
	SIM_DCGM_MAX_NUM_DEVICES = 32,
	SIM_DCGM_FV_FLAG_LIVE_DATA = 1
};

#define SIM_VERSION(type, version) ((unsigned int)(sizeof(type) | ((unsigned int)(version) << 24)))

typedef struct {
	unsigned int entityGroupId;
	unsigned int entityId;
} sim_dcgmGroupEntityPair_t;

typedef struct {
	char gpuUuid[128];
	unsigned int nvmlGpuIndex;
	unsigned int nvmlInstanceId;
	unsigned int nvmlComputeInstanceId;
	unsigned int nvmlMigProfileId;
	unsigned int nvmlProfileSlices;
} sim_dcgmMigEntityInfo_t;

typedef struct {
	sim_dcgmGroupEntityPair_t entity;
	sim_dcgmGroupEntityPair_t parent;
	sim_dcgmMigEntityInfo_t info;
} sim_dcgmMigHierarchyInfo_v2;

typedef struct {
	unsigned int version;
	unsigned int count;
	sim_dcgmMigHierarchyInfo_v2 entityList[448];
} sim_dcgmMigHierarchy_v2;
#define SIM_dcgmMigHierarchy_version2 SIM_VERSION(sim_dcgmMigHierarchy_v2, 2)

typedef struct {
	unsigned int version;
	unsigned short fieldId;
	unsigned short fieldType;
	int status;
	int64_t ts;
	int64_t value[512];
} sim_dcgmFieldValue_v1;
#define SIM_dcgmFieldValue_version1 SIM_VERSION(sim_dcgmFieldValue_v1, 1)

typedef struct {
	unsigned int version;
	unsigned int entityGroupId;
	unsigned int entityId;
	unsigned short fieldId;
	unsigned short fieldType;
	int status;
	unsigned int unused;
	int64_t ts;
	int64_t value[512];
} sim_dcgmFieldValue_v2;
#define SIM_dcgmFieldValue_version2 SIM_VERSION(sim_dcgmFieldValue_v2, 2)

typedef struct {
	unsigned int version;
	unsigned int persistAfterDisconnect;
	unsigned int timeoutMs;
	unsigned int addressIsUnixSocket;
} sim_dcgmConnectV2Params_v2;
#define SIM_dcgmConnectV2Params_version2 SIM_VERSION(sim_dcgmConnectV2Params_v2, 2)

/* The state of the loaded library, which Go keeps; made by the first call. */
uintptr_t sim_library(void);

#endif
