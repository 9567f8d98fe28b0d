package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// exclusiveUses tracks the exclusive holders of a GPU's devices: since when each has held its device,
// and how much energy it has used. We credit the energy between two readings before we look for new
// holders, so that what a pod used up to its end is never credited to its successor.
type exclusiveUses struct {
	open  map[gpu.DeviceID]*exclusiveUse // the present uses
	spare map[gpu.DeviceID]*exclusiveUse // empty; update swaps it with open, to allocate no map in each poll
	// ended are the uses that ended with the last update. They have no readings besides the energy.
	ended []gpu.ContainerUse
}

// exclusiveUse is one user's exclusive use of a device.
type exclusiveUse struct {
	user  user
	since time.Time // when the use began
	// energy is what the device has used since countedSince. It is absent until we know the
	// device's energy and the holder is described.
	energy       gpu.Opt[gpu.Counter]
	countedSince time.Time
	reported     bool // a Snapshot has had the use
}

// user is a container or a batch job, or both.
type user struct {
	container gpu.Container
	podUID    string // empty if unknown
	job       string
}

// isSame reports whether both are the same user. A pod that was created again under its name is
// another user. If the UID of one is unknown, the name decides.
func (u *user) isSame(other *user) bool {
	return u.container == other.container && u.job == other.job &&
		(u.podUID == other.podUID || u.container.Pod != "" && (u.podUID == "" || other.podUID == ""))
}

// exclusiveUser returns the container that exclusively holds a device, and its only batch job; ok
// is false if there is neither. holder points into holders; it is nil if no container holds the
// device exclusively.
func exclusiveUser(holders []gpu.Holder, jobs []string) (by user, holder *gpu.Holder, ok bool) {
	if holder = gpu.ExclusiveHolder(holders); holder != nil {
		by.container = holder.Container
		by.podUID = holder.PodUID
	}

	if len(jobs) == 1 {
		by.job = jobs[0]
	}

	return by, holder, holder != nil || by.job != ""
}

// update begins, continues and ends the exclusive uses of the GPU, and sets Since of their
// holders. gpuEnergyKnown says whether we know the energy of the whole GPU.
func (h *exclusiveUses) update(g *gpu.GPU, gpuEnergyKnown bool, now time.Time) {
	before := h.open

	h.open = h.spare
	if h.open == nil {
		h.open = map[gpu.DeviceID]*exclusiveUse{}
	}

	h.ended = nil

	heldParts := hasHeldParts(g)

	for d := range g.Devices() {
		energyKnown := gpuEnergyKnown
		if d.Instance != nil {
			energyKnown = d.Instance.EnergyJoules.Present()
		}

		// We share a GPU instance's energy by SMs: see sharePowerOfInstance.
		if d.Compute != nil && d.Instance.IsSplit() {
			energyKnown = energyKnown && d.Compute.SMs.Present()
		}

		if d.Instance != nil || !heldParts {
			h.updateUse(before[d.ID()], d, energyKnown, now)
		}
	}

	clear(before)
	h.spare = before
}

// updateUse continues the current use of a device, which may be nil, or ends it and begins the use
// by another user.
func (h *exclusiveUses) updateUse(
	current *exclusiveUse,
	d gpu.Visit,
	energyKnown bool,
	now time.Time,
) {
	id := d.ID()
	by, holder, held := exclusiveUser(d.Holders, d.Jobs())

	if current != nil && (!held || !current.user.isSame(&by)) {
		// If only the pod's UID has changed, the next use is reported under the same names.
		if current.reported && current.energy.Present() &&
			(current.user.container != by.container || current.user.job != by.job) {
			h.ended = append(h.ended, gpu.ContainerUse{
				Container:    current.user.container,
				Job:          current.user.job,
				Instance:     id.Instance(),
				Compute:      id.Compute(),
				Sharing:      gpu.SharingExclusive,
				EnergyJoules: current.energy,
			})
		}

		current = nil
	}

	if !held {
		return
	}

	if current == nil {
		current = &exclusiveUse{user: by, since: now}
	}

	if by.podUID != "" {
		current.user.podUID = by.podUID
	}

	if holder != nil {
		holder.Since = current.since
	}

	if energyKnown && !current.energy.Present() && (holder == nil || !holder.Undescribed) {
		current.energy = gpu.Some(gpu.Counter{Since: now})
		current.countedSince = now
	}

	h.open[id] = current
}

// hasHeldParts reports whether a container or a batch job holds a part of the GPU. Then we report
// no use of the whole GPU, which would count the parts twice.
func hasHeldParts(g *gpu.GPU) bool {
	for d := range g.Devices() {
		if d.Instance != nil && len(d.Holders)+len(d.Jobs()) > 0 {
			return true
		}
	}

	return false
}

// addEnergy adds the energy that a device used from before to at to its exclusive use. If we began
// to count in between, it adds only the share of the time since then.
func (h *exclusiveUses) addEnergy(id gpu.DeviceID, joules float64, before, at time.Time) {
	current := h.open[id]
	if current == nil {
		return
	}

	counter, begun := current.energy.Get()
	if !begun {
		return
	}

	if current.countedSince.After(before) {
		total := at.Sub(before)

		counted := at.Sub(current.countedSince)
		if counted <= 0 || total <= 0 {
			return
		}

		joules *= float64(counted) / float64(total)
	}

	counter.Value += joules
	current.energy = gpu.Some(counter)
}
