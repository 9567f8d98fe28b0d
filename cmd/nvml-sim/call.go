package main

// #include "abi.h"
// #include "dispatch.h"
import "C"

import (
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// result is nvmlReturn_t.
type result int32

const (
	success               result = C.SIM_NVML_SUCCESS
	uninitialized         result = C.SIM_NVML_ERROR_UNINITIALIZED
	invalidArgument       result = C.SIM_NVML_ERROR_INVALID_ARGUMENT
	notSupported          result = C.SIM_NVML_ERROR_NOT_SUPPORTED
	noPermission          result = C.SIM_NVML_ERROR_NO_PERMISSION
	notFound              result = C.SIM_NVML_ERROR_NOT_FOUND
	insufficientSize      result = C.SIM_NVML_ERROR_INSUFFICIENT_SIZE
	driverNotLoaded       result = C.SIM_NVML_ERROR_DRIVER_NOT_LOADED
	timedOut              result = C.SIM_NVML_ERROR_TIMEOUT
	functionNotFound      result = C.SIM_NVML_ERROR_FUNCTION_NOT_FOUND
	insufficientResources result = C.SIM_NVML_ERROR_INSUFFICIENT_RESOURCES
	structMismatch        result = C.SIM_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
)

// resultOf returns NVML's code for an error of the node.
func resultOf(err error) result { return result(sim.ReturnCode(err)) }

// call answers a function of NVML.
type call func(l *library, a args) result

// args are the arguments of a function as they were passed: numbers, handles, and addresses in the
// caller's memory.
type args struct {
	raw *[C.SIM_MAX_ARGS]uintptr
}

func (a args) uint(i int) uint32 { return uint32(a.raw[i]) }

// pointer returns an argument that points to a T; nil for NULL.
func pointer[T any](a args, i int) *T { return *(**T)(unsafe.Pointer(&a.raw[i])) }

// array returns an argument that points to n values of type T.
func array[T any](a args, i int, n uint32) []T { return unsafe.Slice(pointer[T](a, i), n) }

// put writes a value to where an argument points.
func put[T any](a args, i int, value T) result {
	*pointer[T](a, i) = value
	return success
}

// putTwo writes a value to where an argument points, and another one to where the next does.
func putTwo[T any](a args, i int, first, second T) result {
	put(a, i, first)
	return put(a, i+1, second)
}

// notNull refuses NULL for some arguments, given by their indexes, before anything else is checked.
func notNull(do call, indexes ...int) call {
	return func(l *library, a args) result {
		for _, i := range indexes {
			if a.raw[i] == 0 {
				return invalidArgument
			}
		}

		return do(l, a)
	}
}

// putText writes a string into a buffer whose size is the next argument.
func putText(a args, i int, text string) result {
	if int(a.uint(i+1)) <= len(text) {
		return insufficientSize
	}

	// The client may have less room than it says: the text and its zero byte are all that is written.
	to := array[byte](a, i, uint32(len(text)+1))
	copy(to, text)
	to[len(text)] = 0

	return success
}

// putList writes values to where argument items points, if there is room for all of them. Argument
// count points to the number that there is room for, which putList replaces by the number of values.
func putList[T any](a args, count, items int, values []T) result {
	room := *pointer[uint32](a, count)
	put(a, count, uint32(len(values)))

	if int(room) < len(values) {
		return insufficientSize
	}

	if len(values) == 0 {
		return success
	}

	if a.raw[items] == 0 {
		return invalidArgument
	}

	copy(array[T](a, items, uint32(len(values))), values)

	return success
}

// putStart writes the first bytes of a struct, for an old call whose struct had only these.
func putStart[T any](a args, i int, from T, size uintptr) result {
	copy(array[byte](a, i, uint32(size)), unsafe.Slice((*byte)(unsafe.Pointer(&from)), size))
	return success
}

// putCString fills a char array of a struct.
func putCString(to []C.char, text string) {
	clear(to)

	for i := range min(len(text), len(to)-1) {
		to[i] = C.char(text[i])
	}
}

// flag returns NVML's form of a switch (nvmlEnableState_t) and of a MIG mode.
func flag(on bool) uint32 {
	if on {
		return C.SIM_NVML_FEATURE_ENABLED
	}

	return C.SIM_NVML_FEATURE_DISABLED
}

// idOrNone returns an id, or NVML's number for no id.
func idOrNone[T gpu.InstanceID | gpu.ComputeID](id gpu.Opt[T]) uint32 {
	v, ok := id.Get()
	if !ok {
		return 0xFFFFFFFF
	}

	return uint32(v)
}
