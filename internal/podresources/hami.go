package podresources

import (
	"maps"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// applyReservations puts the MIG devices that HAMi reserved for a pod in the place of the GPUs that its ids name. HAMi offers
// the kubelet the same ids whether it cuts a GPU or not, and what it gives a container need not be of the GPU that the
// id names; its reservations go by the container's index in the pod's spec, init containers first. The kubelet lists
// containers in that order but leaves out init containers that end, which the metadata does not tell apart: where the
// two do not have as many containers with as many devices each, what the ids name stays. orders has the index of each
// assignment's container in the kubelet's list.
//
// This is from HAMi's sources (github.com/Project-HAMi/HAMi, pkg/device/nvidia/mig_allocations.go, and GetContainerDeviceStrArray
// of its device plugin); it was not tried on a cluster with HAMi.
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
	match := slices.EqualFunc(held, reserved, func(h []*gpu.Assignment, r []gpu.DeviceRef) bool { return len(h) == len(r) })
	if !match {
		return
	}
	for c := range held {
		for d, a := range held[c] {
			a.Device = reserved[c][d]
			a.Holder.Sharing, a.Holder.Replica = gpu.SharingExclusive, ""
		}
	}
}
