package contract

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// changeChecks are those of what changes the partition of a GPU. They change only simulated ones,
// and leave them as they were; on real ones those alone are held that read.
func changeChecks() []checkOf {
	return []checkOf{
		{
			name:    "MutableInstance.GetComputeInstanceProfileInfo",
			methods: []string{"MutableInstance.GetComputeInstancePossiblePlacements"},
			check:   eachInstance(checkComputeProfiles),
		},
		{name: "MutableInstance.GetComputeInstancesOf", methods: []string{"ComputeInstance.GetInfo"},
			check: eachInstance(checkComputesOfProfiles)},
		{
			name:    "MutableDevice.CreateGpuInstanceWithPlacement",
			methods: []string{"MutableInstance.Destroy"},
			check:   eachMutable(checkCreateInstance),
		},
		{
			name:    "MutableInstance.CreateComputeInstanceWithPlacement",
			methods: []string{"ComputeInstance.Destroy"},
			check:   eachMutable(checkCreateCompute),
		},
		{name: "MutableDevice.SetMigMode", check: eachMutable(checkSetMode)},
	}
}

// eachInstance runs a check on every GPU instance that may be listed.
func eachInstance(check func(*subject, nvmlsource.MutableInstance, nvml.GpuInstanceProfileInfo_v3)) func(*subject) {
	return each(func(s *subject, d nvmlsource.Device) {
		if !migOn(d) {
			return
		}

		for _, p := range s.profilesOf(d) {
			list, ret := d.GetGpuInstances(p.Id, maxAxis)
			if ret != nvml.SUCCESS {
				continue
			}

			for _, h := range list {
				if i, ok := h.(nvmlsource.MutableInstance); ok {
					check(s, i, p)
				}
			}
		}
	})
}

// eachMutable runs a check on every GPU that may be changed.
func eachMutable(check func(*subject, nvmlsource.MutableDevice)) func(*subject) {
	return each(func(s *subject, d nvmlsource.Device) {
		if m, ok := d.(nvmlsource.MutableDevice); ok && s.mutable {
			check(s, m)
		}
	})
}

// computeProfile is a kind of compute instance, with its places.
type computeProfile struct {
	nvml.ComputeInstanceProfileInfo
	places []nvml.ComputeInstancePlacement
}

func (s *subject) computeProfiles(i nvmlsource.MutableInstance) []computeProfile {
	var list []computeProfile

	for enum := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := i.GetComputeInstanceProfileInfo(enum)
		if ret == nvml.ERROR_INVALID_ARGUMENT && enum > 0 || !s.has("MutableInstance.GetComputeInstanceProfileInfo", ret) {
			continue
		}

		places, ret := i.GetComputeInstancePossiblePlacements(info.Id)
		if s.has("MutableInstance.GetComputeInstancePossiblePlacements", ret) {
			list = append(list, computeProfile{info, places})
		}
	}

	return list
}

// checkComputeProfiles: one of them takes the GPU instance whole.
func checkComputeProfiles(s *subject, i nvmlsource.MutableInstance, of nvml.GpuInstanceProfileInfo_v3) {
	whole := false
	for _, p := range s.computeProfiles(i) {
		whole = whole || p.SliceCount == of.SliceCount && p.MultiprocessorCount == of.MultiprocessorCount
		s.want(p.SliceCount >= 1 && p.SliceCount <= of.SliceCount && p.MultiprocessorCount >= 1 &&
			p.MultiprocessorCount <= of.MultiprocessorCount,
			"compute profile %+v of profile %+v", p, of)

		for k, at := range p.places {
			s.want(at.Size == p.SliceCount && at.Start+at.Size <= of.SliceCount && slices.Index(p.places, at) == k,
				"compute profile %d at %+v", p.Id, at)
		}

		s.want(len(p.places) > 0, "compute profile %d has no place", p.Id)
	}

	s.want(whole, "no compute profile takes the whole of profile %d", of.Id)
	_, ret := i.GetComputeInstanceProfileInfo(10_000)
	s.refused("a compute profile that there is not", ret)
}

// checkComputesOfProfiles: the compute instances of all profiles are those of the GPU instance.
func checkComputesOfProfiles(s *subject, i nvmlsource.MutableInstance, _ nvml.GpuInstanceProfileInfo_v3) {
	list, ret := i.GetComputeInstances()
	if !s.has("GPUInstance.GetComputeInstances", ret) {
		return
	}

	found := 0

	for _, p := range s.computeProfiles(i) {
		of, ret := i.GetComputeInstancesOf(p.Id, int(p.InstanceCount))
		if !s.has("MutableInstance.GetComputeInstancesOf", ret) {
			return
		}

		for _, c := range of {
			info, ret := c.GetInfo()
			s.want(s.has("ComputeInstance.GetInfo", ret) && info.ProfileID == p.Id && slices.Contains(list, info),
				"compute instance %+v of profile %d, of %+v", info, p.Id, list)
			found++
		}
	}

	s.want(found == len(list), "%d compute instances by profile of %+v", found, list)
	_, ret = i.GetComputeInstancesOf(10_000, 1)
	s.refused("the compute instances of a profile that there is not", ret)
}

// create makes the first GPU instance for which there is room; nil if there is none, or it is not
// allowed.
func (s *subject) create(d nvmlsource.MutableDevice) (nvmlsource.MutableInstance, nvml.GpuInstanceProfileInfo_v3) {
	for _, p := range s.profilesOf(d) {
		places, ret := d.GetGpuInstancePossiblePlacements(p.Id)
		if !s.has("Device.GetGpuInstancePossiblePlacements", ret) {
			break
		}

		for _, at := range places {
			i, ret := d.CreateGpuInstanceWithPlacement(p.Id, at)
			if ret == nvml.ERROR_INSUFFICIENT_RESOURCES || !s.has("MutableDevice.CreateGpuInstanceWithPlacement", ret) {
				continue
			}

			info, ret := i.GetInfo()
			s.want(ret == nvml.SUCCESS && info.ProfileID == p.Id && info.Placement == at, "profile %d at %+v: made %+v, %d",
				p.Id, at, info, ret)

			return i, p
		}
	}

	return nil, nvml.GpuInstanceProfileInfo_v3{}
}

// destroy takes a GPU instance away, and looks whether it is gone.
func (s *subject) destroy(d nvmlsource.Device, i nvmlsource.MutableInstance) {
	info, _ := i.GetInfo()
	if !s.must("MutableInstance.Destroy", i.Destroy()) {
		return
	}

	_, exists := s.tree(d)[info.ID]
	s.want(!exists, "GPU instance %d is there after it was destroyed", info.ID)
	_, ret := i.GetInfo()
	s.want(ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT, "info of what was destroyed: %d", ret)
	ret = i.Destroy()
	s.want(ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT, "destroyed twice: %d", ret)
}

// checkCreateInstance: an instance is where it was asked for, or nowhere.
func checkCreateInstance(s *subject, d nvmlsource.MutableDevice) {
	before := s.tree(d)

	i, p := s.create(d)
	if i == nil {
		return
	}

	info, _ := i.GetInfo()
	made, listed := s.tree(d)[info.ID]
	s.want(listed && made.info == info && len(s.tree(d)) == len(before)+1, "what was made is not listed: %+v", info)
	_, ret := d.CreateGpuInstanceWithPlacement(p.Id, info.Placement)
	s.want(ret == nvml.ERROR_INSUFFICIENT_RESOURCES, "a second one at the same place: %d", ret)
	_, ret = d.CreateGpuInstanceWithPlacement(p.Id, nvml.GpuInstancePlacement{Start: maxAxis, Size: info.Placement.Size})
	s.want(ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_INSUFFICIENT_RESOURCES, "one beyond the end: %d", ret)
	_, ret = d.CreateGpuInstanceWithPlacement(10_000, info.Placement)
	s.refused("one of a profile that there is not", ret)
	s.destroy(d, i)
}

// checkCreateCompute: as with GPU instances; one with a compute instance is in use.
func checkCreateCompute(s *subject, d nvmlsource.MutableDevice) {
	i, _ := s.create(d)
	if i == nil {
		return
	}

	defer s.destroy(d, i)

	for _, p := range s.computeProfiles(i) {
		for _, at := range p.places {
			c, ret := i.CreateComputeInstanceWithPlacement(p.Id, at)
			if !s.has("MutableInstance.CreateComputeInstanceWithPlacement", ret) {
				continue
			}

			info, ret := c.GetInfo()
			s.want(ret == nvml.SUCCESS && info.ProfileID == p.Id && info.Placement == at,
				"compute profile %d at %+v: made %+v, %d", p.Id, at, info, ret)
			s.want(len(s.migDevices(d)) == s.computesOf(d), "%d MIG devices, %d compute instances", len(s.migDevices(d)),
				s.computesOf(d))
			_, ret = i.CreateComputeInstanceWithPlacement(p.Id, at)
			s.want(ret == nvml.ERROR_INSUFFICIENT_RESOURCES, "a second compute instance at the same place: %d", ret)
			s.want(i.Destroy() == nvml.ERROR_IN_USE, "a GPU instance with a compute instance is destroyed")
			s.must("ComputeInstance.Destroy", c.Destroy())
			_, ret = c.GetInfo()
			s.want(ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT, "info of what was destroyed: %d", ret)
		}
	}
}

func (s *subject) computesOf(d nvmlsource.Device) int {
	count := 0
	for _, i := range s.tree(d) {
		count += len(i.list)
	}

	return count
}

// checkSetMode: a mode is in force, or pending with a reason.
func checkSetMode(s *subject, d nvmlsource.MutableDevice) {
	before, _, ret := d.GetMigMode()
	if !s.has("Device.GetMigMode", ret) {
		return
	}

	for _, mode := range []int{before, 1 - before, before} {
		activation, ret := d.SetMigMode(mode)
		if !s.has("MutableDevice.SetMigMode", ret) {
			return
		}

		now, pending, ret := d.GetMigMode()
		s.want(ret == nvml.SUCCESS && pending == mode && (now == mode) == (activation == nvml.SUCCESS),
			"mode %d asked for: %d, pending %d, activation %d", mode, now, pending, activation)

		if len(s.tree(d)) > 0 && mode != now {
			s.want(activation == nvml.ERROR_IN_USE, "activation %d of a GPU with instances", activation)
		}
	}

	_, ret = d.SetMigMode(7)
	s.want(ret == nvml.ERROR_INVALID_ARGUMENT, "a mode that is none: %d", ret)
}
