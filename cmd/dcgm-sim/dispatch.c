#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "abi.h"
#include "dispatch.h"

/* The library's state belongs to Go; C keeps a handle of it, which the first call gets. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t library;

static void open_library(void) { library = simdcgmOpen(); }

/* A process forked from one that had loaded the library has Go's state but not its threads: a call could block forever. */
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
	return simdcgmCall(library, function, args);
}

__attribute__((visibility("hidden"))) int dcgm_sim_enumerate(
	void *callback, unsigned int group, unsigned int entity, void *values, int count, void *user)
{
	int (*call)(unsigned int, unsigned int, void *, int, void *);

	*(void **)&call = callback;
	return call(group, entity, values, count, user);
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

/* DCGM's texts: of most errors, go-dcgm returns nothing else. */
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
		[33] = "This request is serviced by a module of DCGM that is not currently loaded",
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

/* The fields are Go's; C keeps a copy for good, since clients keep pointers into it. */
static sim_dcgm_field_meta_t *fields;
static int field_count;
static pthread_once_t fields_once = PTHREAD_ONCE_INIT;

static void copy_fields(void)
{
	int n = simdcgmFields(NULL, NULL, 0);
	sim_dcgm_field_meta_t *all = calloc((size_t)n, sizeof *all);
	sim_dcgm_field_output_format_t *formats = calloc((size_t)n, sizeof *formats);

	if (!all || !formats) {
		free(all);
		free(formats);
		return;
	}
	fields = all;
	field_count = simdcgmFields(all, formats, n);
}

int DcgmFieldsInit(void) { return 0; }

int DcgmFieldsTerm(void) { return 0; }

/* Returns NULL for a field that this library does not know, as DCGM does for one that does not exist. */
const sim_dcgm_field_meta_t *DcgmFieldGetById(unsigned short id)
{
	if (!forked)
		pthread_once(&fields_once, copy_fields);
	for (int i = 0; i < field_count; i++)
		if (fields[i].fieldId == id)
			return &fields[i];
	return NULL;
}

const sim_dcgm_field_meta_t *DcgmFieldGetByTag(const char *tag)
{
	if (!forked)
		pthread_once(&fields_once, copy_fields);
	for (int i = 0; tag && i < field_count; i++)
		if (!strcmp(fields[i].tag, tag))
			return &fields[i];
	return NULL;
}
