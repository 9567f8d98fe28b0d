package sim

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ComputeProfileID returns the id of the compute instance profile with a number of slices: the value
// of NVML_COMPUTE_INSTANCE_PROFILE_<size>_SLICE, which nvidia-smi prints. ok is false if NVML has no
// profile of that size.
func ComputeProfileID(size int) (id uint32, ok bool) {
	ids := map[int]uint32{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
	id, ok = ids[size]

	return id, ok
}

// ComputePlacements returns where compute instances of a size can lie in a GPU instance, occupied or
// not; nil if none can have that size. They can begin at any slice: the driver takes the first run of
// free slices that is long enough (open-gpu-kernel-modules, kgrmgrAllocVeidsForGrIdx), and an A100
// (R550) created a 1c and then a 2c in one 3g.40gb. The emulated GPUs of go-nvml only have
// multiples of 2 and 4, so plans prefer those.
func ComputePlacements(slicesOfInstance, size int) []gpu.Placement {
	if !slices.Contains(computeSizes(slicesOfInstance), size) {
		return nil
	}

	var list []gpu.Placement
	for start := range slicesOfInstance - size + 1 {
		list = append(list, gpu.Placement{Start: start, Size: size})
	}

	return list
}

// ComputeSMs returns how many SMs a compute instance of a size has in a GPU instance of a profile.
func ComputeSMs(p gpu.Profile, size int) int { return p.SMs * size / p.ComputeSlices }

// computeName returns the name of a MIG device: 1c.3g.20gb, or 3g.20gb if it has the whole GPU
// instance.
func computeName(p gpu.Profile, size int) string {
	if size == p.ComputeSlices {
		return p.Name
	}

	return fmt.Sprintf("%dc.%s", size, p.Name)
}

// CreateGPUInstance creates a GPU instance of the profile whose id in the driver is profileID.
// Without a start, the driver chooses among the free placements. The errors are ErrNoPermission,
// ErrNotSupported with MIG off, ErrInvalidArgument for a profile or a start that the GPU does not
// have, and ErrInsufficientResources if the placement is occupied or the GPU lacks slices or
// engines.
func (n *Node) CreateGPUInstance(
	index int,
	profileID uint32,
	start gpu.Opt[int],
) (gpu.InstanceID, error) {
	g, op, err := n.change(index, opCreateGI, changedInstance{})
	if err != nil {
		return 0, fmt.Errorf("create GPU instance: %w", err)
	}
	defer op.end()

	inst, err := n.createInstance(g, profileID, op.instanceStart(profileID, start))
	if err != nil {
		return 0, fmt.Errorf(
			"create GPU instance on GPU %d using profile %d: %w",
			index,
			profileID,
			err,
		)
	}

	return inst.ID, op.commit(
		Change{Op: opCreateGI, Profile: profileID, GI: inst.ID, Start: inst.Placement.Start},
	)
}

// DestroyGPUInstance destroys a GPU instance. The error is ErrInUse if it has a compute instance.
func (n *Node) DestroyGPUInstance(index int, id gpu.InstanceID) error {
	g, op, err := n.change(index, opDestroyGI, changedInstance{instance: id})
	if err != nil {
		return fmt.Errorf("destroy GPU instance: %w", err)
	}
	defer op.end()

	inst := g.instance(id)
	if inst == nil {
		return fmt.Errorf("destroy GPU instance %d: %w", id, gpu.ErrNotFound)
	}

	if len(inst.ComputeInstances) > 0 {
		return fmt.Errorf("destroy GPU instance %d: %w", id, gpu.ErrInUse)
	}

	if n.fakesDestruction(g, n.stateTime, op) {
		return nil
	}

	n.removeInstance(g, inst)

	return op.commit(Change{Op: opDestroyGI, GI: id})
}

func (n *Node) removeInstance(g *simGPU, inst *Instance) {
	g.instances = slices.DeleteFunc(g.instances, func(o *Instance) bool { return o == inst })
	n.treeChanged(g, inst, nil)
}

// CreateComputeInstance creates a compute instance of size slices in a GPU instance, at the first
// free placement.
func (n *Node) CreateComputeInstance(
	index int,
	id gpu.InstanceID,
	size int,
) (gpu.ComputeID, error) {
	return n.CreateComputeInstanceAt(index, id, size, gpu.Opt[int]{})
}

// CreateComputeInstanceAt creates a compute instance that starts at a slice of its GPU instance. It
// returns the same errors as CreateGPUInstance.
func (n *Node) CreateComputeInstanceAt(index int, id gpu.InstanceID, size int,
	start gpu.Opt[int]) (gpu.ComputeID, error) {
	g, op, err := n.change(index, opCreateCI, changedInstance{instance: id})
	if err != nil {
		return 0, fmt.Errorf("create compute instance: %w", err)
	}
	defer op.end()

	inst := g.instance(id)
	if inst == nil {
		return 0, fmt.Errorf("create compute instance in GPU instance %d: %w", id, gpu.ErrNotFound)
	}

	c, err := n.createCompute(g, inst, size, op.computeStart(inst, size, start))
	if err != nil {
		return 0, fmt.Errorf("create compute instance in GPU instance %d: %w", id, err)
	}

	return c.ID, op.commit(
		Change{Op: opCreateCI, GI: id, CI: c.ID, Start: c.Placement.Start, Slices: size},
	)
}

// DestroyComputeInstance destroys a compute instance. The error is ErrInUse if a process runs on it.
func (n *Node) DestroyComputeInstance(index int, id gpu.InstanceID, ci gpu.ComputeID) error {
	g, op, err := n.change(index, opDestroyCI, changedInstance{id, ci})
	if err != nil {
		return fmt.Errorf("destroy compute instance: %w", err)
	}
	defer op.end()

	inst, c := g.compute(id, ci)
	if c == nil {
		return fmt.Errorf(
			"destroy compute instance %d of GPU instance %d: %w",
			ci,
			id,
			gpu.ErrNotFound,
		)
	}

	if slices.ContainsFunc(g.tasks, func(t *task) bool { return t.on.compute == c }) {
		return fmt.Errorf(
			"destroy compute instance %d of GPU instance %d: %w",
			ci,
			id,
			gpu.ErrInUse,
		)
	}

	if n.fakesDestruction(g, n.stateTime, op) {
		return nil
	}

	n.removeCompute(g, inst, c)

	return op.commit(Change{Op: opDestroyCI, GI: id, CI: ci})
}

func (n *Node) removeCompute(g *simGPU, inst *Instance, c *Compute) {
	inst.ComputeInstances = slices.DeleteFunc(inst.ComputeInstances, func(o *Compute) bool {
		return o == c
	})

	// Other devices keep their index, as in the driver: see numberDevices.
	if k := slices.Index(g.devices, c); k >= 0 {
		g.devices[k] = nil
	}

	n.treeChanged(g, inst, c)
}

func (n *Node) createInstance(g *simGPU, profileID uint32, start gpu.Opt[int]) (*Instance, error) {
	if !g.migOn {
		return nil, gpu.ErrNotSupported
	}

	k := slices.IndexFunc(g.mig.Profiles, func(f gpu.Profile) bool { return f.ID == profileID })
	if k < 0 {
		return nil, gpu.ErrInvalidArgument
	}

	profile := g.mig.Profiles[k]
	candidates := orderPlacements(profile, g.mig.AxisUnits)

	if s, ok := start.Get(); ok {
		candidates = slices.DeleteFunc(candidates, func(p gpu.Placement) bool {
			return p.Start != s
		})
		if len(candidates) == 0 {
			return nil, gpu.ErrInvalidArgument
		}
	}

	if g.excess(profile) != "" {
		return nil, gpu.ErrInsufficientResources
	}

	for _, p := range candidates {
		if g.occupant(p) == nil {
			inst := &Instance{
				ID:        g.newInstanceID(p, n.scenario.Node.GIIDs),
				Profile:   profile,
				Placement: p,
			}
			g.instances = append(g.instances, inst)
			slices.SortFunc(g.instances, func(a, b *Instance) int {
				return a.Placement.Start - b.Placement.Start
			})
			n.treeChanged(g, inst, nil)

			return inst, nil
		}
	}

	return nil, gpu.ErrInsufficientResources
}

// newInstanceID returns the id of a new instance at a placement. Each size has its range of ids: 0
// for the whole memory, 1-2 for halves, 3-6 for quarters, 7-14 for eighths.
func (g *simGPU) newInstanceID(p gpu.Placement, order GIIDOrder) gpu.InstanceID {
	first := g.mig.AxisUnits/p.Size - 1
	if order == GIIDByPlacement {
		return gpu.InstanceID(first + p.Start/p.Size)
	}

	id := gpu.InstanceID(first)
	for g.instance(id) != nil {
		id++
	}

	return id
}

func (n *Node) createCompute(
	g *simGPU,
	inst *Instance,
	size int,
	start gpu.Opt[int],
) (*Compute, error) {
	candidates := ComputePlacements(inst.Profile.ComputeSlices, size)
	if s, ok := start.Get(); ok {
		candidates = slices.DeleteFunc(candidates, func(p gpu.Placement) bool {
			return p.Start != s
		})
	}

	if len(candidates) == 0 {
		return nil, gpu.ErrInvalidArgument
	}

	for _, p := range candidates {
		if slices.ContainsFunc(inst.ComputeInstances, func(c *Compute) bool {
			return c.Placement.Overlaps(p)
		}) {
			continue
		}

		c := &Compute{
			Profile:   computeName(inst.Profile, size),
			Placement: p,
			SMs:       ComputeSMs(inst.Profile, size),
		}

		// The id is the lowest that is free.
		for slices.ContainsFunc(inst.ComputeInstances, func(o *Compute) bool { return o.ID == c.ID }) {
			c.ID++
		}

		c.UUID = n.migUUID(g, inst, c)
		inst.ComputeInstances = append(inst.ComputeInstances, c)
		slices.SortFunc(inst.ComputeInstances, func(a, b *Compute) int {
			return int(a.ID) - int(b.ID)
		})
		g.numberDevices()
		n.treeChanged(g, inst, c)

		return c, nil
	}

	return nil, gpu.ErrInsufficientResources
}

// numberDevices numbers the MIG devices anew after one was created, ordered by the ids of GPU
// instance and compute instance. As in the driver, the index of a destroyed device stays empty until
// then.
func (g *simGPU) numberDevices() {
	byID := slices.Clone(g.instances)
	slices.SortFunc(byID, func(a, b *Instance) int { return int(a.ID) - int(b.ID) })

	g.devices = nil
	for _, inst := range byID {
		g.devices = append(g.devices, inst.ComputeInstances...)
	}
}

// treeChanged requests a new sample and sends a MIG event for what was created or destroyed: the
// compute instance c, or the GPU instance inst if c is nil. Both are nil if everything changed.
func (n *Node) treeChanged(g *simGPU, inst *Instance, c *Compute) {
	n.resample = true
	event := Event{Kind: gpu.EventMIGChange, GPU: g.index, Time: n.stateTime}

	if inst != nil {
		event.Instance = gpu.Some(inst.ID)
	}

	if c != nil {
		event.Compute = gpu.Some(c.ID)
	}

	n.emit(event)
}

func (g *simGPU) instance(id gpu.InstanceID) *Instance {
	for _, inst := range g.instances {
		if inst.ID == id {
			return inst
		}
	}

	return nil
}

// compute returns a compute instance and its GPU instance. Each is nil if it does not exist.
func (g *simGPU) compute(id gpu.InstanceID, ci gpu.ComputeID) (*Instance, *Compute) {
	inst := g.instance(id)
	if inst == nil {
		return nil, nil
	}

	c, _ := inst.Compute(ci)

	return inst, c
}
