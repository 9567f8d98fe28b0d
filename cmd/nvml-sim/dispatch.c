#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "abi.h"
#include "dispatch.h"

char sim_handles[SIM_HANDLES];

/* The library's state belongs to Go; C keeps a handle of it, which the first call gets. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t library;

static void open_library(void) { library = simOpen(); }

/*
 * A process forked from one that had loaded the library has Go's state but not its threads: a call could block forever.
 * It is refused; what the child executes, or a library loaded after the fork, works.
 */
static volatile int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static int refuse(void)
{
	static const char why[] = "libnvidia-ml.so.1 (simulated node): cannot be used in a process forked after the library was loaded\n";

	if (forked == 1 && write(STDERR_FILENO, why, sizeof why - 1) > 0)
		forked = 2;
	return SIM_NVML_ERROR_UNKNOWN;
}

int sim_call(int function, uintptr_t *args)
{
	if (forked)
		return refuse();
	pthread_once(&once, open_library);
	return simCall(library, function, args);
}

/* NVML's texts: clients show them, and some compare them. */
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
