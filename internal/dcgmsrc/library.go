package dcgmsrc

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// openLibrary is dlopen as go-dcgm calls it. Where it fails, what dlerror says is in text.
static void *openLibrary(const char *name, char *text, size_t size) {
	void *library = dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
	if (!library)
		snprintf(text, size, "%s", dlerror());
	return library;
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
*/
import "C"

import (
	"fmt"
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

// loadLibrary loads the library and looks up what is called of it. It stays loaded where that is all there: go-dcgm unloads it with
// every shutdown, also where disconnecting failed and the library's threads still run its code. The result is its version, empty
// where it does not tell.
func loadLibrary() (version string, err error) {
	name := C.CString(libraryName)
	defer C.free(unsafe.Pointer(name))
	var text [1024]C.char
	library := C.openLibrary(name, &text[0], C.size_t(len(text)))
	if library == nil {
		return "", loadError(C.GoString(&text[0]))
	}
	var missing []string
	for _, f := range functions() {
		if symbol(library, f) == nil {
			missing = append(missing, f)
		}
	}
	version = versionOf(library)
	if len(missing) > 0 {
		C.dlclose(library) // another one may be installed meanwhile
		return "", fmt.Errorf("load DCGM: %w: %w: %s lacks %s%s: install DCGM %s or later, or set --dcgm.mode=off",
			ErrLibrary, gpu.ErrUnavailable, libraryName, strings.Join(missing, ", "), ofVersion(version), builtFor)
	}
	return version, nil
}

func symbol(library unsafe.Pointer, name string) unsafe.Pointer {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return C.dlsym(library, text)
}

// loadError makes an error of what the dynamic linker says: there is no library, or there is one that cannot be used. The name of
// another library that it needs stands first where that one is missing (dlerror of glibc and musl: "NAME: cannot open ...").
func loadError(text string) error {
	notThere := strings.HasPrefix(text, libraryName+":") || strings.HasPrefix(text, "Error loading shared library "+libraryName+":")
	if notThere && strings.Contains(text, "No such file or directory") {
		return fmt.Errorf("load DCGM: %w: %w", ErrNoLibrary, gpu.ErrUnavailable)
	}
	return fmt.Errorf("load DCGM: %w: %w: %s: install DCGM %s or later again, or set --dcgm.mode=off", ErrLibrary, gpu.ErrUnavailable, text, builtFor)
}

// versionOf asks the library for its version, as "4.5.3": "version:4.5.3;arch:x86_64;..." is what it says.
func versionOf(library unsafe.Pointer) string {
	function := symbol(library, "dcgmVersionInfo")
	if function == nil {
		return ""
	}
	var info C.versionInfo
	if C.libraryVersion(function, &info) != 0 {
		return ""
	}
	info.build[len(info.build)-1] = 0
	for part := range strings.SplitSeq(C.GoString(&info.build[0]), ";") {
		if version, ok := strings.CutPrefix(part, "version:"); ok {
			return version
		}
	}
	return ""
}

func ofVersion(version string) string {
	if version == "" {
		return ""
	}
	return " (it is DCGM " + version + ")"
}

// versionError adds to an error about the version of the API what is known of both sides, and what to do.
func versionError(err error, version string, mode Mode) error {
	if version == "" {
		version = "of unknown version"
	}
	remedy := "install DCGM " + builtFor + " or later"
	if mode == ModeRemote {
		remedy = "install DCGM " + builtFor + " or later here and the same one where the host engine runs"
	}
	return fmt.Errorf("%w; %s here is DCGM %s, this program is made for DCGM %s: %s", err, libraryName, version, builtFor, remedy)
}
