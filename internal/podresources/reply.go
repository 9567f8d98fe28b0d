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
	// draPassthrough is the prefix of GPUs that are passed to virtual machines; the driver of the
	// node does not have them.
	draPassthrough = "gpu-vfio-"
)

// maxIDLength bounds the kept part of a device id in no known form.
const maxIDLength = 128

// listedDevice is one assignment as the kubelet lists it: its Device and Sharing are parsed from
// the id.
type listedDevice struct {
	gpu.Assignment
	claim gpu.ClaimDevice // zero unless a ResourceClaim allocated the device
	order int             // of the container in its pod
}

func (e *listedDevice) podName() gpu.PodName {
	return gpu.PodName{Namespace: e.Holder.Namespace, Name: e.Holder.Pod}
}

// pluginDevice is a device of a device plugin. The kubelet assigns each id of a resource, including
// those of replicas, to one container. It does not relate resources: after a new configuration of
// the plugin (strategy single to mixed, a renamed resource) or a GPU instance of another profile,
// an id can be listed under a new resource while a container still holds it under the old one.
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
	l := listing{pods: make(map[gpu.PodName]bool, len(reply.GetPodResources()))}
	shared := sharedClaims(reply)

	for _, pod := range reply.GetPodResources() {
		l.pods[gpu.PodName{Namespace: pod.GetNamespace(), Name: pod.GetName()}] = true
		for order, c := range pod.GetContainers() {
			e := listedDevice{order: order}
			e.Holder.Container = gpu.Container{
				Namespace: pod.GetNamespace(),
				Pod:       pod.GetName(),
				Name:      c.GetName(),
			}
			r.readDevices(&l, e, c.GetDevices())
			readClaims(&l, e, c.GetDynamicResources(), shared)
		}
	}

	// A device that is listed twice for one container is held once, and has one series.
	slices.SortFunc(
		l.entries,
		func(a, b listedDevice) int { return compareAssignments(&a.Assignment, &b.Assignment) },
	)
	l.entries = slices.CompactFunc(l.entries, func(a, b listedDevice) bool {
		return compareAssignments(&a.Assignment, &b.Assignment) == 0
	})
	slices.SortFunc(
		l.unreadable,
		func(a, b gpu.Assignment) int { return compareAssignments(&a, &b) },
	)

	return l
}

func (r replyReader) readDevices(
	l *listing,
	e listedDevice,
	devices []*kubeletapi.ContainerDevices,
) {
	for _, given := range devices {
		if !r.names.matches(given.GetResourceName()) {
			continue
		}

		e.Holder.Resource = given.GetResourceName()
		for _, id := range given.GetDeviceIds() {
			d, ok := parseDeviceID(id)
			if !ok {
				l.addUnreadable(e, id)
				continue
			}

			e.ID = id
			e.Device = d.ref
			e.Holder.Sharing = d.sharing
			e.Holder.Replica = d.replica
			l.entries = append(l.entries, e)
		}
	}
}

func readClaims(
	l *listing,
	e listedDevice,
	claims []*kubeletapi.DynamicResource,
	shared map[gpu.ClaimDevice]int,
) {
	for _, claim := range claims {
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
				l.addUnreadable(e, name)
				continue
			}

			e.ID = name
			e.Device = ref
			e.claim = claimDeviceOf(claim, resource)
			e.Holder.Sharing = gpu.SharingExclusive
			e.Holder.Replica = resource.GetShareId()

			if e.Holder.Replica != "" || shared[e.claim] > 1 {
				e.Holder.Sharing = gpu.SharingReplica
			}

			l.entries = append(l.entries, e)
		}
	}
}

func (l *listing) addUnreadable(e listedDevice, id string) {
	if len(id) > maxIDLength {
		id = strings.ToValidUTF8(id[:maxIDLength], "") + "..."
	}

	l.unreadable = append(l.unreadable, gpu.Assignment{ID: id, Holder: e.Holder})
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

// sharedClaims returns the number of containers that hold each claimed device: several containers,
// even of different pods, may name one claim and share its devices.
func sharedClaims(reply *kubeletapi.ListPodResourcesResponse) map[gpu.ClaimDevice]int {
	holders := map[gpu.ClaimDevice]int{}

	for _, pod := range reply.GetPodResources() {
		for _, c := range pod.GetContainers() {
			for _, claim := range c.GetDynamicResources() {
				for _, resource := range claim.GetClaimResources() {
					holders[claimDeviceOf(claim, resource)]++
				}
			}
		}
	}

	return holders
}

// compareAssignments orders by pod, container, resource, id and share. Assignments that are equal
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
