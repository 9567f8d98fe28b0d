package main

// #include "dispatch.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// kind is what a handle stands for.
type kind int

const (
	aGPU kind = iota
	aMIGDevice
	aGPUInstance
	aComputeInstance
	anEventSet
	aSystemEventSet
)

// handle is what an opaque handle of NVML stands for: the ids of a device, whether it exists or not.
// The handle of a destroyed instance is stale. If another instance is created with the same ids, it
// stands for that one: drivers reuse handles, too.
type handle struct {
	kind     kind
	gpu      int // index of the GPU, or number of the event set
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// A handle is an address within sim_handles, an array that is never read or written: each
// combination of kind and ids has a byte of its own there.
const (
	maxGPUs             = 4096
	maxInstances        = 32 // on a GPU
	maxComputeInstances = 8  // in a GPU instance
	handlesPerKind      = maxGPUs * maxInstances * maxComputeInstances
)

func handlesStart() uintptr { return uintptr(unsafe.Pointer(&C.sim_handles[0])) }

// raw returns the handle as clients see it.
func (h handle) raw() uintptr {
	return handlesStart() + uintptr(
		((int(h.kind)*maxGPUs+h.gpu)*maxInstances+int(h.instance))*maxComputeInstances+int(h.compute),
	)
}

// handleOf returns what a handle of a client stands for. ok is false if it is no address within
// sim_handles: this library has not given it out.
func handleOf(raw uintptr) (h handle, ok bool) {
	offset := raw - handlesStart()
	if raw < handlesStart() || offset >= C.SIM_HANDLES {
		return handle{}, false
	}

	return handle{
		kind:     kind(offset / handlesPerKind),
		gpu:      int(offset / (maxInstances * maxComputeInstances) % maxGPUs),
		instance: gpu.InstanceID(offset / maxComputeInstances % maxInstances),
		compute:  gpu.ComputeID(offset % maxComputeInstances),
	}, true
}

// handleIn returns the handle in an argument. ok is false unless it is of one of the kinds and on a
// GPU that exists.
func (l *library) handleIn(a args, i int, kinds ...kind) (h handle, ok bool) {
	h, ok = handleOf(a.raw[i])
	return h, ok && slices.Contains(kinds, h.kind) && h.gpu < l.node.Count()
}

// onHandle returns a call whose first argument must be a handle of one of the kinds, on a GPU that
// exists. An instance may not exist any more.
func onHandle(answer func(l *library, h handle, a args) result, kinds ...kind) call {
	return func(l *library, a args) result {
		h, ok := l.handleIn(a, 0, kinds...)
		if !ok {
			return invalidArgument
		}

		return answer(l, h, a)
	}
}

// putHandle writes a handle to where an argument points.
func putHandle(a args, i int, h handle) result { return put(a, i, h.raw()) }

// setHandle writes a handle into a field of a struct.
func setHandle(to *unsafe.Pointer, h handle) { *(*uintptr)(unsafe.Pointer(to)) = h.raw() }
