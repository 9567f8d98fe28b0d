/*
 * The structs of DCGM 4 that this library reads or writes, declared anew so that it builds without DCGM's headers. The
 * contract tests compare every size, offset and version with dcgm_structs.h.
 */
#ifndef DCGM_SIM_ABI_H
#define DCGM_SIM_ABI_H

#include <stdint.h>

#define SIM_MAX_DEVICES 32
#define SIM_MAX_ENTITIES 1024  /* DCGM_GROUP_MAX_ENTITIES_V2 */
#define SIM_MAX_HIERARCHY 448  /* DCGM_MAX_HIERARCHY_INFO */
#define SIM_TEXT 256           /* DCGM_MAX_STR_LENGTH */
#define SIM_VERSION(type, v) ((unsigned int)(sizeof(type) | ((unsigned long)(v) << 24)))

typedef struct {
	unsigned int entityGroupId, entityId;
} sim_dcgmGroupEntityPair_t;

typedef struct {
	unsigned int version, persistAfterDisconnect, timeoutMs, addressIsUnixSocket;
} sim_dcgmConnectV2Params_v2;

typedef struct {
	char gpuUuid[128];
	unsigned int nvmlGpuIndex, nvmlInstanceId, nvmlComputeInstanceId, nvmlMigProfileId, nvmlProfileSlices;
} sim_dcgmMigEntityInfo_t;

typedef struct {
	sim_dcgmGroupEntityPair_t entity, parent;
	sim_dcgmMigEntityInfo_t info;
} sim_dcgmMigHierarchyInfo_v2;

typedef struct {
	unsigned int version, count;
	sim_dcgmMigHierarchyInfo_v2 entityList[SIM_MAX_HIERARCHY];
} sim_dcgmMigHierarchy_v2;

/* The value is a union of a number, a text and 4096 bytes. */
typedef struct {
	unsigned int version;
	unsigned short fieldId, fieldType;
	int status;
	int64_t ts;
	union {
		int64_t i64;
		char str[4096];
	} value;
} sim_dcgmFieldValue_v1;

typedef struct {
	unsigned int version, entityGroupId, entityId;
	unsigned short fieldId, fieldType;
	int status;
	unsigned int unused;
	int64_t ts;
	union {
		int64_t i64;
		char str[4096];
	} value;
} sim_dcgmFieldValue_v2;

typedef struct {
	unsigned int version, memClock, smClock;
} sim_dcgmClockSet_v1;

typedef struct {
	unsigned int version, count;
	sim_dcgmClockSet_v1 clockSet[256];
} sim_dcgmDeviceSupportedClockSets_v1;

typedef struct {
	unsigned int version, slowdownTemp, shutdownTemp;
} sim_dcgmDeviceThermals_v1;

typedef struct {
	unsigned int version, curPowerLimit, defaultPowerLimit, enforcedPowerLimit, minPowerLimit, maxPowerLimit;
} sim_dcgmDevicePowerLimits_v1;

typedef struct {
	unsigned int version;
	char brandName[SIM_TEXT], deviceName[SIM_TEXT], pciBusId[SIM_TEXT], serial[SIM_TEXT], uuid[SIM_TEXT], vbios[SIM_TEXT];
	char inforomImageVersion[SIM_TEXT];
	unsigned int pciDeviceId, pciSubSystemId;
	char driverVersion[SIM_TEXT];
	unsigned int virtualizationMode;
} sim_dcgmDeviceIdentifiers_v1;

typedef struct {
	unsigned int version, bar1Total, fbTotal, fbUsed, fbFree;
} sim_dcgmDeviceMemoryUsage_v1;

typedef struct {
	unsigned int version, persistenceModeEnabled, migModeEnabled, confidentialComputeMode;
} sim_dcgmDeviceSettings_v2;

typedef struct {
	unsigned int version;
	sim_dcgmDeviceSupportedClockSets_v1 clockSets;
	sim_dcgmDeviceThermals_v1 thermalSettings;
	sim_dcgmDevicePowerLimits_v1 powerLimits;
	sim_dcgmDeviceIdentifiers_v1 identifiers;
	sim_dcgmDeviceMemoryUsage_v1 memoryUsage;
	sim_dcgmDeviceSettings_v2 settings;
} sim_dcgmDeviceAttributes_v3;

typedef struct {
	unsigned short majorId, minorId;
	unsigned int numFieldIds;
	unsigned short fieldIds[64];
} sim_dcgmProfMetricGroupInfo_v2;

typedef struct {
	unsigned int version, unused, gpuId, numMetricGroups;
	sim_dcgmProfMetricGroupInfo_v2 metricGroups[10];
} sim_dcgmProfGetMetricGroups_v3;

typedef struct {
	unsigned int version;
	char rawBuildInfoString[512];
} sim_dcgmVersionInfo_v2;

typedef struct {
	unsigned int entityId, linkState[18];
} sim_dcgmNvLinkGpuLinkStatus_v3;

typedef struct {
	unsigned int entityId, linkState[256];
} sim_dcgmNvLinkNvSwitchLinkStatus_t;

typedef struct {
	unsigned int version, numGpus;
	sim_dcgmNvLinkGpuLinkStatus_v3 gpus[SIM_MAX_DEVICES];
	unsigned int numNvSwitches;
	sim_dcgmNvLinkNvSwitchLinkStatus_t nvSwitches[12];
} sim_dcgmNvLinkStatus_v4;

typedef struct {
	char shortName[10], unit[4];
	short width;
} sim_dcgm_field_output_format_t;

typedef struct {
	unsigned short fieldId;
	char fieldType;
	unsigned char size;
	char tag[48];
	int scope, nvmlFieldId;
	unsigned int entityLevel;
	sim_dcgm_field_output_format_t *valueFormat;
} sim_dcgm_field_meta_t;

typedef struct {
	char msg[1024];
	unsigned int code;
} sim_dcgmDiagErrorDetail_t;

typedef struct {
	unsigned int system, health;
	sim_dcgmDiagErrorDetail_t error;
	sim_dcgmGroupEntityPair_t entityInfo;
} sim_dcgmIncidentInfo_t;

typedef struct {
	unsigned int version, overallHealth, incidentCount;
	sim_dcgmIncidentInfo_t incidents[SIM_MAX_ENTITIES];
} sim_dcgmHealthResponse_v5;

typedef struct {
	unsigned int version;
	uintptr_t groupId;
	unsigned int systems;
	long long updateInterval;
	double maxKeepAge;
} sim_dcgmHealthSetParams_v2;

#define SIM_dcgmConnectV2Params_version2 SIM_VERSION(sim_dcgmConnectV2Params_v2, 2)
#define SIM_dcgmMigHierarchy_version2 SIM_VERSION(sim_dcgmMigHierarchy_v2, 2)
#define SIM_dcgmFieldValue_version1 SIM_VERSION(sim_dcgmFieldValue_v1, 1)
#define SIM_dcgmFieldValue_version2 SIM_VERSION(sim_dcgmFieldValue_v2, 2)
#define SIM_dcgmDeviceAttributes_version3 SIM_VERSION(sim_dcgmDeviceAttributes_v3, 3)
#define SIM_dcgmNvLinkStatus_version4 SIM_VERSION(sim_dcgmNvLinkStatus_v4, 4)
#define SIM_dcgmVersionInfo_version2 SIM_VERSION(sim_dcgmVersionInfo_v2, 2)
#define SIM_dcgmProfGetMetricGroups_version3 SIM_VERSION(sim_dcgmProfGetMetricGroups_v3, 3)
#define SIM_dcgmHealthResponse_version5 SIM_VERSION(sim_dcgmHealthResponse_v5, 5)
#define SIM_dcgmHealthSetParams_version2 SIM_VERSION(sim_dcgmHealthSetParams_v2, 2)

#endif
