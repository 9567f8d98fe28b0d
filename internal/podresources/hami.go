package podresources

import (
	"maps"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// applyReservations corrects the devices of a pod's assignments if HAMi has partitioned GPUs for it.
// HAMi's ids name whole GPUs even then, and not always the right ones; the MIG devices are in its
// reservations, a list for each container. indexes has the containerIndex of each assignment.
//
// HAMi orders its reservations by the containers of the pod's spec, init containers first. The
// kubelet lists containers in the same order, without the init containers that end. Our metadata
// does not show which containers those are: we apply the reservations only if there are as many
// lists as containers with HAMi's devices, each with as many devices as the container has.
//
// This is from HAMi's sources (github.com/Project-HAMi/HAMi, pkg/device/nvidia/mig_allocations.go,
// and GetContainerDeviceStrArray of its device plugin); it was not tried on a cluster with HAMi.
func applyReservations(assignments []gpu.Assignment, indexes []int, reserved [][]gpu.DeviceRef) {
	byIndex := map[int][]*gpu.Assignment{}

	for n, index := range indexes {
		if a := &assignments[n]; a.Holder.Sharing == gpu.SharingHAMi {
			byIndex[index] = append(byIndex[index], a)
		}
	}

	var byContainer [][]*gpu.Assignment
	for _, index := range slices.Sorted(maps.Keys(byIndex)) {
		byContainer = append(byContainer, byIndex[index])
	}

	sameCount := func(a []*gpu.Assignment, r []gpu.DeviceRef) bool { return len(a) == len(r) }
	if !slices.EqualFunc(byContainer, reserved, sameCount) {
		return
	}

	for c, held := range byContainer {
		for d, a := range held {
			a.Device = reserved[c][d]
			a.Holder.Sharing = gpu.SharingExclusive
			a.Holder.Replica = ""
		}
	}
}
