#include <pthread.h>

#include "_cgo_export.h"
#include "abi.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t library;

static void open_library(void) { library = simOpen(); }

uintptr_t sim_library(void)
{
	pthread_once(&once, open_library);
	return library;
}

/* DCGM's texts, which go-dcgm passes on instead of the codes. */
const char *errorString(int result)
{
	switch (result) {
	case SIM_DCGM_ST_OK:
		return "Success";
	case SIM_DCGM_ST_BADPARAM:
		return "Bad parameter passed to function";
	case SIM_DCGM_ST_NOT_CONFIGURED:
		return "Setting not configured";
	case SIM_DCGM_ST_NOT_SUPPORTED:
		return "This feature is not supported";
	case SIM_DCGM_ST_INIT_ERROR:
		return "DCGM initialization error";
	case SIM_DCGM_ST_NVML_ERROR:
		return "NVML error";
	case SIM_DCGM_ST_UNINITIALIZED:
		return "Object is in an undefined state";
	case SIM_DCGM_ST_VER_MISMATCH:
		return "API version mismatch";
	case SIM_DCGM_ST_UNKNOWN_FIELD:
		return "Unknown field identifier";
	case SIM_DCGM_ST_NO_DATA:
		return "No data is available";
	case SIM_DCGM_ST_NOT_WATCHED:
		return "Field is not being watched";
	case SIM_DCGM_ST_CONNECTION_NOT_VALID:
		return "Host engine connection invalid/disconnected";
	case SIM_DCGM_ST_MAX_LIMIT:
		return "Max limit reached for the object";
	case SIM_DCGM_ST_DUPLICATE_KEY:
		return "Duplicate Key passed to function";
	case SIM_DCGM_ST_REQUIRES_ROOT:
		return "Host engine is running as non-root";
	case SIM_DCGM_ST_PROFILING_NOT_SUPPORTED:
		return "Profiling is not supported for this group of GPUs or GPU";
	}
	return "Generic unspecified error";
}
