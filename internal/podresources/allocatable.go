package podresources

import (
	"cmp"
	"slices"

	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readAllocatable returns the devices that the kubelet can assign. It leaves out ids that we cannot
// parse.
func (r replyReader) readAllocatable(reply *kubeletapi.AllocatableResourcesResponse) []gpu.Offer {
	var out []gpu.Offer

	for _, entry := range reply.GetDevices() {
		if !r.names.matches(entry.GetResourceName()) {
			continue
		}

		for _, id := range entry.GetDeviceIds() {
			if d, ok := parseDeviceID(id); ok {
				out = append(out, gpu.Offer{Device: d.ref, Resource: entry.GetResourceName()})
			}
		}
	}

	slices.SortFunc(out, func(a, b gpu.Offer) int {
		return cmp.Or(compareDevices(&a.Device, &b.Device), cmp.Compare(a.Resource, b.Resource))
	})

	return slices.Compact(out)
}

func compareDevices(a, b *gpu.DeviceRef) int {
	return cmp.Or(
		cmp.Compare(a.GPU, b.GPU),
		cmp.Compare(a.MIG, b.MIG),
		compareOpt(a.Minor, b.Minor),
		compareOpt(a.Instance, b.Instance),
		compareOpt(a.Compute, b.Compute),
		compareOpt(a.PlacementStart, b.PlacementStart),
		compareOpt(a.ProfileID, b.ProfileID),
	)
}

// compareOpt orders an absent value before all others.
func compareOpt[T cmp.Ordered](a, b gpu.Opt[T]) int {
	x, okX := a.Get()
	y, okY := b.Get()

	switch {
	case okX && okY:
		return cmp.Compare(x, y)
	case okX:
		return 1
	case okY:
		return -1
	}

	return 0
}
