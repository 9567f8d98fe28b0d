package contract

import (
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// migChecks are those of MIG: mode, profiles, instances, MIG devices.
func migChecks() []checkOf {
	return []checkOf{
		{name: "Device.GetMigMode", methods: []string{"Device.GetMaxMigDeviceCount"}, check: each(checkMode)},
		{name: "Device.GetGpuInstanceProfileInfo", check: each(checkProfiles)},
		{name: "Device.GetGpuInstancePossiblePlacements", check: each(checkPlacements)},
		{name: "Device.GetGpuInstances", methods: []string{"GPUInstance.GetInfo"}, check: each(checkInstances)},
		{name: "GPUInstance.GetComputeInstances", check: each(checkComputesOf)},
		{
			name:    "Device.GetMigDeviceHandleByIndex",
			methods: []string{"MIGDevice.GetUUID", "MIGDevice.GetGpuInstanceId", "MIGDevice.GetComputeInstanceId"},
			check:   each(checkMIGHandles),
		},
		{name: "MIGDevice.GetName", seen: inCapture,
			check: eachMIG(func(s *subject, d nvmlsource.Device, m nvmlsource.MIGDevice) {
				name, ret := m.GetName()
				if s.must("MIGDevice.GetName", ret) {
					whole, _ := d.GetName()
					s.want(printable(name) && strings.HasPrefix(name, whole+" MIG "), "name %q of a MIG device of %q", name, whole)
				}
			})},
		{name: "MIGDevice.GetAttributes", check: eachMIG(checkAttributes)},
		{name: "MIGDevice.GetMemoryInfo", check: eachMIG(checkMIGMemory)},
		{name: "MIGDevice.GetMemoryErrorCounter", check: eachMIG(checkMIGErrors)},
		{name: "MIGDevice.GetComputeRunningProcesses", check: eachMIG(checkMIGProcesses)},
	}
}

// checkMode: no MIG devices without MIG; the most that there can be is 0 then (nvml.h).
func checkMode(s *subject, d nvmlsource.Device) {
	now, pending, ret := d.GetMigMode()

	most, mostRet := d.GetMaxMigDeviceCount()
	if s.has("Device.GetMaxMigDeviceCount", mostRet) {
		s.want(most >= 0 && most <= 64, "%d MIG devices at most", most)
	}

	if !s.has("Device.GetMigMode", ret) {
		s.want(ret != nvml.ERROR_NO_PERMISSION, "seeing the MIG mode wants a right")
		s.want(most == 0, "%d MIG devices at most, without MIG", most)

		return
	}

	s.want(now>>1 == 0 && pending>>1 == 0, "mode %d, pending %d", now, pending)
	s.want(mostRet != nvml.SUCCESS || (most > 0) == (now == nvml.DEVICE_MIG_ENABLE), "%d MIG devices at most in mode %d",
		most, now)

	if now != nvml.DEVICE_MIG_ENABLE {
		_, ret := d.GetMigDeviceHandleByIndex(0)
		s.want(ret != nvml.SUCCESS, "a MIG device with MIG off")
		list, ret := d.GetGpuInstances(0, 16)
		s.want(ret != nvml.SUCCESS || len(list) == 0, "GPU instances with MIG off")
	}
}

// profilesOf are those that a GPU offers, by enum.
func (s *subject) profilesOf(d nvmlsource.Device) []nvml.GpuInstanceProfileInfo_v3 {
	var list []nvml.GpuInstanceProfileInfo_v3

	for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(enum)
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT && enum > 0: // an older driver's last
		case s.has("Device.GetGpuInstanceProfileInfo", ret):
			list = append(list, info)
		}
	}

	return list
}

// checkProfiles. InstanceCount is not held to the placements: drivers are known to report it wrong
// (A30).
func checkProfiles(s *subject, d nvmlsource.Device) {
	memory, memoryRet := d.GetMemoryInfo()

	seen := map[uint32]bool{}
	for _, p := range s.profilesOf(d) {
		s.want(!seen[p.Id], "profile %d twice", p.Id)
		seen[p.Id] = true
		s.want(p.SliceCount >= 1 && p.SliceCount <= 16 && p.InstanceCount >= 1 && p.InstanceCount <= 16, "profile %+v", p)
		s.want(p.MultiprocessorCount >= p.SliceCount && p.MultiprocessorCount < 1024 && p.MemorySizeMB > 0, "profile %+v", p)

		if memoryRet == nvml.SUCCESS { // the total of old drivers leaves out what is reserved
			s.want(p.MemorySizeMB <= memory.Total>>20*11/10, "profile %d has %d MiB of %d", p.Id, p.MemorySizeMB,
				memory.Total>>20)
		}

		if name := text(p.Name[:]); name != "" {
			s.want(printable(name) && strings.Contains(name, "g."), "profile %d is named %q", p.Id, name)
		}
	}

	_, ret := d.GetGpuInstanceProfileInfo(10_000)
	s.refused("a kind of profile that there is not", ret)
}

// maxAxis bounds the placement axis: the longest known has 12 units.
const maxAxis = 16

func checkPlacements(s *subject, d nvmlsource.Device) {
	for _, p := range s.profilesOf(d) {
		places, ret := d.GetGpuInstancePossiblePlacements(p.Id)
		if !s.has("Device.GetGpuInstancePossiblePlacements", ret) {
			continue
		}

		s.want(len(places) > 0 && len(places) <= maxAxis, "profile %d has %d placements", p.Id, len(places))

		for i, at := range places {
			s.want(at.Size > 0 && at.Size == places[0].Size && at.Start+at.Size <= maxAxis, "profile %d: placement %+v", p.Id,
				at)
			s.want(slices.Index(places, at) == i, "profile %d: placement %+v twice", p.Id, at)
		}
	}
}

// instance is a GPU instance as the lists have it.
type instance struct {
	info             nvmlsource.GPUInstanceInfo
	profile          nvml.GpuInstanceProfileInfo_v3
	list             []nvmlsource.ComputeInstanceInfo
	computeInstances map[uint32]bool
}

// tree lists the GPU instances of a GPU by id; nil if that is not allowed or MIG is off.
func (s *subject) tree(d nvmlsource.Device) map[uint32]instance {
	if !migOn(d) {
		return nil
	}

	tree := map[uint32]instance{}

	for _, p := range s.profilesOf(d) {
		handles, ret := d.GetGpuInstances(p.Id, maxAxis)
		if !s.has("Device.GetGpuInstances", ret) {
			return nil
		}

		for _, h := range handles {
			info, ret := h.GetInfo()

			list, listRet := h.GetComputeInstances()
			if !s.has("GPUInstance.GetInfo", ret) || !s.has("GPUInstance.GetComputeInstances", listRet) {
				return nil
			}

			s.want(info.ProfileID == p.Id, "GPU instance %+v in the list of profile %d", info, p.Id)

			if _, twice := tree[info.ID]; twice {
				s.errorf("GPU instance %d twice", info.ID)
			}

			i := instance{info: info, profile: p, list: list, computeInstances: map[uint32]bool{}}
			for _, c := range list {
				s.want(!i.computeInstances[c.ID], "compute instance %d of GPU instance %d twice", c.ID, info.ID)
				i.computeInstances[c.ID] = true
			}

			tree[info.ID] = i
		}
	}

	return tree
}

func checkInstances(s *subject, d nvmlsource.Device) {
	tree := s.tree(d)
	var taken []gpu.Placement
	counts := map[uint32]int{}

	for id, i := range tree {
		at := gpu.Placement{Start: int(i.info.Placement.Start), Size: int(i.info.Placement.Size)}
		s.want(!slices.ContainsFunc(taken, at.Overlaps), "GPU instance %d at %v overlaps another", id, at)
		taken = append(taken, at)

		counts[i.profile.Id]++
		if places, ret := d.GetGpuInstancePossiblePlacements(i.profile.Id); ret == nvml.SUCCESS {
			s.want(slices.Contains(places, i.info.Placement), "GPU instance %d at %v, where its profile cannot be", id, at)
			s.want(counts[i.profile.Id] <= len(places), "more instances of profile %d than places", i.profile.Id)
		}
	}

	again := s.tree(d)
	s.want(len(again) == len(tree), "%d GPU instances, then %d", len(tree), len(again))

	if migOn(d) {
		_, ret := d.GetGpuInstances(10_000, maxAxis)
		s.refused("the GPU instances of a profile that there is not", ret)
	}
}

// checkComputesOf: compute instances lie apart within the compute slices of theirs. Size 0 is a
// placement unknown.
func checkComputesOf(s *subject, d nvmlsource.Device) {
	for id, i := range s.tree(d) {
		var taken []gpu.Placement

		for _, c := range i.list {
			at := gpu.Placement{Start: int(c.Placement.Start), Size: int(c.Placement.Size)}
			s.want(at.End() <= int(i.profile.SliceCount), "compute instance %d/%d at %v of %d slices", id, c.ID, at,
				i.profile.SliceCount)
			s.want(!slices.ContainsFunc(taken, at.Overlaps), "compute instance %d/%d at %v overlaps another", id, c.ID, at)
			taken = append(taken, at)
		}
	}
}

// eachMIG runs a check on every MIG device.
func eachMIG(check func(*subject, nvmlsource.Device, nvmlsource.MIGDevice)) func(*subject) {
	return each(func(s *subject, d nvmlsource.Device) {
		for _, m := range s.migDevices(d) {
			check(s, d, m)
		}
	})
}

// migDevices are those of a GPU. The indexes are sparse (nvml.h).
func (s *subject) migDevices(d nvmlsource.Device) []nvmlsource.MIGDevice {
	var list []nvmlsource.MIGDevice

	most, _ := d.GetMaxMigDeviceCount()
	for k := range most {
		m, ret := d.GetMigDeviceHandleByIndex(k)
		if ret != nvml.ERROR_NOT_FOUND && s.must("Device.GetMigDeviceHandleByIndex", ret) {
			list = append(list, m)
		}
	}

	return list
}

// checkMIGHandles: a MIG device for every compute instance, each once, known by every form of its
// UUID.
func checkMIGHandles(s *subject, d nvmlsource.Device) {
	tree := s.tree(d)
	uuids := map[string]bool{}
	ids := map[[2]int]bool{}

	for _, m := range s.migDevices(d) {
		uuid, ret := m.GetUUID()
		gi, giRet := m.GetGpuInstanceId()

		ci, ciRet := m.GetComputeInstanceId()
		if !s.must("MIGDevice.GetUUID", ret) || !s.must("MIGDevice.GetGpuInstanceId", giRet) ||
			!s.must("MIGDevice.GetComputeInstanceId", ciRet) {
			continue
		}

		_, legacy, err := gpu.ParseMIGUUID(uuid)
		s.want(err == nil, "%v", err)

		if l, ok := legacy.Get(); ok {
			s.want(l == gpu.LegacyMIG{GPU: uuidOf(d), Instance: gpu.InstanceID(gi), Compute: gpu.ComputeID(ci)}, "%s is %d/%d",
				uuid, gi, ci)
		}

		s.want(!uuids[uuid] && !ids[[2]int{gi, ci}], "%s, %d/%d, twice", uuid, gi, ci)

		uuids[uuid], ids[[2]int{gi, ci}] = true, true
		if tree != nil {
			s.want(tree[uint32(gi)].computeInstances[uint32(ci)], "%s is of compute instance %d/%d, which is not listed", uuid, gi, ci)
		}
	}

	for id, i := range tree {
		for ci := range i.computeInstances {
			s.want(ids[[2]int{int(id), int(ci)}], "compute instance %d/%d has no MIG device", id, ci)
		}
	}

	if most, ret := d.GetMaxMigDeviceCount(); ret == nvml.SUCCESS {
		_, ret := d.GetMigDeviceHandleByIndex(most)
		s.want(ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_NOT_SUPPORTED,
			"the MIG device after the last: %d", ret)
	}
}

// checkAttributes: slices, SMs and memory are those of the profile of the GPU instance.
func checkAttributes(s *subject, d nvmlsource.Device, m nvmlsource.MIGDevice) {
	a, ret := m.GetAttributes()
	if !s.has("MIGDevice.GetAttributes", ret) {
		return
	}

	s.want(a.ComputeInstanceSliceCount >= 1 && a.ComputeInstanceSliceCount <= a.GpuInstanceSliceCount &&
		a.MultiprocessorCount > 0, "%+v", a)
	id, _ := m.GetGpuInstanceId()

	i, listed := s.tree(d)[uint32(id)]
	if !listed {
		return
	}

	p := i.profile
	s.want(a.GpuInstanceSliceCount == p.SliceCount && a.MultiprocessorCount <= p.MultiprocessorCount &&
		near(a.MemorySizeMB, p.MemorySizeMB),
		"%+v of profile %+v", a, p)

	if a.ComputeInstanceSliceCount == p.SliceCount {
		s.want(a.MultiprocessorCount == p.MultiprocessorCount, "%+v has not all SMs of profile %+v", a, p)
	}
}

// near: within a twentieth, by which drivers round.
func near(a, b uint64) bool { return a <= b+b/20 && b <= a+a/20 }

// checkMIGMemory: the memory is its GPU instance's, whose compute instances share it. Seeing it
// needs no rights.
func checkMIGMemory(s *subject, d nvmlsource.Device, m nvmlsource.MIGDevice) {
	memory, ret := m.GetMemoryInfo()
	if !s.must("MIGDevice.GetMemoryInfo", ret) {
		return
	}

	s.want(memory.Total > 0 && fits(memory), "memory %+v", memory)

	if a, ret := m.GetAttributes(); ret == nvml.SUCCESS {
		s.want(near(memory.Total>>20, a.MemorySizeMB), "%d MiB, by the attributes %d", memory.Total>>20, a.MemorySizeMB)
	}

	id, _ := m.GetGpuInstanceId()
	for _, other := range s.migDevices(d) {
		if of, _ := other.GetGpuInstanceId(); of == id {
			shared, _ := other.GetMemoryInfo()
			s.want(shared.Total == memory.Total, "GPU instance %d has %d bytes and %d", id, memory.Total, shared.Total)
		}
	}
}

// checkMIGErrors: a MIG device has no more errors in its SRAM than its GPU.
func checkMIGErrors(s *subject, d nvmlsource.Device, m nvmlsource.MIGDevice) {
	const severity, lifetime = nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC

	count, ret := m.GetMemoryErrorCounter(severity, lifetime, nvml.MEMORY_LOCATION_SRAM)
	if !s.has("MIGDevice.GetMemoryErrorCounter", ret) {
		return
	}

	if all, ret := d.GetMemoryErrorCounter(severity, lifetime, nvml.MEMORY_LOCATION_SRAM); ret == nvml.SUCCESS {
		s.want(count <= all, "%d errors of a GPU that has %d", count, all)
	}
}

// checkMIGProcesses: its own, and no others.
func checkMIGProcesses(s *subject, d nvmlsource.Device, m nvmlsource.MIGDevice) {
	list, ret := m.GetComputeRunningProcesses()
	if !s.has("MIGDevice.GetComputeRunningProcesses", ret) {
		return
	}

	s.processes(d, list)
	gi, _ := m.GetGpuInstanceId()
	ci, _ := m.GetComputeInstanceId()

	for _, p := range list {
		s.want(p.GpuInstanceId == nvmlsource.NoInstance || int(p.GpuInstanceId) == gi, "process %+v of GPU instance %d", p,
			gi)
		s.want(p.ComputeInstanceId == nvmlsource.NoInstance || int(p.ComputeInstanceId) == ci,
			"process %+v of compute instance %d", p, ci)
	}
}
