package main

// #include "abi.h"
// #include "dispatch.h"
import "C"

import (
	"errors"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// The codes (dcgmReturn_t) that this library returns itself; package hostengine has those of the
// engine.
const (
	genericError  hostengine.Code = -3
	uninitialized hostengine.Code = -10
	tooSmall      hostengine.Code = -31
)

// codeOf returns DCGM's code for an error of the engine.
func codeOf(err error) hostengine.Code {
	if err == nil {
		return hostengine.OK
	}

	var code hostengine.Code
	if errors.As(err, &code) {
		return code
	}

	return genericError
}

// call answers one function of DCGM.
type call func(l *library, a args) hostengine.Code

// args are the arguments of a function as they were passed: numbers, handles, and addresses in the
// caller's memory.
type args struct {
	raw *[C.DCGM_SIM_MAX_ARGS]uintptr
}

func (a args) uint(i int) uint32 { return uint32(a.raw[i]) }

// pointer returns an argument that points to a T; nil for NULL.
func pointer[T any](a args, i int) *T { return *(**T)(unsafe.Pointer(&a.raw[i])) }

// array returns an argument that points to n values of type T.
func array[T any](a args, i int, n int) []T { return unsafe.Slice(pointer[T](a, i), n) }

// text returns an argument that points to a string; empty for NULL.
func text(a args, i int) string { return C.GoString(pointer[C.char](a, i)) }

// notNull refuses NULL for some arguments, given by their indexes, before anything else is checked.
func notNull(do call, indexes ...int) call {
	return func(l *library, a args) hostengine.Code {
		for _, i := range indexes {
			if a.raw[i] == 0 {
				return hostengine.BadParam
			}
		}

		return do(l, a)
	}
}

// putCString fills a char array of a struct.
func putCString(to []C.char, text string) {
	clear(to)

	for i := range min(len(text), len(to)-1) {
		to[i] = C.char(text[i])
	}
}

// flag returns a bool as C has it: 1 or 0.
func flag(on bool) C.uint {
	if on {
		return 1
	}

	return 0
}
