#include <pthread.h>
#include <stddef.h>

#include "_cgo_export.h"
#include "dispatch.h"

char sim_handles[SIM_HANDLES];

/* The library's state belongs to Go; C keeps its handle, made by whichever call is the first. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t library;

static void open_library(void) { library = simOpen(); }

int sim_call(int function, uintptr_t *args)
{
	pthread_once(&once, open_library);
	return simCall(library, function, args);
}

/* The texts are those that clients of NVML show and some of them compare. */
const char *nvmlErrorString(int result)
{
	static const char *const texts[] = {
		"Success",
		"Uninitialized",
		"Invalid Argument",
		"Not Supported",
		"Insufficient Permissions",
		"Already Initialized",
		"Not Found",
		"Insufficient Size",
		"Insufficient External Power",
		"Driver Not Loaded",
		"Timeout",
		"Interrupt Request Issue",
		"NVML Shared Library Not Found",
		"Function Not Found",
		"Corrupted infoROM",
		"GPU is lost",
		"GPU requires reset",
		"GPU access blocked by the operating system",
		"Driver/library version mismatch",
		"In use by another client",
		"Insufficient Memory",
		"No data",
		"vGPU ECC operation not supported",
		"Insufficient Resources",
		"Frequency Not Supported",
		"Argument Version Mismatch",
		"Deprecated",
		"Not Ready",
		"No GPUs were found",
		"Invalid State",
		"Reset Type Not Supported",
	};
	if (result >= 0 && (size_t)result < sizeof texts / sizeof texts[0])
		return texts[result];
	return "Unknown Error";
}
