package main

// #include "dispatch.h"
import "C"

import (
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
)

// handle is what an opaque handle of NVML stands for: where it is, not whether anything is there. One of a destroyed
// instance is stale, and comes to stand for another instance where one is made with the same ids: drivers reuse handles.
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

// raw is the handle as clients see it.
func (h handle) raw() uintptr {
	return handlesStart() + uintptr(((int(h.kind)*maxGPUs+h.gpu)*maxInstances+int(h.instance))*maxComputes+int(h.compute))
}

// handleOf is the meaning of what a client passes; ok is false for what no client can have got from here.
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

// putRaw writes a handle where an argument points to.
func putRaw(a args, i int, h handle) { *at[uintptr](a, i) = h.raw() }

// putHandle writes a handle into a field of a struct.
func putHandle(to *unsafe.Pointer, h handle) { *(*uintptr)(unsafe.Pointer(to)) = h.raw() }
