package nvmlsource

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A driver that leaves the counts of engines empty does not report them: nothing may be concluded
// from zeros.
func TestEnginesThatTheDriverDoesNotReport(t *testing.T) {
	if p := newProfileEntry(0, nvml.GpuInstanceProfileInfo_v3{Id: 19, SliceCount: 1}); p.Engines.Present() {
		t.Errorf("%+v", p.Engines)
	}

	info := nvml.GpuInstanceProfileInfo_v3{Id: 67, CopyEngineCount: 1}
	if got := newProfileEntry(13, info).Engines; got != gpu.Some(gpu.Engines{Copy: 1}) {
		t.Errorf("%+v: 1g.24gb-me has a copy engine alone", got)
	}

	info = nvml.GpuInstanceProfileInfo_v3{CopyEngineCount: 1, DecoderCount: 2, EncoderCount: 3, JpegCount: 4, OfaCount: 5}
	if got := newProfileEntry(0, info).Engines; got != gpu.Some(gpu.Engines{Copy: 1, Decoder: 2, Encoder: 3, JPEG: 4,
		OFA: 5}) {
		t.Errorf("%+v", got)
	}
}

// refusedProfile are the codes by which a driver says that it does not have one profile.
var refusedProfile = []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND,
	nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED}

// listComputeNumbers returns the numbers of the profiles that queryComputeProfiles lists of a driver,
// and how many it has asked for.
func listComputeNumbers(answer func(number int) nvml.Return) (numbers []int, asked int, ret nvml.Return) {
	list, ret := queryComputeProfiles(func(number int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
		asked++
		return nvml.ComputeInstanceProfileInfo{Id: uint32(number)}, answer(number)
	})
	for _, p := range list {
		numbers = append(numbers, int(p.Id))
	}

	return numbers, asked, ret
}

// TestProfileThatIsAbsent: the profiles after one that the driver does not have are listed, also
// beyond our nvml.h.
func TestProfileThatIsAbsent(t *testing.T) {
	for _, code := range append([]nvml.Return{nvml.ERROR_INVALID_ARGUMENT}, refusedProfile...) {
		for _, absent := range []int{0, 2} {
			got, asked, ret := listComputeNumbers(func(number int) nvml.Return {
				switch {
				case number == absent:
					return code
				case number > nvml.COMPUTE_INSTANCE_PROFILE_COUNT:
					return nvml.ERROR_INVALID_ARGUMENT
				}

				return nvml.SUCCESS
			})

			want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
			want = slices.Delete(want, absent, absent+1)

			if !slices.Equal(got, want) || ret != nvml.SUCCESS || asked != nvml.COMPUTE_INSTANCE_PROFILE_COUNT+2 {
				t.Errorf("code %d for profile %d: %v, code %d, after %d calls", code, absent, got, ret, asked)
			}
		}
	}
}

// TestProfilesThatAreUnknown: a driver that refuses all profiles, or one for another reason than that it
// does not have it, has not said that there are none.
func TestProfilesThatAreUnknown(t *testing.T) {
	for _, code := range append([]nvml.Return{nvml.ERROR_INVALID_ARGUMENT}, refusedProfile...) {
		got, _, ret := listComputeNumbers(func(int) nvml.Return { return code })
		if len(got) > 0 || ret != code {
			t.Errorf("code %d for all profiles: %v, code %d", code, got, ret)
		}
	}

	// The end of the enum is no refusal: it would say that the GPU instance is gone.
	got, _, ret := listComputeNumbers(func(number int) nvml.Return {
		if number < nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
			return nvml.ERROR_NOT_SUPPORTED
		}

		return nvml.ERROR_INVALID_ARGUMENT
	})
	if len(got) > 0 || ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("no profile up to the end: %v, code %d", got, ret)
	}

	for _, code := range []nvml.Return{nvml.ERROR_NO_PERMISSION, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNKNOWN} {
		got, asked, ret := listComputeNumbers(func(number int) nvml.Return {
			if number == 2 {
				return code
			}

			return nvml.SUCCESS
		})
		if got != nil || ret != code || asked != 3 {
			t.Errorf("code %d for one profile: %v, code %d, after %d calls", code, got, ret, asked)
		}
	}
}
