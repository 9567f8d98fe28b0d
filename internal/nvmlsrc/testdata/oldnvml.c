/*
 * An NVML of an old driver with one A100 in MIG mode, for the tests of binding.go: it lacks most functions, so whoever
 * calls one without looking for it first dies. Structs and codes are those of nvml.h.
 */
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int start, size; } placement_t;
typedef struct { void *device; unsigned int id, profile; placement_t placement; } gpu_instance_info_t;
typedef struct {
  unsigned int id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
  unsigned long long memoryMB;
} profile_t;

static int board, gpu_instance, mig_device;

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *to, unsigned int n) { strncpy(to, "450.80.02", n); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d) { *d = &board; return SUCCESS; }

int nvmlDeviceGetUUID(void *d, char *to, unsigned int n) {
  strncpy(to, d == &board ? "GPU-11111111-2222-3333-4444-555555555555" : "MIG-GPU-11111111-2222-3333-4444-555555555555/2/0", n);
  return SUCCESS;
}

int nvmlDeviceGetName(void *d, char *to, unsigned int n) {
  strncpy(to, d == &board ? "A100-SXM4-40GB" : "A100-SXM4-40GB MIG 3g.20gb", n);
  return SUCCESS;
}

/* There is no nvmlDeviceGetMemoryInfo_v2. */
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) {
  m->total = 40536ULL << 20;
  m->used = 11 << 20;
  m->free = m->total - m->used;
  return SUCCESS;
}

/* The name of nvmlDeviceGetCurrentClocksEventReasons before R535. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *to) { *to = 1; return SUCCESS; }

int nvmlDeviceGetMigMode(void *d, unsigned int *current, unsigned int *pending) { *current = *pending = 1; return SUCCESS; }
int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned int *n) { *n = 7; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned int i, void **to) {
  *to = &mig_device;
  return i == 3 ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(void *d, unsigned int *id) { *id = 2; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(void *d, unsigned int *id) { *id = 0; return SUCCESS; }

/* There is no nvmlDeviceGetGpuInstanceProfileInfoV. The number of instances is wrong, as on some drivers. */
int nvmlDeviceGetGpuInstanceProfileInfo(void *d, unsigned int enumerated, profile_t *p) {
  if (enumerated > 6) return INVALID_ARGUMENT;
  if (enumerated != 2 && enumerated != 4) return NOT_SUPPORTED;
  memset(p, 0, sizeof *p);
  p->id = enumerated == 2 ? 9 : 0;
  p->slices = enumerated == 2 ? 3 : 7;
  p->sms = enumerated == 2 ? 42 : 98;
  p->memoryMB = enumerated == 2 ? 20096 : 40448;
  return SUCCESS;
}

int nvmlDeviceGetGpuInstancePossiblePlacements(void *d, unsigned int profile, placement_t *to, unsigned int *n) {
  *n = profile == 9 ? 2 : 1;
  if (to) to[0] = (placement_t){0, profile == 9 ? 4 : 8};
  if (to && profile == 9) to[1] = (placement_t){4, 4};
  return SUCCESS;
}

int nvmlDeviceGetGpuInstances(void *d, unsigned int profile, void **to, unsigned int *n) {
  to[0] = &gpu_instance;
  *n = profile == 9;
  return SUCCESS;
}

int nvmlGpuInstanceGetInfo(void *gi, gpu_instance_info_t *info) {
  *info = (gpu_instance_info_t){&board, 2, 9, {4, 4}};
  return SUCCESS;
}
