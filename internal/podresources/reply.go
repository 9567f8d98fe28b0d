package podresources

import (
	"cmp"
	"slices"
	"strings"

	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// draDriver is the name of NVIDIA's driver for dynamic resource allocation of GPUs.
	draDriver = "gpu.nvidia.com"
	// draPassthrough is the prefix of GPUs that are passed to virtual machines. The node's NVIDIA
	// driver does not have these.
	draPassthrough = "gpu-vfio-"
)

// maxIDLength bounds how much we keep of a device id that we cannot parse.
const maxIDLength = 128

// listedDevice is one assignment as the kubelet lists it: its Device and Sharing are parsed from
// the id.
type listedDevice struct {
	gpu.Assignment
	claim          gpu.ClaimDevice // zero unless a ResourceClaim allocated the device
	containerIndex int             // of the container in the kubelet's list of the pod
}

func (e *listedDevice) podName() gpu.PodName {
	return gpu.PodName{Namespace: e.Holder.Namespace, Name: e.Holder.Pod}
}

// pluginDevice is a device of a device plugin. The kubelet assigns each id of a resource, or of a
// replica, to one container. The same id can be listed for two resources: if the plugin is
// configured anew (strategy single to mixed, a renamed resource) or the GPU instance gets another
// profile, a container may still hold the id under the old resource.
type pluginDevice struct{ resource, id string }

func (e *listedDevice) pluginDevice() pluginDevice { return pluginDevice{e.Holder.Resource, e.ID} }

// fromPlugin reports whether a device plugin assigned the device.
func (e *listedDevice) fromPlugin() bool { return e.claim == gpu.ClaimDevice{} }

// listing is the content of one reply of the kubelet.
type listing struct {
	pods         map[gpu.PodName]bool // including those without a device
	entries      []listedDevice       // by compareAssignments, each once
	unreadable   []gpu.Assignment
	deviceOwners map[pluginDevice]gpu.PodName // of devices of device plugins; nil until needed
}

// replyReader reads replies of the kubelet. It is immutable.
type replyReader struct {
	names resourceNames
}

// readReply returns the content of a reply. It does not depend on the order of the reply's pods and
// devices.
func (r replyReader) readReply(reply *kubeletapi.ListPodResourcesResponse) listing {
	list := listing{pods: make(map[gpu.PodName]bool, len(reply.GetPodResources()))}
	holderCounts := countClaimHolders(reply)

	for _, pod := range reply.GetPodResources() {
		list.pods[gpu.PodName{Namespace: pod.GetNamespace(), Name: pod.GetName()}] = true
		for index, c := range pod.GetContainers() {
			base := listedDevice{containerIndex: index}
			base.Holder.Container = gpu.Container{
				Namespace: pod.GetNamespace(),
				Pod:       pod.GetName(),
				Name:      c.GetName(),
			}
			r.readDevices(&list, base, c.GetDevices())
			readClaims(&list, base, c.GetDynamicResources(), holderCounts)
		}
	}

	// A container holds a device once, even if the reply has it twice.
	slices.SortFunc(
		list.entries,
		func(a, b listedDevice) int { return compareAssignments(&a.Assignment, &b.Assignment) },
	)
	list.entries = slices.CompactFunc(list.entries, func(a, b listedDevice) bool {
		return compareAssignments(&a.Assignment, &b.Assignment) == 0
	})
	slices.SortFunc(
		list.unreadable,
		func(a, b gpu.Assignment) int { return compareAssignments(&a, &b) },
	)

	return list
}

// readDevices adds the devices that device plugins gave to a container. base has the container.
func (r replyReader) readDevices(
	list *listing,
	base listedDevice,
	devices []*kubeletapi.ContainerDevices,
) {
	for _, ofResource := range devices {
		if !r.names.matches(ofResource.GetResourceName()) {
			continue
		}

		e := base
		e.Holder.Resource = ofResource.GetResourceName()

		for _, id := range ofResource.GetDeviceIds() {
			d, ok := parseDeviceID(id)
			if !ok {
				list.addUnreadable(e, id)
				continue
			}

			e.ID = id
			e.Device = d.ref
			e.Holder.Sharing = d.sharing
			e.Holder.Replica = d.replica
			list.entries = append(list.entries, e)
		}
	}
}

// readClaims adds the devices that a container has by DRA claims. base has the container.
func readClaims(
	list *listing,
	base listedDevice,
	claims []*kubeletapi.DynamicResource,
	holderCounts map[gpu.ClaimDevice]int,
) {
	for _, claim := range claims {
		e := base

		e.Holder.Resource = gpu.ClaimPrefix + claim.GetClaimNamespace() + "/" + claim.GetClaimName()
		for _, resource := range claim.GetClaimResources() {
			// The API allows claims without a device, for future kinds of resources.
			name := resource.GetDeviceName()
			if resource.GetDriverName() != draDriver || name == "" ||
				strings.HasPrefix(name, draPassthrough) {
				continue
			}

			ref, ok := parseDRADevice(name)
			if !ok {
				list.addUnreadable(e, name)
				continue
			}

			e.ID = name
			e.Device = ref
			e.claim = claimDeviceOf(claim, resource)
			e.Holder.Sharing = gpu.SharingExclusive
			e.Holder.Replica = resource.GetShareId()

			if e.Holder.Replica != "" || holderCounts[e.claim] > 1 {
				e.Holder.Sharing = gpu.SharingReplica
			}

			list.entries = append(list.entries, e)
		}
	}
}

func (list *listing) addUnreadable(e listedDevice, id string) {
	if len(id) > maxIDLength {
		id = strings.ToValidUTF8(id[:maxIDLength], "") + "..."
	}

	list.unreadable = append(list.unreadable, gpu.Assignment{ID: id, Holder: e.Holder})
}

func claimDeviceOf(
	claim *kubeletapi.DynamicResource,
	resource *kubeletapi.ClaimResource,
) gpu.ClaimDevice {
	return gpu.ClaimDevice{
		Namespace: claim.GetClaimNamespace(),
		Claim:     claim.GetClaimName(),
		Driver:    resource.GetDriverName(),
		Pool:      resource.GetPoolName(),
		Device:    resource.GetDeviceName(),
	}
}

// countClaimHolders returns how many containers hold each claimed device: several containers, even
// of different pods, may name one claim and share its devices.
func countClaimHolders(reply *kubeletapi.ListPodResourcesResponse) map[gpu.ClaimDevice]int {
	counts := map[gpu.ClaimDevice]int{}

	for _, pod := range reply.GetPodResources() {
		for _, c := range pod.GetContainers() {
			for _, claim := range c.GetDynamicResources() {
				for _, resource := range claim.GetClaimResources() {
					counts[claimDeviceOf(claim, resource)]++
				}
			}
		}
	}

	return counts
}

// compareAssignments orders by pod, container, resource, id and replica. Assignments that are equal
// in these are the same.
func compareAssignments(a, b *gpu.Assignment) int {
	x := &a.Holder
	y := &b.Holder

	return cmp.Or(
		strings.Compare(x.Namespace, y.Namespace),
		strings.Compare(x.Pod, y.Pod),
		strings.Compare(x.Name, y.Name),
		strings.Compare(x.Resource, y.Resource),
		strings.Compare(a.ID, b.ID),
		strings.Compare(x.Replica, y.Replica),
	)
}
