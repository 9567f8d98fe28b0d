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
	r := newResolver(gpus)
	claims := map[target][]gpu.Assignment{}
	var targets []target
	for _, a := range list {
		t, ok := r.find(a.Device)
		if !ok {
			unmatched++
			continue
		}
		if r.since(t).After(asked) {
			continue
		}
		if claims[t] == nil {
			targets = append(targets, t)
		}
		claims[t] = append(claims[t], a)
	}
	// Whole GPU instances before their compute instances: what was given more exactly counts.
	slices.SortFunc(targets, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.instance, b.instance), cmp.Compare(a.compute, b.compute))
	})
	for _, t := range targets {
		place(&gpus[t.gpu], t, settle(&gpus[t.gpu], t, claims[t], containers))
	}
	for g := range gpus {
		if gpus[g].UUID != "" {
			summarise(&gpus[g])
		}
	}
	return unmatched
}

// place stores the holders of a device. A whole GPU instance that was given away is given with all its compute
// instances.
func place(g *gpu.GPU, t target, holders []gpu.Holder) {
	switch {
	case t.instance == none:
		g.Holders = holders
	case t.compute != none:
		g.Instances[t.instance].Computes[t.compute].Holders = holders
	default:
		gi := &g.Instances[t.instance]
		gi.Holders = holders
		for c := range gi.Computes {
			gi.Computes[c].Holders = slices.Clone(holders)
		}
	}
}

// settle decides how the holders of one device share it and orders them. Of several exclusive ones the kubelet still
// lists those that have ended: the one seen last counts; among equals the one with a process on the device.
func settle(g *gpu.GPU, t target, claims []gpu.Assignment, containers Containers) []gpu.Holder {
	var holders []gpu.Holder
	var exclusive []gpu.Assignment
	for _, c := range claims {
		h := c.Holder
		switch h.Sharing {
		case gpu.SharingExclusive:
			exclusive = append(exclusive, c)
			continue
		case gpu.SharingReplica:
			h.Sharing = replicaSharing(g, t, h)
		}
		holders = append(holders, h)
	}
	if len(exclusive) > 0 {
		holders = append(holders, successor(g, t, exclusive, containers))
	}
	slices.SortFunc(holders, func(a, b gpu.Holder) int {
		return cmp.Or(compareContainers(a.Container, b.Container), strings.Compare(a.Resource, b.Resource),
			strings.Compare(a.Replica, b.Replica))
	})
	return holders
}

// replicaSharing tells how a replica shares its GPU: by a common DRA claim, or by time-slicing or MPS, whose control
// daemon sets the exclusive-process compute mode and whose clients are listed apart.
func replicaSharing(g *gpu.GPU, t target, h gpu.Holder) gpu.Sharing {
	if strings.HasPrefix(h.Resource, "claim/") {
		return gpu.SharingClaim
	}
	if g.Readings.ExclusiveComputeMode.Or(false) {
		return gpu.SharingMPS
	}
	for _, p := range g.Readings.Processes.Or(nil) {
		if p.MPS && runsOn(g, t, p) {
			return gpu.SharingMPS
		}
	}
	return gpu.SharingTimeSlicing
}

// successor picks the one exclusive holder that counts.
func successor(g *gpu.GPU, t target, claims []gpu.Assignment, containers Containers) gpu.Holder {
	best := slices.MaxFunc(claims, func(a, b gpu.Assignment) int { return cmp.Compare(a.Seen, b.Seen) })
	latest := slices.DeleteFunc(slices.Clone(claims), func(c gpu.Assignment) bool { return c.Seen < best.Seen })
	if len(latest) == 1 {
		return best.Holder
	}
	slices.SortFunc(latest, func(a, b gpu.Assignment) int { return compareContainers(a.Holder.Container, b.Holder.Container) })
	if containers != nil {
		for _, p := range g.Readings.Processes.Or(nil) {
			if !runsOn(g, t, p) {
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
func runsOn(g *gpu.GPU, t target, p gpu.Process) bool {
	if t.instance == none {
		return true
	}
	gi := &g.Instances[t.instance]
	if p.Instance != gpu.Some(gi.ID) {
		return false
	}
	return t.compute == none || p.Compute == gpu.Some(gi.Computes[t.compute].ID)
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
