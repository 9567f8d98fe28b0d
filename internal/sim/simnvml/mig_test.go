package simnvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

func name(info nvml.GpuInstanceProfileInfo_v3) string {
	var text []byte

	for _, c := range info.Name {
		if c == 0 {
			break
		}

		text = append(text, byte(c))
	}

	return string(text)
}

func TestMIGHandlesAreSparse(t *testing.T) {
	l, n := start(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["1g.5gb@0", "1g.5gb@1", {gi: "3g.20gb@4", ci: []}]}]
`)

	d := handle(t, l, 0)
	if most := ok[int](t)(d.GetMaxMigDeviceCount()); most != 7 {
		t.Errorf("at most %d MIG devices", most)
	}

	if err := n.DestroyComputeInstance(0, 7, 0); err != nil {
		t.Fatal(err)
	}

	want[nvmlsource.MIGDevice](t, nvml.ERROR_NOT_FOUND, "index of a destroyed device")(d.GetMigDeviceHandleByIndex(0))

	m := ok[nvmlsource.MIGDevice](t)(d.GetMigDeviceHandleByIndex(1))
	if id := ok[int](t)(m.GetGpuInstanceId()); id != 8 {
		t.Errorf("GPU instance %d at index 1", id)
	}

	want[nvmlsource.MIGDevice](t, nvml.ERROR_NOT_FOUND,
		"a GPU instance without a compute instance has no handle")(d.GetMigDeviceHandleByIndex(2))
	want[nvmlsource.MIGDevice](t, nvml.ERROR_INVALID_ARGUMENT, "index beyond the count")(d.GetMigDeviceHandleByIndex(7))

	if orphans := ok[[]nvmlsource.GPUInstance](t)(d.GetGpuInstances(9, 2)); len(orphans) != 1 {
		t.Errorf("%d GPU instances of profile 9, want the orphan", len(orphans))
	}
}

func TestHandlesGoStaleAndAreReused(t *testing.T) {
	l, n := start(t, "version: 1\ngpus: [{model: A100-40GB, mig: true, layout: [\"3g.20gb@0\"]}]\n")
	d := handle(t, l, 0)
	m := ok[nvmlsource.MIGDevice](t)(d.GetMigDeviceHandleByIndex(0))

	gi := ok[[]nvmlsource.GPUInstance](t)(d.GetGpuInstances(9, 2))[0]
	if err := n.DestroyComputeInstance(0, 1, 0); err != nil {
		t.Fatal(err)
	}

	want[string](t, nvml.ERROR_INVALID_ARGUMENT, "stale MIG handle")(m.GetUUID())

	if err := n.DestroyGPUInstance(0, 1); err != nil {
		t.Fatal(err)
	}

	want[nvmlsource.GPUInstanceInfo](t, nvml.ERROR_NOT_FOUND, "stale GPU instance")(gi.GetInfo())

	id, err := n.CreateGPUInstance(0, 5, gpu.Some(0)) // a 4g.20gb gets the id of the 3g.20gb
	if err != nil {
		t.Fatal(err)
	}

	if _, err := n.CreateComputeInstance(0, id, 4); err != nil {
		t.Fatal(err)
	}

	if got := ok[string](t)(m.GetName()); got != "NVIDIA A100-SXM4-40GB MIG 4g.20gb" {
		t.Errorf("the old handle is now %q", got)
	}
}

func TestMIGDevice(t *testing.T) {
	l, _ := start(t, twoHalves)
	d := handle(t, l, 0)

	part := ok[nvmlsource.MIGDevice](t)(d.GetMigDeviceHandleByIndex(2)) // 2c of the GPU instance 2
	if got := ok[string](t)(part.GetName()); got != "NVIDIA A100-SXM4-40GB MIG 2c.3g.20gb" {
		t.Errorf("name %q", got)
	}

	attributes := ok[nvml.DeviceAttributes](t)(part.GetAttributes())
	cmptest.Equal(t, "attributes", nvml.DeviceAttributes{
		MultiprocessorCount: attributes.MultiprocessorCount, GpuInstanceSliceCount: attributes.GpuInstanceSliceCount,
		ComputeInstanceSliceCount: attributes.ComputeInstanceSliceCount, MemorySizeMB: attributes.MemorySizeMB,
		SharedCopyEngineCount: attributes.SharedCopyEngineCount,
	}, nvml.DeviceAttributes{
		MultiprocessorCount: 28, GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 2, MemorySizeMB: 20096,
		SharedCopyEngineCount: 3,
	})
	sibling := ok[nvmlsource.MIGDevice](t)(d.GetMigDeviceHandleByIndex(1))
	a := ok[nvml.Memory_v2](t)(part.GetMemoryInfo())
	b := ok[nvml.Memory_v2](t)(sibling.GetMemoryInfo())
	cmptest.Equal(t, "memory of both devices of a GPU instance", a, b)
	cmptest.Equal(t, "memory in all and in use", [2]uint64{a.Total, a.Used}, [2]uint64{20096 << 20, 4<<30 + 5<<20})
	cmptest.Equal(t, "used and free memory", a.Used+a.Free, a.Total)
	gi := ok[[]nvmlsource.GPUInstance](t)(d.GetGpuInstances(9, 2))

	infos := ok[[]nvmlsource.ComputeInstanceInfo](t)(gi[1].GetComputeInstances())
	if len(infos) != 2 {
		t.Fatalf("compute instances %+v, want two", infos)
	}

	cmptest.Equal(t, "the second compute instance", infos[1], nvmlsource.ComputeInstanceInfo{
		ID: 1, ProfileID: 1, Placement: nvml.ComputeInstancePlacement{Start: 1, Size: 2},
	})
	info := ok[nvmlsource.GPUInstanceInfo](t)(gi[1].GetInfo())
	cmptest.Equal(t, "GPU instance", info, nvmlsource.GPUInstanceInfo{
		ID: 2, ProfileID: 9, Placement: nvml.GpuInstancePlacement{Start: 4, Size: 4},
	})
}

func TestProfiles(t *testing.T) {
	l, _ := start(t, twoHalves)
	split := handle(t, l, 0)
	whole := handle(t, l, 1)
	offered := 0

	for profile := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := split.GetGpuInstanceProfileInfo(profile)
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}

		offered++

		if profile == nvml.GPU_INSTANCE_PROFILE_3_SLICE {
			cmptest.Equal(t, "profile's name", name(info), "MIG 3g.20gb")
			cmptest.Equal(t, "its id", info.Id, 9)
			cmptest.Equal(t, "its memory in MiB", info.MemorySizeMB, 20096)
			cmptest.Equal(t, "its instances", info.InstanceCount, 2)
			cmptest.Equal(t, "its SMs", info.MultiprocessorCount, 42)
			cmptest.Equal(t, "its decoders", info.DecoderCount, 2)
		}
	}

	if offered != 7 {
		t.Errorf("an A100 offers %d profiles, want 7", offered)
	}

	want[nvml.GpuInstanceProfileInfo_v3](t, nvml.ERROR_INVALID_ARGUMENT, "a profile that NVML does not know")(
		split.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_COUNT))

	info := ok[nvml.GpuInstanceProfileInfo_v3](t)(whole.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE))
	if info.Id != 19 || name(info) != "" {
		t.Errorf("with MIG off: %+v, want no name", info)
	}

	places := ok[[]nvml.GpuInstancePlacement](t)(whole.GetGpuInstancePossiblePlacements(9))
	if len(places) != 2 {
		t.Errorf("placements %v", places)
	}

	want[[]nvml.GpuInstancePlacement](t, nvml.ERROR_INVALID_ARGUMENT,
		"unknown profile")(whole.GetGpuInstancePossiblePlacements(99))
	want[[]nvmlsource.GPUInstance](t, nvml.ERROR_NOT_SUPPORTED, "instances with MIG off")(whole.GetGpuInstances(9, 2))
	want[[]nvmlsource.GPUInstance](t, nvml.ERROR_INSUFFICIENT_SIZE, "too small a list")(split.GetGpuInstances(9, 1))
}

func TestA30ProfileCountIsNotToBeTrusted(t *testing.T) {
	l, _ := start(t, "version: 1\ngpus: [{model: A30}]\n")
	d := handle(t, l, 0)

	info := ok[nvml.GpuInstanceProfileInfo_v3](t)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_2_SLICE))
	if places := ok[[]nvml.GpuInstancePlacement](t)(d.GetGpuInstancePossiblePlacements(info.Id)); int(
		info.InstanceCount) <= len(places) {
		t.Errorf("%d instances in %d places", info.InstanceCount, len(places))
	}
}

func TestWithoutRights(t *testing.T) {
	l, _ := start(t, "version: 1\nnode: {privileged: false}\ngpus: [{model: A100-40GB, mig: true, layout: "+
		"[\"3g.20gb@0\"]}, {model: A100-40GB}]\n")
	split := handle(t, l, 0)
	whole := handle(t, l, 1)
	want[[]nvmlsource.GPUInstance](t, nvml.ERROR_NO_PERMISSION, "GPU instances")(split.GetGpuInstances(9, 2))
	want[[]nvml.GpuInstancePlacement](t, nvml.ERROR_NO_PERMISSION, "placements")(split.GetGpuInstancePossiblePlacements(9))
	want[nvml.Memory_v2](t, nvml.ERROR_NO_PERMISSION, "memory of the whole GPU")(split.GetMemoryInfo())
	want[[]nvml.ProcessInfo](t, nvml.ERROR_NO_PERMISSION, "processes of the whole GPU")(split.GetComputeRunningProcesses())
	ok[nvml.Memory_v2](t)(whole.GetMemoryInfo())
	ok[[]nvml.ProcessInfo](t)(whole.GetComputeRunningProcesses())
	m := ok[nvmlsource.MIGDevice](t)(split.GetMigDeviceHandleByIndex(0))
	ok[nvml.Memory_v2](t)(m.GetMemoryInfo())
	ok[nvml.DeviceAttributes](t)(m.GetAttributes())
	ok[nvml.GpuInstanceProfileInfo_v3](t)(split.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE))
}

// TestProfilingWithoutRights: of a GPU in MIG mode the instances alone can be profiled.
func TestProfilingWithoutRights(t *testing.T) {
	l, _ := start(t, "version: 1\nnode: {privileged: false}\ngpus: [{model: H100-80GB, mig: true, layout: "+
		"[\"3g.40gb@0\"]}, {model: H100-80GB}]\n")
	sample := ok[nvmlsource.GPMSample](t)(l.GpmSampleAlloc())
	split := handle(t, l, 0)
	whole := handle(t, l, 1)

	cmptest.Equal(t, "a GPU in MIG mode", split.GpmSampleGet(sample), nvml.ERROR_NO_PERMISSION)
	cmptest.Equal(t, "its instance", split.GpmMigSampleGet(1, sample), nvml.SUCCESS)
	m := ok[nvmlsource.MIGDevice](t)(split.GetMigDeviceHandleByIndex(0))
	cmptest.Equal(t, "its MIG device", m.GpmSampleGet(sample), nvml.SUCCESS)
	cmptest.Equal(t, "a GPU whose MIG mode is off", whole.GpmSampleGet(sample), nvml.SUCCESS)
}

func TestMIGModePending(t *testing.T) {
	l, _ := start(t, "version: 1\ngpus: [{model: A30, mig: pending}]\n")
	current, pending, ret := handle(t, l, 0).GetMigMode()
	cmptest.Equal(t, "return code", ret, nvml.SUCCESS)
	cmptest.Equal(t, "MIG mode now and pending", [2]int{current, pending},
		[2]int{nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_ENABLE})
}
