package control

import (
	"context"
	"errors"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// addPods adds the containers that hold instances, or may hold them: a container that the kubelet
// does not list any more may still run, with its devices.
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
			unconfirmed := api.Hold{Kind: api.HoldUnconfirmed, What: list.Incomplete}
			u.addUnlessFree(g, list.Free, unconfirmed)
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

// addUnlessFree adds a hold to the instances of a GPU, and to the GPU, unless they are free. A free
// GPU frees all of its instances, a free GPU instance its compute instances, and if all compute
// instances are free, so is their GPU instance.
func (u *usage) addUnlessFree(g mig.GPULayout, free []gpu.DeviceRef, h api.Hold) {
	covered := coveredBy(g, free)
	if covered[gpu.DeviceIndex{Instance: gpu.Whole, Compute: gpu.Whole}] {
		return
	}

	u.whole[g.UUID] = append(u.whole[g.UUID], h)
	for m, i := range g.Instances {
		if covered[gpu.DeviceIndex{Instance: m, Compute: gpu.Whole}] {
			continue
		}

		var notFree []holdKey

		for k, ci := range i.ComputeInstances {
			if !covered[gpu.DeviceIndex{Instance: m, Compute: k}] {
				notFree = append(notFree, holdKey{g.UUID, i.ID, gpu.Some(ci.ID)})
			}
		}

		if len(notFree) == len(i.ComputeInstances) { // one hold, on the GPU instance
			notFree = []holdKey{{gpu: g.UUID, instance: i.ID}}
		}

		for _, key := range notFree {
			u.addHold(key, h)
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
