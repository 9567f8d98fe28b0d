package poll

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// attach writes who holds what into the GPUs and returns how many of the references name no device of this node. The
// list was asked for at a time: an instance that was first seen later is not the one that it names.
func attach(gpus []gpu.GPU, list []gpu.Assignment, asked time.Time, containers Containers) (unmatched int) {
	known := gpu.NewDevices(gpus)
	claims := map[gpu.Device][]gpu.Assignment{}
	var devices []gpu.Device
	for _, a := range list {
		d, match := known.Resolve(a.Device)
		if match != gpu.MatchDevice {
			unmatched++
			continue
		}
		d = onlyCompute(gpus, d)
		if since(gpus, d).After(asked) {
			continue
		}
		if claims[d] == nil {
			devices = append(devices, d)
		}
		claims[d] = append(claims[d], a)
	}
	// Whole GPU instances before their compute instances: what was given more exactly counts.
	slices.SortFunc(devices, func(a, b gpu.Device) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Compute, b.Compute))
	})
	for _, d := range devices {
		place(&gpus[d.GPU], d, settle(&gpus[d.GPU], d, claims[d], containers))
	}
	for g := range gpus {
		if gpus[g].UUID != "" {
			summarise(&gpus[g])
		}
	}
	return unmatched
}

// onlyCompute narrows a GPU instance down to its compute instance if it has just one: that is then what was given.
func onlyCompute(gpus []gpu.GPU, d gpu.Device) gpu.Device {
	if d.Instance != gpu.Whole && d.Compute == gpu.Whole && len(gpus[d.GPU].Instances[d.Instance].Computes) == 1 {
		d.Compute = 0
	}
	return d
}

// since is when a device was first seen; the zero time for a whole GPU, whose identity is not used again.
func since(gpus []gpu.GPU, d gpu.Device) time.Time {
	switch {
	case d.Instance == gpu.Whole:
		return time.Time{}
	case d.Compute == gpu.Whole:
		return gpus[d.GPU].Instances[d.Instance].Since
	}
	return gpus[d.GPU].Instances[d.Instance].Computes[d.Compute].Since
}

// place stores the holders of a device. A whole GPU instance that was given away is given with all its compute
// instances.
func place(g *gpu.GPU, d gpu.Device, holders []gpu.Holder) {
	switch {
	case d.Instance == gpu.Whole:
		g.Holders = holders
	case d.Compute != gpu.Whole:
		g.Instances[d.Instance].Computes[d.Compute].Holders = holders
	default:
		gi := &g.Instances[d.Instance]
		gi.Holders = holders
		for c := range gi.Computes {
			gi.Computes[c].Holders = slices.Clone(holders)
		}
	}
}

// settle decides how the holders of one device share it and orders them. Of several exclusive ones the kubelet still
// lists those that have ended: the one seen last counts; among equals the one with a process on the device.
func settle(g *gpu.GPU, d gpu.Device, claims []gpu.Assignment, containers Containers) []gpu.Holder {
	var holders []gpu.Holder
	var exclusive []gpu.Assignment
	for _, c := range claims {
		h := c.Holder
		switch h.Sharing {
		case gpu.SharingExclusive:
			exclusive = append(exclusive, c)
			continue
		case gpu.SharingReplica:
			h.Sharing = replicaSharing(g, d, h)
		}
		holders = append(holders, h)
	}
	if len(exclusive) > 0 {
		holders = append(holders, successor(g, d, exclusive, containers))
	}
	slices.SortFunc(holders, func(a, b gpu.Holder) int {
		return cmp.Or(compareContainers(a.Container, b.Container), strings.Compare(a.Resource, b.Resource),
			strings.Compare(a.Replica, b.Replica))
	})
	return holders
}

// replicaSharing tells how a replica shares its GPU: by a common DRA claim, or by time-slicing or MPS, whose control
// daemon sets the exclusive-process compute mode and whose clients are listed apart.
func replicaSharing(g *gpu.GPU, d gpu.Device, h gpu.Holder) gpu.Sharing {
	if strings.HasPrefix(h.Resource, "claim/") {
		return gpu.SharingClaim
	}
	if g.Readings.ExclusiveComputeMode.Or(false) {
		return gpu.SharingMPS
	}
	for _, p := range g.Readings.Processes.Or(nil) {
		if p.MPS && runsOn(g, d, p) {
			return gpu.SharingMPS
		}
	}
	return gpu.SharingTimeSlicing
}

// successor picks the one exclusive holder that counts.
func successor(g *gpu.GPU, d gpu.Device, claims []gpu.Assignment, containers Containers) gpu.Holder {
	best := slices.MaxFunc(claims, func(a, b gpu.Assignment) int { return cmp.Compare(a.Seen, b.Seen) })
	latest := slices.DeleteFunc(slices.Clone(claims), func(c gpu.Assignment) bool { return c.Seen < best.Seen })
	if len(latest) == 1 {
		return best.Holder
	}
	slices.SortFunc(latest, func(a, b gpu.Assignment) int { return compareContainers(a.Holder.Container, b.Holder.Container) })
	if containers != nil {
		for _, p := range g.Readings.Processes.Or(nil) {
			if !runsOn(g, d, p) {
				continue
			}
			c, ok := containers.ContainerOf(p.PID)
			i := slices.IndexFunc(latest, func(l gpu.Assignment) bool { return l.Holder.Container == c })
			if ok && i >= 0 {
				return latest[i].Holder
			}
		}
	}
	return latest[len(latest)-1].Holder
}

// runsOn tells whether a process runs on a device.
func runsOn(g *gpu.GPU, d gpu.Device, p gpu.Process) bool {
	if d.Instance == gpu.Whole {
		return true
	}
	gi := &g.Instances[d.Instance]
	if p.Instance != gpu.Some(gi.ID) {
		return false
	}
	return d.Compute == gpu.Whole || p.Compute == gpu.Some(gi.Computes[d.Compute].ID)
}

// summarise derives from the holders of compute instances who holds the GPU instance, and what is allocated.
func summarise(g *gpu.GPU) {
	allocated := len(g.Holders) > 0
	for i := range g.Instances {
		gi := &g.Instances[i]
		used := len(gi.Holders) > 0
		for c := range gi.Computes {
			ci := &gi.Computes[c]
			ci.Allocated = gpu.Some(len(ci.Holders) > 0)
			used = used || len(ci.Holders) > 0
		}
		gi.Allocated = gpu.Some(used)
		if len(gi.Holders) == 0 {
			gi.Holders = commonHolder(gi)
		}
		allocated = allocated || used
	}
	g.Allocated = gpu.Some(allocated)
}

// commonHolder is the pod that holds every compute instance of a GPU instance alone, where one does. Its container is
// named where it is one.
func commonHolder(gi *gpu.GPUInstance) []gpu.Holder {
	if len(gi.Computes) == 0 {
		return nil
	}
	var common gpu.Holder
	for c := range gi.Computes {
		holders := gi.Computes[c].Holders
		if len(holders) != 1 || holders[0].Sharing != gpu.SharingExclusive {
			return nil
		}
		h := holders[0]
		switch {
		case c == 0:
			common = h
		case h.Namespace != common.Namespace || h.Pod != common.Pod:
			return nil
		default:
			if h.Name != common.Name {
				common.Name = ""
			}
			if h.Resource != common.Resource {
				common.Resource = ""
			}
		}
	}
	return []gpu.Holder{common}
}

func compareContainers(a, b gpu.Container) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod), strings.Compare(a.Name, b.Name))
}
