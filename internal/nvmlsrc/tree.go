package nvmlsrc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// tree is a GPU's GI/CI tree in detail. The details are read when a scan differs from the last one, and with the slow
// tier: a scan may not show everything.
type tree struct {
	known   bool
	hidden  bool // MIG devices are denied
	scan    scan // the last one, which the nodes are of
	spare   scan // the one before, for its memory
	nodes   []instanceNode
	answers answers         // of the details
	errs    []gpu.ReadError // of the details; they stand until these are read again
}

// instanceNode is a GPU instance without its readings.
type instanceNode struct {
	gpu.GPUInstance
	computes []computeNode
	answers  answers
}

// computeNode is a compute instance without its readings.
type computeNode struct {
	gpu.ComputeInstance
	device  int // index of its MIG device in the scan
	answers answers
}

// readTree brings the tree up to date. After a failed scan the last tree stands, without its handles: they may be those of
// other instances by now.
func (r *round) readTree() {
	t := &r.board.tree
	if !r.board.mode.enabled.Or(false) {
		*t = tree{}
		return
	}
	r.moved = false
	before := len(r.errs)
	if r.fatal != nil {
		return
	}
	r.scanErr = nil
	if !r.lookAgain(t) {
		return
	}
	changed := !t.known || !t.scan.equal(&t.spare)
	r.changed = changed
	t.scan, t.spare = t.spare, t.scan
	r.board.gpm.recut = r.board.gpm.recut || changed
	if changed && t.known {
		r.again() // what is supported depends on the instances, too
	}
	if changed && !r.settle(t) {
		return
	}
	if changed || r.slow {
		r.build(t, changed)
	}
	if r.moved && r.rescan() {
		r.errs = r.errs[:before]
		r.readTree()
	}
}

// lookAgain scans the tree into t.spare. It is false where that failed.
func (r *round) lookAgain(t *tree) bool {
	ok := r.look(&t.spare)
	if !ok && r.fatal == nil {
		r.scanErr = r.errs[len(r.errs)-1].Err
	}
	return ok
}

// mostLooks bounds how often a tree that contradicts itself is looked at in one reading.
const mostLooks = 4

// mostRescans bounds how often a tree is read again in one reading because something of it vanished: a re-cut is many
// changes, and each can come in between.
const mostRescans = 3

// rescan tells whether it is worth reading the tree again, and counts it. Where the last time has changed nothing, what
// cannot be read is there and cannot be read.
func (r *round) rescan() bool {
	if r.rescans == mostRescans || r.rescans > 0 && !r.changed {
		return false
	}
	r.rescans++
	return true
}

// settle looks again at a tree that has changed while it contradicts itself: a scan is many calls, and one in the middle of
// a re-cut has something of both layouts. What looks the same twice is as the driver says. It is false where a scan failed.
func (r *round) settle(t *tree) bool {
	for looks := 1; looks < mostLooks && t.scan.torn(); looks++ {
		if !r.lookAgain(t) {
			t.known = false // t.scan is not of what the nodes are of
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

// build reads the details of a scanned tree. Where it has not changed, the details stand through errors.
func (r *round) build(t *tree, changed bool) {
	if changed {
		t.answers = newAnswers()
	}
	detail := asker{source: r.source, answers: t.answers, retry: r.retry}
	var nodes []instanceNode
	for _, e := range t.scan.instances {
		if !slices.ContainsFunc(nodes, func(n instanceNode) bool { return n.ID == gpu.InstanceID(e.info.ID) }) {
			nodes = append(nodes, r.listedNode(e.info))
		}
	}
	for i := range t.scan.devices {
		nodes = r.addCompute(&detail, nodes, t.scan.devices[i], i)
	}
	for _, e := range t.scan.instances {
		placeComputes(&detail, nodes, e)
	}
	sortNodes(nodes)
	if !changed {
		keepAnswers(nodes, t.nodes)
	}
	if changed || len(detail.errs) == 0 && !detail.stale && detail.fatal == nil {
		t.nodes = nodes
	}
	t.known, t.errs = true, detail.errs
	r.moved = r.moved || detail.stale
	if detail.fatal != nil {
		r.fatal = detail.fatal
	}
}

// keepAnswers lets the same instances keep what they are known to refuse.
func keepAnswers(nodes, from []instanceNode) {
	for i := range nodes {
		n := &nodes[i]
		at := slices.IndexFunc(from, func(old instanceNode) bool { return old.ID == n.ID })
		if at < 0 {
			continue
		}
		n.answers = from[at].answers
		for j := range n.computes {
			for _, old := range from[at].computes {
				if old.ID == n.computes[j].ID {
					n.computes[j].answers = old.answers
				}
			}
		}
	}
}

// listedNode is a GPU instance as the driver lists it.
func (r *round) listedNode(info GPUInstanceInfo) instanceNode {
	n := newNode(gpu.InstanceID(info.ID))
	n.ProfileID = gpu.Some(info.ProfileID)
	n.Placement = gpu.Some(instanceEntry{info: info}.placement())
	n.MemorySlices = gpu.Some(int(info.Placement.Size))
	for _, p := range r.board.static.profiles {
		if p.ID == info.ProfileID {
			n.describe(p.Profile)
		}
	}
	return n
}

func newNode(id gpu.InstanceID) instanceNode {
	return instanceNode{GPUInstance: gpu.GPUInstance{ID: id, Up: true}, answers: newAnswers()}
}

// describe takes what the profile tells of every instance of it.
func (n *instanceNode) describe(p gpu.Profile) {
	n.Profile = p.Name
	n.ProfileID = gpu.Some(p.ID)
	n.ComputeSlices = gpu.Some(p.ComputeSlices)
	n.SMs = gpu.Some(p.SMs)
	if p.MemorySlices > 0 {
		n.MemorySlices = gpu.Some(p.MemorySlices)
	}
}

// addCompute adds a MIG device to its GPU instance, which is concluded from it where it is not listed.
func (r *round) addCompute(detail *asker, nodes []instanceNode, e migEntry, index int) []instanceNode {
	name, known := e.name, e.named
	if !known {
		name, _ = ask(detail, "nvmlDeviceGetName", gpu.ReadingMIG, e.handle.GetName)
	}
	attributes, _ := ask(detail, "nvmlDeviceGetAttributes", gpu.ReadingMIG, e.handle.GetAttributes)
	c := computeNode{device: index, answers: newAnswers()}
	c.ID, c.UUID, c.Up = e.compute, e.uuid, true
	c.Profile = deviceProfile(name)
	c.ComputeSlices = positive(attributes.ComputeInstanceSliceCount)
	c.SMs = positive(attributes.MultiprocessorCount)
	at := slices.IndexFunc(nodes, func(n instanceNode) bool { return n.ID == e.instance })
	if at < 0 {
		nodes = append(nodes, r.concludedNode(e.instance, c, attributes))
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

// concludedNode is a GPU instance as one of its MIG devices lets it be known: without placement.
func (r *round) concludedNode(id gpu.InstanceID, c computeNode, attributes nvml.DeviceAttributes) instanceNode {
	n := newNode(id)
	n.Profile = instanceProfile(c.Profile)
	if n.Profile == "" && attributes.GpuInstanceSliceCount > 0 {
		n.Profile = derivedName(int(attributes.GpuInstanceSliceCount), attributes.MemorySizeMB<<20, r.boardMemory())
	}
	for _, p := range r.board.static.profiles {
		if p.Name == n.Profile {
			n.describe(p.Profile)
			return n
		}
	}
	n.ComputeSlices = positive(attributes.GpuInstanceSliceCount)
	if attributes.ComputeInstanceSliceCount == attributes.GpuInstanceSliceCount {
		n.SMs = c.SMs
	}
	return n
}

// placeComputes adds the placements of compute instances, which only their GPU instance tells.
func placeComputes(detail *asker, nodes []instanceNode, e instanceEntry) {
	at := slices.IndexFunc(nodes, func(n instanceNode) bool { return n.ID == gpu.InstanceID(e.info.ID) })
	if len(nodes[at].computes) == 0 {
		return
	}
	list, _ := ask(detail, "nvmlGpuInstanceGetComputeInstances", gpu.ReadingMIG, e.handle.GetComputeInstances)
	for _, info := range list {
		for i := range nodes[at].computes {
			if c := &nodes[at].computes[i]; c.ID == gpu.ComputeID(info.ID) && info.Placement.Size > 0 {
				c.Placement = gpu.Some(gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)})
			}
		}
	}
}

// sortNodes orders instances by placement, those whose placement is hidden by id.
func sortNodes(nodes []instanceNode) {
	slices.SortFunc(nodes, func(a, b instanceNode) int {
		return cmp.Or(cmp.Compare(a.Placement.Or(gpu.Placement{}).Start, b.Placement.Or(gpu.Placement{}).Start), cmp.Compare(a.ID, b.ID))
	})
	for _, n := range nodes {
		slices.SortFunc(n.computes, func(a, b computeNode) int { return cmp.Compare(a.ID, b.ID) })
	}
}

// deviceProfile takes the profile out of a MIG device's name, "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"; empty where the
// name has none.
func deviceProfile(name string) string {
	i := strings.LastIndex(name, " MIG ")
	if i < 0 {
		return ""
	}
	return text(strings.TrimSpace(name[i+len(" MIG "):]))
}

// instanceProfile is the GPU instance's profile in a MIG device's own, "3g.20gb" in "1c.3g.20gb".
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
