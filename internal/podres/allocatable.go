package podres

import (
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// allocatable reads which devices the kubelet can give out. Ids that are not understood are logged as those of List are.
func (r *reader) allocatable(reply *podresources.AllocatableResourcesResponse) []gpu.DeviceRef {
	var out []gpu.DeviceRef
	for _, entry := range reply.GetDevices() {
		if !r.names.match(entry.GetResourceName()) {
			continue
		}
		for _, id := range entry.GetDeviceIds() {
			d, ok := parseDeviceID(id)
			if !ok {
				r.logGarbled(gpu.Holder{Resource: entry.GetResourceName()}, id)
				continue
			}
			out = append(out, d.ref)
		}
	}
	slices.SortFunc(out, func(a, b gpu.DeviceRef) int { return compareDevices(&a, &b) })
	return slices.Compact(out)
}
