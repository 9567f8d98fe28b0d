package control

import (
	"context"
	"errors"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// addPods finds out which containers hold instances, or may hold them: a container that is missing
// in the kubelet's list may run on, with its devices.
func (e *Engine) addPods(ctx context.Context, u *usage, gpus []mig.GPULayout) {
	if e.o.Assignments == nil || len(gpus) == 0 {
		return
	}

	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	list, err := e.o.Assignments.List(callCtx)
	if errors.Is(err, gpu.ErrNoKubelet) {
		return
	}

	if err != nil && list.Incomplete == "" {
		list.Incomplete = "the kubelet does not answer: " + reasonText(err)
	}

	u.pods = list
	for _, g := range gpus {
		for _, a := range list.List {
			u.addToDevice(g, a.Device, podHold(a.Holder))
		}

		if list.Incomplete != "" {
			u.holdUnknown(g, list.Free, api.Hold{Kind: api.HoldUnconfirmed, What: list.Incomplete})
		}
	}
}

func podHold(h gpu.Holder) api.Hold {
	if h.Unconfirmed != "" {
		return api.Hold{
			Kind: api.HoldUnconfirmed,
			What: containerName(h.Container) + ": " + h.Unconfirmed,
		}
	}

	return api.Hold{Kind: api.HoldPod, What: containerName(h.Container)}
}

// holdUnknown adds a hold to all of a GPU that free does not cover. A GPU covers all of its
// instances, a GPU instance its compute instances, and these cover their GPU instance once all of
// them are free.
func (u *usage) holdUnknown(g mig.GPULayout, free []gpu.DeviceRef, h api.Hold) {
	covered := coveredBy(g, free)
	if covered[gpu.DeviceIndex{Instance: gpu.Whole, Compute: gpu.Whole}] {
		return
	}

	u.whole[g.UUID] = append(u.whole[g.UUID], h)
	for m, i := range g.Instances {
		if covered[gpu.DeviceIndex{Instance: m, Compute: gpu.Whole}] {
			continue
		}

		var open []unit

		for k, ci := range i.ComputeInstances {
			if !covered[gpu.DeviceIndex{Instance: m, Compute: k}] {
				open = append(open, unit{g.UUID, i.ID, gpu.Some(ci.ID)})
			}
		}

		if len(open) == len(i.ComputeInstances) {
			open = []unit{{gpu: g.UUID, instance: i.ID}}
		}

		for _, of := range open {
			u.addToUnit(of, h)
		}
	}
}

// coveredBy returns the devices of a GPU that references name. A reference to what does not exist
// names nothing.
func coveredBy(g mig.GPULayout, free []gpu.DeviceRef) map[gpu.DeviceIndex]bool {
	return devicesOf(g).Cover(free)
}

func containerName(n gpu.Container) string {
	name := strings.Trim(n.Namespace+"/"+n.Pod, "/")
	if n.Name != "" {
		name += " (" + n.Name + ")"
	}

	return name
}
