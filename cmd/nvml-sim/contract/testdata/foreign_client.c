/*
 * A client of NVML as others write them: it finds every function with dlsym, as pynvml and go-nvml do, asks in the order
 * in which known clients ask, and prints the answers. Whatever the library fills ends at an unreadable page, so that
 * one byte too many ends the program.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

static void *library;

static void *symbol(const char *name)
{
	void *f = dlsym(library, name);

	if (!f) {
		printf("no %s\n", name);
		exit(1);
	}
	return f;
}

#define F(name) ((__typeof__(&name))symbol(#name))
#define SAY(name, ...) say(#name, F(name)(__VA_ARGS__))
#define ROOM(type) ((type *)edge(sizeof(type)))

/* edge returns room that ends where a page begins that must not be touched. It is never freed. */
static void *edge(size_t size)
{
	long page = sysconf(_SC_PAGESIZE);
	size_t length = (size + page - 1) / page * page;
	char *at = mmap(NULL, length + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mprotect(at + length, page, PROT_NONE);
	return at + length - size;
}

static int say(const char *name, nvmlReturn_t ret)
{
	if (ret != NVML_SUCCESS)
		printf("%s: %s\n", name, F(nvmlErrorString)(ret));
	return ret;
}

static nvmlDevice_t device(unsigned index)
{
	nvmlDevice_t *d = ROOM(nvmlDevice_t);

	SAY(nvmlDeviceGetHandleByIndex_v2, index, d);
	return *d;
}

static void tell_gpu(unsigned index)
{
	nvmlDevice_t d = device(index);
	char *name = edge(64), *uuid = edge(96), *serial = edge(30), *vbios = edge(32);
	nvmlPciInfo_t *pci = ROOM(nvmlPciInfo_t);
	char *old_pci = edge(32), *second_pci = edge(52);
	nvmlMemory_t *memory = ROOM(nvmlMemory_t);
	nvmlMemory_v2_t *memory2 = ROOM(nvmlMemory_v2_t);
	unsigned *minor = ROOM(unsigned), *now = ROOM(unsigned), *pending = ROOM(unsigned);

	SAY(nvmlDeviceGetName, d, name, 64);
	SAY(nvmlDeviceGetUUID, d, uuid, 96);
	SAY(nvmlDeviceGetSerial, d, serial, 30);
	SAY(nvmlDeviceGetVbiosVersion, d, vbios, 32);
	SAY(nvmlDeviceGetMinorNumber, d, minor);
	SAY(nvmlDeviceGetPciInfo_v3, d, pci);
	SAY(nvmlDeviceGetPciInfo, d, (nvmlPciInfo_t *)old_pci);
	SAY(nvmlDeviceGetPciInfo_v2, d, (nvmlPciInfo_t *)second_pci);
	SAY(nvmlDeviceGetMemoryInfo, d, memory);
	memory2->version = nvmlMemory_v2;
	SAY(nvmlDeviceGetMemoryInfo_v2, d, memory2);
	SAY(nvmlDeviceGetMigMode, d, now, pending);
	printf("GPU %u: %s (UUID: %s) minor %u at %s, %s, %s serial %s VBIOS %s MIG %u/%u\n", index, name, uuid, *minor, pci->busId,
	       pci->busIdLegacy, strcmp(old_pci, pci->busIdLegacy) || strcmp(second_pci, pci->busIdLegacy) ? "differing" : "same", serial,
	       vbios, *now, *pending);
	printf("memory %llu MiB, %llu MiB, reserved %llu MiB\n", memory->total >> 20, memory2->total >> 20, memory2->reserved >> 20);
}

/* As nvidia-smi -L, and what the device plugin asks of each MIG device. */
static void tell_mig(unsigned index)
{
	nvmlDevice_t d = device(index), *m = ROOM(nvmlDevice_t), *parent = ROOM(nvmlDevice_t), *by_uuid = ROOM(nvmlDevice_t);
	unsigned *max = ROOM(unsigned), *gi = ROOM(unsigned), *ci = ROOM(unsigned), *is = ROOM(unsigned), *at = ROOM(unsigned);
	nvmlDeviceAttributes_t *attributes = ROOM(nvmlDeviceAttributes_t);
	nvmlGpuInstance_t *g = ROOM(nvmlGpuInstance_t);
	nvmlGpuInstanceInfo_t *gi_info = ROOM(nvmlGpuInstanceInfo_t);
	nvmlComputeInstance_t *c = ROOM(nvmlComputeInstance_t);
	nvmlComputeInstanceInfo_t *ci_info = ROOM(nvmlComputeInstanceInfo_t);
	char *uuid = edge(96), *name = edge(96), *old_attributes = edge(24), *old_info = edge(24);

	SAY(nvmlDeviceGetMaxMigDeviceCount, d, max);
	for (unsigned i = 0; i < *max; i++) {
		if (F(nvmlDeviceGetMigDeviceHandleByIndex)(d, i, m) != NVML_SUCCESS)
			continue;
		SAY(nvmlDeviceIsMigDeviceHandle, *m, is);
		SAY(nvmlDeviceGetIndex, *m, at);
		SAY(nvmlDeviceGetUUID, *m, uuid, 96);
		SAY(nvmlDeviceGetName, *m, name, 96);
		SAY(nvmlDeviceGetHandleByUUID, uuid, by_uuid);
		SAY(nvmlDeviceGetGpuInstanceId, *m, gi);
		SAY(nvmlDeviceGetComputeInstanceId, *m, ci);
		SAY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, *m, parent);
		SAY(nvmlDeviceGetAttributes_v2, *m, attributes);
		SAY(nvmlDeviceGetAttributes, *m, (nvmlDeviceAttributes_t *)old_attributes);
		SAY(nvmlDeviceGetGpuInstanceById, *parent, *gi, g);
		SAY(nvmlGpuInstanceGetInfo, *g, gi_info);
		SAY(nvmlGpuInstanceGetComputeInstanceById, *g, *ci, c);
		SAY(nvmlComputeInstanceGetInfo_v2, *c, ci_info);
		SAY(nvmlComputeInstanceGetInfo, *c, (nvmlComputeInstanceInfo_t *)old_info);
		printf("  MIG device %u: %s (UUID: %s) GI %u CI %u profile %u/%u placement %u:%u, %u:%u; %u SMs %ug %uc %llu MiB; %s\n", i, name, uuid,
		       *gi, *ci, gi_info->profileId, ci_info->profileId, gi_info->placement.start, gi_info->placement.size,
		       ci_info->placement.start, ci_info->placement.size, attributes->multiprocessorCount, attributes->gpuInstanceSliceCount,
		       attributes->computeInstanceSliceCount, attributes->memorySizeMB,
		       *is && *at == i && parent->handle == d.handle && by_uuid->handle == m->handle && !memcmp(attributes, old_attributes, 24) &&
					       !memcmp(ci_info, old_info, 24)
			       ? "consistent"
			       : "INCONSISTENT");
	}
}

/* As nvidia-smi mig -lgip and -lgipp. */
static void list_profiles(unsigned index)
{
	nvmlDevice_t d = device(index);
	nvmlGpuInstanceProfileInfo_t *plain = ROOM(nvmlGpuInstanceProfileInfo_t);
	nvmlGpuInstanceProfileInfo_v2_t *named = ROOM(nvmlGpuInstanceProfileInfo_v2_t);
	nvmlGpuInstanceProfileInfo_v3_t *newest = ROOM(nvmlGpuInstanceProfileInfo_v3_t);
	unsigned *count = ROOM(unsigned), *left = ROOM(unsigned);

	for (unsigned p = 0;; p++) {
		nvmlReturn_t ret = F(nvmlDeviceGetGpuInstanceProfileInfo)(d, p, plain);

		if (ret == NVML_ERROR_INVALID_ARGUMENT) {
			printf("%u kinds of profile\n", p);
			return;
		}
		if (ret != NVML_SUCCESS)
			continue;
		named->version = nvmlGpuInstanceProfileInfo_v2;
		newest->version = nvmlGpuInstanceProfileInfo_v3;
		SAY(nvmlDeviceGetGpuInstanceProfileInfoV, d, p, named);
		SAY(nvmlDeviceGetGpuInstanceProfileInfoByIdV, d, plain->id, (nvmlGpuInstanceProfileInfo_v2_t *)newest);
		SAY(nvmlDeviceGetGpuInstanceRemainingCapacity, d, plain->id, left);
		SAY(nvmlDeviceGetGpuInstancePossiblePlacements_v2, d, plain->id, NULL, count);
		nvmlGpuInstancePlacement_t *places = edge(*count * sizeof *places);
		SAY(nvmlDeviceGetGpuInstancePossiblePlacements, d, plain->id, places, count);
		printf("%s id %u %u/%u %llu MiB %u SMs %uCE %uDEC %uENC %uJPEG %uOFA %s {", named->name, plain->id, *left, plain->instanceCount,
		       plain->memorySizeMB, plain->multiprocessorCount, plain->copyEngineCount, plain->decoderCount, plain->encoderCount,
		       plain->jpegCount, plain->ofaCount, strcmp(named->name, newest->name) ? "DIFFERS" : "same");
		for (unsigned i = 0; i < *count; i++)
			printf("%s%u", i ? "," : "", places[i].start);
		printf("}:%u\n", places[0].size);
	}
}

/* As nvidia-smi mig -cgi ... -C. */
static int partition(unsigned index, const unsigned *profiles, int n)
{
	nvmlDevice_t d = device(index);
	nvmlGpuInstance_t *g = ROOM(nvmlGpuInstance_t);
	nvmlGpuInstanceInfo_t *info = ROOM(nvmlGpuInstanceInfo_t);
	nvmlComputeInstance_t *c = ROOM(nvmlComputeInstance_t);
	nvmlComputeInstanceProfileInfo_t *whole = ROOM(nvmlComputeInstanceProfileInfo_t);

	for (int i = 0; i < n; i++) {
		nvmlReturn_t ret = F(nvmlDeviceCreateGpuInstance)(d, profiles[i], g);

		if (ret != NVML_SUCCESS) {
			printf("profile %u: %s\n", profiles[i], F(nvmlErrorString)(ret));
			return ret;
		}
		SAY(nvmlGpuInstanceGetInfo, *g, info);
		unsigned largest = 0;
		for (unsigned p = 0; p < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; p++)
			if (F(nvmlGpuInstanceGetComputeInstanceProfileInfo)(*g, p, 0, whole) == NVML_SUCCESS)
				largest = p;
		SAY(nvmlGpuInstanceCreateComputeInstance, *g, largest, c);
		printf("GPU instance %u on GPU %u using profile %u at %u:%u\n", info->id, index, profiles[i], info->placement.start,
		       info->placement.size);
	}
	return 0;
}

/* As nvidia-smi mig -lgi, then -dci and -dgi: in use first, then gone, and their handles stale. */
static void destroy_all(unsigned index)
{
	nvmlDevice_t d = device(index), *m = ROOM(nvmlDevice_t), *again = ROOM(nvmlDevice_t);
	nvmlGpuInstanceProfileInfo_t *profile = ROOM(nvmlGpuInstanceProfileInfo_t);
	nvmlComputeInstanceProfileInfo_t *compute = ROOM(nvmlComputeInstanceProfileInfo_t);
	unsigned *count = ROOM(unsigned), *computes = ROOM(unsigned);
	nvmlReturn_t *activation = ROOM(nvmlReturn_t);
	char *uuid = edge(96);

	SAY(nvmlDeviceGetMigDeviceHandleByIndex, d, 0, m);
	SAY(nvmlDeviceGetUUID, *m, uuid, 96);
	SAY(nvmlDeviceSetMigMode, d, 1, activation);
	printf("MIG on again: %s\n", F(nvmlErrorString)(*activation));
	SAY(nvmlDeviceSetMigMode, d, 0, activation);
	printf("MIG off: %s\n", F(nvmlErrorString)(*activation));
	for (unsigned p = 0; p < NVML_GPU_INSTANCE_PROFILE_COUNT; p++) {
		if (F(nvmlDeviceGetGpuInstanceProfileInfo)(d, p, profile) != NVML_SUCCESS)
			continue;
		nvmlGpuInstance_t *list = edge(profile->instanceCount * sizeof *list);
		SAY(nvmlDeviceGetGpuInstances, d, profile->id, list, count);
		for (unsigned i = 0; i < *count; i++) {
			printf("profile %u: ", profile->id);
			SAY(nvmlGpuInstanceDestroy, list[i]);
			for (unsigned q = 0; q < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; q++) {
				if (F(nvmlGpuInstanceGetComputeInstanceProfileInfo)(list[i], q, 0, compute) != NVML_SUCCESS)
					continue;
				nvmlComputeInstance_t *inner = edge(compute->instanceCount * sizeof *inner);
				SAY(nvmlGpuInstanceGetComputeInstances, list[i], compute->id, inner, computes);
				for (unsigned k = 0; k < *computes; k++)
					SAY(nvmlComputeInstanceDestroy, inner[k]);
			}
			SAY(nvmlGpuInstanceDestroy, list[i]);
			say("stale", F(nvmlGpuInstanceDestroy)(list[i]));
		}
	}
	say("stale MIG device", F(nvmlDeviceGetUUID)(*m, uuid, 96));
	say("its UUID", F(nvmlDeviceGetHandleByUUID)(uuid, again));
}

/* What is wrong, and what is too short. */
static void tell_errors(void)
{
	nvmlDevice_t d = device(4), *other = ROOM(nvmlDevice_t);
	unsigned *number = ROOM(unsigned);
	char *text = edge(8);
	nvmlMemory_v2_t *memory = ROOM(nvmlMemory_v2_t);
	nvmlGpuInstanceProfileInfo_v2_t *profile = ROOM(nvmlGpuInstanceProfileInfo_v2_t);
	nvmlTemperature_t *temperature = ROOM(nvmlTemperature_t);
	nvmlProcessInfo_v1_t *old = edge(2 * sizeof *old);
	nvmlProcessInfo_t *processes = edge(2 * sizeof *processes);

	for (unsigned size = 5; size < 9; size++) { /* "GPU-" and more does not fit, nor does a byte of it come */
		memset(text, '#', 8);
		printf("%u bytes: %d %.8s\n", size, F(nvmlDeviceGetUUID)(d, text, size), text);
	}
	for (unsigned version = 1; version < 5; version++) {
		memory->version = sizeof *memory | version << 24;
		profile->version = (version == 3 ? sizeof(nvmlGpuInstanceProfileInfo_v3_t) : sizeof *profile) | version << 24;
		temperature->version = sizeof *temperature | version << 24;
		temperature->sensorType = NVML_TEMPERATURE_GPU;
		printf("version %u: memory %d, temperature %d", version, F(nvmlDeviceGetMemoryInfo_v2)(d, memory),
		       F(nvmlDeviceGetTemperatureV)(d, temperature));
		if (version != 3) /* there is no room for more here */
			printf(", profile %d", F(nvmlDeviceGetGpuInstanceProfileInfoV)(d, 0, profile));
		puts("");
	}
	for (unsigned room = 0; room < 3; room++) {
		*number = room;
		int ret = F(nvmlDeviceGetComputeRunningProcesses_v3)(d, number, room ? processes : NULL);
		printf("room for %u: %d, %u processes; ", room, ret, *number);
		*number = room;
		ret = F(nvmlDeviceGetComputeRunningProcesses)(d, number, room ? old : NULL);
		printf("old: %d, %u\n", ret, *number);
	}
	printf("instances %u.%u %u.%u, %s\n", processes[0].gpuInstanceId, processes[0].computeInstanceId, processes[1].gpuInstanceId,
	       processes[1].computeInstanceId, old[1].pid == processes[1].pid && old[1].usedGpuMemory == processes[1].usedGpuMemory ? "same" : "DIFFERS");
	static const char *const buses[] = {"0000:87:00.0", "00000000:87:00.0", "00000000:B7:00.0", "b7:00.0", "0001:B7:00.0", "gpu"};
	for (unsigned i = 0; i < sizeof buses / sizeof *buses; i++) {
		int ret = F(nvmlDeviceGetHandleByPciBusId_v2)(buses[i], other);
		*number = 99;
		if (!ret)
			SAY(nvmlDeviceGetIndex, *other, number);
		printf("%s: %d, GPU %u\n", buses[i], ret, *number);
	}
	nvmlGpuTopologyLevel_t *level = ROOM(nvmlGpuTopologyLevel_t);
	nvmlPciInfo_t *remote = ROOM(nvmlPciInfo_t);
	for (unsigned i = 2; i < 5; i++) {
		SAY(nvmlDeviceGetTopologyCommonAncestor, device(2), device(i), level);
		printf("2-%u: level %d\n", i, (int)*level);
	}
	nvmlEnableState_t *up = ROOM(nvmlEnableState_t);
	SAY(nvmlDeviceGetNvLinkState, device(0), 11, up);
	SAY(nvmlDeviceGetNvLinkRemotePciInfo_v2, device(0), 11, remote);
	printf("link 11: %d to %s\n", (int)*up, remote->busId);
	SAY(nvmlDeviceGetNvLinkState, device(0), 12, up);
	for (int i = 0; i <= 32; i++)
		printf("%d %s\n", i, F(nvmlErrorString)(i));
}

/* Calls of many threads, among them those that change the tree, and events for one of them. */
static void *walk(void *index)
{
	for (int i = 0; i < 200; i++) {
		nvmlDevice_t d, m;
		unsigned max = 0;
		char uuid[96];

		F(nvmlDeviceGetHandleByIndex_v2)((unsigned)(size_t)index, &d);
		F(nvmlDeviceGetMaxMigDeviceCount)(d, &max);
		for (unsigned k = 0; k < max; k++)
			if (!F(nvmlDeviceGetMigDeviceHandleByIndex)(d, k, &m))
				F(nvmlDeviceGetUUID)(m, uuid, sizeof uuid);
	}
	return NULL;
}

static void *churn(void *unused)
{
	for (int i = 0; i < 100; i++) {
		nvmlDevice_t d;
		nvmlGpuInstance_t g;
		nvmlComputeInstance_t c;
		nvmlEventSet_t set;
		nvmlEventData_t data;

		F(nvmlDeviceGetHandleByIndex_v2)(7, &d);
		if (F(nvmlEventSetCreate)(&set) || F(nvmlDeviceRegisterEvents)(d, nvmlEventMigConfigChange, set) ||
		    F(nvmlDeviceCreateGpuInstance)(d, 19, &g) || F(nvmlGpuInstanceCreateComputeInstance)(g, 0, &c) ||
		    F(nvmlEventSetWait_v2)(set, &data, 60000) || data.eventType != nvmlEventMigConfigChange || data.device.handle != d.handle ||
		    F(nvmlComputeInstanceDestroy)(c) || F(nvmlGpuInstanceDestroy)(g) || F(nvmlEventSetFree)(set)) {
			puts("churn failed");
			break;
		}
	}
	return unused;
}

static void in_threads(void)
{
	pthread_t threads[8];

	for (size_t i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, i == 0 ? churn : walk, (void *)i);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	unsigned *count = ROOM(unsigned);
	int *cuda = ROOM(int);
	char *driver = edge(80), *version = edge(80);
	static const unsigned fits[] = {9, 19, 14, 19}, leaves_no_room[] = {19, 19, 14, 9};

	setvbuf(stdout, NULL, _IOLBF, 0);
	library = argc > 1 ? dlopen(argv[1], RTLD_LAZY) : NULL;
	if (!library) {
		puts("usage: foreign_client LIBRARY");
		return 2;
	}
	say("early", F(nvmlDeviceGetCount_v2)(count));
	if (SAY(nvmlInitWithFlags, 0))
		return 1;
	SAY(nvmlSystemGetDriverVersion, driver, 80);
	SAY(nvmlSystemGetNVMLVersion, version, 80);
	SAY(nvmlSystemGetCudaDriverVersion, cuda);
	SAY(nvmlDeviceGetCount_v2, count);
	printf("driver %s NVML %s CUDA %d, %u GPUs\n", driver, version, *cuda, *count);
	for (unsigned i = 0; i < *count; i++) {
		tell_gpu(i);
		tell_mig(i);
	}
	list_profiles(7);
	tell_errors();
	puts("partition 9,19,14,19:");
	partition(7, fits, 4);
	tell_mig(7);
	destroy_all(7);
	puts("partition 19,19,14,9:");
	partition(7, leaves_no_room, 4);
	destroy_all(7);
	in_threads();
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < 20; i++)
		in_threads();
	long grown = (long)(mallinfo2().uordblks - before);
	printf("C memory grown by %s\n", grown > 16384 ? "too much" : "nothing to speak of");
	SAY(nvmlInit_v2);
	SAY(nvmlShutdown);
	SAY(nvmlDeviceGetCount, count);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		_exit(F(nvmlInit_v2)() == NVML_ERROR_UNKNOWN ? 0 : 1);
	int status = 0;
	waitpid(child, &status, 0);
	printf("forked: %d\n", status);
	SAY(nvmlShutdown);
	SAY(nvmlShutdown);
	return 0;
}
