package main

// #include "abi.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// computeCalls answer about the compute instances of a GPU instance. All require privileges.
func computeCalls() map[string]call {
	var info C.sim_nvmlComputeInstanceInfo_t

	return map[string]call{
		"nvmlGpuInstanceGetComputeInstanceProfileInfo":  readInstance(plainComputeProfile, 3),
		"nvmlGpuInstanceGetComputeInstanceProfileInfoV": readInstance(versionedComputeProfile, 3),
		"nvmlGpuInstanceGetComputeInstanceRemainingCapacity": readInstance(
			withComputeProfile(remainingComputeInstances), 2),
		"nvmlGpuInstanceGetComputeInstancePossiblePlacements": readInstance(
			withComputeProfile(computePlacements), 3),
		"nvmlGpuInstanceCreateComputeInstance": notNull(onHandle(createCompute, aGPUInstance), 2),
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement": notNull(
			onHandle(createComputeAt, aGPUInstance), 2, 3),
		"nvmlComputeInstanceDestroy":            onHandle(destroyCompute, aComputeInstance),
		"nvmlGpuInstanceGetComputeInstances":    readInstance(computeInstancesOfProfile, 2, 3),
		"nvmlGpuInstanceGetComputeInstanceById": readInstance(computeInstanceByID, 2),
		"nvmlComputeInstanceGetInfo":            computeInfo(unsafe.Offsetof(info.placement)),
		"nvmlComputeInstanceGetInfo_v2":         computeInfo(unsafe.Sizeof(info)),
	}
}

// withComputeProfile answers about a GPU instance and the compute profile that the second argument
// names.
func withComputeProfile(answer func(i *sim.Instance, f sim.ComputeProfile, a args) result) instanceAnswer {
	return func(_ *sim.GPUState, i *sim.Instance, a args) result {
		f, err := i.ComputeProfile(a.uint(1))
		if err != nil {
			return resultOf(err)
		}

		return answer(i, f, a)
	}
}

// sharedProfile finds the compute profile that the second argument names. The third argument names
// an engine profile, of which only SHARED exists.
func sharedProfile(i *sim.Instance, a args) (sim.ComputeProfile, error) {
	if a.uint(2) != C.SIM_NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED {
		return sim.ComputeProfile{}, gpu.ErrInvalidArgument
	}

	return i.ComputeProfile(a.uint(1))
}

func plainComputeProfile(_ *sim.GPUState, i *sim.Instance, a args) result {
	f, err := sharedProfile(i, a)
	if err != nil {
		return resultOf(err)
	}

	return put(a, 3, computeProfileInfo(i, f))
}

func computeProfileInfo(i *sim.Instance, f sim.ComputeProfile) C.sim_nvmlComputeInstanceProfileInfo_t {
	e := i.Profile.Engines.Or(gpu.Engines{})
	return C.sim_nvmlComputeInstanceProfileInfo_t{
		id:                    C.sim_u32(f.ID),
		sliceCount:            C.sim_u32(f.Size),
		instanceCount:         C.sim_u32(i.Profile.ComputeSlices / f.Size),
		multiprocessorCount:   C.sim_u32(sim.ComputeSMs(i.Profile, f.Size)),
		sharedCopyEngineCount: C.sim_u32(e.Copy),
		sharedDecoderCount:    C.sim_u32(e.Decoder),
		sharedEncoderCount:    C.sim_u32(e.Encoder),
		sharedJpegCount:       C.sim_u32(e.JPEG),
		sharedOfaCount:        C.sim_u32(e.OFA),
	}
}

// versionedComputeProfile answers in version 2, or in version 3, which appends the capabilities.
func versionedComputeProfile(_ *sim.GPUState, i *sim.Instance, a args) result {
	version := *pointer[uint32](a, 3)
	if version != C.SIM_nvmlComputeInstanceProfileInfo_v2 &&
		version != C.SIM_nvmlComputeInstanceProfileInfo_v3 {
		return invalidArgument // by nvml.h; not ARGUMENT_VERSION_MISMATCH
	}

	f, err := sharedProfile(i, a)
	if err != nil {
		return resultOf(err)
	}

	// Version 3 has the fields of version 2 at the same places.
	plain := computeProfileInfo(i, f)
	info := pointer[C.sim_nvmlComputeInstanceProfileInfo_v2_t](a, 3)
	*info = C.sim_nvmlComputeInstanceProfileInfo_v2_t{
		version:               C.sim_u32(version),
		id:                    plain.id,
		sliceCount:            plain.sliceCount,
		instanceCount:         plain.instanceCount,
		multiprocessorCount:   plain.multiprocessorCount,
		sharedCopyEngineCount: plain.sharedCopyEngineCount,
		sharedDecoderCount:    plain.sharedDecoderCount,
		sharedEncoderCount:    plain.sharedEncoderCount,
		sharedJpegCount:       plain.sharedJpegCount,
		sharedOfaCount:        plain.sharedOfaCount,
	}
	putCString(info.name[:], "MIG "+f.Name)

	if version == C.SIM_nvmlComputeInstanceProfileInfo_v3 {
		pointer[C.sim_nvmlComputeInstanceProfileInfo_v3_t](a, 3).capabilities = 0
	}

	return success
}

// remainingComputeInstances counts the compute instances of a profile that could be created now, one
// beside the other.
func remainingComputeInstances(i *sim.Instance, f sim.ComputeProfile, a args) result {
	count := 0
	end := 0

	for _, p := range f.Placements {
		overlaps := slices.ContainsFunc(i.ComputeInstances, func(c *sim.Compute) bool {
			return c.Placement.Overlaps(p)
		})
		if !overlaps && p.Start >= end {
			count++
			end = p.End()
		}
	}

	return put(a, 2, uint32(count))
}

func computePlacements(_ *sim.Instance, f sim.ComputeProfile, a args) result {
	return putPlacements(a, f.Placements)
}

func createCompute(l *library, h handle, a args) result { return l.createCompute(h, nil, a, 2) }

func createComputeAt(l *library, h handle, a args) result {
	p := pointer[C.sim_nvmlComputeInstancePlacement_t](a, 2)
	return l.createCompute(h, &gpu.Placement{Start: int(p.start), Size: int(p.size)}, a, 3)
}

// createCompute creates a compute instance of the profile that the second argument names, at a
// placement, or anywhere if that is nil. It writes the handle to where argument to points.
func (l *library) createCompute(h handle, placement *gpu.Placement, a args, to int) result {
	_, i, ret := l.instance(h)
	if ret != success {
		return ret
	}

	f, err := i.ComputeProfile(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	var start gpu.Opt[int]

	if placement != nil {
		if !slices.Contains(f.Placements, *placement) {
			return invalidArgument
		}

		start = gpu.Some(placement.Start)
	}

	id, err := l.node.CreateComputeInstanceAt(h.gpu, h.instance, f.Size, start)
	if err != nil {
		return l.failed(err)
	}

	return putHandle(a, to, handle{aComputeInstance, h.gpu, h.instance, id})
}

func destroyCompute(l *library, h handle, _ args) result {
	return l.failed(l.node.DestroyComputeInstance(h.gpu, h.instance, h.compute))
}

// computeInstancesOfProfile writes the handles of all compute instances of a profile. The caller has
// room for the profile's instanceCount (nvml.h).
func computeInstancesOfProfile(s *sim.GPUState, i *sim.Instance, a args) result {
	f, err := i.ComputeProfile(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	var handles []uintptr
	for _, c := range i.ComputeInstances {
		if c.Placement.Size == f.Size {
			handles = append(handles, handle{aComputeInstance, s.Index, i.ID, c.ID}.raw())
		}
	}

	return putHandles(a, handles)
}

func computeInstanceByID(s *sim.GPUState, i *sim.Instance, a args) result {
	c, ok := i.Compute(gpu.ComputeID(a.uint(1)))
	if !ok {
		return notFound
	}

	return putHandle(a, 2, handle{aComputeInstance, s.Index, i.ID, c.ID})
}

// computeInfo answers with the first bytes of the struct, as many as the version of the call has:
// the first version has no placement.
func computeInfo(size uintptr) call {
	return notNull(onHandle(func(l *library, h handle, a args) result {
		_, i, ret := l.instance(h)
		if ret != success {
			return ret
		}

		c, ok := i.Compute(h.compute)
		if !ok {
			return notFound
		}

		id, _ := sim.ComputeProfileID(c.Placement.Size)
		info := C.sim_nvmlComputeInstanceInfo_t{id: C.sim_u32(c.ID), profileId: C.sim_u32(id)}
		setHandle(&info.device, handle{kind: aGPU, gpu: h.gpu})
		setHandle(&info.gpuInstance, handle{kind: aGPUInstance, gpu: h.gpu, instance: h.instance})
		info.placement.start = C.sim_u32(c.Placement.Start)
		info.placement.size = C.sim_u32(c.Placement.Size)

		return putStart(a, 1, info, size)
	}, aComputeInstance), 1)
}
