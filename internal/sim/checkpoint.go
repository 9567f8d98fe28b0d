package sim

import "slices"

// Checkpoint is what the kubelet's device manager has on disk: every device that a device plugin
// gave to a container, init containers included. It must not be modified.
type Checkpoint struct {
	Entries    []CheckpointEntry
	Registered []DeviceGrant // what the device plugins offered when it was written
	Invalid    bool          // a fault has damaged the file
	Version    int           // grows whenever the file is written, or damaged
}

// CheckpointEntry is one resource of a container.
type CheckpointEntry struct {
	PodUID, Container, Resource string
	DeviceIDs                   map[int64][]string // by NUMA node
}

// gpusPerNUMANode is how many GPUs are at one CPU socket of the machine.
const gpusPerNUMANode = 4

// Checkpoint returns the device manager's checkpoint as it is now.
func (n *Node) Checkpoint() Checkpoint {
	now := n.lock()
	defer n.mu.Unlock()

	c := n.checkpoint
	n.eachActiveFault(
		driverAsWhole,
		now,
		func(f *FaultSpec) { c.Invalid = c.Invalid || f.Kind == FaultBadCheckpoint },
	)

	return c
}

// checkpointPod writes what a pod was given by device plugins. Only then are the entries of pods
// that have ended removed, and not while the kubelet does not know all of its pods
// (pkg/kubelet/cm/devicemanager/manager.go, UpdateAllocatedDevices).
func (n *Node) checkpointPod(p *pod) {
	var added []CheckpointEntry

	for _, c := range p.containers {
		if len(c.devices) == 0 {
			continue
		}

		byNode := make(map[int64][]string)

		for _, g := range c.grants {
			numa := int64(g.gpu.index / gpusPerNUMANode)
			byNode[numa] = append(byNode[numa], n.deviceID(g))
		}

		added = append(
			added,
			CheckpointEntry{PodUID: p.uid, Container: c.spec.Name, Resource: c.spec.Resource,
				DeviceIDs: byNode},
		)
	}

	if len(added) == 0 {
		return
	}

	entries := slices.Clone(n.checkpoint.Entries)
	if n.lists(n.at.Sub(n.start), false) {
		entries = slices.DeleteFunc(entries, func(e CheckpointEntry) bool {
			return !n.lives(e.PodUID)
		})
	}

	n.checkpoint.Entries = append(entries, added...)
	n.writeCheckpoint()
}

// lives reports whether a pod of the node has a UID and has not ended.
func (n *Node) lives(uid string) bool {
	return slices.ContainsFunc(n.pods, func(p *pod) bool { return p.uid == uid && !p.ended })
}

// writeCheckpoint is also what the kubelet does when a device plugin registers: after every start.
func (n *Node) writeCheckpoint() {
	n.checkpoint.Registered = n.allocatable()
	n.touchCheckpoint()
}

// touchCheckpoint notes that the file has changed.
func (n *Node) touchCheckpoint() {
	n.checkpoint.Version++
}
