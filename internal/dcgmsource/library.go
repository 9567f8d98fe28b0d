package dcgmsource

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// VERSIONED is the version field of a structure, in its version v: as DCGM's MAKE_DCGM_VERSION.
#define VERSIONED(structure, v) (sizeof(structure) | (unsigned int)(v) << 24)

// dcgmVersionInfo_v2 of dcgm_structs.h.
typedef struct {
	unsigned int version;
	char build[512];
} versionInfo;

// dcgmConnectV2Params_v2 of dcgm_structs.h.
typedef struct {
	unsigned int version;
	unsigned int persistAfterDisconnect;
	unsigned int timeoutMs;
	unsigned int addressIsUnixSocket;
} connectParams;

typedef uintptr_t engineHandle;

// The functions of dcgm_agent.h that we call ourselves: dlsym returns them as void *.
typedef int (*dcgmVersionInfoFunction)(versionInfo *);
typedef int (*dcgmConnectFunction)(const char *, connectParams *, engineHandle *);
typedef int (*dcgmHostengineVersionInfoFunction)(engineHandle, versionInfo *);
typedef int (*dcgmDisconnectFunction)(engineHandle);

// openLibrary calls dlopen as go-dcgm does. If that fails, text is what dlerror says.
static void *openLibrary(const char *name, char *text, size_t size) {
	void *library = dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
	if (!library)
		snprintf(text, size, "%s", dlerror());

	return library;
}

// fileOf returns the path of the file that a library was loaded from; empty if it is unknown.
static const char *fileOf(void *library) {
	struct link_map *map = NULL;
	int failed = dlinfo(library, RTLD_DI_LINKMAP, &map);

	if (failed || !map)
		return "";

	return map->l_name;
}

static int libraryVersion(void *versionOf, versionInfo *info) {
	info->version = VERSIONED(*info, 2);

	return ((dcgmVersionInfoFunction)versionOf)(info);
}

// engineVersion reads a running engine's version over a separate connection: go-dcgm does not
// export the handle of its own.
static int engineVersion(
	void *connect,
	void *versionOf,
	void *disconnect,
	const char *address,
	unsigned int isSocket,
	versionInfo *info) {
	connectParams params = {
		.version = VERSIONED(params, 2),
		.timeoutMs = 2000,
		.addressIsUnixSocket = isSocket,
	};
	engineHandle engine;

	int result = ((dcgmConnectFunction)connect)(address, &params, &engine);
	if (result)
		return result;

	info->version = VERSIONED(*info, 2);
	result = ((dcgmHostengineVersionInfoFunction)versionOf)(engine, info);
	((dcgmDisconnectFunction)disconnect)(engine);

	return result;
}
*/
import "C"

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const libraryName = "libdcgm.so.4"

// builtFor is the version of DCGM whose headers go-dcgm has.
const builtFor = "4.5"

// calledFunctions lists the functions of the library that go-dcgm calls for this package. The dynamic
// linker looks a function up with the first call, and ends the process if the library lacks it.
func calledFunctions() []string {
	return []string{
		"errorString",
		"dcgmInit",
		"dcgmShutdown",
		"dcgmStartEmbedded",
		"dcgmStopEmbedded",
		"dcgmConnect_v2",
		"dcgmDisconnect",

		"dcgmGetEntityGroupEntities",
		"dcgmGetGpuInstanceHierarchy",

		"dcgmGroupCreate",
		"dcgmGroupAddEntity",
		"dcgmGroupDestroy",
		"dcgmFieldGroupCreate",
		"dcgmFieldGroupDestroy",

		"dcgmWatchFields",
		"dcgmUnwatchFields",
		"dcgmUpdateAllFields",
		"dcgmEntitiesGetLatestValues",
	}
}

// library is DCGM's library once it can be used. Its handle keeps the library loaded: go-dcgm
// releases its own handle with every shutdown, even if disconnecting failed and the library's
// threads still run its code.
type library struct{ handle unsafe.Pointer }

// loadLibrary loads the library and looks up the functions that are called.
func loadLibrary() (*library, error) {
	handle, text := openLibrary(libraryName)
	if handle == nil {
		return nil, loadError(text)
	}

	l := &library{handle: handle}

	var missing []string
	for _, f := range calledFunctions() {
		if l.symbol(f) == nil {
			missing = append(missing, f)
		}
	}

	if len(missing) > 0 {
		file := C.GoString(C.fileOf(l.handle))
		if target, err := filepath.EvalSymlinks(file); err == nil {
			file = target // its name contains the version
		}

		C.dlclose(l.handle) // so that another one can be installed and loaded

		return nil, fmt.Errorf(
			"load DCGM: %w: %w: %s lacks %s: install DCGM %s or later, or leave --dcgm.address out",
			ErrLibrary,
			gpu.ErrUnavailable,
			file,
			strings.Join(missing, ", "),
			builtFor,
		)
	}

	return l, nil
}

// openLibrary opens a library. If that fails, the handle is nil and the text says why.
func openLibrary(name string) (handle unsafe.Pointer, text string) {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))

	var buffer [1024]C.char
	handle = C.openLibrary(cName, &buffer[0], C.size_t(len(buffer)))

	return handle, C.GoString(&buffer[0])
}

// symbol returns the address of a function; nil if the library lacks it.
func (l *library) symbol(name string) unsafe.Pointer {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))

	return C.dlsym(l.handle, cName)
}

// loadError returns the error for what the dynamic linker says: there is no library, or there is
// one that cannot be used. It looks at how the text begins: if a library that DCGM's needs is missing,
// it begins with that one's name.
func loadError(text string) error {
	if strings.HasPrefix(text, libraryName+":") &&
		strings.Contains(text, "No such file or directory") {
		return fmt.Errorf("load DCGM: %w: %w", ErrNoLibrary, gpu.ErrUnavailable)
	}

	return fmt.Errorf(
		"load DCGM: %w: %w: %s: install DCGM %s or later again, or leave --dcgm.address out",
		ErrLibrary,
		gpu.ErrUnavailable,
		text,
		builtFor,
	)
}

// ownVersion returns the library's version; empty if it is unknown. The library must have been
// initialized.
func (l *library) ownVersion() string {
	versionOf := l.symbol("dcgmVersionInfo")
	if versionOf == nil {
		return ""
	}

	var info C.versionInfo
	if C.libraryVersion(versionOf, &info) != 0 {
		return ""
	}

	return versionIn(&info)
}

// engineVersion returns a running engine's version; empty if it is unknown.
func (l *library) engineVersion(address Address) string {
	versionOf := l.symbol("dcgmHostengineVersionInfo")
	if versionOf == nil {
		return ""
	}

	connect := l.symbol("dcgmConnect_v2") // calledFunctions has these two
	disconnect := l.symbol("dcgmDisconnect")

	target := C.CString(address.Target)
	defer C.free(unsafe.Pointer(target))

	isSocket := C.uint(0)
	if address.Unix {
		isSocket = 1
	}

	var info C.versionInfo
	if C.engineVersion(connect, versionOf, disconnect, target, isSocket, &info) != 0 {
		return ""
	}

	return versionIn(&info)
}

// versionIn finds the version in what DCGM says of a build: "version:4.5.3;arch:x86_64;...".
func versionIn(info *C.versionInfo) string {
	info.build[len(info.build)-1] = 0 // GoString reads up to a NUL

	for part := range strings.SplitSeq(C.GoString(&info.build[0]), ";") {
		if version, ok := strings.CutPrefix(part, "version:"); ok {
			return version
		}
	}

	return ""
}

func orUnknown(version string) string { return cmp.Or(version, "of an unknown version") }

// explainVersion adds to an error about the version of the API which versions there are, and what
// to do. Another library is loaded only after a restart of the process.
func (c *connector) explainVersion(err error) error {
	here := fmt.Sprintf(
		"%s here is DCGM %s, this program is made for DCGM %s",
		libraryName,
		orUnknown(c.library.ownVersion()),
		builtFor,
	)

	address, invalid := ParseAddress(c.address)
	if c.mode == ModeEmbedded || invalid != nil {
		return fmt.Errorf(
			"%w; %s: install DCGM %s or later, then restart this program",
			err,
			here,
			builtFor,
		)
	}

	return fmt.Errorf(
		"%w; the host engine at %s is DCGM %s, %s: install one version, DCGM %s or later, in both places; "+
			"a new %s here takes a restart of this program",
		err,
		address,
		orUnknown(c.library.engineVersion(address)),
		here,
		builtFor,
		libraryName,
	)
}
