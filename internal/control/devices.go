package control

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// devicesOf returns a resolver of references to the devices of gpus. It resolves them to indices in
// gpus.
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
	before, after *gpu.Resolver // of references to devices before and after the operation
	created       []migDevice   // with indices of after
	destroyed     []migDevice   // with indices of before
	// split is the GPU whose MIG mode the operation has switched on: as a whole, it is no device any
	// more.
	split gpu.Opt[gpu.UUID]
}

func (c *deviceChanges) isEmpty() bool {
	return len(c.created)+len(c.destroyed) == 0 && !c.split.Present()
}

// migDevice is a MIG device: its indices in a list of GPUs, the names that it goes by, and its
// profile. A device that is created in the place of another can have the same names.
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

// profileOf returns the name of a MIG device's profile: "3g.20gb", or "1c.3g.20gb" if the device has
// only one of the GPU instance's compute slices. It is empty if its slices are not known.
func profileOf(i mig.Instance, c mig.ComputeInstance) string {
	switch {
	case c.Slices == 0:
		return ""
	case strings.HasPrefix(i.Profile, fmt.Sprintf("%dg.", c.Slices)):
		return i.Profile
	}

	return fmt.Sprintf("%dc.%s", c.Slices, i.Profile)
}

// without returns the devices of list that are not in others, under the same names, with the same
// profile and on the same GPU.
func without(list, others []migDevice) []migDevice {
	var rest []migDevice

	for _, d := range list {
		if !slices.ContainsFunc(others, func(o migDevice) bool {
			// Other indices in the GPU don't matter.
			o.at.Instance = d.at.Instance
			o.at.Compute = d.at.Compute

			return o == d
		}) {
			rest = append(rest, d)
		}
	}

	return rest
}

// compareOffers compares what the kubelet offers with what it should. It returns the UUIDs of the
// created devices that it does not offer, and of the destroyed ones that it still offers; of all of
// them if err says why it did not answer.
//
// A destroyed and a created device can have the same names. Then an offer is of the created one,
// unless its resource is certainly that of the destroyed one: see isFormer.
func (c *deviceChanges) compareOffers(offers []gpu.Offer, err error) (missing, stale []string) {
	offeredNow := map[gpu.DeviceIndex]bool{}   // devices of after
	offeredStill := map[gpu.DeviceIndex]bool{} // devices of before that are gone
	// Destroyed devices whose names created ones have now: the resource under which these are offered.
	formerNames := map[gpu.DeviceIndex]string{}
	wholeOffered := false

	for _, o := range offers {
		now, matchNow := c.after.Resolve(o.Device)
		exists := matchNow == gpu.MatchDevice

		if exists && now.Instance == gpu.Whole && c.split.Present() {
			wholeOffered = true
			continue
		}

		former, matchFormer := c.before.Resolve(o.Device)
		existed := matchFormer == gpu.MatchDevice

		switch {
		case exists && existed && c.isFormer(o.Resource, former, now):
			formerNames[former] = o.Resource
		case exists:
			offeredNow[now] = true
		case existed:
			offeredStill[former] = true
		}
	}

	for _, d := range c.created {
		if err != nil || !d.isOffered(offeredNow) {
			missing = append(missing, string(d.uuid))
		}
	}

	for _, d := range c.destroyed {
		switch resource := formerNames[d.at]; {
		case err != nil || d.isOffered(offeredStill):
			stale = append(stale, string(d.uuid))
		case resource != "":
			stale = append(stale, fmt.Sprintf("%s as %s", d.uuid, resource))
		}
	}

	if id, ok := c.split.Get(); ok && (err != nil || wholeOffered) {
		stale = append(stale, string(id)+" as a whole")
	}

	return missing, stale
}

// isFormer reports whether a resource names the profile of a destroyed device, and not that of the
// created device which has the same names now. If the resource names no profile, as with strategy
// single, or if an operator has renamed it, we cannot tell: isFormer returns false.
func (c *deviceChanges) isFormer(resource string, former, now gpu.DeviceIndex) bool {
	namesProfileOf := func(list []migDevice, at gpu.DeviceIndex) bool {
		return slices.ContainsFunc(list, func(d migDevice) bool {
			return d.at == at && d.profile != "" && resourceNamesProfile(resource, d.profile)
		})
	}

	return namesProfileOf(c.destroyed, former) && !namesProfileOf(c.created, now)
}

// resourceNamesProfile reports whether a resource is that of a profile, as NVIDIA's device plugin
// names them with strategy mixed: nvidia.com/mig-1g.5gb.me for 1g.5gb+me, and
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
