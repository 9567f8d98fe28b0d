package podresources

import (
	"maps"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// applyReservations replaces the GPUs that the ids of a pod name by the MIG devices that HAMi
// reserved for it. HAMi offers the kubelet the same ids whether it partitions a GPU or not, and the
// device of a container need not be on the GPU that the id names. Its reservations are ordered by
// the container's index in the pod's spec, init containers first. The kubelet lists containers in
// that order but leaves out init containers that end, which the metadata does not distinguish:
// unless both have the same number of containers with the same number of devices each, the ids
// count. orders has the index of each assignment's container in the kubelet's list.
//
// This is from HAMi's sources (github.com/Project-HAMi/HAMi, pkg/device/nvidia/mig_allocations.go,
// and GetContainerDeviceStrArray of its device plugin); it was not tried on a cluster with HAMi.
func applyReservations(pod []gpu.Assignment, orders []int, reserved [][]gpu.DeviceRef) {
	byOrder := map[int][]*gpu.Assignment{} // by container

	for n := range pod {
		if pod[n].Holder.Sharing == gpu.SharingHAMi {
			byOrder[orders[n]] = append(byOrder[orders[n]], &pod[n])
		}
	}

	var held [][]*gpu.Assignment
	for _, order := range slices.Sorted(maps.Keys(byOrder)) {
		held = append(held, byOrder[order])
	}

	match := slices.EqualFunc(held, reserved, func(h []*gpu.Assignment, r []gpu.DeviceRef) bool {
		return len(h) == len(r)
	})
	if !match {
		return
	}

	for c := range held {
		for d, a := range held[c] {
			a.Device = reserved[c][d]
			a.Holder.Sharing = gpu.SharingExclusive
			a.Holder.Replica = ""
		}
	}
}
