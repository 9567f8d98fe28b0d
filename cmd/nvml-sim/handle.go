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

// handle is what an opaque handle of NVML stands for: a place, whether anything is there or not.
// That of a destroyed instance is stale, and stands for another instance if one is created with the
// same ids: drivers reuse handles.
type handle struct {
	kind     kind
	gpu      int // of an event set: its number
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// How many of each there is room for in sim_handles.
const (
	maxGPUs      = 4096
	maxInstances = 32
	maxComputes  = 8
	ofKind       = maxGPUs * maxInstances * maxComputes
)

func handlesStart() uintptr { return uintptr(unsafe.Pointer(&C.sim_handles[0])) }

// raw returns the handle as clients see it.
func (h handle) raw() uintptr {
	return handlesStart() + uintptr(
		((int(h.kind)*maxGPUs+h.gpu)*maxInstances+int(h.instance))*maxComputes+int(h.compute),
	)
}

// handleOf returns what a handle stands for that a client passes; ok is false for one that this
// library has not given out.
func handleOf(raw uintptr) (h handle, ok bool) {
	at := raw - handlesStart()
	if raw < handlesStart() || at >= C.SIM_HANDLES {
		return handle{}, false
	}

	return handle{
		kind:     kind(at / ofKind),
		gpu:      int(at / (maxInstances * maxComputes) % maxGPUs),
		instance: gpu.InstanceID(at / maxComputes % maxInstances),
		compute:  gpu.ComputeID(at % maxComputes),
	}, true
}

// handleIn returns the handle in an argument; ok is false unless it is of one of the kinds, on a
// GPU that exists.
func (l *library) handleIn(a args, i int, kinds ...kind) (h handle, ok bool) {
	h, ok = handleOf(a.raw[i])
	return h, ok && slices.Contains(kinds, h.kind) && h.gpu < l.node.Count()
}

// onHandle answers about the handle of a GPU, an instance or a MIG device, the first argument, if
// it is of one of the kinds. It may be stale.
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
