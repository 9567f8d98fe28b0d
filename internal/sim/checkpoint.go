package sim

import "slices"

// Checkpoint is the file of the kubelet's device manager: every device that a device plugin gave to
// a container, init containers included. It must not be modified.
type Checkpoint struct {
	Entries    []CheckpointEntry
	Registered []DeviceGrant // what the device plugins offered when the file was written
	Invalid    bool          // a fault has damaged the file
	Version    int           // grows whenever the file is written, or damaged
}

// CheckpointEntry has the devices of one resource that a container was given.
type CheckpointEntry struct {
	PodUID, Container, Resource string
	DeviceIDs                   map[int64][]string // by NUMA node
}

// gpusPerNUMANode is how many GPUs share one CPU socket, as in NVIDIA's eight-GPU systems with two.
const gpusPerNUMANode = 4

// Checkpoint returns the device manager's checkpoint as it is now.
func (n *Node) Checkpoint() Checkpoint {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	c := n.checkpoint
	n.eachActiveFault(
		noSingleGPU,
		now,
		func(f *FaultSpec) { c.Invalid = c.Invalid || f.Kind == FaultBadCheckpoint },
	)

	return c
}

// checkpointPod writes the devices of a new pod into the checkpoint. Only on that occasion does the
// kubelet remove the entries of pods that have ended, and only if it knows all of its pods
// (pkg/kubelet/cm/devicemanager/manager.go, UpdateAllocatedDevices).
func (n *Node) checkpointPod(p *pod) {
	var added []CheckpointEntry

	for _, c := range p.containers {
		if len(c.deviceIDs) == 0 {
			continue
		}

		byNUMANode := make(map[int64][]string)

		for _, g := range c.granted {
			numa := int64(g.gpu.index / gpusPerNUMANode)
			byNUMANode[numa] = append(byNUMANode[numa], n.deviceID(g))
		}

		added = append(
			added,
			CheckpointEntry{PodUID: p.uid, Container: c.spec.Name, Resource: c.spec.Resource,
				DeviceIDs: byNUMANode},
		)
	}

	if len(added) == 0 {
		return
	}

	entries := slices.Clone(n.checkpoint.Entries)
	if n.knowsPods(n.sinceStart(), false) {
		entries = slices.DeleteFunc(entries, func(e CheckpointEntry) bool {
			return !n.hasLivePod(e.PodUID)
		})
	}

	n.checkpoint.Entries = append(entries, added...)
	n.writeCheckpoint()
}

// hasLivePod reports whether a pod with a UID is on the node and has not ended.
func (n *Node) hasLivePod(uid string) bool {
	return slices.ContainsFunc(n.pods, func(p *pod) bool { return p.uid == uid && !p.ended })
}

// writeCheckpoint writes the checkpoint with the devices that are offered now. The kubelet also does
// that when a device plugin registers, which it does after every start of the kubelet.
func (n *Node) writeCheckpoint() {
	n.checkpoint.Registered = n.allocatable()
	n.touchCheckpoint()
}

// touchCheckpoint records that the file has changed.
func (n *Node) touchCheckpoint() {
	n.checkpoint.Version++
}
