package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// holdings tracks the exclusive holders of a GPU's devices: since when they have held them, and the
// energy used. The energy between two readings is credited to the holder before the second one:
// what a pod used up to its end is never credited to its successor.
type holdings struct {
	open  map[gpu.DeviceID]*holding
	spare map[gpu.DeviceID]*holding // empty; the next open, so that a poll need not allocate it
	// ended are the uses that ended with the last update; they have their energy alone.
	ended []gpu.ContainerUse
}

type holding struct {
	tenant       tenant
	since        time.Time
	energy       gpu.Opt[gpu.Counter] // absent while the device's energy is unknown, or the holder not described
	countedSince time.Time            // when counting began
	reported     bool                 // its use has been in a Snapshot
}

// tenant is a container or a batch job, or both.
type tenant struct {
	container gpu.Container
	podUID    string // empty if unknown
	job       string
}

// isSame reports whether both are the same tenant: a pod that was created again under its name is
// not, but a UID may become known late.
func (t *tenant) isSame(other *tenant) bool {
	return t.container == other.container && t.job == other.job &&
		(t.podUID == other.podUID || t.container.Pod != "" && (t.podUID == "" || other.podUID == ""))
}

// exclusiveTenant returns the container that exclusively holds a device, and its only batch job; ok
// is false if there is neither. The holder points into holders.
func exclusiveTenant(holders []gpu.Holder, jobs []string) (by tenant, holder *gpu.Holder, ok bool) {
	if holder = gpu.ExclusiveHolder(holders); holder != nil {
		by.container = holder.Container
		by.podUID = holder.PodUID
	}

	if len(jobs) == 1 {
		by.job = jobs[0]
	}

	return by, holder, holder != nil || by.job != ""
}

// update begins, continues and ends the holdings of the GPU, and sets Since of its exclusive
// holders. gpuEnergyKnown says whether the energy of the whole GPU is known.
func (h *holdings) update(g *gpu.GPU, gpuEnergyKnown bool, now time.Time) {
	before := h.open

	h.open = h.spare
	if h.open == nil {
		h.open = map[gpu.DeviceID]*holding{}
	}

	h.ended = nil

	heldParts := hasHeldParts(g)

	for d := range g.Devices() {
		energyKnown := gpuEnergyKnown
		if d.Instance != nil {
			energyKnown = d.Instance.EnergyJoules.Present()
		}

		if d.Compute != nil && d.Instance.IsSplit() {
			energyKnown = energyKnown && d.Compute.SMs.Present()
		}

		if d.Instance != nil || !heldParts {
			h.updateHolding(before[d.ID()], d, energyKnown, now)
		}
	}

	clear(before)
	h.spare = before
}

// updateHolding continues the current holding of a device, or ends it and begins that of another
// tenant.
func (h *holdings) updateHolding(
	current *holding,
	d gpu.Visit,
	energyKnown bool,
	now time.Time,
) {
	id := d.ID()
	by, holder, held := exclusiveTenant(d.Holders, d.Jobs())

	if current != nil && (!held || !current.tenant.isSame(&by)) {
		if current.reported && current.energy.Present() &&
			(current.tenant.container != by.container || current.tenant.job != by.job) {
			h.ended = append(h.ended, gpu.ContainerUse{
				Container:    current.tenant.container,
				Job:          current.tenant.job,
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
		current = &holding{tenant: by, since: now}
	}

	if by.podUID != "" {
		current.tenant.podUID = by.podUID
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

// hasHeldParts reports whether a container or a batch job holds a part of the GPU. A holder of the
// whole GPU then contradicts that, and no use is reported of it: it would count twice.
func hasHeldParts(g *gpu.GPU) bool {
	for d := range g.Devices() {
		if d.Instance != nil && len(d.Holders)+len(d.Jobs()) > 0 {
			return true
		}
	}

	return false
}

// addEnergy adds energy that a device used between two readings to its holding. If the holding
// began in between, only the share of the time since then is added.
func (h *holdings) addEnergy(id gpu.DeviceID, joules float64, before, at time.Time) {
	current := h.open[id]
	if current == nil {
		return
	}

	counter, begun := current.energy.Get()
	if !begun {
		return
	}

	if current.countedSince.After(before) {
		whole := at.Sub(before)

		own := at.Sub(current.countedSince)
		if own <= 0 || whole <= 0 {
			return
		}

		joules *= float64(own) / float64(whole)
	}

	counter.Value += joules
	current.energy = gpu.Some(counter)
}
