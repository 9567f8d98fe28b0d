// A libdcgm.so.4 that answers at once, for tests of what is between this package and DCGM: the loading of the library, and
// the cost of go-dcgm. It has the functions of dcgm_agent.h that go-dcgm calls for this package, and no others. STUB_GPUS GPUs (1 if not set) have STUB_INSTANCES
// GPU instances each (0), each with STUB_COMPUTES compute instances (1); entity ids grow from 0. STUB_START and STUB_CONNECT are
// the codes that those calls return. -DWITHOUT_name leaves a function out.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dcgm_agent.h"
#include "dcgm_structs.h"

static int number(const char *name, int otherwise)
{
	const char *text = getenv(name);
	return text ? atoi(text) : otherwise;
}

static int gpus(void) { return number("STUB_GPUS", 1); }
static int instances(void) { return number("STUB_INSTANCES", 0); }
static int computes(void) { return number("STUB_COMPUTES", 1); }

#ifndef WITHOUT_errorString
const char *errorString(dcgmReturn_t result)
{
	switch (result) {
	case DCGM_ST_OK: return "Success";
	case DCGM_ST_INIT_ERROR: return "DCGM initialization error";
	case DCGM_ST_VER_MISMATCH: return "API version mismatch";
	default: return "Generic unspecified error";
	}
}
#endif

#ifndef WITHOUT_dcgmVersionInfo
dcgmReturn_t dcgmVersionInfo(dcgmVersionInfo_t *info)
{
	if (info->version != dcgmVersionInfo_version)
		return DCGM_ST_VER_MISMATCH;
	strcpy(info->rawBuildInfoString, "version:4.2.3;arch:x86_64;buildtype:Release");
	return DCGM_ST_OK;
}
#endif

#ifndef WITHOUT_dcgmInit
dcgmReturn_t dcgmInit(void) { return DCGM_ST_OK; }
#endif
#ifndef WITHOUT_dcgmShutdown
dcgmReturn_t dcgmShutdown(void) { return DCGM_ST_OK; }
#endif

#ifndef WITHOUT_dcgmStartEmbedded
dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *handle)
{
	(void)mode;
	*handle = 1;
	return number("STUB_START", 0);
}
#endif
#ifndef WITHOUT_dcgmStopEmbedded
dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t handle) { (void)handle; return DCGM_ST_OK; }
#endif

#ifndef WITHOUT_dcgmConnect_v2
dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_t *params, dcgmHandle_t *handle)
{
	(void)address, (void)params;
	*handle = 1;
	return number("STUB_CONNECT", 0);
}
#endif
#ifndef WITHOUT_dcgmDisconnect
dcgmReturn_t dcgmDisconnect(dcgmHandle_t handle) { (void)handle; return DCGM_ST_OK; }
#endif

#ifndef WITHOUT_dcgmGetEntityGroupEntities
dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t handle, dcgm_field_entity_group_t group, dcgm_field_eid_t *list, int *count, unsigned int flags)
{
	(void)handle, (void)group, (void)flags;
	*count = gpus();
	for (int i = 0; i < *count; i++)
		list[i] = i;
	return DCGM_ST_OK;
}
#endif

static void uuid(char *to, int gpu)
{
	strcpy(to, "GPU-00000000-0000-0000-0000-000000000000");
	to[strlen(to) - 1] = "0123456789abcdef"[gpu];
}

#ifndef WITHOUT_dcgmGetGpuInstanceHierarchy
dcgmReturn_t dcgmGetGpuInstanceHierarchy(dcgmHandle_t handle, dcgmMigHierarchy_v2 *hierarchy)
{
	(void)handle;
	int n = instances(), parts = computes();
	hierarchy->count = 0;
	for (int i = 0; i < gpus() * n; i++)
		for (int c = -1; c < parts; c++) {
			dcgmMigHierarchyInfo_v2 *e = &hierarchy->entityList[hierarchy->count++];
			e->entity.entityGroupId = c < 0 ? DCGM_FE_GPU_I : DCGM_FE_GPU_CI;
			e->entity.entityId = c < 0 ? i : i * parts + c;
			uuid(e->info.gpuUuid, i / n);
			e->info.nvmlInstanceId = i % n + 1;
			e->info.nvmlComputeInstanceId = c;
			e->info.nvmlProfileSlices = c < 0 ? parts : 1;
		}
	return DCGM_ST_OK;
}
#endif

#ifndef WITHOUT_dcgmGroupCreate
dcgmReturn_t dcgmGroupCreate(dcgmHandle_t handle, dcgmGroupType_t type, const char *name, dcgmGpuGrp_t *group)
{
	(void)handle, (void)type, (void)name;
	*group = 1;
	return DCGM_ST_OK;
}
#endif
#ifndef WITHOUT_dcgmGroupDestroy
dcgmReturn_t dcgmGroupDestroy(dcgmHandle_t handle, dcgmGpuGrp_t group) { (void)handle, (void)group; return DCGM_ST_OK; }
#endif
#ifndef WITHOUT_dcgmGroupAddEntity
dcgmReturn_t dcgmGroupAddEntity(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgm_field_entity_group_t kind, dcgm_field_eid_t entity)
{
	(void)handle, (void)group, (void)kind, (void)entity;
	return DCGM_ST_OK;
}
#endif
#ifndef WITHOUT_dcgmFieldGroupCreate
dcgmReturn_t dcgmFieldGroupCreate(dcgmHandle_t handle, int count, const unsigned short *fields, const char *name, dcgmFieldGrp_t *group)
{
	(void)handle, (void)count, (void)fields, (void)name;
	*group = 1;
	return DCGM_ST_OK;
}
#endif
#ifndef WITHOUT_dcgmFieldGroupDestroy
dcgmReturn_t dcgmFieldGroupDestroy(dcgmHandle_t handle, dcgmFieldGrp_t group) { (void)handle, (void)group; return DCGM_ST_OK; }
#endif
#ifndef WITHOUT_dcgmWatchFields
dcgmReturn_t dcgmWatchFields(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t fields, long long every, double age, int samples)
{
	(void)handle, (void)group, (void)fields, (void)every, (void)age, (void)samples;
	return DCGM_ST_OK;
}
#endif
#ifndef WITHOUT_dcgmUnwatchFields
dcgmReturn_t dcgmUnwatchFields(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t fields)
{
	(void)handle, (void)group, (void)fields;
	return DCGM_ST_OK;
}
#endif

#ifndef WITHOUT_dcgmUpdateAllFields
dcgmReturn_t dcgmUpdateAllFields(dcgmHandle_t handle, int wait) { (void)handle, (void)wait; return DCGM_ST_OK; }
#endif

#ifndef WITHOUT_dcgmEntitiesGetLatestValues
dcgmReturn_t dcgmEntitiesGetLatestValues(dcgmHandle_t handle, dcgmGroupEntityPair_t *entities, unsigned int entityCount, unsigned short *fields,
                                         unsigned int fieldCount, unsigned int flags, dcgmFieldValue_v2 *values)
{
	(void)handle, (void)flags;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	for (unsigned int i = 0; i < entityCount; i++)
		for (unsigned int f = 0; f < fieldCount; f++) {
			dcgmFieldValue_v2 *v = &values[i * fieldCount + f];
			v->version = dcgmFieldValue_version2;
			v->entityGroupId = entities[i].entityGroupId;
			v->entityId = entities[i].entityId;
			v->fieldId = fields[f];
			v->status = DCGM_ST_OK;
			v->ts = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
			if (fields[f] == 54) {
				v->fieldType = DCGM_FT_STRING;
				uuid(v->value.str, entities[i].entityId);
			} else {
				v->fieldType = DCGM_FT_DOUBLE;
				v->value.dbl = (entities[i].entityId + 1) / 1000.0;
			}
		}
	return DCGM_ST_OK;
}
#endif
