package podresources

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// parsedDevice is what a device id says.
type parsedDevice struct {
	ref     gpu.DeviceRef
	sharing gpu.Sharing
	replica string // empty if exclusive
}

// gpuUUIDLen is the length of "GPU-" and a UUID.
const gpuUUIDLen = 40

// parseDeviceID parses a device plugin's id in any of the known forms:
//
//	GPU-<uuid>, MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci>   NVIDIA's device plugin
//	<one of these>::<n>                                replica n, by time-slicing or MPS
//	GPU-<uuid>-<n>                                     HAMi
//	nvidia<minor>[/gi<gi>][/vgpu<n>]                   GKE
func parseDeviceID(id string) (parsedDevice, bool) {
	if strings.HasPrefix(id, "nvidia") {
		return parseGKE(id)
	}

	d := parsedDevice{sharing: gpu.SharingExclusive}

	name, replica, replicated := strings.Cut(id, "::")
	if replicated {
		if _, ok := gpu.ParseDecimal(replica); !ok {
			return parsedDevice{}, false
		}

		d.sharing = gpu.SharingReplica
		d.replica = replica
	}

	if strings.HasPrefix(name, "MIG-") {
		ref, err := gpu.ParseMIGRef(name)
		d.ref = ref

		return d, err == nil
	}

	if !replicated && len(name) > gpuUUIDLen && name[gpuUUIDLen] == '-' {
		d.sharing = gpu.SharingHAMi

		d.replica = name[gpuUUIDLen+1:]
		if _, ok := gpu.ParseDecimal(d.replica); !ok {
			return parsedDevice{}, false
		}

		name = name[:gpuUUIDLen]
	}

	uuid, err := gpu.ParseUUID(name)
	d.ref.GPU = uuid

	return d, err == nil
}

// parseGKE parses the ids of GKE's device plugin: the name of the device node, with the minor
// number, then the GPU instance if it is one, then the number of the replica if the device is
// shared.
func parseGKE(id string) (parsedDevice, bool) {
	d := parsedDevice{sharing: gpu.SharingExclusive}
	parts := strings.Split(id, "/")

	minor, ok := parseNumber(parts[0], "nvidia")
	if !ok {
		return parsedDevice{}, false
	}

	d.ref.Minor = gpu.Some(int(minor))
	parts = parts[1:]

	if len(parts) > 0 && strings.HasPrefix(parts[0], "gi") {
		gi, ok := parseNumber(parts[0], "gi")
		if !ok {
			return parsedDevice{}, false
		}

		d.ref.Instance = gpu.Some(gpu.InstanceID(gi))
		parts = parts[1:]
	}

	if len(parts) == 0 {
		return d, true
	}

	if _, ok := parseNumber(parts[0], "vgpu"); !ok || len(parts) > 1 {
		return parsedDevice{}, false
	}

	d.sharing = gpu.SharingReplica
	d.replica = strings.TrimPrefix(parts[0], "vgpu")

	return d, true
}

// parseDRADevice parses the name of a device in the resource slices of NVIDIA's DRA driver
// (https://github.com/NVIDIA/k8s-dra-driver-gpu, CanonicalName):
//
//	gpu-<minor>
//	gpu-<minor>-mig-<profile>-<profile id>-<placement start>
//	gpu-<minor>-mig-<profile id>-<placement start>-<placement size>     older releases
//
// The profile has no dot, and may have a dash: "1g24gb-me".
func parseDRADevice(name string) (gpu.DeviceRef, bool) {
	rest, ok := strings.CutPrefix(name, "gpu-")
	if !ok {
		return gpu.DeviceRef{}, false
	}

	number, mig, isMIG := strings.Cut(rest, "-mig-")

	minor, ok := gpu.ParseDecimal(number)
	if !ok {
		return gpu.DeviceRef{}, false
	}

	ref := gpu.DeviceRef{Minor: gpu.Some(int(minor))}
	if !isMIG {
		return ref, true
	}

	parts := strings.Split(mig, "-")
	if len(parts) < 3 || parts[0] == "" {
		return gpu.DeviceRef{}, false
	}

	idIndex := len(parts) - 2 // of the profile id

	// A profile's name has the letter g: a number shows the form of older releases.
	if _, numeric := gpu.ParseDecimal(parts[0]); numeric && len(parts) == 3 {
		if _, ok := gpu.ParseDecimal(parts[2]); !ok {
			return gpu.DeviceRef{}, false
		}

		idIndex = 0
	}

	profile, profileOK := gpu.ParseDecimal(parts[idIndex])
	start, startOK := gpu.ParseDecimal(parts[idIndex+1])
	ref.ProfileID = gpu.Some(profile)
	ref.PlacementStart = gpu.Some(int(start))

	return ref, profileOK && startOK
}

// parseNumber parses the number after a prefix.
func parseNumber(s, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return 0, false
	}

	return gpu.ParseDecimal(digits)
}
