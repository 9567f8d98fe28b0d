// Dcgm-sim is the simulated node's DCGM host engine as NVIDIA's library: built with
// -buildmode=c-shared it is a libdcgm.so.4 that go-dcgm can load. docs/simulated-node.md says how
// to use it.
//
// Its exported C functions are generated from dcgm_agent.h and all end in one dispatcher; the
// tables of calls in this package say what each answers. A function that is in no table is not
// supported.
package main

//go:generate go run ../../internal/sim/clibrary/generate dcgm_agent.h

// #cgo LDFLAGS: ${SRCDIR}/exports.ld.so
// #include <stdlib.h>
// #include "abi.h"
// #include "dispatch.h"
import "C"

import (
	"fmt"
	"os"
	"runtime/cgo"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

func main() {
	fmt.Fprintln(os.Stderr, "dcgm-sim is a library: go build -buildmode=c-shared -o libdcgm.so.4 ./cmd/dcgm-sim")
	os.Exit(2)
}

// simdcgmOpen returns a handle of the library's state, which lives as long as the process.
//
//export simdcgmOpen
func simdcgmOpen() C.uintptr_t {
	return C.uintptr_t(cgo.NewHandle(newLibrary(getenv)))
}

// getenv reads C's environment: the client may have set a variable after Go copied it.
func getenv(name string) string {
	key := C.CString(name)
	defer C.free(unsafe.Pointer(key))

	return C.GoString(C.getenv(key))
}

// simdcgmFields describes the first n fields in the caller's memory, which is zeroed, and returns
// how many fields there are.
//
//export simdcgmFields
func simdcgmFields(to *C.sim_dcgm_field_meta_t, formats *C.sim_dcgm_field_output_format_t, n C.int) C.int {
	all := hostengine.Fields()
	metas := unsafe.Slice(to, n)
	texts := unsafe.Slice(formats, n)

	for i, f := range all[:min(len(all), int(n))] {
		m := &metas[i]
		m.fieldId = C.ushort(f.ID)
		m.fieldType = C.char(f.Type)
		m.size = C.uchar(f.Size)
		m.scope = C.int(flag(f.Level != hostengine.NoEntity))
		m.nvmlFieldId = C.int(f.NVML)
		m.entityLevel = C.uint(f.Level)
		putCString(m.tag[:], f.Tag)

		m.valueFormat = &texts[i]
		putCString(texts[i].shortName[:], f.Short)
		putCString(texts[i].unit[:], f.Unit)
		texts[i].width = C.short(f.Width)
	}

	return C.int(len(all))
}

// simdcgmCall answers a call of the function with a number. The memory that the arguments point to
// is the caller's.
//
//export simdcgmCall
func simdcgmCall(state C.uintptr_t, function C.int, arguments *C.uintptr_t) C.int {
	l := cgo.Handle(state).Value().(*library)
	a := args{(*[C.DCGM_SIM_MAX_ARGS]uintptr)(unsafe.Pointer(arguments))}

	return C.int(l.calls[function](l, a))
}
