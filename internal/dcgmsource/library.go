package dcgmsource

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// openLibrary calls dlopen as go-dcgm does. If that fails, text is what dlerror says.
static void *openLibrary(const char *name, char *text, size_t size) {
	void *library = dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
	if (!library)
		snprintf(text, size, "%s", dlerror());
	return library;
}

// fileOf returns the path of the file that a library was loaded from.
static const char *fileOf(void *library) {
	struct link_map *map = NULL;
	return dlinfo(library, RTLD_DI_LINKMAP, &map) || !map ? "" : map->l_name;
}

// dcgmVersionInfo_v2 of dcgm_structs.h.
typedef struct {
	unsigned int version;
	char build[512];
} versionInfo;

static int libraryVersion(void *function, versionInfo *info) {
	info->version = sizeof(*info) | 2u << 24;
	return ((int (*)(versionInfo *))function)(info);
}

// dcgmConnectV2Params_v2 of dcgm_structs.h.
typedef struct {
	unsigned int version, persistAfterDisconnect, timeoutMs, addressIsUnixSocket;
} connectParams;

// engineVersion reads a running engine's version over a separate connection: go-dcgm does not
// export the handle of its own.
static int engineVersion(
	void *connect,
	void *ask,
	void *disconnect,
	const char *address,
	unsigned int isSocket,
	versionInfo *info) {
	connectParams params = { sizeof(params) | 2u << 24, 0, 2000, isSocket };
	uintptr_t handle;
	int result = ((int (*)(const char *, connectParams *, uintptr_t *))connect)(address, &params, &handle);
	if (result)
		return result;
	info->version = sizeof(*info) | 2u << 24;
	result = ((int (*)(uintptr_t, versionInfo *))ask)(handle, info);
	((int (*)(uintptr_t))disconnect)(handle);
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

// functions lists the functions of the library that go-dcgm calls for this package. The dynamic
// linker looks a function up with the first call, and ends the process if the library lacks it.
func functions() []string {
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

// loadedLibrary is the library once it can be used. Its handle keeps the library loaded: go-dcgm
// releases its own handle with every shutdown, even if disconnecting failed and the library's
// threads still run its code.
type loadedLibrary struct{ handle unsafe.Pointer }

// loadLibrary loads the library and looks up the functions that are called.
func loadLibrary() (*loadedLibrary, error) {
	handle, text := open(libraryName)
	if handle == nil {
		return nil, loadError(text)
	}

	l := &loadedLibrary{handle: handle}

	var missing []string
	for _, f := range functions() {
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

// open opens a library. If that fails, the handle is nil and the text says why.
func open(name string) (handle unsafe.Pointer, text string) {
	named := C.CString(name)
	defer C.free(unsafe.Pointer(named))

	var buffer [1024]C.char
	handle = C.openLibrary(named, &buffer[0], C.size_t(len(buffer)))

	return handle, C.GoString(&buffer[0])
}

func (l *loadedLibrary) symbol(name string) unsafe.Pointer {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))

	return C.dlsym(l.handle, text)
}

// loadError returns the error for what the dynamic linker says: there is no library, or there is
// one that cannot be used. If a library that DCGM's needs is missing, the text begins with the name
// of that one.
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

// ownVersion returns the library's version. The library must have been initialized.
func (l *loadedLibrary) ownVersion() string {
	function := l.symbol("dcgmVersionInfo")

	var info C.versionInfo
	if function == nil || C.libraryVersion(function, &info) != 0 {
		return ""
	}

	return versionIn(&info)
}

// engineVersion returns a running engine's version.
func (l *loadedLibrary) engineVersion(address Address) string {
	ask := l.symbol("dcgmHostengineVersionInfo")
	if ask == nil {
		return ""
	}

	target := C.CString(address.Target)
	defer C.free(unsafe.Pointer(target))

	isSocket := C.uint(0)
	if address.Unix {
		isSocket = 1
	}

	var info C.versionInfo

	connect := l.symbol("dcgmConnect_v2")
	disconnect := l.symbol("dcgmDisconnect")

	ret := C.engineVersion(connect, ask, disconnect, target, isSocket, &info)
	if ret != 0 {
		return ""
	}

	return versionIn(&info)
}

// versionIn finds the version in what DCGM says of a build: "version:4.5.3;arch:x86_64;...".
func versionIn(info *C.versionInfo) string {
	info.build[len(info.build)-1] = 0
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
func (l *library) explainVersion(err error) error {
	here := fmt.Sprintf("%s here is DCGM %s, this program is made for DCGM %s", libraryName,
		orUnknown(l.loaded.ownVersion()), builtFor)

	address, invalid := ParseAddress(l.address)
	if l.mode == ModeEmbedded || invalid != nil {
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
		orUnknown(l.loaded.engineVersion(address)),
		here,
		builtFor,
		libraryName,
	)
}
