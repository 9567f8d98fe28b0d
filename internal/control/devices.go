package control

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// devicesOf returns the devices of GPUs as they are given, to resolve references to them. Devices
// have the indices of gpus.
func devicesOf(gpus ...mig.GPULayout) *gpu.Resolver {
	list := make([]gpu.GPU, len(gpus))
	for n, g := range gpus {
		list[n].UUID = g.UUID
		list[n].Minor = g.Minor
		list[n].Up = true

		for _, i := range g.Instances {
			gi := gpu.GPUInstance{
				ID:        i.ID,
				ProfileID: gpu.Some(i.ProfileID),
				Placement: gpu.Some(i.Placement),
			}
			for _, c := range i.ComputeInstances {
				gi.ComputeInstances = append(
					gi.ComputeInstances,
					gpu.ComputeInstance{ID: c.ID, UUID: c.UUID},
				)
			}

			list[n].Instances = append(list[n].Instances, gi)
		}
	}

	return gpu.NewResolver(list)
}

// deviceChanges is what an operation has changed of the MIG devices of its GPUs.
type deviceChanges struct {
	before, after      *gpu.Resolver
	created, destroyed []migDevice // destroyed are devices of before, created are devices of after
	// the GPU that is no device any more, since its MIG mode was switched on
	split gpu.Opt[gpu.UUID]
}

func (t *deviceChanges) isEmpty() bool {
	return len(t.created)+len(t.destroyed) == 0 && !t.split.Present()
}

// migDevice is a MIG device: its place in a list of GPUs, the names that it goes by, and its
// profile. A device that is created where another was can have the names of that one.
type migDevice struct {
	at       gpu.DeviceIndex
	uuid     gpu.MIGUUID
	instance gpu.InstanceID
	compute  gpu.ComputeID
	profile  string // empty if unknown
}

func migDevices(gpus []mig.GPULayout) []migDevice {
	var list []migDevice

	for n, g := range gpus {
		for m, i := range g.Instances {
			for k, c := range i.ComputeInstances {
				if c.UUID != "" {
					list = append(
						list,
						migDevice{
							gpu.DeviceIndex{GPU: n, Instance: m, Compute: k},
							c.UUID,
							i.ID,
							c.ID,
							profileOf(i, c),
						},
					)
				}
			}
		}
	}

	return list
}

// profileOf returns the profile of a MIG device: that of its GPU instance, with the compute slices
// before it if these are not all of the instance's ("1c.3g.20gb"). It is empty if the slices are
// not known.
func profileOf(i mig.Instance, c mig.ComputeInstance) string {
	switch {
	case c.Slices == 0:
		return ""
	case strings.HasPrefix(i.Profile, fmt.Sprintf("%dg.", c.Slices)):
		return i.Profile
	}

	return fmt.Sprintf("%dc.%s", c.Slices, i.Profile)
}

// lacking returns the devices of list that have no counterpart in others, a device of the same
// names and profile on the same GPU.
func lacking(others, list []migDevice) []migDevice {
	var alone []migDevice

	for _, d := range list {
		if !slices.ContainsFunc(others, func(o migDevice) bool {
			o.at.Instance = d.at.Instance
			o.at.Compute = d.at.Compute

			return o == d
		}) {
			alone = append(alone, d)
		}
	}

	return alone
}

// compareOffers returns the UUIDs of the created devices that an allocator does not offer, and of
// the destroyed ones that it does, by what it offers; of all of them if it returned an error. An
// offer of an existing device is none of a destroyed one, unless its resource is that of the
// destroyed one's profile.
func (t *deviceChanges) compareOffers(offers []gpu.Offer, err error) (missing, stale []string) {
	existing := map[gpu.DeviceIndex]bool{}
	gone := map[gpu.DeviceIndex]bool{}
	// destroyed devices: by which resource the device in their place is offered
	misnamed := map[gpu.DeviceIndex]string{}
	wholeOffered := false

	for _, o := range offers {
		now, is := t.after.Resolve(o.Device)
		if is == gpu.MatchDevice && now.Instance == gpu.Whole && t.split.Present() {
			wholeOffered = true
			continue
		}

		former, was := t.before.Resolve(o.Device)
		switch {
		case is == gpu.MatchDevice && was == gpu.MatchDevice && t.isFormer(o.Resource, former, now):
			misnamed[former] = o.Resource
		case is == gpu.MatchDevice:
			existing[now] = true
		case was == gpu.MatchDevice:
			gone[former] = true
		}
	}

	for _, d := range t.created {
		if err != nil || !d.isOffered(existing) {
			missing = append(missing, string(d.uuid))
		}
	}

	for _, d := range t.destroyed {
		switch resource := misnamed[d.at]; {
		case err != nil || d.isOffered(gone):
			stale = append(stale, string(d.uuid))
		case resource != "":
			stale = append(stale, fmt.Sprintf("%s as %s", d.uuid, resource))
		}
	}

	if id, ok := t.split.Get(); ok && (err != nil || wholeOffered) {
		stale = append(stale, string(id)+" as a whole")
	}

	return missing, stale
}

// isFormer reports whether a resource is that of the profile of a destroyed device and not that of
// the created one which has its names. A resource that names no profile, as that of strategy single
// or one that an operator has named, is neither.
func (t *deviceChanges) isFormer(resource string, was, now gpu.DeviceIndex) bool {
	is := func(list []migDevice, at gpu.DeviceIndex) bool {
		return slices.ContainsFunc(list, func(d migDevice) bool {
			return d.at == at && d.profile != "" && resourceNamesProfile(resource, d.profile)
		})
	}

	return is(t.destroyed, was) && !is(t.created, now)
}

// resourceNamesProfile reports whether a resource is a profile's, by the names that NVIDIA's device
// plugin gives under strategy mixed: nvidia.com/mig-1g.5gb.me for 1g.5gb+me,
// nvidia.com/mig-1g.5gb.me.shared for its replicas.
func resourceNamesProfile(resource, profile string) bool {
	_, name, _ := strings.Cut(resource, "/")
	return strings.TrimSuffix(name, ".shared") == "mig-"+strings.ReplaceAll(profile, "+", ".")
}

// isOffered reports whether the device is offered, alone or as a part of its GPU instance.
func (d migDevice) isOffered(offered map[gpu.DeviceIndex]bool) bool {
	return offered[d.at] ||
		offered[gpu.DeviceIndex{GPU: d.at.GPU, Instance: d.at.Instance, Compute: gpu.Whole}]
}
