package nvmlsource

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// maxProfiles bounds the loops over NVML's profile enums, of which the newest header has 18.
// Drivers know enums that headers do not, and return ERROR_INVALID_ARGUMENT for the first beyond
// their last. For an enum of the header that error is not the end: NVIDIA's own tools go on after
// it (go-nvlib, VisitMigProfiles), and a profile that is missed hides its instances.
const maxProfiles = 64

// profileEntry is a profile, with what we need to list its instances.
type profileEntry struct {
	gpu.Profile
	instanceCount int    // as the driver reports it, which may be too small
	call          string // the name of the call that lists its instances
}

// profileOf returns the profile with an id, and whether the GPU has it.
func (r *gpuRead) profileOf(id gpu.Opt[uint32]) (gpu.Profile, bool) {
	for i := range r.state.static.profiles {
		if p := &r.state.static.profiles[i].Profile; gpu.Some(p.ID) == id {
			return *p, true
		}
	}

	return gpu.Profile{}, false
}

// queryProfiles queries the profiles of GPU instances that the GPU offers, and their possible
// placements; none if the GPU has no MIG.
func (r *gpuRead) queryProfiles(q *querier) {
	static := &r.state.static
	if !r.state.mode.enabled.Present() {
		return
	}

	if static.progress == profilesIncomplete || len(static.profiles) == 0 {
		static.profiles, static.progress = r.queryProfileInfos(q)
	}

	if static.progress != profilesPlaced {
		r.queryPlacements(q)
	}
}

// queryProfileInfos queries the profiles without their placements.
func (r *gpuRead) queryProfileInfos(q *querier) ([]profileEntry, profileProgress) {
	const call = "nvmlDeviceGetGpuInstanceProfileInfo"
	var entries []profileEntry
	progress := profilesListed

	for enum := 0; enum < maxProfiles && r.lost == nil; enum++ {
		info, ret := r.dev.GetGpuInstanceProfileInfo(enum)

		err := checkReturn(call, ret)
		if err == nil {
			if q.denied[call] != nil {
				delete(q.denied, call)
				r.source.privilege.markRegained(gpu.ReadingMIG)
			}

			entries = append(entries, newProfileEntry(enum, info))
			continue
		}

		isInvalid := errors.Is(err, gpu.ErrInvalidArgument)
		if errors.Is(err, gpu.ErrNotSupported) || isInvalid && enum < nvml.GPU_INSTANCE_PROFILE_COUNT {
			continue // the GPU does not have this profile
		}

		if isInvalid {
			break // there are no further profiles
		}

		progress = profilesIncomplete

		if losesDevice(err) {
			r.lost = err
			break
		}

		if errors.Is(err, gpu.ErrNoPermission) {
			q.denied[call] = err
		}

		q.recordError(gpu.ReadingMIG, err)

		break
	}

	if slices.ContainsFunc(entries, func(e profileEntry) bool { return e.Name == "" }) {
		nameProfiles(entries, r.gpuMemory())
	}

	return entries, progress
}

// gpuMemory returns the GPU's memory in bytes, or 0 if unknown.
func (r *gpuRead) gpuMemory() uint64 {
	m, ret := r.dev.GetMemoryInfo()
	if checkReturn("nvmlDeviceGetMemoryInfo", ret) != nil {
		return 0
	}

	return m.Total
}

// queryPlacements adds the possible placements of all profiles, if the process may read them, and
// what follows from them: how many instances there can be, since the driver's number is wrong for
// some profiles of A30. It adds those of all profiles or of none: what could still be created
// depends on all of them.
func (r *gpuRead) queryPlacements(q *querier) {
	const call = "nvmlDeviceGetGpuInstancePossiblePlacements"
	static := &r.state.static
	entries := slices.Clone(static.profiles)
	profiles := make([]gpu.Profile, 0, len(entries))

	for i := range entries {
		e := &entries[i]

		placements, err := query(
			q,
			call,
			gpu.ReadingMIG,
			func() ([]nvml.GpuInstancePlacement, nvml.Return) {
				return r.dev.GetGpuInstancePossiblePlacements(e.ID)
			},
		)
		if err != nil {
			return // mostly for lack of privilege, which is the same for every profile
		}

		for _, p := range placements {
			e.Placements = append(
				e.Placements,
				gpu.Placement{Start: int(p.Start), Size: int(p.Size)},
			)
			e.MemorySlices = int(p.Size)
		}

		profiles = append(profiles, e.Profile)
	}

	maxInstances := map[string]int{}
	for _, c := range mig.CapacityOf(profiles, nil).Profiles {
		maxInstances[c.Name] = c.Max
	}

	for i := range entries {
		if n, ok := maxInstances[entries[i].Name]; ok && len(entries[i].Placements) > 0 {
			entries[i].MaxInstances = n
		}
	}

	static.profiles = entries
	if static.progress == profilesListed {
		static.progress = profilesPlaced
	}
}

func newProfileEntry(enum int, info nvml.GpuInstanceProfileInfo_v3) profileEntry {
	p := gpu.Profile{
		ID:            info.Id,
		Enum:          enum,
		Name:          strings.TrimPrefix(cString(info.Name[:]), "MIG "), // "MIG 1g.5gb"
		ComputeSlices: int(info.SliceCount),
		SMs:           int(info.MultiprocessorCount),
		MemoryBytes:   info.MemorySizeMB << 20,
		MaxInstances:  int(info.InstanceCount),
		Engines:       enginesOf(info),
	}

	return profileEntry{
		Profile:       p,
		instanceCount: int(info.InstanceCount),
		call:          "nvmlDeviceGetGpuInstances(" + strconv.Itoa(int(p.ID)) + ")",
	}
}

// enginesOf returns the engines of a profile. They are unknown if all are 0: every instance has a
// copy engine.
func enginesOf(info nvml.GpuInstanceProfileInfo_v3) gpu.Opt[gpu.Engines] {
	e := gpu.Engines{
		Copy:    int(info.CopyEngineCount),
		Decoder: int(info.DecoderCount),
		Encoder: int(info.EncoderCount),
		JPEG:    int(info.JpegCount),
		OFA:     int(info.OfaCount),
	}
	if e == (gpu.Engines{}) {
		return gpu.None[gpu.Engines]()
	}

	return gpu.Some(e)
}

// nameProfiles names the profiles whose name the driver does not report: before R525 or so, and
// while MIG is off.
func nameProfiles(entries []profileEntry, gpuBytes uint64) {
	for i := range entries {
		if e := &entries[i]; e.Name == "" {
			e.Name = derivedName(e.ComputeSlices, e.MemoryBytes, gpuBytes) + enumAttributes(e.Enum)
		}
	}
}

// derivedName returns the name of a profile as NVIDIA's own tools do if the driver reports none
// (go-nvlib, pkg/nvlib/device/mig_profile.go): the memory in the name is the GPU's times the
// eighths that the instance takes, rounded up.
func derivedName(computeSlices int, memory, gpuMemory uint64) string {
	if gpuMemory == 0 {
		return fmt.Sprintf("%dg.%dgb", computeSlices, (memory+1<<30-1)>>30)
	}

	share := math.Ceil(float64(memory)/float64(gpuMemory)*8) / 8
	gpuGB := float64((gpuMemory + 1<<30 - 1) >> 30)

	return fmt.Sprintf("%dg.%dgb", computeSlices, int(math.Round(share*gpuGB)))
}

// enumAttributes returns the suffix of the name of a profile with this enum (nvml.h,
// NVML_GPU_INSTANCE_PROFILE_*).
func enumAttributes(enum int) string {
	switch enum {
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		return "+me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX,
		nvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX,
		nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:
		return "+gfx"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
		return "-me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
		return "+me.all"
	}

	return ""
}
