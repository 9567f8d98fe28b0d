// Nvml-sim is the simulated node as NVIDIA's management library: built with -buildmode=c-shared it
// is a libnvidia-ml.so.1 that any client of NVML can load. docs/simulated-node.md says how to use
// it.
//
// Its exported C functions are generated from nvml.h and all end in one dispatcher; the tables of
// calls in this package say what each answers. A function that is in no table is not supported.
// What a comment calls unverified follows nvml.h or published captures, not a measurement.
package main

//go:generate go run ../../internal/sim/clibrary/generate nvml.h

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
)

func main() {
	fmt.Fprintln(
		os.Stderr,
		"nvml-sim is a library: go build -buildmode=c-shared -o libnvidia-ml.so.1 ./cmd/nvml-sim",
	)
	os.Exit(2)
}

// simOpen returns a handle of the library's state, which lives as long as the process.
//
//export simOpen
func simOpen() C.uintptr_t {
	return C.uintptr_t(cgo.NewHandle(newLibrary(getenv)))
}

// getenv reads C's environment: the client may have set a variable after Go copied it.
func getenv(name string) string {
	key := C.CString(name)
	defer C.free(unsafe.Pointer(key))

	return C.GoString(C.getenv(key))
}

// simCall answers a call of the function with a number. The memory that the arguments point to is
// the caller's.
//
//export simCall
func simCall(state C.uintptr_t, function C.int, arguments *C.uintptr_t) C.int {
	l := cgo.Handle(state).Value().(*library)
	return C.int(l.calls[function](l, args{(*[C.SIM_MAX_ARGS]uintptr)(unsafe.Pointer(arguments))}))
}
