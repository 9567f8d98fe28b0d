package podresources

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	gpuA = "GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c"
	gpuB = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
	gpuC = "GPU-0a1b2c3d-0000-1111-2222-333344446666"
	migA = "MIG-5f3c8e0a-91d2-5c7b-8b43-0d4c6a7e1f20"
)

func TestParseDeviceID(t *testing.T) {
	minor := func(n int) gpu.Opt[int] { return gpu.Some(n) }
	legacy := gpu.DeviceRef{GPU: gpuA, Instance: gpu.Some(gpu.InstanceID(1)), Compute: gpu.Some(gpu.ComputeID(0))}

	gi7 := gpu.DeviceRef{Minor: minor(0), Instance: gpu.Some(gpu.InstanceID(7))}
	for id, want := range map[string]parsedDevice{
		gpuA:                       {gpu.DeviceRef{GPU: gpuA}, gpu.SharingExclusive, ""},
		gpuA + "::3":               {gpu.DeviceRef{GPU: gpuA}, gpu.SharingReplica, "3"},
		migA:                       {gpu.DeviceRef{MIG: migA}, gpu.SharingExclusive, ""},
		migA + "::0":               {gpu.DeviceRef{MIG: migA}, gpu.SharingReplica, "0"},
		"MIG-" + gpuA + "/1/0":     {legacy, gpu.SharingExclusive, ""},
		"MIG-" + gpuA + "/1/0::12": {legacy, gpu.SharingReplica, "12"},
		gpuA + "-9":                {gpu.DeviceRef{GPU: gpuA}, gpu.SharingHAMi, "9"},
		"nvidia0":                  {gpu.DeviceRef{Minor: minor(0)}, gpu.SharingExclusive, ""},
		"nvidia15":                 {gpu.DeviceRef{Minor: minor(15)}, gpu.SharingExclusive, ""},
		"nvidia0/gi7":              {gi7, gpu.SharingExclusive, ""},
		"nvidia0/gi7/vgpu0":        {gi7, gpu.SharingReplica, "0"},
		"nvidia0/vgpu1":            {gpu.DeviceRef{Minor: minor(0)}, gpu.SharingReplica, "1"},
	} {
		if got, ok := parseDeviceID(id); !ok || got != want {
			t.Errorf("parseDeviceID(%q) = %+v, %v, want %+v", id, got, ok, want)
		}
	}
}

func TestParseDeviceIDRefusesGarbage(t *testing.T) {
	for _, id := range []string{
		"", "GPU-", "MIG-", "gpu-0", "0", "0:1", "eth0", "\xff\xfe", "nvidia", "nvidia-1", "nvidia01", "nvidia0/",
		"nvidia0/gi",
		"nvidia0/gi7/", "nvidia0/gi7/vgpu", "nvidia0/gi7/gi7", "nvidia0/vgpu1/gi7", "nvidia0/gi7/vgpu0/vgpu0", "nvidiactl",
		gpuA + "::", gpuA + "::x", gpuA + "::1::2", gpuA + "::-1", gpuA + "::01", gpuA + "-", gpuA + "-x", gpuA + "-1-2",
		gpuA + "-1::2",
		gpuA + "0", gpuA[:39], migA + "-1", "MIG-" + gpuA, "MIG-" + gpuA + "/1", "MIG-" + gpuA + "/1/0/2",
		"MIG-" + gpuA + "/x/0",
		gpuA + "::99999999999", "nvidia4294967296",
	} {
		if got, ok := parseDeviceID(id); ok {
			t.Errorf("parseDeviceID(%q) = %+v, want a refusal", id, got)
		}
	}
}

func TestParseDRADevice(t *testing.T) {
	mig := func(minor int, profile uint32, start int) gpu.DeviceRef {
		return gpu.DeviceRef{Minor: gpu.Some(minor), ProfileID: gpu.Some(profile), PlacementStart: gpu.Some(start)}
	}
	for name, want := range map[string]gpu.DeviceRef{
		"gpu-0":                     {Minor: gpu.Some(0)},
		"gpu-12":                    {Minor: gpu.Some(12)},
		"gpu-2-mig-1g24gb-19-0":     mig(2, 19, 0),
		"gpu-0-mig-3g47gb-9-4":      mig(0, 9, 4),
		"gpu-0-mig-1g12gb-me-20-3":  mig(0, 20, 3),
		"gpu-1-mig-1c-3g20gb-9-4":   mig(1, 9, 4),
		"gpu-0-mig-9-4-4":           mig(0, 9, 4), // the older form ends in the placement's size
		"gpu-3-mig-1g24gb-me-65-10": mig(3, 65, 10),
	} {
		got, ok := parseDRADevice(name)
		if !ok || got != want {
			t.Errorf("parseDRADevice(%q) = %+v, %v, want %+v", name, got, ok, want)
		}
	}

	for _, name := range []string{
		"", "gpu", "gpu-", "gpu-x", "gpu-vfio-0", "gpu-0-", "gpu-0-mig", "gpu-0-mig-", "gpu-0-mig-1g24gb",
		"gpu-0-mig-1g24gb-19",
		"gpu-0-mig-1g24gb-19-x", "gpu-0-mig-9-4-x", "gpu-0-mig--19-0", "gpu-0-mig-1g24gb--0", "mig-0", gpuA,
	} {
		if got, ok := parseDRADevice(name); ok {
			t.Errorf("parseDRADevice(%q) = %+v, want a refusal", name, got)
		}
	}
}

// idOf writes a device as the allocator does that names it so.
func idOf(d parsedDevice) string {
	var id string
	gi, hasGI := d.ref.Instance.Get()
	ci, hasCI := d.ref.Compute.Get()

	minor, hasMinor := d.ref.Minor.Get()
	switch {
	case hasMinor:
		id = "nvidia" + strconv.Itoa(minor)
		if hasGI {
			id += fmt.Sprintf("/gi%d", gi)
		}

		if d.sharing == gpu.SharingReplica {
			id += "/vgpu" + d.replica
		}

		return id
	case d.ref.MIG != "":
		id = string(d.ref.MIG)
	case hasGI && hasCI:
		id = fmt.Sprintf("MIG-%s/%d/%d", d.ref.GPU, gi, ci)
	default:
		id = string(d.ref.GPU)
	}

	switch d.sharing {
	case gpu.SharingReplica:
		id += "::" + d.replica
	case gpu.SharingHAMi:
		id += "-" + d.replica
	}

	return id
}

func FuzzParseDeviceID(f *testing.F) {
	for _, id := range []string{
		gpuA, gpuA + "::3", migA, "MIG-" + gpuA + "/1/0::12", gpuA + "-9", "nvidia0", "nvidia0/gi7/vgpu0", "nvidia0/vgpu1",
		"gpu-0-mig-1g24gb-19-0",
	} {
		f.Add(id)
	}

	f.Fuzz(func(t *testing.T, id string) {
		d, ok := parseDeviceID(id)
		if !ok {
			return
		}

		if again := idOf(d); again != id {
			t.Errorf("%q was read as %+v, which is %q", id, d, again)
		}

		if exclusive := d.sharing == gpu.SharingExclusive; exclusive != (d.replica == "") {
			t.Errorf("%q: sharing %q with replica %q", id, d.sharing, d.replica)
		}
	})
}

func FuzzParseDRADevice(f *testing.F) {
	for _, name := range []string{"gpu-0", "gpu-2-mig-1g24gb-19-0", "gpu-0-mig-1g12gb-me-20-3", "gpu-0-mig-9-4-4",
		"gpu-vfio-0", gpuA} {
		f.Add(name)
	}

	f.Fuzz(func(t *testing.T, name string) {
		ref, ok := parseDRADevice(name)
		if !ok {
			return
		}

		minor, hasMinor := ref.Minor.Get()
		profile, hasProfile := ref.ProfileID.Get()

		start, hasStart := ref.PlacementStart.Get()
		if !hasMinor || hasProfile != hasStart {
			t.Fatalf("%q was read as %+v", name, ref)
		}

		prefix := fmt.Sprintf("gpu-%d", minor)
		if hasProfile {
			prefix += "-mig-"
		}

		if !strings.HasPrefix(name, prefix) {
			t.Errorf("%q was read as %+v, want a name that begins with %s", name, ref, prefix)
		}

		if place := fmt.Sprintf("-%d-%d", profile, start); hasProfile && !strings.Contains(name, place) {
			t.Errorf("%q was read as %+v, want %s in the name", name, ref, place)
		}
	})
}
