package control

import (
	"context"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// devicesOf returns the devices of GPUs as they are given, to resolve references to them. Devices have the indices of gpus.
func devicesOf(gpus ...mig.NodeGPU) *gpu.Devices {
	list := make([]gpu.GPU, len(gpus))
	for n, g := range gpus {
		list[n].UUID, list[n].Minor, list[n].Up = g.UUID, g.Minor, true
		for _, i := range g.Instances {
			gi := gpu.GPUInstance{ID: i.ID, ProfileID: gpu.Some(i.ProfileID), Placement: gpu.Some(i.Placement)}
			for _, c := range i.Computes {
				gi.Computes = append(gi.Computes, gpu.ComputeInstance{ID: c.ID, UUID: c.UUID})
			}
			list[n].Instances = append(list[n].Instances, gi)
		}
	}
	return gpu.NewDevices(list)
}

// turnover is what an operation has changed of the MIG devices of its GPUs.
type turnover struct {
	before, after      *gpu.Devices
	created, destroyed []migDevice // destroyed are devices of before, created are devices of after
}

// migDevice is a MIG device: its place in a list of GPUs, and the names that it goes by.
type migDevice struct {
	at       gpu.Device
	uuid     gpu.MIGUUID
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// turnover compares the GPUs of an operation as they were with how it has left them. Minor numbers are read anew.
func (e *Engine) turnover(ctx context.Context, op *operation) turnover {
	var before, after []mig.NodeGPU
	for _, p := range op.Parts {
		before = append(before, mig.NodeGPU{UUID: p.GPU, Instances: p.Before})
		after = append(after, mig.NodeGPU{UUID: p.GPU, Instances: p.Expected})
	}
	was, is := migDevices(before), migDevices(after)
	t := turnover{created: lacking(was, is), destroyed: lacking(is, was)}
	if len(t.created)+len(t.destroyed) == 0 {
		return t
	}
	live, _, _ := e.read(ctx, op.gpus()...) // without it, references by minor number match nothing
	for n := range before {
		if g, err := findGPU(live, nil, before[n].UUID); err == nil {
			before[n].Minor, after[n].Minor = g.Minor, g.Minor
		}
	}
	t.before, t.after = devicesOf(before...), devicesOf(after...)
	return t
}

func migDevices(gpus []mig.NodeGPU) []migDevice {
	var list []migDevice
	for n, g := range gpus {
		for m, i := range g.Instances {
			for k, c := range i.Computes {
				if c.UUID != "" {
					list = append(list, migDevice{gpu.Device{GPU: n, Instance: m, Compute: k}, c.UUID, i.ID, c.ID})
				}
			}
		}
	}
	return list
}

// lacking returns the devices of list that have no counterpart in others, a device of the same names on the same GPU.
func lacking(others, list []migDevice) []migDevice {
	var alone []migDevice
	for _, d := range list {
		if !slices.ContainsFunc(others, func(o migDevice) bool {
			o.at.Instance, o.at.Compute = d.at.Instance, d.at.Compute
			return o == d
		}) {
			alone = append(alone, d)
		}
	}
	return alone
}

// compare returns the UUIDs of the created devices that an allocator does not offer, and of the destroyed ones that it does, by
// the references that it offers; of all of them if it returned an error. A reference to a device that stands is none to a
// destroyed one.
func (t *turnover) compare(offers []gpu.DeviceRef, err error) (missing, stale []string) {
	standing, gone := map[gpu.Device]bool{}, map[gpu.Device]bool{}
	for _, r := range offers {
		if d, match := t.after.Resolve(r); match == gpu.MatchDevice {
			standing[d] = true
		} else if d, match := t.before.Resolve(r); match == gpu.MatchDevice {
			gone[d] = true
		}
	}
	for _, d := range t.created {
		if err != nil || !d.in(standing) {
			missing = append(missing, string(d.uuid))
		}
	}
	for _, d := range t.destroyed {
		if err != nil || d.in(gone) {
			stale = append(stale, string(d.uuid))
		}
	}
	return missing, stale
}

// in reports whether the device is offered, alone or as a part of its GPU instance.
func (d migDevice) in(offered map[gpu.Device]bool) bool {
	return offered[d.at] || offered[gpu.Device{GPU: d.at.GPU, Instance: d.at.Instance, Compute: gpu.Whole}]
}
