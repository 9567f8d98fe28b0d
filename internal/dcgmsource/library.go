package dcgmsource

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// openLibrary is dlopen as go-dcgm calls it. Where it fails, what dlerror says is in text.
static void *openLibrary(const char *name, char *text, size_t size) {
	void *library = dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
	if (!library)
		snprintf(text, size, "%s", dlerror());
	return library;
}

// fileOf is the file that a library was loaded from.
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

// engineVersion asks a running engine for its version over a connection of its own: go-dcgm does not tell its handle.
static int engineVersion(void *connect, void *ask, void *disconnect, const char *address, unsigned int isSocket, versionInfo *info) {
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

// builtFor is the DCGM whose headers go-dcgm has.
const builtFor = "4.5"

// functions lists what go-dcgm calls of the library for this package. A call of a function that the library lacks ends the process:
// the dynamic linker looks it up then.
func functions() []string {
	return []string{
		"errorString", "dcgmInit", "dcgmShutdown", "dcgmStartEmbedded", "dcgmStopEmbedded", "dcgmConnect_v2", "dcgmDisconnect",
		"dcgmGetEntityGroupEntities", "dcgmGetGpuInstanceHierarchy", "dcgmGroupCreate", "dcgmGroupAddEntity", "dcgmGroupDestroy",
		"dcgmFieldGroupCreate", "dcgmFieldGroupDestroy", "dcgmWatchFields", "dcgmUnwatchFields", "dcgmUpdateAllFields",
		"dcgmEntitiesGetLatestValues",
	}
}

// loaded is the library once it can be used. It stays loaded: go-dcgm unloads it with every shutdown, also where disconnecting failed
// and the library's threads still run its code.
type loaded struct{ handle unsafe.Pointer }

// loadLibrary loads the library and looks up what is called of it.
func loadLibrary() (*loaded, error) {
	handle, text := open(libraryName)
	if handle == nil {
		return nil, loadError(text)
	}
	l := &loaded{handle: handle}
	var missing []string
	for _, f := range functions() {
		if l.symbol(f) == nil {
			missing = append(missing, f)
		}
	}
	if len(missing) > 0 {
		file := C.GoString(C.fileOf(l.handle))
		if target, err := filepath.EvalSymlinks(file); err == nil {
			file = target // its name has the version
		}
		C.dlclose(l.handle) // another one may be installed meanwhile
		return nil, fmt.Errorf("load DCGM: %w: %w: %s lacks %s: install DCGM %s or later, or set --dcgm.mode=off",
			ErrLibrary, gpu.ErrUnavailable, file, strings.Join(missing, ", "), builtFor)
	}
	return l, nil
}

// open opens a library; where it is not opened, the text says why.
func open(name string) (handle unsafe.Pointer, text string) {
	named := C.CString(name)
	defer C.free(unsafe.Pointer(named))
	var buffer [1024]C.char
	handle = C.openLibrary(named, &buffer[0], C.size_t(len(buffer)))
	return handle, C.GoString(&buffer[0])
}

func (l *loaded) symbol(name string) unsafe.Pointer {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return C.dlsym(l.handle, text)
}

// loadError makes an error of what the dynamic linker says: there is no library, or there is one that cannot be used. The name of
// another library that it needs stands first where that one is missing.
func loadError(text string) error {
	if strings.HasPrefix(text, libraryName+":") && strings.Contains(text, "No such file or directory") {
		return fmt.Errorf("load DCGM: %w: %w", ErrNoLibrary, gpu.ErrUnavailable)
	}
	return fmt.Errorf("load DCGM: %w: %w: %s: install DCGM %s or later again, or set --dcgm.mode=off", ErrLibrary, gpu.ErrUnavailable, text, builtFor)
}

// ownVersion asks the library for its version. It must have been initialized.
func (l *loaded) ownVersion() string {
	function := l.symbol("dcgmVersionInfo")
	var info C.versionInfo
	if function == nil || C.libraryVersion(function, &info) != 0 {
		return ""
	}
	return versionIn(&info)
}

// engineVersion asks a running engine for its version.
func (l *loaded) engineVersion(address Address) string {
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
	if C.engineVersion(l.symbol("dcgmConnect_v2"), ask, l.symbol("dcgmDisconnect"), target, isSocket, &info) != 0 {
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

// explainVersion adds to an error about the version of the API what the versions are, and what to do. The library that is loaded is used
// until the process ends.
func (l *library) explainVersion(err error) error {
	here := fmt.Sprintf("%s here is DCGM %s, this program is made for DCGM %s", libraryName, orUnknown(l.loaded.ownVersion()), builtFor)
	address, invalid := ParseAddress(l.address)
	if l.mode == ModeEmbedded || invalid != nil {
		return fmt.Errorf("%w; %s: install DCGM %s or later, then restart this program", err, here, builtFor)
	}
	return fmt.Errorf("%w; the host engine at %s is DCGM %s, %s: install one version, DCGM %s or later, in both places; "+
		"a new %s here takes a restart of this program", err, address, orUnknown(l.loaded.engineVersion(address)), here, builtFor, libraryName)
}
