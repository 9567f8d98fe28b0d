package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// holdings tracks the exclusive holders of a GPU's devices: since when each has held its device,
// and how much energy it has used. We credit the energy between two readings before we look for new
// holders, so that what a pod used up to its end is never credited to its successor.
type holdings struct {
	open  map[gpu.DeviceID]*holding // the present holdings
	spare map[gpu.DeviceID]*holding // empty; update swaps it with open, to allocate no map in each poll
	// ended are the uses that ended with the last update. They have no readings besides the energy.
	ended []gpu.ContainerUse
}

// holding is one tenant's exclusive use of a device.
type holding struct {
	tenant tenant
	since  time.Time // when the holding began
	// energy is what the device has used since countedSince. It is absent until we know the
	// device's energy and the holder is described.
	energy       gpu.Opt[gpu.Counter]
	countedSince time.Time
	reported     bool // a Snapshot has had the use
}

// tenant is a container or a batch job, or both.
type tenant struct {
	container gpu.Container
	podUID    string // empty if unknown
	job       string
}

// isSame reports whether both are the same tenant. A pod that was created again under its name is
// another tenant. If the UID of one is unknown, the name decides.
func (t *tenant) isSame(other *tenant) bool {
	return t.container == other.container && t.job == other.job &&
		(t.podUID == other.podUID || t.container.Pod != "" && (t.podUID == "" || other.podUID == ""))
}

// exclusiveTenant returns the container that exclusively holds a device, and its only batch job; ok
// is false if there is neither. holder points into holders; it is nil if no container holds the
// device exclusively.
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
// holders. gpuEnergyKnown says whether we know the energy of the whole GPU.
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

		// We share a GPU instance's energy by SMs: see sharePowerOfInstance.
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

// updateHolding continues the current holding of a device, which may be nil, or ends it and begins
// the holding of another tenant.
func (h *holdings) updateHolding(
	current *holding,
	d gpu.Visit,
	energyKnown bool,
	now time.Time,
) {
	id := d.ID()
	by, holder, held := exclusiveTenant(d.Holders, d.Jobs())

	if current != nil && (!held || !current.tenant.isSame(&by)) {
		// If only the pod's UID has changed, the next holding reports a use with the same names.
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

// addEnergy adds the energy that a device used from before to at to its holding. If we began to
// count in between, it adds only the share of the time since then.
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
