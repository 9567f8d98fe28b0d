package podresources

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// parsedDevice is the content of a device id.
type parsedDevice struct {
	ref     gpu.DeviceRef
	sharing gpu.Sharing
	replica string // empty if exclusive
}

// The length of "GPU-" and a UUID.
const gpuUUIDLen = 40

// parseDeviceID parses a device plugin's id in any of the known forms:
//
//	GPU-<uuid>, MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci>   NVIDIA's device plugin
//	<one of these>::<n>                                its replicas, by time-slicing or MPS
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

// parseGKE parses the ids of GKE's device plugin: the name of the device node, which has the minor
// number, then the GPU instance, then the share of it.
func parseGKE(id string) (parsedDevice, bool) {
	d := parsedDevice{sharing: gpu.SharingExclusive}
	node, rest, more := strings.Cut(id, "/")

	minor, ok := parseNumber(node, "nvidia")
	if !ok {
		return parsedDevice{}, false
	}

	d.ref.Minor = gpu.Some(int(minor))

	if part, after, further := strings.Cut(rest, "/"); more && strings.HasPrefix(part, "gi") {
		gi, ok := parseNumber(part, "gi")
		if !ok {
			return parsedDevice{}, false
		}

		d.ref.Instance = gpu.Some(gpu.InstanceID(gi))
		rest = after
		more = further
	}

	if more {
		if _, ok := parseNumber(rest, "vgpu"); !ok {
			return parsedDevice{}, false
		}

		d.sharing = gpu.SharingReplica
		d.replica = strings.TrimPrefix(rest, "vgpu")
	}

	return d, true
}

// parseDRADevice reads the name of a device in the resource slices of NVIDIA's DRA driver:
//
//	gpu-<minor>
//	gpu-<minor>-mig-<profile>-<profile id>-<placement start>            profile without its dot: 1g24gb,
//	                                                                    1g24gb-me
//	gpu-<minor>-mig-<profile id>-<placement start>-<placement size>     older releases
//
// https://github.com/NVIDIA/k8s-dra-driver-gpu, CanonicalName.
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

	// A profile's name is never a number: it has the letter g.
	at := len(parts) - 2
	if _, numeric := gpu.ParseDecimal(parts[0]); numeric && len(parts) == 3 {
		if _, ok := gpu.ParseDecimal(parts[2]); !ok {
			return gpu.DeviceRef{}, false
		}

		at = 0
	}

	profile, profileOK := gpu.ParseDecimal(parts[at])
	start, startOK := gpu.ParseDecimal(parts[at+1])
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
