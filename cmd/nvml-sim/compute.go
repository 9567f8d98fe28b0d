package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// computeCalls are about the compute instances of a GPU instance. All need rights.
func computeCalls() map[string]call {
	return map[string]call{
		"nvmlGpuInstanceGetComputeInstanceProfileInfo":        notNull(instance(plainComputeProfile), 3),
		"nvmlGpuInstanceGetComputeInstanceProfileInfoV":       notNull(instance(versionedComputeProfile), 3),
		"nvmlGpuInstanceGetComputeInstanceRemainingCapacity":  notNull(instance(remainingComputes), 2),
		"nvmlGpuInstanceGetComputeInstancePossiblePlacements": notNull(instance(computePlacements), 3),
		"nvmlGpuInstanceCreateComputeInstance":                notNull(createCompute, 2),
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement":   notNull(createComputeAt, 2, 3),
		"nvmlComputeInstanceDestroy":                          destroyCompute,
		"nvmlGpuInstanceGetComputeInstances":                  notNull(instance(computesOfProfile), 2, 3),
		"nvmlGpuInstanceGetComputeInstanceById":               notNull(instance(computeByID), 2),
		"nvmlComputeInstanceGetInfo":                          notNull(computeInfo(unsafe.Offsetof(C.sim_nvmlComputeInstanceInfo_t{}.placement)), 1),
		"nvmlComputeInstanceGetInfo_v2":                       notNull(computeInfo(unsafe.Sizeof(C.sim_nvmlComputeInstanceInfo_t{})), 1),
	}
}

// computeProfile is a kind of compute instance of one GPU instance. NVML's number for it is its id too.
type computeProfile struct {
	id         uint32
	size       int
	name       string
	placements []gpu.Placement
}

// computeProfileOf finds a compute profile; those that the GPU instance has no room for are not supported.
func computeProfileOf(i *sim.Instance, id uint32) (computeProfile, result) {
	if id >= C.SIM_NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
		return computeProfile{}, invalidArgument
	}
	for size := 1; size <= i.Profile.ComputeSlices; size++ {
		known, ok := sim.ComputeProfileID(size)
		placements := sim.ComputePlacements(i.Profile.ComputeSlices, size)
		if !ok || known != id || placements == nil {
			continue
		}
		name := i.Profile.Name
		if size < i.Profile.ComputeSlices {
			name = fmt.Sprintf("%dc.%s", size, name)
		}
		return computeProfile{id, size, name, placements}, success
	}
	return computeProfile{}, notSupported
}

// askedProfile is the one of the second argument, with the engine profile of the third: only the shared one exists.
func askedProfile(i *sim.Instance, a args) (computeProfile, result) {
	if a.uint(2) != C.SIM_NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED {
		return computeProfile{}, invalidArgument
	}
	return computeProfileOf(i, a.uint(1))
}

func plainComputeProfile(_ *sim.State, i *sim.Instance, a args) result {
	f, ret := askedProfile(i, a)
	if ret == success {
		*at[C.sim_nvmlComputeInstanceProfileInfo_t](a, 3) = f.info(i)
	}
	return ret
}

func (f computeProfile) info(i *sim.Instance) C.sim_nvmlComputeInstanceProfileInfo_t {
	e := i.Profile.Engines.Or(gpu.Engines{})
	return C.sim_nvmlComputeInstanceProfileInfo_t{
		id: C.sim_u32(f.id), sliceCount: C.sim_u32(f.size),
		instanceCount:         C.sim_u32(i.Profile.ComputeSlices / f.size),
		multiprocessorCount:   C.sim_u32(sim.ComputeSMs(i.Profile, f.size)),
		sharedCopyEngineCount: C.sim_u32(e.Copy), sharedDecoderCount: C.sim_u32(e.Decoder), sharedEncoderCount: C.sim_u32(e.Encoder),
		sharedJpegCount: C.sim_u32(e.JPEG), sharedOfaCount: C.sim_u32(e.OFA),
	}
}

// versionedComputeProfile answers in version 2, or in version 3, which is 2 with capabilities behind it.
func versionedComputeProfile(_ *sim.State, i *sim.Instance, a args) result {
	version := *at[uint32](a, 3)
	if version != C.SIM_nvmlComputeInstanceProfileInfo_v2 && version != C.SIM_nvmlComputeInstanceProfileInfo_v3 {
		return invalidArgument // so nvml.h, not ARGUMENT_VERSION_MISMATCH
	}
	f, ret := askedProfile(i, a)
	if ret != success {
		return ret
	}
	plain, info := f.info(i), at[C.sim_nvmlComputeInstanceProfileInfo_v2_t](a, 3)
	*info = C.sim_nvmlComputeInstanceProfileInfo_v2_t{
		version: C.sim_u32(version),
		id:      plain.id, sliceCount: plain.sliceCount, instanceCount: plain.instanceCount,
		multiprocessorCount: plain.multiprocessorCount, sharedCopyEngineCount: plain.sharedCopyEngineCount,
		sharedDecoderCount: plain.sharedDecoderCount, sharedEncoderCount: plain.sharedEncoderCount,
		sharedJpegCount: plain.sharedJpegCount, sharedOfaCount: plain.sharedOfaCount,
	}
	cString(info.name[:], "MIG "+f.name)
	if version == C.SIM_nvmlComputeInstanceProfileInfo_v3 {
		at[C.sim_nvmlComputeInstanceProfileInfo_v3_t](a, 3).capabilities = 0
	}
	return success
}

// remainingComputes counts those that could be made now, one after the other.
func remainingComputes(_ *sim.State, i *sim.Instance, a args) result {
	f, ret := computeProfileOf(i, a.uint(1))
	if ret != success {
		return ret
	}
	count, end := 0, 0
	for _, p := range f.placements {
		taken := slices.ContainsFunc(i.ComputeInstances, func(c sim.Compute) bool { return c.Placement.Overlaps(p) })
		if !taken && p.Start >= end {
			count, end = count+1, p.End()
		}
	}
	*at[uint32](a, 2) = uint32(count)
	return success
}

func computePlacements(_ *sim.State, i *sim.Instance, a args) result {
	f, ret := computeProfileOf(i, a.uint(1))
	if ret != success {
		return ret
	}
	*at[uint32](a, 3) = uint32(len(f.placements))
	if a.raw[2] == 0 {
		return success
	}
	to := array[C.sim_nvmlComputeInstancePlacement_t](a, 2, uint32(len(f.placements)))
	for k, p := range f.placements {
		to[k] = C.sim_nvmlComputeInstancePlacement_t{start: C.sim_u32(p.Start), size: C.sim_u32(p.Size)}
	}
	return success
}

func createCompute(l *library, a args) result {
	return makeCompute(l, a, nil, at[uintptr](a, 2))
}

func createComputeAt(l *library, a args) result {
	p := at[C.sim_nvmlComputeInstancePlacement_t](a, 2)
	return makeCompute(l, a, &gpu.Placement{Start: int(p.start), Size: int(p.size)}, at[uintptr](a, 3))
}

func makeCompute(l *library, a args, where *gpu.Placement, made *uintptr) result {
	return instance(func(s *sim.State, i *sim.Instance, a args) result {
		f, ret := computeProfileOf(i, a.uint(1))
		if ret != success {
			return ret
		}
		var start gpu.Opt[int]
		if where != nil {
			if !slices.Contains(f.placements, *where) {
				return invalidArgument
			}
			start = gpu.Some(where.Start)
		}
		id, err := l.node.CreateComputeInstanceAt(s.Index, i.ID, f.size, start)
		if err != nil {
			return l.failed(err)
		}
		*made = handle{aComputeInstance, s.Index, i.ID, id}.raw()
		return success
	})(l, a)
}

func destroyCompute(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind != aComputeInstance {
		return invalidArgument
	}
	return l.failed(l.node.DestroyComputeInstance(h.gpu, h.instance, h.compute))
}

// computesOfProfile writes as many as there are: the caller has room for the profile's instanceCount (nvml.h).
func computesOfProfile(s *sim.State, i *sim.Instance, a args) result {
	f, ret := computeProfileOf(i, a.uint(1))
	if ret != success {
		return ret
	}
	var handles []uintptr
	for _, c := range i.ComputeInstances {
		if c.Placement.Size == f.size {
			handles = append(handles, handle{aComputeInstance, s.Index, i.ID, c.ID}.raw())
		}
	}
	putHandles(a, handles)
	return success
}

func computeByID(s *sim.State, i *sim.Instance, a args) result {
	at := slices.IndexFunc(i.ComputeInstances, func(c sim.Compute) bool { return uint32(c.ID) == a.uint(1) })
	if at < 0 {
		return notFound
	}
	putRaw(a, 2, handle{aComputeInstance, s.Index, i.ID, i.ComputeInstances[at].ID})
	return success
}

// computeInfo writes the first bytes of the struct: it had no placement before its second version. It needs rights too.
// The handle may be stale.
func computeInfo(size uintptr) call {
	return func(l *library, a args) result {
		h, ok := handleOf(a.raw[0])
		if !ok || h.kind != aComputeInstance {
			return invalidArgument
		}
		a.raw[0] = handle{kind: aGPUInstance, gpu: h.gpu, instance: h.instance}.raw()
		return instance(func(_ *sim.State, i *sim.Instance, a args) result {
			k := slices.IndexFunc(i.ComputeInstances, func(c sim.Compute) bool { return c.ID == h.compute })
			if k < 0 {
				return notFound
			}
			c := &i.ComputeInstances[k]
			id, _ := sim.ComputeProfileID(c.Placement.Size)
			info := C.sim_nvmlComputeInstanceInfo_t{id: C.sim_u32(c.ID), profileId: C.sim_u32(id)}
			putHandle(&info.device, handle{kind: aGPU, gpu: h.gpu})
			putHandle(&info.gpuInstance, handle{kind: aGPUInstance, gpu: h.gpu, instance: h.instance})
			info.placement.start, info.placement.size = C.sim_u32(c.Placement.Start), C.sim_u32(c.Placement.Size)
			putStart(a, 1, &info, size)
			return success
		})(l, a)
	}
}
