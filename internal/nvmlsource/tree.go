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
	known  bool
	hidden bool // MIG devices are denied
	scan   scan // the last one, which the instances were built from
	spare  scan // the one before, for its memory
	// instances are without their readings; states are kept of them, in the same order.
	instances []gpu.GPUInstance
	states    []entityState
	answers   answers         // of the details
	errs      []gpu.ReadError // of the details; they are reported until these are read again
}

// entityState is what is kept of a GPU instance or compute instance from one reading to the next.
type entityState struct {
	answers  answers
	window   window
	device   int           // of a compute instance: index of its MIG device in the scan
	computes []entityState // of a GPU instance: those of its compute instances, in their order
}

// handleOf returns the handle that the last scan found for a compute instance.
func (t *tree) handleOf(c *entityState) MIGDevice { return t.scan.devices[c.device].handle }

// entities iterates over the states of all instances.
func (t *tree) entities() iter.Seq[*entityState] {
	return func(yield func(*entityState) bool) {
		for i := range t.states {
			if !yield(&t.states[i]) {
				return
			}
			for j := range t.states[i].computes {
				if !yield(&t.states[i].computes[j]) {
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
			t.known = false // the instances were not built from t.scan
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
	var list []gpu.GPUInstance
	for _, info := range t.scan.instances {
		if indexOfInstance(list, gpu.InstanceID(info.ID)) < 0 {
			list = append(list, r.listedInstance(info))
		}
	}
	for i := range t.scan.devices {
		list = r.addCompute(&detail, list, &t.scan.devices[i])
	}
	for i, info := range t.scan.instances {
		placeComputes(&detail, &list[indexOfInstance(list, gpu.InstanceID(info.ID))], t.scan.handles[i])
	}
	sortInstances(list)
	if changed {
		r.source.samples.putAll(t)
		t.states = newStates(list, &t.scan)
	}
	if changed || len(detail.errs) == 0 && !detail.stale && detail.fatal == nil {
		t.instances = list
	}
	t.known, t.errs = true, detail.errs
	r.scan.vanished = r.scan.vanished || detail.stale
	if detail.fatal != nil {
		r.fatal = detail.fatal
	}
}

func indexOfInstance(list []gpu.GPUInstance, id gpu.InstanceID) int {
	return slices.IndexFunc(list, func(gi gpu.GPUInstance) bool { return gi.ID == id })
}

// newStates returns empty states for the instances of a scan. Instances of an equal scan have the same order.
func newStates(list []gpu.GPUInstance, of *scan) []entityState {
	states := make([]entityState, len(list))
	for i := range list {
		states[i].answers = newAnswers()
		for _, ci := range list[i].ComputeInstances {
			key := computeKey{list[i].ID, ci.ID}
			states[i].computes = append(states[i].computes, entityState{answers: newAnswers(),
				device: slices.IndexFunc(of.devices, func(e migEntry) bool { return e.computeKey == key })})
		}
	}
	return states
}

// listedInstance returns a GPU instance that the driver has listed.
func (r *gpuRead) listedInstance(info GPUInstanceInfo) gpu.GPUInstance {
	gi := gpu.GPUInstance{
		ID: gpu.InstanceID(info.ID), Up: true, ProfileID: gpu.Some(info.ProfileID), Placement: gpu.Some(info.placement()),
		MemorySlices: gpu.Some(int(info.Placement.Size)),
	}
	if p, ok := r.profileOf(gi.ProfileID); ok {
		setProfile(&gi, p)
	}
	return gi
}

// setProfile sets what all instances of a profile have in common.
func setProfile(gi *gpu.GPUInstance, p gpu.Profile) {
	gi.Profile = p.Name
	gi.ProfileID = gpu.Some(p.ID)
	gi.ComputeSlices = gpu.Some(p.ComputeSlices)
	gi.SMs = gpu.Some(p.SMs)
	if p.MemorySlices > 0 {
		gi.MemorySlices = gpu.Some(p.MemorySlices)
	}
}

// addCompute adds a MIG device to its GPU instance, which is inferred from it if it is not listed.
func (r *gpuRead) addCompute(detail *querier, list []gpu.GPUInstance, e *migEntry) []gpu.GPUInstance {
	name, known := e.name, e.named
	if !known {
		name, _ = query(detail, "nvmlDeviceGetName", gpu.ReadingMIG, e.handle.GetName)
	}
	attributes, _ := query(detail, "nvmlDeviceGetAttributes", gpu.ReadingMIG, e.handle.GetAttributes)
	ci := gpu.ComputeInstance{
		ID: e.compute, UUID: e.uuid, Up: true, Profile: deviceProfile(name),
		ComputeSlices: positive(attributes.ComputeInstanceSliceCount), SMs: positive(attributes.MultiprocessorCount),
	}
	at := indexOfInstance(list, e.instance)
	if at < 0 {
		list = append(list, r.inferredInstance(e.instance, &ci, attributes))
		at = len(list) - 1
	}
	gi := &list[at]
	if ci.Profile == "" && gi.Profile != "" {
		ci.Profile = gi.Profile
		if part := attributes.ComputeInstanceSliceCount; part > 0 && part < attributes.GpuInstanceSliceCount {
			ci.Profile = fmt.Sprintf("%dc.%s", part, gi.Profile)
		}
	}
	gi.ComputeInstances = append(gi.ComputeInstances, ci)
	return list
}

// inferredInstance returns a GPU instance as far as one of its MIG devices describes it: without placement.
func (r *gpuRead) inferredInstance(id gpu.InstanceID, ci *gpu.ComputeInstance,
	attributes nvml.DeviceAttributes) gpu.GPUInstance {
	gi := gpu.GPUInstance{ID: id, Up: true, Profile: instanceProfile(ci.Profile)}
	if gi.Profile == "" && attributes.GpuInstanceSliceCount > 0 {
		gi.Profile = derivedName(int(attributes.GpuInstanceSliceCount), attributes.MemorySizeMB<<20, r.gpuMemory())
	}
	for _, p := range r.state.static.profiles {
		if p.Name == gi.Profile {
			setProfile(&gi, p.Profile)
			return gi
		}
	}
	gi.ComputeSlices = positive(attributes.GpuInstanceSliceCount)
	if attributes.ComputeInstanceSliceCount == attributes.GpuInstanceSliceCount {
		gi.SMs = ci.SMs
	}
	return gi
}

// placeComputes adds the placements of compute instances, which only their GPU instance reports.
func placeComputes(detail *querier, gi *gpu.GPUInstance, handle GPUInstance) {
	if len(gi.ComputeInstances) == 0 {
		return
	}
	list, _ := query(detail, "nvmlGpuInstanceGetComputeInstances", gpu.ReadingMIG, handle.GetComputeInstances)
	for _, info := range list {
		for i := range gi.ComputeInstances {
			if ci := &gi.ComputeInstances[i]; ci.ID == gpu.ComputeID(info.ID) && info.Placement.Size > 0 {
				ci.Placement = gpu.Some(gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)})
			}
		}
	}
}

// sortInstances sorts instances by placement, and those without a known placement by id.
func sortInstances(list []gpu.GPUInstance) {
	slices.SortFunc(list, func(a, b gpu.GPUInstance) int {
		return cmp.Or(cmp.Compare(a.Placement.Or(gpu.Placement{}).Start, b.Placement.Or(gpu.Placement{}).Start),
			cmp.Compare(a.ID, b.ID))
	})
	for _, gi := range list {
		slices.SortFunc(gi.ComputeInstances, func(a, b gpu.ComputeInstance) int { return cmp.Compare(a.ID, b.ID) })
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
