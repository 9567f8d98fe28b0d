package nvmlsource

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// tree is a GPU's tree of GPU instances and compute instances with their details. These are read when a scan differs
// from the last one, and with the slow tier: a scan may not show every change.
type tree struct {
	known   bool
	hidden  bool // MIG devices are denied
	scan    scan // the last one, which the nodes were built from
	spare   scan // the one before, for its memory
	nodes   []instanceNode
	answers answers         // of the details
	errs    []gpu.ReadError // of the details; they are reported until these are read again
}

// instanceNode is a GPU instance without its readings, and what is kept from one reading to the next.
type instanceNode struct {
	gpu.GPUInstance
	computes []computeNode
	answers  answers
	window   window
}

// computeNode is a compute instance without its readings, and what is kept from one reading to the next.
type computeNode struct {
	gpu.ComputeInstance
	device  int // index of its MIG device in the scan
	answers answers
	window  window
}

// handleOf returns the handle that the last scan found for a compute instance.
func (t *tree) handleOf(c *computeNode) MIGDevice { return t.scan.devices[c.device].handle }

// windows iterates over the windows of all instances.
func (t *tree) windows() iter.Seq[*window] {
	return func(yield func(*window) bool) {
		for i := range t.nodes {
			n := &t.nodes[i]
			if !yield(&n.window) {
				return
			}
			for j := range n.computes {
				if !yield(&n.computes[j].window) {
					return
				}
			}
		}
	}
}

// dropTree drops all that is known of the tree.
func (r *gpuRead) dropTree() {
	r.source.samples.putAll(&r.state.tree)
	r.state.tree = tree{}
}

// treeScan is how the scans of a GPU's tree went in one reading.
type treeScan struct {
	changed  bool  // the last scan differed from the one before
	vanished bool  // an entity vanished between a scan and the calls about it: another client changes the layout
	repeats  int   // how often the tree was read again because something had vanished
	err      error // of the last scan. Its handles must not be used then.
}

// readTree updates the tree, again if something vanished while it was read. After a failed scan the last tree
// remains, without its handles: they may be those of other instances by now.
func (r *gpuRead) readTree() {
	for {
		errs := r.separate(r.readTreeOnce)
		if r.scan.vanished && r.shouldRescan() {
			continue
		}
		r.errs = append(r.errs, errs...)
		return
	}
}

func (r *gpuRead) readTreeOnce() {
	t := &r.state.tree
	r.scan.vanished = false
	if !r.state.mode.enabled.Or(false) {
		r.dropTree()
		return
	}
	if r.fatal != nil || !r.scanSpare(t) {
		return
	}
	changed := !t.known || !t.scan.equal(&t.spare)
	r.scan.changed = changed
	t.scan, t.spare = t.spare, t.scan
	r.state.gpm.layoutChanged = r.state.gpm.layoutChanged || changed
	if changed && t.known {
		r.forgetAnswers() // whether a call is supported depends on the instances, too
	}
	if changed && !r.rescanTorn(t) {
		return
	}
	if changed || r.slow {
		r.buildTree(t, changed)
	}
}

// scanSpare scans the tree into t.spare, and reports whether that succeeded.
func (r *gpuRead) scanSpare(t *tree) bool {
	ok := r.scanTree(&t.spare)
	r.scan.err = nil
	if !ok {
		r.scan.err = r.lastError()
	}
	return ok
}

// maxTornScans bounds how often a tree that contradicts itself is scanned in one reading.
const maxTornScans = 4

// maxRepeats bounds how often a tree is read again in one reading because something of it vanished: a layout change
// is many changes, and each can come in between.
const maxRepeats = 3

// shouldRescan reports whether the tree is to be read again, and counts that. If the last repetition found no change,
// what cannot be read exists and will not be readable the next time.
func (r *gpuRead) shouldRescan() bool {
	if r.scan.repeats == maxRepeats || r.scan.repeats > 0 && !r.scan.changed {
		return false
	}
	r.scan.repeats++
	return true
}

// rescanTorn scans a changed tree again while it contradicts itself: a scan is many calls, and one in the middle of a
// layout change has something of both layouts. Two equal scans are taken as true. It reports whether the scans
// succeeded.
func (r *gpuRead) rescanTorn(t *tree) bool {
	for scans := 1; scans < maxTornScans && t.scan.isTorn(); scans++ {
		if !r.scanSpare(t) {
			t.known = false // the nodes were not built from t.scan
			return false
		}
		same := t.scan.equal(&t.spare)
		t.scan, t.spare = t.spare, t.scan
		if same {
			break
		}
	}
	return true
}

// buildTree reads the details of a scanned tree. If it has not changed, errors leave the last details in place.
func (r *gpuRead) buildTree(t *tree, changed bool) {
	if changed {
		t.answers = newAnswers()
	}
	detail := querier{source: r.source, answers: t.answers, slow: r.slow}
	var nodes []instanceNode
	for _, info := range t.scan.instances {
		if !slices.ContainsFunc(nodes, func(n instanceNode) bool { return n.ID == gpu.InstanceID(info.ID) }) {
			nodes = append(nodes, r.listedNode(info))
		}
	}
	for i := range t.scan.devices {
		nodes = r.addCompute(&detail, nodes, t.scan.devices[i], i)
	}
	for i, info := range t.scan.instances {
		placeComputes(&detail, nodes, gpu.InstanceID(info.ID), t.scan.handles[i])
	}
	sortNodes(nodes)
	if changed {
		r.source.samples.putAll(t)
	}
	if changed || len(detail.errs) == 0 && !detail.stale && detail.fatal == nil {
		if !changed {
			moveState(nodes, t.nodes)
		}
		t.nodes = nodes
	}
	t.known, t.errs = true, detail.errs
	r.scan.vanished = r.scan.vanished || detail.stale
	if detail.fatal != nil {
		r.fatal = detail.fatal
	}
}

// moveState moves what is kept of instances from their old nodes to their new ones. Both are of equal scans, and so
// of the same instances in the same order.
func moveState(to, from []instanceNode) {
	for i := range to {
		n, old := &to[i], &from[i]
		n.answers, n.window = old.answers, old.window
		for j := range n.computes {
			c, old := &n.computes[j], &old.computes[j]
			c.answers, c.window = old.answers, old.window
		}
	}
}

// listedNode returns a GPU instance that the driver has listed.
func (r *gpuRead) listedNode(info GPUInstanceInfo) instanceNode {
	n := newNode(gpu.InstanceID(info.ID))
	n.ProfileID = gpu.Some(info.ProfileID)
	n.Placement = gpu.Some(info.placement())
	n.MemorySlices = gpu.Some(int(info.Placement.Size))
	if p, ok := r.profileOf(n.ProfileID); ok {
		n.setProfile(p)
	}
	return n
}

func newNode(id gpu.InstanceID) instanceNode {
	return instanceNode{GPUInstance: gpu.GPUInstance{ID: id, Up: true}, answers: newAnswers()}
}

// setProfile sets what all instances of a profile have in common.
func (n *instanceNode) setProfile(p gpu.Profile) {
	n.Profile = p.Name
	n.ProfileID = gpu.Some(p.ID)
	n.ComputeSlices = gpu.Some(p.ComputeSlices)
	n.SMs = gpu.Some(p.SMs)
	if p.MemorySlices > 0 {
		n.MemorySlices = gpu.Some(p.MemorySlices)
	}
}

// addCompute adds a MIG device to its GPU instance, which is inferred from it if it is not listed.
func (r *gpuRead) addCompute(detail *querier, nodes []instanceNode, e migEntry, index int) []instanceNode {
	name, known := e.name, e.named
	if !known {
		name, _ = query(detail, "nvmlDeviceGetName", gpu.ReadingMIG, e.handle.GetName)
	}
	attributes, _ := query(detail, "nvmlDeviceGetAttributes", gpu.ReadingMIG, e.handle.GetAttributes)
	c := computeNode{device: index, answers: newAnswers()}
	c.ID, c.UUID, c.Up = e.compute, e.uuid, true
	c.Profile = deviceProfile(name)
	c.ComputeSlices = positive(attributes.ComputeInstanceSliceCount)
	c.SMs = positive(attributes.MultiprocessorCount)
	at := slices.IndexFunc(nodes, func(n instanceNode) bool { return n.ID == e.instance })
	if at < 0 {
		nodes = append(nodes, r.inferredNode(e.instance, c, attributes))
		at = len(nodes) - 1
	}
	n := &nodes[at]
	if c.Profile == "" && n.Profile != "" {
		c.Profile = n.Profile
		if part := attributes.ComputeInstanceSliceCount; part > 0 && part < attributes.GpuInstanceSliceCount {
			c.Profile = fmt.Sprintf("%dc.%s", part, n.Profile)
		}
	}
	n.computes = append(n.computes, c)
	return nodes
}

// inferredNode returns a GPU instance as far as one of its MIG devices describes it: without placement.
func (r *gpuRead) inferredNode(id gpu.InstanceID, c computeNode, attributes nvml.DeviceAttributes) instanceNode {
	n := newNode(id)
	n.Profile = instanceProfile(c.Profile)
	if n.Profile == "" && attributes.GpuInstanceSliceCount > 0 {
		n.Profile = derivedName(int(attributes.GpuInstanceSliceCount), attributes.MemorySizeMB<<20, r.gpuMemory())
	}
	for _, p := range r.state.static.profiles {
		if p.Name == n.Profile {
			n.setProfile(p.Profile)
			return n
		}
	}
	n.ComputeSlices = positive(attributes.GpuInstanceSliceCount)
	if attributes.ComputeInstanceSliceCount == attributes.GpuInstanceSliceCount {
		n.SMs = c.SMs
	}
	return n
}

// placeComputes adds the placements of compute instances, which only their GPU instance reports.
func placeComputes(detail *querier, nodes []instanceNode, of gpu.InstanceID, handle GPUInstance) {
	at := slices.IndexFunc(nodes, func(n instanceNode) bool { return n.ID == of })
	if len(nodes[at].computes) == 0 {
		return
	}
	list, _ := query(detail, "nvmlGpuInstanceGetComputeInstances", gpu.ReadingMIG, handle.GetComputeInstances)
	for _, info := range list {
		for i := range nodes[at].computes {
			if c := &nodes[at].computes[i]; c.ID == gpu.ComputeID(info.ID) && info.Placement.Size > 0 {
				c.Placement = gpu.Some(gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)})
			}
		}
	}
}

// sortNodes sorts instances by placement, and those without a known placement by id.
func sortNodes(nodes []instanceNode) {
	slices.SortFunc(nodes, func(a, b instanceNode) int {
		return cmp.Or(cmp.Compare(a.Placement.Or(gpu.Placement{}).Start, b.Placement.Or(gpu.Placement{}).Start),
			cmp.Compare(a.ID, b.ID))
	})
	for _, n := range nodes {
		slices.SortFunc(n.computes, func(a, b computeNode) int { return cmp.Compare(a.ID, b.ID) })
	}
}

// deviceProfile returns the profile in a MIG device's name, "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"; "" if it has none.
func deviceProfile(name string) string {
	i := strings.LastIndex(name, " MIG ")
	if i < 0 {
		return ""
	}
	return validUTF8(strings.TrimSpace(name[i+len(" MIG "):]))
}

// instanceProfile returns the GPU instance's profile in a MIG device's own: "3g.20gb" of "1c.3g.20gb".
func instanceProfile(device string) string {
	name, err := mig.ParseName(device)
	if err != nil {
		return device
	}
	name.Part = 0
	return name.String()
}

func positive(n uint32) gpu.Opt[int] {
	if n == 0 {
		return gpu.None[int]()
	}
	return gpu.Some(int(n))
}
