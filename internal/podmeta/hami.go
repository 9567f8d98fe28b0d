package podmeta

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// migAllocation is one entry of the annotation hami.io/vgpu-mig-allocations. ContainerIndex counts
// the pod's init containers, then its containers.
type migAllocation struct {
	ContainerIndex int    `json:"containerIndex"`
	DeviceIndex    int    `json:"deviceIndex"`
	GPU            string `json:"gpuUUID"`
	MIG            string `json:"migUUID"`
	Placement      struct {
		Start uint16 `json:"start"`
		Size  uint16 `json:"size"`
	} `json:"placement"`
}

// migDevices parses the annotation hami.io/vgpu-mig-allocations: the MIG devices that HAMi, from
// 2.10 on, has reserved for a pod. It returns a list for each container that has any, in the order
// of the containers' index. If an entry is incomplete it returns nil: HAMi can't use the annotation
// then, either.
//
// HAMi's scheduler writes GPU and placement before it binds the pod. Its device plugin adds the
// UUID once it has created the device, at exactly that placement. Earlier releases write a template
// and a slot of it, which do not show the device.
//
// https://github.com/Project-HAMi/HAMi, pkg/device/nvidia/mig_allocations.go
func migDevices(annotation string) [][]gpu.DeviceRef {
	var list []migAllocation
	if annotation == "" || json.Unmarshal([]byte(annotation), &list) != nil {
		return nil
	}

	slices.SortFunc(list, func(a, b migAllocation) int {
		return cmp.Or(
			cmp.Compare(a.ContainerIndex, b.ContainerIndex),
			cmp.Compare(a.DeviceIndex, b.DeviceIndex),
		)
	})
	var out [][]gpu.DeviceRef

	for i := range list {
		a := &list[i]
		ref, ok := a.deviceRef()

		sameContainer := i > 0 && a.ContainerIndex == list[i-1].ContainerIndex
		if !ok || sameContainer && a.DeviceIndex == list[i-1].DeviceIndex {
			return nil
		}

		if !sameContainer {
			out = append(out, nil)
		}

		out[len(out)-1] = append(out[len(out)-1], ref)
	}

	return out
}

// deviceRef returns the MIG device by its UUID, or by its placement while it has none.
func (a *migAllocation) deviceRef() (gpu.DeviceRef, bool) {
	parent, err := gpu.ParseUUID(a.GPU)
	if err != nil || a.ContainerIndex < 0 || a.DeviceIndex < 0 || a.Placement.Size == 0 {
		return gpu.DeviceRef{}, false
	}

	if a.MIG == "" {
		return gpu.DeviceRef{GPU: parent, PlacementStart: gpu.Some(int(a.Placement.Start))}, true
	}

	ref, err := gpu.ParseMIGRef(a.MIG)

	return ref, err == nil
}
