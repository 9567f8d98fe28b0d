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

// maxProfiles bounds the loop over NVML's profile enums, of which the newest header has 18.
const maxProfiles = 64

// queryProfileEnum queries the profiles of one of NVML's enums by their numbers, and passes those that
// the driver has to add. count is how many numbers our nvml.h has. The code is SUCCESS if all of them
// were queried. If the driver has refused all, they are unknown, and the code is the first refusal.
func queryProfileEnum[T any](
	count int,
	query func(number int) (T, nvml.Return),
	add func(number int, info T),
) nvml.Return {
	refusal := nvml.SUCCESS // of the first number
	found := false

	for number := range maxProfiles {
		info, ret := query(number)

		switch {
		case ret == nvml.SUCCESS:
			found = true
			add(number, info)

			continue

		case ret == nvml.ERROR_INVALID_ARGUMENT, errors.Is(driverError("", ret), gpu.ErrNotSupported):
			// The driver does not have this profile.
			if number == 0 {
				refusal = ret
			}

		default:
			return ret
		}

		// Drivers know numbers that headers do not, and nvml.h says that ERROR_INVALID_ARGUMENT is the
		// end. For a number of the header it is not: NVIDIA's own tools go on after it (go-nvlib,
		// VisitMigProfiles), and a profile that is missed hides its instances.
		if ret == nvml.ERROR_INVALID_ARGUMENT && number >= count {
			break
		}
	}

	if found {
		return nvml.SUCCESS
	}

	return refusal
}

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

// queryProfileInfos queries the profiles without their placements. They are incomplete if the driver
// refuses all: it does so for a while after it was loaded.
func (r *gpuRead) queryProfileInfos(q *querier) ([]profileEntry, profileProgress) {
	const call = "nvmlDeviceGetGpuInstanceProfileInfo"

	if r.lost != nil {
		return nil, profilesIncomplete
	}

	var entries []profileEntry

	ret := queryProfileEnum(nvml.GPU_INSTANCE_PROFILE_COUNT, r.dev.GetGpuInstanceProfileInfo,
		func(enum int, info nvml.GpuInstanceProfileInfo_v3) {
			if q.denied[call] != nil {
				delete(q.denied, call)
				r.source.privilege.markRegained(gpu.ReadingMIG)
			}

			entries = append(entries, newProfileEntry(enum, info))
		})

	err := checkReturn(call, ret)
	if losesDevice(err) {
		r.lost = err
		return nil, profilesIncomplete
	}

	if slices.ContainsFunc(entries, func(e profileEntry) bool { return e.Name == "" }) {
		nameProfiles(entries, r.gpuMemory())
	}

	if err == nil {
		return entries, profilesListed
	}

	if errors.Is(err, gpu.ErrNoPermission) {
		q.denied[call] = err
	}

	q.recordError(gpu.ReadingMIG, err)

	return entries, profilesIncomplete
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
