package nvmlsource

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

func fieldValue(kind nvml.ValueType, bits uint64) *nvml.FieldValue {
	v := &nvml.FieldValue{ValueType: uint32(kind)}
	binary.NativeEndian.PutUint64(v.Value[:], bits)

	return v
}

func TestFieldValuesAreDecodedByType(t *testing.T) {
	const dirt = 0xDEADBEEF_00000000 // what a short value leaves in the union

	none := gpu.None[float64]()

	noCount := gpu.None[uint64]()
	for _, c := range []struct {
		name     string
		kind     nvml.ValueType
		bits     uint64
		number   gpu.Opt[float64]
		unsigned gpu.Opt[uint64]
	}{
		{"double", nvml.VALUE_TYPE_DOUBLE, math.Float64bits(41.5), gpu.Some(41.5), gpu.Some[uint64](41)},
		{"NaN", nvml.VALUE_TYPE_DOUBLE, math.Float64bits(math.NaN()), none, noCount},
		{"infinity", nvml.VALUE_TYPE_DOUBLE, math.Float64bits(math.Inf(1)), none, noCount},
		{"double too large to count", nvml.VALUE_TYPE_DOUBLE, math.Float64bits(1 << 64), gpu.Some[float64](1 << 64), noCount},
		{"unsigned int", nvml.VALUE_TYPE_UNSIGNED_INT, dirt | 0xFFFFFFFF, gpu.Some[float64](0xFFFFFFFF),
			gpu.Some[uint64](0xFFFFFFFF)},
		{"unsigned long", nvml.VALUE_TYPE_UNSIGNED_LONG, 1 << 40, gpu.Some[float64](1 << 40), gpu.Some[uint64](1 << 40)},
		{"unsigned long long", nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, math.MaxUint64, gpu.Some[float64](math.MaxUint64),
			gpu.Some[uint64](math.MaxUint64)},
		{"signed long long", nvml.VALUE_TYPE_SIGNED_LONG_LONG, 1<<64 - 5, gpu.Some(-5.0), noCount},
		{"signed int", nvml.VALUE_TYPE_SIGNED_INT, dirt | 0xFFFFFFFB, gpu.Some(-5.0), noCount},
		{"signed int above 0", nvml.VALUE_TYPE_SIGNED_INT, dirt | 7, gpu.Some(7.0), gpu.Some[uint64](7)},
		{"unsigned short", nvml.VALUE_TYPE_UNSIGNED_SHORT, dirt | 0xABCD0009, gpu.Some(9.0), gpu.Some[uint64](9)},
		{"unknown", nvml.VALUE_TYPE_COUNT, 1, none, noCount},
	} {
		v := fieldValue(c.kind, c.bits)
		if got := floatValue(v); got != c.number {
			t.Errorf("%s: number %v, want %v", c.name, got, c.number)
		}

		if got := uintValue(v); got != c.unsigned {
			t.Errorf("%s: count %v, want %v", c.name, got, c.unsigned)
		}
	}
}

func TestNVLinkDataIsInBytes(t *testing.T) {
	if got := kibibytes(fieldValue(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 3)); got != gpu.Some[uint64](3072) {
		t.Errorf("3 KiB are %v bytes", got)
	}

	if got := kibibytes(fieldValue(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, math.MaxUint64)); got.Present() {
		t.Errorf("%v bytes", got)
	}
}

func FuzzFieldValue(f *testing.F) {
	for kind := range uint32(9) {
		f.Add(kind, uint64(math.MaxUint64))
		f.Add(kind, math.Float64bits(-1.5))
	}

	f.Fuzz(func(t *testing.T, kind uint32, bits uint64) {
		v := fieldValue(nvml.ValueType(kind), bits)

		n, ok := floatValue(v).Get()
		if ok && (math.IsNaN(n) || math.IsInf(n, 0)) {
			t.Errorf("type %d, %#x: number %v", kind, bits, n)
		}

		u, counts := uintValue(v).Get()
		if counts && (!ok || n < 0) {
			t.Errorf("type %d, %#x: number %v (known: %v), count %d", kind, bits, n, ok, u)
		}

		if counts && math.Abs(n-float64(u)) >= 1 && n < 1<<53 {
			t.Errorf("type %d, %#x: number %v and count %d differ by 1 or more", kind, bits, n, u)
		}

		for _, known := range fields(&linkCounters{}) {
			known.store(&gpu.Readings{}, v)
		}
	})
}

func FuzzDriverStrings(f *testing.F) {
	f.Add("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb")
	f.Add("MIG 1g.5gb+me")
	f.Add("A\xff MIG \xfe\"\n")
	f.Fuzz(func(t *testing.T, s string) {
		profile := deviceProfile(s)
		for _, got := range []string{validUTF8(s), profile, instanceProfile(profile)} {
			if !utf8.ValidString(got) {
				t.Errorf("%q becomes %q", s, got)
			}
		}

		var field [96]int8
		for i := range min(len(s), len(field)) {
			field[i] = int8(s[i])
		}

		if got := cString(field[:]); !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}

func TestNamesOfMIGDevices(t *testing.T) {
	for name, want := range map[string][2]string{
		"NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb": {"1c.3g.20gb", "3g.20gb"},
		"NVIDIA A100-SXM4-40GB MIG 3g.20gb":    {"3g.20gb", "3g.20gb"},
		"NVIDIA H100 80GB HBM3 MIG 1g.10gb+me": {"1g.10gb+me", "1g.10gb+me"},
		"NVIDIA A100-SXM4-40GB":                {"", ""},
		"":                                     {"", ""},
		"NVIDIA X MIG something new":           {"something new", "something new"},
	} {
		profile := deviceProfile(name)
		if profile != want[0] || instanceProfile(profile) != want[1] {
			t.Errorf("%q: profile %q of GPU instance %q, want %q", name, profile, instanceProfile(profile), want)
		}
	}
}

// Names that are derived are those that drivers have published, for every known model.
func TestDerivedNamesAreThePublishedOnes(t *testing.T) {
	gpus := map[string]uint64{ // what nvidia-smi shows as total
		"A30-24GB": 24576, "A100-40GB": 40960, "A100-80GB": 81920, "H100-80GB": 81559, "H100-94GB": 95830,
		"H200-141GB": 143771, "B200-180GB": 183359,
		"RTX PRO 6000 Blackwell 96GB": 97887,
	}
	known := 0

	for _, m := range mig.Models() {
		total, ok := gpus[m.Name]
		if !ok || !m.PlacementsKnown() {
			continue
		}

		known++

		entries := make([]profileEntry, 0, len(m.Profiles))
		for _, p := range m.Profiles {
			p.Name = ""
			entries = append(entries, profileEntry{Profile: p})
		}

		nameProfiles(entries, total<<20)

		for i, p := range m.Profiles {
			if entries[i].Name != p.Name {
				t.Errorf("%s: profile %d with enum %d is named %q, published as %q", m.Name, p.ID, p.Enum, entries[i].Name, p.Name)
			}
		}
	}

	if known != len(gpus) {
		t.Errorf("%d models of %d", known, len(gpus))
	}
}

func TestProcessListsOverlap(t *testing.T) {
	info := func(pid uint32, memory uint64, gi, ci uint32) nvml.ProcessInfo {
		return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: memory, GpuInstanceId: gi, ComputeInstanceId: ci}
	}
	got := mergeProcesses(
		[]nvml.ProcessInfo{info(30, 300, 2, 0), info(20, 200, NoInstance, NoInstance), info(30, 100, 1, 0)},
		[]nvml.ProcessInfo{info(20, 200, NoInstance, NoInstance), info(10, math.MaxUint64, NoInstance, NoInstance)},
		[]nvml.ProcessInfo{info(20, 200, NoInstance, NoInstance), info(40, 400, NoInstance, NoInstance)},
	)

	want := []gpu.Process{
		{PID: 10, Graphics: true},
		{PID: 20, MPS: true, MemoryBytes: gpu.Some[uint64](200)},
		{PID: 30, MemoryBytes: gpu.Some[uint64](100), Instance: gpu.Some[gpu.InstanceID](1),
			Compute: gpu.Some[gpu.ComputeID](0)},
		{PID: 30, MemoryBytes: gpu.Some[uint64](300), Instance: gpu.Some[gpu.InstanceID](2),
			Compute: gpu.Some[gpu.ComputeID](0)},
		{PID: 40, MPS: true, MemoryBytes: gpu.Some[uint64](400)},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v, want %+v", got, want)
	}

	for i := range want {
		if got[i] != want[i] {
			t.Errorf("process %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

// TestProcessesThatAreNotLocated: a process of which the driver does not say where it runs leaves
// no instance without one.
func TestProcessesThatAreNotLocated(t *testing.T) {
	on := func(gi gpu.InstanceID) gpu.Process { return gpu.Process{PID: 1, Instance: gpu.Some(gi)} }
	inside := on(2)
	inside.Compute = gpu.Some[gpu.ComputeID](1)

	unknown := gpu.None[int]()
	for what, c := range map[string]struct {
		list []gpu.Process
		want [5]gpu.Opt[int] // instance 1 and its only compute instance, instance 2 and both of its own
	}{
		"none":         {want: [5]gpu.Opt[int]{gpu.Some(0), gpu.Some(0), gpu.Some(0), gpu.Some(0), gpu.Some(0)}},
		"located":      {[]gpu.Process{inside}, [5]gpu.Opt[int]{gpu.Some(0), gpu.Some(0), gpu.Some(1), gpu.Some(0), gpu.Some(1)}},
		"anywhere":     {[]gpu.Process{inside, {PID: 2}}, [5]gpu.Opt[int]{unknown, unknown, unknown, unknown, unknown}},
		"in the whole": {[]gpu.Process{on(1)}, [5]gpu.Opt[int]{gpu.Some(1), gpu.Some(1), gpu.Some(0), gpu.Some(0), gpu.Some(0)}},
		"in one of two": {[]gpu.Process{inside, on(2)},
			[5]gpu.Opt[int]{gpu.Some(0), gpu.Some(0), gpu.Some(2), unknown, unknown}},
	} {
		instances := []gpu.GPUInstance{
			{ID: 1, ComputeInstances: []gpu.ComputeInstance{{ID: 0}}},
			{ID: 2, ComputeInstances: []gpu.ComputeInstance{{ID: 0}, {ID: 1}}},
		}
		countProcesses(instances, c.list)

		one := &instances[0]
		two := &instances[1]
		cmptest.Equal(t, what, [5]gpu.Opt[int]{
			one.Processes, one.ComputeInstances[0].Processes,
			two.Processes, two.ComputeInstances[0].Processes, two.ComputeInstances[1].Processes,
		}, c.want)
	}
}

// TestUseByTheNewestSample: a sample with an impossible value is neither the use of its process nor
// none.
func TestUseByTheNewestSample(t *testing.T) {
	sample := func(at uint64, percent uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: 7, TimeStamp: at, SmUtil: percent}
	}
	for what, c := range map[string]struct {
		samples []nvml.ProcessUtilizationSample
		want    gpu.Opt[float64]
	}{
		"no sample":          {nil, gpu.Some(0.0)},
		"another process":    {[]nvml.ProcessUtilizationSample{{Pid: 8, TimeStamp: 9, SmUtil: 50}}, gpu.Some(0.0)},
		"the newest":         {[]nvml.ProcessUtilizationSample{sample(2, 40), sample(1, 90)}, gpu.Some(0.4)},
		"impossible":         {[]nvml.ProcessUtilizationSample{sample(1, 4e9)}, gpu.None[float64]()},
		"impossible, before": {[]nvml.ProcessUtilizationSample{sample(1, 4e9), sample(2, 40)}, gpu.Some(0.4)},
		"impossible, after":  {[]nvml.ProcessUtilizationSample{sample(1, 40), sample(2, 4e9)}, gpu.None[float64]()},
	} {
		cmptest.Equal(t, what, newestUse(c.samples, 7), c.want)
	}
}

func TestDriverErrorsAreTranslatedOnce(t *testing.T) {
	for ret, want := range map[nvml.Return]error{
		nvml.ERROR_NOT_SUPPORTED:           gpu.ErrNotSupported,
		nvml.ERROR_FUNCTION_NOT_FOUND:      gpu.ErrNotSupported,
		nvml.ERROR_NO_PERMISSION:           gpu.ErrNoPermission,
		nvml.ERROR_NOT_FOUND:               gpu.ErrNotFound,
		nvml.ERROR_INVALID_ARGUMENT:        gpu.ErrInvalidArgument,
		nvml.ERROR_GPU_IS_LOST:             gpu.ErrLost,
		nvml.ERROR_RESET_REQUIRED:          gpu.ErrResetRequired,
		nvml.ERROR_OPERATING_SYSTEM:        gpu.ErrDriver,
		nvml.ERROR_GPU_NOT_FOUND:           gpu.ErrNotFound,
		nvml.ERROR_TIMEOUT:                 gpu.ErrTimeout,
		nvml.ERROR_IN_USE:                  gpu.ErrInUse,
		nvml.ERROR_INSUFFICIENT_RESOURCES:  gpu.ErrInsufficientResources,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: gpu.ErrVersionMismatch,
		nvml.ERROR_LIBRARY_NOT_FOUND:       gpu.ErrNoDriver,
		nvml.ERROR_DRIVER_NOT_LOADED:       gpu.ErrNoDriver,
		nvml.ERROR_UNINITIALIZED:           gpu.ErrNoDriver,
		nvml.ERROR_UNKNOWN:                 gpu.ErrDriver,
		nvml.Return(12345):                 gpu.ErrDriver,
		nvml.Return(-1):                    gpu.ErrDriver,
	} {
		err := driverError("nvmlDeviceGetX", ret)
		if !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "nvmlDeviceGetX: ") {
			t.Errorf("code %d: %v, want %v", int32(ret), err, want)
		}
	}
}

// What an operator can mend is said in words.
func TestDeviceThatACgroupBlocks(t *testing.T) {
	if err := driverError("nvmlDeviceGetX", nvml.ERROR_OPERATING_SYSTEM); !strings.Contains(err.Error(), "cgroup") {
		t.Error(err)
	}
}

func TestStreamingMultiprocessorsFromCores(t *testing.T) {
	for _, c := range []struct{ major, minor, cores, sms int }{
		{8, 0, 6912, 108}, {8, 0, 3584, 56}, {9, 0, 16896, 132}, {8, 6, 10752, 84}, {7, 0, 5120, 80}, {12, 0, 24064, 188},
		{10, 0, 18944, 148},
	} {
		if got := c.cores / coresPerSM(c.major, c.minor); got != c.sms {
			t.Errorf("%d cores of capability %d.%d: %d SMs, want %d", c.cores, c.major, c.minor, got, c.sms)
		}
	}

	if coresPerSM(3, 5) != 0 || coresPerSM(99, 0) != 0 {
		t.Error("cores per SM of an unknown capability")
	}
}

func TestPCIBusID(t *testing.T) {
	pci := nvml.PciInfo{Domain: 1, Bus: 0x0F, Device: 2}
	if got := pciBusID(pci); got != "00000001:0f:02.0" {
		t.Errorf("from numbers: %q", got)
	}

	for i, c := range "0000000A:BD:00.0" {
		pci.BusId[i] = int8(c)
	}

	if got := pciBusID(pci); got != "0000000a:bd:00.0" {
		t.Errorf("from the string: %q", got)
	}
}
