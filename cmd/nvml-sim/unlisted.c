/* Functions that libnvidia-ml.so.1 exports and nvml.h does not declare. */

#include <stddef.h>

#include "abi.h"
#include "dispatch.h"

/* The names of these two before R470; nvml.h has them as macros. */
int nvmlGetExcludedDeviceCount(P);
int nvmlGetExcludedDeviceInfoByIndex(U, P);

int nvmlGetBlacklistDeviceCount(P count) { return nvmlGetExcludedDeviceCount(count); }

int nvmlGetBlacklistDeviceInfoByIndex(U index, P info) { return nvmlGetExcludedDeviceInfoByIndex(index, info); }

static int not_supported(void) { return SIM_NVML_ERROR_NOT_SUPPORTED; }

/*
 * NVIDIA's nvidia-smi gets a table of functions without names, calls them by their place in it, and works without one that is not
 * supported. The first entry is the table's size in bytes, which shows nvidia-smi which places exist: 535 and 550 use places
 * up to 249.
 */
#define PLACES 1024
static const void *const table[PLACES] = {(const void *)sizeof table, [1 ... PLACES - 1] = (const void *)not_supported};

int nvmlInternalGetExportTable(const void **to, const void *id)
{
	if (!to || !id)
		return SIM_NVML_ERROR_INVALID_ARGUMENT;
	*to = table; /* whatever the id: all places of all tables are the same */
	return SIM_NVML_SUCCESS;
}
