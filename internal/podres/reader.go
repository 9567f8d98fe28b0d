package podres

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// draDriver is the name of NVIDIA's driver for dynamic resource allocation of GPUs.
	draDriver = "gpu.nvidia.com"
	// draPassthrough begins the names of GPUs that are given to virtual machines; the node's own driver has them not.
	draPassthrough = "gpu-vfio-"
)

// Garbled ids are logged once each, the first so many of them and so much of each.
const (
	maxGarbledLogged = 100
	maxGarbledLength = 128
)

// An assignment that is listed again after less than maxGap was held in between: a kubelet that restarts lists its pods
// bit by bit. maxMissed bounds how many are remembered meanwhile.
const (
	maxGap    = 10 * time.Second
	maxMissed = 50_000
)

// reader makes Assignments of the kubelet's replies and remembers what it has seen from one to the next.
type reader struct {
	names    resourceNames
	metadata Metadata
	logger   log.Logger
	garbled  map[string]struct{} // ids that were logged
	round    uint64
	last     []gpu.Assignment // as handed out: sorted, and not to be modified
	missed   []missed
}

// missed is an assignment that was listed a while ago and is not now.
type missed struct {
	gpu.Assignment
	since time.Time
}

func newReader(opts Options) reader {
	return reader{
		names:    newResourceNames(opts.ResourceNames),
		metadata: opts.Metadata,
		logger:   opts.Logger,
		garbled:  map[string]struct{}{},
	}
}

// read makes Assignments of a reply. Of a kubelet that is still settling, having none means that it does not know its
// pods yet: what was handed out last stays.
func (r *reader) read(reply *podresources.ListPodResourcesResponse, now time.Time, settling bool) gpu.Assignments {
	out := gpu.Assignments{List: make([]gpu.Assignment, 0, len(r.last))}
	shared := sharedClaims(reply)
	for _, pod := range reply.GetPodResources() {
		first := len(out.List)
		for _, c := range pod.GetContainers() {
			holder := gpu.Holder{Container: gpu.Container{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Name: c.GetName()}}
			r.readDevices(&out, holder, c.GetDevices())
			r.readClaims(&out, holder, c.GetDynamicResources(), shared)
		}
		r.describe(out.List[first:])
	}
	slices.SortFunc(out.List, compare)
	// A device that is listed twice for one container is held once; its series may not come twice.
	out.List = slices.CompactFunc(out.List, func(a, b gpu.Assignment) bool { return compare(a, b) == 0 })
	if settling && len(out.List) == 0 {
		out.List = r.last
		return out
	}
	r.stamp(out.List, now)
	return out
}

func (r *reader) readDevices(out *gpu.Assignments, holder gpu.Holder, devices []*podresources.ContainerDevices) {
	for _, entry := range devices {
		if !r.names.match(entry.GetResourceName()) {
			continue
		}
		holder.Resource = entry.GetResourceName()
		for _, id := range entry.GetDeviceIds() {
			d, ok := parseDeviceID(id)
			if !ok {
				out.Garbled++
				r.logGarbled(holder, id)
				continue
			}
			holder.Sharing, holder.Replica = d.sharing, d.replica
			out.List = append(out.List, gpu.Assignment{Device: d.ref, Holder: holder})
		}
	}
}

func (r *reader) readClaims(out *gpu.Assignments, holder gpu.Holder, claims []*podresources.DynamicResource, shared map[claimDevice]int) {
	for _, claim := range claims {
		holder.Resource = "claim/" + claim.GetClaimNamespace() + "/" + claim.GetClaimName()
		for _, resource := range claim.GetClaimResources() {
			// The API keeps claims without a device for kinds of resources to come.
			name := resource.GetDeviceName()
			if resource.GetDriverName() != draDriver || name == "" || strings.HasPrefix(name, draPassthrough) {
				continue
			}
			ref, ok := parseDRADevice(name)
			if !ok {
				out.Garbled++
				r.logGarbled(holder, name)
				continue
			}
			holder.Sharing, holder.Replica = gpu.SharingExclusive, resource.GetShareId()
			if holder.Replica != "" || shared[claimDeviceOf(claim, resource)] > 1 {
				holder.Sharing = gpu.SharingReplica
			}
			out.List = append(out.List, gpu.Assignment{Device: ref, Holder: holder})
		}
	}
}

// claimDevice is one device of one claim.
type claimDevice struct {
	namespace, claim, pool, device string
}

func claimDeviceOf(claim *podresources.DynamicResource, resource *podresources.ClaimResource) claimDevice {
	return claimDevice{claim.GetClaimNamespace(), claim.GetClaimName(), resource.GetPoolName(), resource.GetDeviceName()}
}

// sharedClaims counts the containers that hold each claimed device: containers, also of several pods, may name one
// claim, and then they share what it was given.
func sharedClaims(reply *podresources.ListPodResourcesResponse) map[claimDevice]int {
	holders := map[claimDevice]int{}
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

// describe adds to the assignments of one pod what the API server knows of it.
func (r *reader) describe(pod []gpu.Assignment) {
	if len(pod) == 0 || r.metadata == nil {
		return
	}
	known, ok := r.metadata.PodMetadata(pod[0].Holder.Namespace, pod[0].Holder.Pod)
	if !ok {
		return
	}
	for i := range pod {
		pod[i].Holder.Workload, pod[i].Holder.Labels = known.Workload, known.Labels
	}
	if len(known.MIGDevices) > 0 {
		useReserved(pod, known.MIGDevices)
	}
}

// stamp sets Seen: the number of the List since which an assignment was in every one, but for gaps shorter than
// maxGap. Both lists are sorted.
func (r *reader) stamp(list []gpu.Assignment, now time.Time) {
	r.round++
	var gone []missed // of the last List
	last := r.last
	for i := range list {
		list[i].Seen = r.round
		for len(last) > 0 && compare(last[0], list[i]) < 0 {
			gone = append(gone, missed{last[0], now})
			last = last[1:]
		}
		if len(last) > 0 && compare(last[0], list[i]) == 0 {
			list[i].Seen = last[0].Seen
			last = last[1:]
		}
	}
	for i := range last {
		gone = append(gone, missed{last[i], now})
	}
	r.last = list
	r.recall(list, gone, now)
}

// recall gives those that are back their former Seen, and remembers the others for a while, with those that are gone
// now.
func (r *reader) recall(list []gpu.Assignment, gone []missed, now time.Time) {
	if len(r.missed) == 0 && len(gone) == 0 {
		return
	}
	for _, m := range r.missed {
		if now.Sub(m.since) >= maxGap {
			continue
		}
		at, back := slices.BinarySearchFunc(list, m.Assignment, compare)
		if back {
			list[at].Seen = m.Seen
		} else if len(gone) < maxMissed {
			gone = append(gone, m)
		}
	}
	r.missed = gone
}

func (r *reader) logGarbled(holder gpu.Holder, id string) {
	if len(id) > maxGarbledLength {
		id = strings.ToValidUTF8(id[:maxGarbledLength], "") + "..."
	}
	if _, logged := r.garbled[id]; logged || len(r.garbled) > maxGarbledLogged {
		return
	}
	r.garbled[id] = struct{}{}
	if len(r.garbled) > maxGarbledLogged {
		level.Warn(r.logger).Log("msg", "many device ids are not understood; further ones are counted, not logged")
		return
	}
	level.Warn(r.logger).Log("msg", "device id not understood", "id", id, "resource", holder.Resource,
		"namespace", holder.Namespace, "pod", holder.Pod, "container", holder.Name)
}

// compare orders assignments by container, resource, device and replica.
func compare(a, b gpu.Assignment) int {
	x, y := &a.Holder, &b.Holder
	return cmp.Or(
		strings.Compare(x.Namespace, y.Namespace),
		strings.Compare(x.Pod, y.Pod),
		strings.Compare(x.Name, y.Name),
		compareDevices(&a.Device, &b.Device),
		cmp.Compare(len(x.Replica), len(y.Replica)), // numbers in numeric order
		strings.Compare(x.Replica, y.Replica),
		strings.Compare(x.Resource, y.Resource),
	)
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

// compareOpt puts an absent value first.
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
