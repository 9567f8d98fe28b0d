package main

// #include "abi.h"
import "C"

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// instanceCalls make, list and destroy GPU instances. All need rights.
func instanceCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceCreateGpuInstance":              notNull(createInstance, 2),
		"nvmlDeviceCreateGpuInstanceWithPlacement": notNull(createInstanceAt, 2, 3),
		"nvmlGpuInstanceDestroy":                   destroyInstance,
		"nvmlDeviceGetGpuInstances":                notNull(onGPU(instancesOfProfile), 2, 3),
		"nvmlDeviceGetGpuInstanceById":             notNull(onGPU(instanceByID), 2),
		"nvmlGpuInstanceGetInfo":                   notNull(instance(instanceInfo), 1),
	}
}

// instance answers about the GPU instance of the first argument, whose handle may be stale.
func instance(answer func(s *sim.State, i *sim.Instance, a args) result) call {
	return func(l *library, a args) result {
		h, ok := handleOf(a.raw[0])
		if !ok || h.kind != aGPUInstance {
			return invalidArgument
		}
		s, err := l.node.Read(h.gpu, gpu.ReadingMIG)
		if err != nil {
			return l.failed(err)
		}
		if !s.Privileged {
			return noPermission
		}
		i, ok := s.Instance(h.instance)
		if !ok {
			return notFound
		}
		return answer(&s, i, a)
	}
}

func createInstance(l *library, a args) result {
	return makeInstance(l, a, gpu.Opt[int]{}, at[uintptr](a, 2))
}

func createInstanceAt(l *library, a args) result {
	p := at[C.sim_nvmlGpuInstancePlacement_t](a, 2)
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind != aGPU {
		return invalidArgument
	}
	s, err := l.node.Read(h.gpu, gpu.ReadingMIG)
	if err != nil {
		return l.failed(err)
	}
	wanted := gpu.Placement{Start: int(p.start), Size: int(p.size)}
	if f, ret := byID(&s, a.uint(1)); ret != success || !slices.Contains(f.Placements, wanted) {
		return invalidArgument
	}
	return makeInstance(l, a, gpu.Some(wanted.Start), at[uintptr](a, 3))
}

func makeInstance(l *library, a args, start gpu.Opt[int], made *uintptr) result {
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind != aGPU {
		return invalidArgument
	}
	id, err := l.node.CreateGPUInstance(h.gpu, a.uint(1), start)
	if err != nil {
		return l.failed(err)
	}
	*made = handle{kind: aGPUInstance, gpu: h.gpu, instance: id}.raw()
	return success
}

func destroyInstance(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind != aGPUInstance {
		return invalidArgument
	}
	return l.failed(l.node.DestroyGPUInstance(h.gpu, h.instance))
}

// instancesOfProfile writes as many as there are: the caller has room for the profile's instanceCount (nvml.h).
func instancesOfProfile(s *sim.State, a args) result {
	switch {
	case !s.MIGEnabled:
		return notSupported
	case !s.Privileged:
		return noPermission
	}
	if _, ret := byID(s, a.uint(1)); ret != success {
		return ret
	}
	var handles []uintptr
	for _, i := range s.Instances {
		if i.Profile.ID == a.uint(1) {
			handles = append(handles, handle{kind: aGPUInstance, gpu: s.Index, instance: i.ID}.raw())
		}
	}
	putHandles(a, handles)
	return success
}

// putHandles writes a list of handles into the third argument and their count into the fourth.
func putHandles(a args, handles []uintptr) {
	copy(array[uintptr](a, 2, uint32(len(handles))), handles)
	*at[uint32](a, 3) = uint32(len(handles))
}

func instanceByID(s *sim.State, a args) result {
	switch {
	case !s.MIGEnabled:
		return notSupported
	case !s.Privileged:
		return noPermission
	}
	i, ok := s.Instance(gpu.InstanceID(a.uint(1)))
	if !ok {
		return notFound
	}
	putRaw(a, 2, handle{kind: aGPUInstance, gpu: s.Index, instance: i.ID})
	return success
}

func instanceInfo(s *sim.State, i *sim.Instance, a args) result {
	info := at[C.sim_nvmlGpuInstanceInfo_t](a, 1)
	putHandle(&info.device, handle{kind: aGPU, gpu: s.Index})
	info.id, info.profileId = C.sim_u32(i.ID), C.sim_u32(i.Profile.ID)
	info.placement.start, info.placement.size = C.sim_u32(i.Placement.Start), C.sim_u32(i.Placement.Size)
	return success
}
