#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "abi.h"
#include "dispatch.h"

/* The library's state belongs to Go; C keeps its handle, made by whichever call is the first. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t library;

static void open_library(void) { library = dcgmSimOpen(); }

/* A process forked from one that had loaded the library has Go's state but not its threads: a call could wait for ever. */
static volatile int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

__attribute__((visibility("hidden"))) int dcgm_sim_call(int function, uintptr_t *args)
{
	static const char why[] = "libdcgm.so.4 (simulated node): cannot be used in a process forked after the library was loaded\n";

	if (forked) {
		if (forked == 1 && write(STDERR_FILENO, why, sizeof why - 1) > 0)
			forked = 2;
		return -3;
	}
	pthread_once(&once, open_library);
	return dcgmSimCall(library, function, args);
}

static void *stay(void *unused)
{
	for (;;)
		pause();
	return unused;
}

__attribute__((visibility("hidden"))) void dcgm_sim_leave_thread(void)
{
	pthread_t thread;
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the client's threads */
	if (!pthread_create(&thread, NULL, stay, NULL))
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The texts are DCGM's: go-dcgm hands out nothing else of most errors. */
const char *errorString(int result)
{
	static const char *const texts[] = {
		[0] = "Success",
		[1] = "Bad parameter passed to function",
		[3] = "Generic unspecified error",
		[4] = "Out of memory error",
		[5] = "Setting not configured",
		[6] = "Feature not supported",
		[7] = "DCGM initialization error",
		[8] = "NVML error",
		[9] = "Object is in a pending state",
		[10] = "Object is in an undefined state",
		[11] = "Timeout",
		[12] = "API version mismatch",
		[13] = "Unknown field",
		[14] = "No data is available",
		[15] = "Data is considered stale",
		[16] = "Field is not being updated",
		[17] = "No permission",
		[18] = "GPU is lost",
		[19] = "GPU requires reset",
		[20] = "Function not found",
		[21] = "Host engine connection invalid/disconnected",
		[22] = "This GPU is not supported by DCGM",
		[23] = "The GPUs of this group are incompatible with each other for the requested operation",
		[24] = "Max limit reached for the object",
		[25] = "DCGM library could not be found",
		[26] = "Duplicate Key passed to function",
		[29] = "Host engine is running as non-root",
		[31] = "Insufficient buffer size",
		[32] = "Field is not supported by API",
		[34] = "The requested operation could not be completed because the affected resource is in use",
		[36] = "Profiling is not supported for this group of GPUs or GPU",
		[45] = "The specified GPU instance does not exist",
		[46] = "The specified compute instance does not exist",
		[54] = "The hostengine and all modules are paused",
		[57] = "Cannot perform operation because an NVML driver timeout error was detected",
	};
	int n = result < 0 ? -result : result;

	if ((size_t)n < sizeof texts / sizeof texts[0] && texts[n])
		return texts[n];
	return "Unknown error";
}

/* Of a field that this library does not know nothing is told: NULL, as DCGM does for one that there is not. */
static const sim_dcgm_field_meta_t fields[] = {
	{1, 's', 0, "driver_version", 1, 0, 0, NULL},
	{54, 's', 0, "uuid", 2, 0, 1, NULL},
	{70, 'i', 8, "cpu_affinity_0", 2, 0, 1, NULL},
	{71, 'i', 8, "cpu_affinity_1", 2, 0, 1, NULL},
	{72, 'i', 8, "cpu_affinity_2", 2, 0, 1, NULL},
	{73, 'i', 8, "cpu_affinity_3", 2, 0, 1, NULL},
	{100, 'i', 8, "sm_clock", 2, 0, 1, NULL},
	{101, 'i', 8, "memory_clock", 2, 0, 1, NULL},
	{140, 'i', 8, "memory_temp", 2, 0, 1, NULL},
	{150, 'i', 8, "gpu_temp", 2, 0, 1, NULL},
	{155, 'd', 8, "power_usage", 2, 0, 1, NULL},
	{156, 'i', 8, "total_energy_consumption", 2, 0, 1, NULL},
	{203, 'i', 8, "gpu_utilization", 2, 0, 1, NULL},
	{204, 'i', 8, "mem_copy_utilization", 2, 0, 1, NULL},
	{250, 'i', 8, "fb_total", 2, 0, 1, NULL},
	{251, 'i', 8, "fb_free", 2, 0, 1, NULL},
	{252, 'i', 8, "fb_used", 2, 0, 1, NULL},
	{253, 'i', 8, "fb_resv", 2, 0, 1, NULL},
	{1001, 'd', 8, "gr_engine_active", 2, 0, 5, NULL},
	{1002, 'd', 8, "sm_active", 2, 0, 5, NULL},
	{1003, 'd', 8, "sm_occupancy", 2, 0, 5, NULL},
	{1004, 'd', 8, "tensor_active", 2, 0, 5, NULL},
	{1005, 'd', 8, "dram_active", 2, 0, 4, NULL},
	{1006, 'd', 8, "fp64_active", 2, 0, 5, NULL},
	{1007, 'd', 8, "fp32_active", 2, 0, 5, NULL},
	{1008, 'd', 8, "fp16_active", 2, 0, 5, NULL},
	{1009, 'i', 8, "pcie_tx_bytes", 2, 0, 1, NULL},
	{1010, 'i', 8, "pcie_rx_bytes", 2, 0, 1, NULL},
	{1011, 'i', 8, "nvlink_tx_bytes", 2, 0, 1, NULL},
	{1012, 'i', 8, "nvlink_rx_bytes", 2, 0, 1, NULL},
};

int DcgmFieldsInit(void) { return 0; }

int DcgmFieldsTerm(void) { return 0; }

const sim_dcgm_field_meta_t *DcgmFieldGetById(unsigned short id)
{
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (fields[i].fieldId == id)
			return &fields[i];
	return NULL;
}

const sim_dcgm_field_meta_t *DcgmFieldGetByTag(const char *tag)
{
	for (size_t i = 0; tag && i < sizeof fields / sizeof fields[0]; i++)
		if (!strcmp(fields[i].tag, tag))
			return &fields[i];
	return NULL;
}
