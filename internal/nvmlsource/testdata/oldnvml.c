/*
 * An NVML of an old driver with one A100 in MIG mode, for the tests of binding.go: it lacks most functions, so a
 * program that calls one without looking it up first ends. Structs and codes are those of nvml.h.
 */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int start, size; } placement_t;
typedef struct { void *device; unsigned int id, profile; placement_t placement; } gpu_instance_info_t;
typedef struct {
  unsigned int id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
  unsigned long long memoryMB;
} profile_t;

static int gpu, gpu_instance, gone_instance, mig_device, compute_instance, events;

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *to, unsigned int n) { strncpy(to, "450.80.02", n); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d) { *d = &gpu; return SUCCESS; }

int nvmlDeviceGetUUID(void *d, char *to, unsigned int n) {
  strncpy(to, d == &gpu ? "GPU-11111111-2222-3333-4444-555555555555" : "MIG-GPU-11111111-2222-3333-4444-555555555555/2/0", n);
  return SUCCESS;
}

int nvmlDeviceGetName(void *d, char *to, unsigned int n) {
  strncpy(to, d == &gpu ? "A100-SXM4-40GB" : "A100-SXM4-40GB MIG 3g.20gb", n);
  return SUCCESS;
}

/* The second version has reserved words where the third has the long bus id. */
typedef struct { char bus_id[16]; unsigned int domain, bus, device, id, subsystem, reserved[4]; } pci_t;

int nvmlDeviceGetPciInfo_v2(void *d, pci_t *p) {
  *p = (pci_t){"0000:07:00.0", 0, 7, 0, 0x20B010DE, 0, {0x41414141, 0x42424242}};
  return SUCCESS;
}

/* Events in their first version, which has no instances: the caller's 0 stays. There is one. */
typedef struct { void *device; unsigned long long type, data; } event_t;

int nvmlEventSetCreate(void **set) { *set = &events; return SUCCESS; }
int nvmlEventSetFree(void *set) { return SUCCESS; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set) { return types == 8 ? SUCCESS : NOT_SUPPORTED; }

int nvmlEventSetWait(void *set, event_t *e, unsigned int timeout) {
  if (events) return TIMEOUT;
  events = 1;
  *e = (event_t){&gpu, 8, 31};
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

/*
 * There is no nvmlDeviceGetGpuInstanceProfileInfoV. The number of instances is wrong, as on some drivers, and a profile in the
 * middle is not known at all.
 */
int nvmlDeviceGetGpuInstanceProfileInfo(void *d, unsigned int enumerated, profile_t *p) {
  if (enumerated > 6 || enumerated == 3) return INVALID_ARGUMENT;
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

/* Profile 99 is not reported; its instance has just been destroyed. */
int nvmlDeviceGetGpuInstances(void *d, unsigned int profile, void **to, unsigned int *n) {
  to[0] = profile == 99 ? &gone_instance : &gpu_instance;
  *n = profile == 9 || profile == 99;
  return SUCCESS;
}

int nvmlGpuInstanceGetInfo(void *gi, gpu_instance_info_t *info) {
  *info = (gpu_instance_info_t){&gpu, 2, 9, {4, 4}};
  return SUCCESS;
}

typedef struct { unsigned int id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; } compute_profile_t;

int nvmlGpuInstanceGetComputeInstanceProfileInfo(void *gi, unsigned int enumerated, unsigned int engines, compute_profile_t *p) {
  if (gi == &gone_instance || enumerated > 3 || enumerated == 1) return INVALID_ARGUMENT;
  if (enumerated != 2) return NOT_SUPPORTED;
  *p = (compute_profile_t){2, 3, 1, 42};
  return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstances(void *gi, unsigned int profile, void **to, unsigned int *n) {
  to[0] = &compute_instance;
  *n = 1;
  return SUCCESS;
}

/* The first version, which has no placement. */
typedef struct { void *device, *gpu_instance; unsigned int id, profile; } compute_info_t;

int nvmlComputeInstanceGetInfo(void *ci, compute_info_t *info) {
  *info = (compute_info_t){&gpu, &gpu_instance, 0, 2};
  return SUCCESS;
}

/* It can destroy instances, but not create them again where they were: a client that destroys one has not looked. */
int nvmlGpuInstanceGetComputeInstanceById(void *gi, unsigned int id, void **to) { *to = &compute_instance; return SUCCESS; }
int nvmlComputeInstanceDestroy(void *ci) { abort(); }
int nvmlGpuInstanceDestroy(void *gi) { abort(); }
