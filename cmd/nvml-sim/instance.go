package main

// #include "abi.h"
import "C"

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// instanceCalls create, list and destroy GPU instances. All require privileges.
func instanceCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceCreateGpuInstance":              notNull(onHandle(createInstance, aGPU), 2),
		"nvmlDeviceCreateGpuInstanceWithPlacement": notNull(onHandle(createInstanceAt, aGPU), 2, 3),
		"nvmlGpuInstanceDestroy":                   onHandle(destroyInstance, aGPUInstance),
		"nvmlDeviceGetGpuInstances":                readMIG(withInstances(instancesOfProfile), 2, 3),
		"nvmlDeviceGetGpuInstanceById":             readMIG(withInstances(instanceByID), 2),
		"nvmlGpuInstanceGetInfo":                   readInstance(instanceInfo, 1),
	}
}

// instance reads the GPU instance of a handle, and its GPU. It requires privileges.
func (l *library) instance(h handle) (*sim.GPUState, *sim.Instance, result) {
	s, err := l.node.Read(h.gpu, gpu.ReadingMIG)
	switch {
	case err != nil:
		return nil, nil, l.failed(err)
	case !s.Privileged:
		return nil, nil, noPermission
	}

	i, ok := s.Instance(h.instance)
	if !ok {
		return nil, nil, notFound
	}

	return &s, i, success
}

// instanceAnswer answers about a GPU instance from what was read of its GPU.
type instanceAnswer func(s *sim.GPUState, i *sim.Instance, a args) result

// readInstance answers about the GPU instance in the first argument. pointers are the indexes of the
// arguments that must not be NULL.
func readInstance(answer instanceAnswer, pointers ...int) call {
	return notNull(onHandle(func(l *library, h handle, a args) result {
		s, i, ret := l.instance(h)
		if ret != success {
			return ret
		}

		return answer(s, i, a)
	}, aGPUInstance), pointers...)
}

func createInstance(l *library, h handle, a args) result {
	return l.createInstance(h, gpu.None[int](), a, 2)
}

func createInstanceAt(l *library, h handle, a args) result {
	p := pointer[C.sim_nvmlGpuInstancePlacement_t](a, 2)

	s, err := l.node.Read(h.gpu, gpu.ReadingMIG)
	if err != nil {
		return l.failed(err)
	}

	wanted := gpu.Placement{Start: int(p.start), Size: int(p.size)}

	f, err := s.ProfileByID(a.uint(1))
	if err != nil || !slices.Contains(f.Placements, wanted) {
		return invalidArgument
	}

	return l.createInstance(h, gpu.Some(wanted.Start), a, 3)
}

// createInstance creates a GPU instance of the profile that the second argument names, and writes
// its handle to where argument to points.
func (l *library) createInstance(h handle, start gpu.Opt[int], a args, to int) result {
	id, err := l.node.CreateGPUInstance(h.gpu, a.uint(1), start)
	if err != nil {
		return l.failed(err)
	}

	return putHandle(a, to, handle{kind: aGPUInstance, gpu: h.gpu, instance: id})
}

func destroyInstance(l *library, h handle, _ args) result {
	return l.failed(l.node.DestroyGPUInstance(h.gpu, h.instance))
}

// withInstances answers about the GPU instances of a GPU. It requires MIG and privileges.
func withInstances(answer gpuAnswer) gpuAnswer {
	return func(s *sim.GPUState, a args) result {
		switch {
		case !s.MIGEnabled:
			return notSupported
		case !s.Privileged:
			return noPermission
		}

		return answer(s, a)
	}
}

// instancesOfProfile writes the handles of all GPU instances of a profile. The caller has room for
// the profile's instanceCount (nvml.h).
func instancesOfProfile(s *sim.GPUState, a args) result {
	_, err := s.ProfileByID(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	var handles []uintptr
	for _, i := range s.Instances {
		if i.Profile.ID == a.uint(1) {
			h := handle{kind: aGPUInstance, gpu: s.Index, instance: i.ID}
			handles = append(handles, h.raw())
		}
	}

	return putHandles(a, handles)
}

// putHandles writes a list of handles to the third argument and their count to the fourth.
func putHandles(a args, handles []uintptr) result {
	copy(array[uintptr](a, 2, uint32(len(handles))), handles)
	return put(a, 3, uint32(len(handles)))
}

func instanceByID(s *sim.GPUState, a args) result {
	i, ok := s.Instance(gpu.InstanceID(a.uint(1)))
	if !ok {
		return notFound
	}

	return putHandle(a, 2, handle{kind: aGPUInstance, gpu: s.Index, instance: i.ID})
}

func instanceInfo(s *sim.GPUState, i *sim.Instance, a args) result {
	info := pointer[C.sim_nvmlGpuInstanceInfo_t](a, 1)
	setHandle(&info.device, handle{kind: aGPU, gpu: s.Index})
	info.id = C.sim_u32(i.ID)
	info.profileId = C.sim_u32(i.Profile.ID)
	info.placement.start = C.sim_u32(i.Placement.Start)
	info.placement.size = C.sim_u32(i.Placement.Size)

	return success
}
