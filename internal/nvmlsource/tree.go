package nvmlsource

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// tree is a GPU's tree of GPU instances and compute instances with their details. The details are
// read when a scan differs from the last one, and with the slow tier: a scan may not show every
// change.
type tree struct {
	known bool // instances and states are those of a scan
	// scanned is set if the last scan has succeeded, so that its handles may be used.
	scanned bool
	placed  bool // the placements of all compute instances were read
	hidden  bool // some MIG devices are denied
	scan    scan // the last one, which the instances were built from
	spare   scan // the one before; the next scan reuses its memory
	// instances have no readings. states is what we keep of them, in the same order.
	instances []gpu.GPUInstance
	states    []entityState
	answers   answers    // of the details
	errs      keptErrors // of the details
}

// entityState is what is kept of a GPU instance or compute instance from one reading to the next.
type entityState struct {
	answers       answers
	window        window
	device        int            // of a compute instance: index of its MIG device in the scan
	ecc           []gpu.ECCCount // of a compute instance, by the last slow tier
	eccErrs       keptErrors
	own           ownList       // of a compute instance, by the last lists of processes
	computeStates []entityState // of a GPU instance: those of its compute instances, in their order
}

// ownList is what a compute instance's own list of processes said, if it was asked.
type ownList struct {
	asked bool
	count gpu.Opt[int]
	errs  keptErrors
}

// handleOf returns the handle that the last scan found for a compute instance.
func (t *tree) handleOf(c *entityState) MIGDevice { return t.scan.devices[c.device].handle }

// cloneInstances copies the instances, which have no readings, and their compute instances.
func (t *tree) cloneInstances() []gpu.GPUInstance {
	list := slices.Clone(t.instances)
	for i := range list {
		list[i].ComputeInstances = slices.Clone(list[i].ComputeInstances)
		list[i].ComputeInstancesHidden = t.hidden
	}

	return list
}

// entities iterates over the states of all instances.
func (t *tree) entities() iter.Seq[*entityState] {
	return func(yield func(*entityState) bool) {
		for i := range t.states {
			if !yield(&t.states[i]) {
				return
			}

			for j := range t.states[i].computeStates {
				if !yield(&t.states[i].computeStates[j]) {
					return
				}
			}
		}
	}
}

// dropTree drops all that is known of the tree.
func (r *gpuRead) dropTree() {
	r.source.samples.putAll(r.state.uuid, &r.state.tree)
	r.state.tree = tree{}
}

// treeRead is how a reading of the tree went.
type treeRead struct {
	changed  bool  // its last scan differed from the one before
	vanished bool  // an entity vanished between a scan and the calls about it: another client changes the layout
	err      error // of the last scan, whose handles must then not be used
}

// maxRescans bounds how often a tree is read again in one reading because something of it vanished:
// a layout change is many changes, and each can come in between.
const maxRescans = 3

// mayRescan reports whether to read a tree again of which something has vanished, and counts that.
// If the last repetition found the tree unchanged, what cannot be read does exist, and another
// repetition would not help.
func (r *gpuRead) mayRescan(tree treeRead) bool {
	if r.rescans == maxRescans || r.rescans > 0 && !tree.changed && tree.err == nil {
		return false
	}

	r.rescans++

	return true
}

// readTree updates the tree, again if something vanished while it was read. After a failed scan the
// last tree remains, but its handles must not be used: other instances may have them by now. It
// returns the errors of the scan; the tree has those of its details.
func (r *gpuRead) readTree() (treeRead, []gpu.ReadError) {
	var denials []gpu.ReadError // of attempts that are repeated

	for {
		tree, errs := r.readTreeOnce()
		if !tree.vanished || !r.mayRescan(tree) {
			return tree, addNewDenials(errs, denials)
		}

		denials = addNewDenials(denials, errs)
	}
}

// addNewDenials adds the new denials among the errors of an attempt to list. The attempt is
// repeated and reports no errors itself, but a denial is new only once, so it would be lost.
func addNewDenials(list, attempt []gpu.ReadError) []gpu.ReadError {
	for _, e := range attempt {
		if e.Remembered || !errors.Is(e.Err, gpu.ErrNoPermission) {
			continue
		}

		at := slices.IndexFunc(list, func(known gpu.ReadError) bool {
			return known.Reading == e.Reading && known.Err.Error() == e.Err.Error()
		})
		if at < 0 {
			list = append(list, e)
		} else {
			list[at] = e
		}
	}

	return list
}

// readTreeOnce scans the tree and reads its details, if it has changed or the slow tier is due.
func (r *gpuRead) readTreeOnce() (result treeRead, errs []gpu.ReadError) {
	t := &r.state.tree
	if r.lost != nil {
		return treeRead{err: r.lost}, nil
	}

	if !r.state.mode.enabled.Or(false) {
		r.dropTree()
		return treeRead{}, nil
	}

	if r.mayKeepTree() {
		return treeRead{}, nil
	}

	r.state.meter.countFor(r.slow)
	defer r.state.meter.countFor(false)
	set := r.beginScan()
	knewTree := t.known
	knewHandles := t.scanned
	t.scanned = false // until this scan has succeeded

	// The details may have changed even if the scan does not show it.
	rereads := r.hasReport() || r.retryAll || r.cues.Asked
	if rereads {
		t.placed = false
	}

	q := r.newQuerier(r.state.answers)
	if result.vanished, result.err = r.scanTree(&q, &t.spare); result.err != nil {
		return result, q.errs
	}

	result.changed = !t.known || !t.scan.equal(&t.spare)
	r.compareWithEvents(set, knewTree, result.changed)
	t.scan, t.spare = t.spare, t.scan

	if result.changed {
		r.state.gpm.restart = true
		if t.known {
			r.forgetAnswers() // whether a call is supported depends on the instances, too
		}

		gone, err := r.rescanTorn(&q, t)
		result.vanished = result.vanished || gone
		result.err = err
	}

	if result.err == nil && (result.changed || r.slow || rereads) {
		result.vanished = r.buildTree(t, result.changed) || result.vanished
	}

	if result.changed || !knewHandles {
		r.state.processes.known = false // they are of other instances, or there were no handles
	}

	t.scanned = result.err == nil

	return result, q.errs
}

// maxTornScans bounds how often a tree that contradicts itself is scanned in one reading.
const maxTornScans = 4

// rescanTorn scans a changed tree again while it contradicts itself: a scan is many calls, and one
// in the middle of a layout change has something of both layouts. We believe two equal scans, even
// if they contradict themselves. The results are those of scanTree.
func (r *gpuRead) rescanTorn(q *querier, t *tree) (vanished bool, err error) {
	for scans := 1; scans < maxTornScans && t.scan.isTorn(); scans++ {
		gone, err := r.scanTree(q, &t.spare)
		vanished = vanished || gone

		if err != nil {
			t.known = false // the instances were not built from t.scan
			return vanished, err
		}

		same := t.scan.equal(&t.spare)
		t.scan, t.spare = t.spare, t.scan

		if same {
			break
		}
	}

	return vanished, nil
}

// buildTree reads the details of a scanned tree, and reports whether something of it vanished
// meanwhile. If the tree has not changed, errors leave the last details in place.
func (r *gpuRead) buildTree(t *tree, changed bool) (vanished bool) {
	if changed {
		t.answers = newAnswers()
	}

	q := r.newQuerier(t.answers)

	var list []gpu.GPUInstance
	for _, info := range t.scan.instances {
		if indexOfInstance(list, gpu.InstanceID(info.ID)) < 0 {
			list = append(list, r.newListedInstance(info))
		}
	}

	for i := range t.scan.devices {
		list = r.addCompute(&q, list, &t.scan.devices[i])
	}

	r.placeComputeInstances(&q, t, list, changed)
	sortInstances(list)

	if changed {
		r.source.samples.putAll(r.state.uuid, t)
		t.states = newStates(list, &t.scan)
	}

	if changed || len(q.errs) == 0 && !q.stale && r.lost == nil {
		t.instances = list
	}

	t.known = true
	t.errs = q.errs

	return q.stale
}

func indexOfInstance(list []gpu.GPUInstance, id gpu.InstanceID) int {
	return slices.IndexFunc(list, func(gi gpu.GPUInstance) bool { return gi.ID == id })
}

// newStates returns empty states for the instances of a scan, in the order of list. Equal scans
// have the same order.
func newStates(list []gpu.GPUInstance, s *scan) []entityState {
	states := make([]entityState, len(list))
	for i := range list {
		states[i].answers = newAnswers()
		for _, ci := range list[i].ComputeInstances {
			key := computeKey{list[i].ID, ci.ID}
			states[i].computeStates = append(states[i].computeStates, entityState{
				answers: newAnswers(),
				device: slices.IndexFunc(
					s.devices,
					func(e migEntry) bool { return e.computeKey == key },
				),
			})
		}
	}

	return states
}

// newListedInstance returns a GPU instance that the driver has listed.
func (r *gpuRead) newListedInstance(info GPUInstanceInfo) gpu.GPUInstance {
	gi := gpu.GPUInstance{
		ID:           gpu.InstanceID(info.ID),
		Device:       gpu.Device{Up: true},
		ProfileID:    gpu.Some(info.ProfileID),
		Placement:    gpu.Some(info.placement()),
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

// addCompute adds a MIG device to its GPU instance, which it infers from the device if it is not
// listed.
func (r *gpuRead) addCompute(q *querier, list []gpu.GPUInstance, e *migEntry) []gpu.GPUInstance {
	name := e.name
	if !e.named {
		name, _ = query(q, "nvmlDeviceGetName", gpu.ReadingMIG, e.handle.GetName)
	}

	attributes, _ := query(q, "nvmlDeviceGetAttributes", gpu.ReadingMIG, e.handle.GetAttributes)
	ci := gpu.ComputeInstance{
		ID:            e.compute,
		UUID:          e.uuid,
		Device:        gpu.Device{Up: true},
		Profile:       deviceProfile(name),
		ComputeSlices: positive(attributes.ComputeInstanceSliceCount),
		SMs:           positive(attributes.MultiprocessorCount),
	}

	at := indexOfInstance(list, e.instance)
	if at < 0 {
		list = append(list, r.inferInstance(e.instance, &ci, attributes))
		at = len(list) - 1
	}

	gi := &list[at]
	if ci.Profile == "" && gi.Profile != "" {
		ci.Profile = gi.Profile
		if part := attributes.ComputeInstanceSliceCount; part > 0 && part < attributes.GpuInstanceSliceCount {
			ci.Profile = fmt.Sprintf("%dc.%s", part, gi.Profile) // such as 1c.3g.20gb
		}
	}

	gi.ComputeInstances = append(gi.ComputeInstances, ci)

	return list
}

// inferInstance returns a GPU instance as far as one of its MIG devices describes it: without
// placement.
func (r *gpuRead) inferInstance(id gpu.InstanceID, ci *gpu.ComputeInstance,
	attributes nvml.DeviceAttributes) gpu.GPUInstance {
	gi := gpu.GPUInstance{ID: id, Device: gpu.Device{Up: true}, Profile: instanceProfile(ci.Profile)}
	if gi.Profile == "" && attributes.GpuInstanceSliceCount > 0 {
		gi.Profile = derivedName(
			int(attributes.GpuInstanceSliceCount),
			attributes.MemorySizeMB<<20,
			r.gpuMemory(),
		)
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

// sortInstances sorts instances by placement, and those without a known placement by id.
func sortInstances(list []gpu.GPUInstance) {
	slices.SortFunc(list, func(a, b gpu.GPUInstance) int {
		return cmp.Or(
			cmp.Compare(
				a.Placement.Or(gpu.Placement{}).Start,
				b.Placement.Or(gpu.Placement{}).Start,
			),
			cmp.Compare(a.ID, b.ID),
		)
	})

	for _, gi := range list {
		slices.SortFunc(
			gi.ComputeInstances,
			func(a, b gpu.ComputeInstance) int { return cmp.Compare(a.ID, b.ID) },
		)
	}
}

// deviceProfile returns the profile in a MIG device's name, "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb";
// "" if it has none.
func deviceProfile(name string) string {
	i := strings.LastIndex(name, " MIG ")
	if i < 0 {
		return ""
	}

	return validUTF8(strings.TrimSpace(name[i+len(" MIG "):]))
}

// instanceProfile returns the GPU instance's profile in a MIG device's own: "3g.20gb" of
// "1c.3g.20gb".
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
