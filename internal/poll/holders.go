package poll

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// attachHolders stores in gpus who holds each device, and whether it is allocated. It returns the
// assignments that name no device of this node. asked is when we last asked the kubelet: its list
// says nothing about a device that we first saw later.
func attachHolders(
	gpus []gpu.GPU,
	known gpu.Assignments,
	asked time.Time,
	containers Containers,
) []gpu.Assignment {
	resolver := gpu.NewResolver(gpus)
	unmatched := slices.Clone(known.Unreadable)
	state := allocationState{
		asked:    asked,
		complete: known.Incomplete == "",
		free:     map[gpu.DeviceID]bool{},
		doubtful: map[gpu.DeviceID]bool{},
	}

	for index := range resolver.Cover(known.Free) {
		state.free[index.In(gpus).ID()] = true
	}

	byDevice := map[gpu.DeviceID][]gpu.Assignment{}

	// Collect the assignments of each device.
	for _, a := range known.List {
		index, match := resolver.Resolve(a.Device)

		// We do not know the present layout of a released GPU: it may have the device.
		partOfReleased := match == gpu.MatchParent && gpus[index.GPU].Released.Present()
		if match != gpu.MatchDevice && a.Holder.Unconfirmed == "" && !partOfReleased {
			unmatched = append(unmatched, a)
		}

		if match == gpu.MatchNothing {
			continue
		}

		// A container gets MIG devices, which are compute instances: an assignment of a GPU
		// instance with only one compute instance means that one.
		d := index.In(gpus)
		if d.Instance != nil && d.Compute == nil && len(d.Instance.ComputeInstances) == 1 {
			index.Compute = 0
			d = index.In(gpus)
		}

		// The device itself does not exist, only its parent; or we first saw it after the kubelet
		// last listed the assignment, so that it may be another device with the same name.
		if match == gpu.MatchParent || d.Since().After(a.LastListed) {
			state.doubtful[d.ID()] = true
			continue
		}

		byDevice[d.ID()] = append(byDevice[d.ID()], a)
	}

	for i := range gpus {
		g := &gpus[i]
		if g.UUID == "" {
			continue
		}

		// GPU instances come before their compute instances, whose own holders take precedence.
		for d := range g.Devices() {
			if assignments := byDevice[d.ID()]; assignments != nil {
				storeHolders(d, resolveSharing(d, assignments, containers))
			}
		}

		state.summarizeGPU(g)
	}

	return unmatched
}

// storeHolders stores the holders of a device. The holders of a GPU instance also hold its compute
// instances, unless a compute instance has confirmed holders of its own.
func storeHolders(d gpu.Visit, holders []gpu.Holder) {
	if d.Compute != nil {
		if slices.ContainsFunc(holders, func(h gpu.Holder) bool { return h.Unconfirmed == "" }) {
			d.Holders = nil // drop the holders of the GPU instance
		}

		d.Holders = append(d.Holders, holders...)

		return
	}

	d.Holders = holders
	if d.Instance == nil {
		return
	}

	for c := range d.Instance.ComputeInstances {
		d.Instance.ComputeInstances[c].Holders = slices.Clone(holders)
	}
}

// resolveSharing returns the holders of one device by its assignments, ordered by name, and sets
// how they share it.
func resolveSharing(
	d gpu.Visit,
	assignments []gpu.Assignment,
	containers Containers,
) []gpu.Holder {
	var holders []gpu.Holder
	var exclusive []gpu.Assignment

	for _, a := range assignments {
		h := a.Holder
		switch {
		case h.Sharing == gpu.SharingExclusive && h.Unconfirmed == "":
			exclusive = append(exclusive, a)
			continue
		case h.Sharing == gpu.SharingReplica:
			h.Sharing = replicaSharing(d, h)
		}

		holders = append(holders, h)
	}

	if len(exclusive) > 0 {
		holders = append(holders, resolveExclusive(d, exclusive, containers)...)
	}

	slices.SortFunc(holders, func(a, b gpu.Holder) int {
		return cmp.Or(
			compareContainers(a.Container, b.Container),
			strings.Compare(a.Resource, b.Resource),
			strings.Compare(a.Replica, b.Replica),
			strings.Compare(a.Unconfirmed, b.Unconfirmed), // the confirmed one, "", first
		)
	})

	// A pod that was created again under its name can hold the same device. We keep the confirmed
	// holder.
	return slices.CompactFunc(holders, func(a, b gpu.Holder) bool {
		return a.Container == b.Container && a.Resource == b.Resource && a.Replica == b.Replica
	})
}

// replicaSharing returns how a replica shares its device: by a common DRA claim, by MPS, or by
// time-slicing. We recognize MPS by the exclusive-process compute mode, which its control daemon
// sets, or by an MPS client among the processes. If we see neither it is time-slicing, provided
// that the processes are known.
func replicaSharing(d gpu.Visit, h gpu.Holder) gpu.Sharing {
	if h.ByClaim() {
		return gpu.SharingClaim
	}

	processes, listKnown := d.GPU.Readings.Processes.Get()
	isClient := func(p gpu.Process) bool { return p.MPS && runsOn(d, p) }

	switch {
	case d.GPU.Readings.ExclusiveComputeMode.Or(false) || slices.ContainsFunc(processes, isClient):
		return gpu.SharingMPS
	case !listKnown:
		return gpu.SharingUnknown
	}

	return gpu.SharingTimeSlicing
}

// resolveExclusive returns the holders of a device that allocators gave out exclusively, to one
// container or, in contradiction, to several.
//
// If all have the device under one id of a device plugin, the kubelet still lists containers that
// have ended: we return the container that it began to list last. If it began to list several at
// the same time, we return the one that has a process on the device. In all other cases we do not
// know which of them is right: we return them all with unknown sharing.
func resolveExclusive(
	d gpu.Visit,
	assignments []gpu.Assignment,
	containers Containers,
) []gpu.Holder {
	latest := assignments
	if isOnePluginDevice(assignments) {
		last := slices.MaxFunc(
			assignments,
			func(a, b gpu.Assignment) int { return cmp.Compare(a.FirstListNumber, b.FirstListNumber) },
		)
		latest = slices.DeleteFunc(
			slices.Clone(assignments),
			func(a gpu.Assignment) bool { return a.FirstListNumber < last.FirstListNumber },
		)
	}

	if len(latest) == 1 {
		return []gpu.Holder{latest[0].Holder}
	}

	if h, ok := holderWithProcess(d, latest, containers); ok && isOnePluginDevice(assignments) {
		return []gpu.Holder{h}
	}

	holders := make([]gpu.Holder, len(latest))
	for n := range latest {
		holders[n] = latest[n].Holder
		holders[n].Sharing = gpu.SharingUnknown
	}

	return holders
}

// isOnePluginDevice reports whether a device plugin, not a DRA driver, gave out all assignments,
// under the same device id.
func isOnePluginDevice(assignments []gpu.Assignment) bool {
	return !slices.ContainsFunc(assignments, func(a gpu.Assignment) bool {
		return a.ID != assignments[0].ID || a.Holder.ByClaim()
	})
}

// holderWithProcess returns the holder that has a process on the device; false if none or several
// have one.
func holderWithProcess(
	d gpu.Visit,
	assignments []gpu.Assignment,
	containers Containers,
) (gpu.Holder, bool) {
	if containers == nil {
		return gpu.Holder{}, false
	}

	found := -1 // index in assignments

	for _, p := range d.GPU.Readings.Processes.Or(nil) {
		if !runsOn(d, p) {
			continue
		}

		c, ok := containers.ContainerOf(p.PID)

		i := slices.IndexFunc(
			assignments,
			func(a gpu.Assignment) bool { return a.Holder.Container == c },
		)
		if !ok || i < 0 || i == found {
			continue
		}

		if found >= 0 {
			return gpu.Holder{}, false
		}

		found = i
	}

	if found < 0 {
		return gpu.Holder{}, false
	}

	return assignments[found].Holder, true
}

// runsOn reports whether a process runs on a device.
func runsOn(d gpu.Visit, p gpu.Process) bool {
	return (d.Instance == nil || p.Instance == gpu.Some(d.Instance.ID)) &&
		(d.Compute == nil || p.Compute == gpu.Some(d.Compute.ID))
}

// allocationState is what decides whether a device without a known holder is free, or may have one.
type allocationState struct {
	asked    time.Time             // when we asked for the list
	complete bool                  // the list has every holder of the node
	free     map[gpu.DeviceID]bool // an operator has confirmed that these are free
	// doubtful are the devices that may be held, or of which a part may be: we could not match an
	// assignment to a device, only to these.
	doubtful map[gpu.DeviceID]bool
}

// allocated reports whether the device itself, not only a part of it, is allocated; absent if we do
// not know.
func (s *allocationState) allocated(d gpu.Visit) gpu.Opt[bool] {
	switch {
	case slices.ContainsFunc(d.Holders, func(h gpu.Holder) bool { return h.Unconfirmed == "" }):
		return gpu.Some(true)
	case len(d.Holders) > 0, s.isDoubtful(d):
		return gpu.None[bool]()
	case s.free[d.ID()]:
		return gpu.Some(false)
	case !s.complete, d.Since().After(s.asked):
		// The list may lack its holder.
		return gpu.None[bool]()
	}

	return gpu.Some(false)
}

// isDoubtful reports whether the device, or a device that contains it, is doubtful.
func (s *allocationState) isDoubtful(d gpu.Visit) bool {
	return s.doubtful[d.ID()] || s.doubtful[gpu.IDOfGPU(d.GPU.UUID)] ||
		d.Instance != nil && s.doubtful[gpu.IDOfInstance(d.GPU.UUID, d.Instance)]
}

// summarizeGPU sets Allocated of a GPU and of all its instances: a device is allocated if a part of
// it is. A GPU instance without holders gets the common holder of its compute instances.
func (s *allocationState) summarizeGPU(g *gpu.GPU) {
	if len(g.Holders) > 0 {
		s.doubtful[gpu.IDOfGPU(g.UUID)] = true // the holder may use any part
	}

	for d := range g.Devices() {
		d.Allocated = s.allocated(d)
	}

	// The own state of a GPU or GPU instance counts only if it has no parts or is held as a whole.
	allocated := make([]gpu.Opt[bool], 0, len(g.Instances)+1)
	for i := range g.Instances {
		gi := &g.Instances[i]
		var states []gpu.Opt[bool]

		for c := range gi.ComputeInstances {
			states = append(states, gi.ComputeInstances[c].Allocated)
		}

		if len(states) == 0 || len(gi.Holders) > 0 {
			states = append(states, gi.Allocated)
		}

		if gi.ComputeInstancesHidden {
			states = append(states, gpu.None[bool]())
		}

		gi.Allocated = anyAllocated(states)
		allocated = append(allocated, gi.Allocated)

		switch {
		case len(gi.Holders) > 0, gi.ComputeInstancesHidden:
		case gi.IsSplit():
			gi.Holders = commonHolder(gi)
		case len(gi.ComputeInstances) == 1:
			gi.Holders = slices.Clone(gi.ComputeInstances[0].Holders)
		}
	}

	if len(allocated) == 0 || len(g.Holders) > 0 {
		allocated = append(allocated, g.Allocated)
	}

	// A hidden device may be held. A released GPU may have a user that no kubelet knows.
	if g.MIG.DevicesHidden || g.Released.Present() {
		allocated = append(allocated, gpu.None[bool]())
	}

	g.Allocated = anyAllocated(allocated)
}

// anyAllocated reports whether any part is allocated; absent if we do not know: no part is known to
// be allocated, but the state of a part is unknown.
func anyAllocated(parts []gpu.Opt[bool]) gpu.Opt[bool] {
	if slices.Contains(parts, gpu.Some(true)) {
		return gpu.Some(true)
	}

	if slices.Contains(parts, gpu.None[bool]()) {
		return gpu.None[bool]()
	}

	return gpu.Some(false)
}

// commonHolder returns the pod that exclusively holds every compute instance of a split GPU
// instance, as a list of one; nil if there is none. It has a container name or a resource only if
// all holders have the same, and it is confirmed only if all are.
func commonHolder(gi *gpu.GPUInstance) []gpu.Holder {
	var common gpu.Holder

	for c := range gi.ComputeInstances {
		h := gpu.ExclusiveHolder(gi.ComputeInstances[c].Holders)
		switch {
		case h == nil:
			return nil
		case c == 0:
			common = *h
			continue
		case h.Namespace != common.Namespace || h.Pod != common.Pod:
			return nil
		}

		if h.Name != common.Name {
			common.Name = ""
		}

		if h.Resource != common.Resource {
			common.Resource = ""
		}

		common.Unconfirmed = cmp.Or(common.Unconfirmed, h.Unconfirmed)
		common.Undescribed = common.Undescribed || h.Undescribed
	}

	return []gpu.Holder{common}
}

func compareContainers(a, b gpu.Container) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod),
		strings.Compare(a.Name, b.Name))
}
