package sim

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ComputeProfileID is NVML's NVML_COMPUTE_INSTANCE_PROFILE_* for a number of slices, which is the id that nvidia-smi
// prints as well; ok is false for a number that is none.
func ComputeProfileID(slices int) (id uint32, ok bool) {
	ids := map[int]uint32{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
	id, ok = ids[slices]

	return id, ok
}

// ComputePlacements lists where compute instances of a size can be in a GPU instance, free or not; nil if it has
// no such size. They can begin at any slice: the driver takes the first run of free slices that is long enough,
// wherever that is (open-gpu-kernel-modules, kgrmgrAllocVeidsForGrIdx), and an A100 (R550) has been seen to
// create a 1c and then a 2c in one 3g.40gb. The tables of NVIDIA's emulated GPUs (go-nvml) have multiples of 2 and 4
// only, so plans prefer those.
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

// ComputeSMs is how many SMs a compute instance of a size has.
func ComputeSMs(f gpu.Profile, size int) int { return f.SMs * size / f.ComputeSlices }

// computeName names a MIG device by its size: as its GPU instance if it takes all of that.
func computeName(f gpu.Profile, size int) string {
	if size == f.ComputeSlices {
		return f.Name
	}

	return fmt.Sprintf("%dc.%s", size, f.Name)
}

// CreateGPUInstance makes a GPU instance of a profile, by the driver's id of it. Without a start the driver chooses
// among the free placements. The errors are ErrNoPermission, ErrNotSupported with MIG off, ErrInvalidArgument for a
// profile or a start that the GPU does not have, and ErrInsufficientResources if the placement is occupied or the GPU
// lacks slices or engines.
func (n *Node) CreateGPUInstance(
	index int,
	profileID uint32,
	start gpu.Opt[int],
) (gpu.InstanceID, error) {
	b, op, err := n.change(index, opCreateGI, target{})
	if err != nil {
		return 0, fmt.Errorf("create GPU instance: %w", err)
	}
	defer op.end()

	i, err := n.createInstance(b, profileID, op.placeOfInstance(profileID, start))
	if err != nil {
		return 0, fmt.Errorf(
			"create GPU instance on GPU %d using profile %d: %w",
			index,
			profileID,
			err,
		)
	}

	return i.ID, op.commit(
		Change{Op: opCreateGI, Profile: profileID, GI: i.ID, Start: i.Placement.Start},
	)
}

// DestroyGPUInstance removes a GPU instance: ErrInUse while it has a compute instance.
func (n *Node) DestroyGPUInstance(index int, id gpu.InstanceID) error {
	b, op, err := n.change(index, opDestroyGI, target{instance: id})
	if err != nil {
		return fmt.Errorf("destroy GPU instance: %w", err)
	}
	defer op.end()

	i := b.instance(id)
	if i == nil {
		return fmt.Errorf("destroy GPU instance %d: %w", id, gpu.ErrNotFound)
	}

	if len(i.ComputeInstances) > 0 {
		return fmt.Errorf("destroy GPU instance %d: %w", id, gpu.ErrInUse)
	}

	if n.fakesDestruction(b, n.at, op) {
		return nil
	}

	n.removeInstance(b, i)

	return op.commit(Change{Op: opDestroyGI, GI: id})
}

func (n *Node) removeInstance(g *simGPU, i *Instance) {
	g.instances = slices.DeleteFunc(g.instances, func(o *Instance) bool { return o == i })
	n.treeChanged(g, i, nil)
}

// CreateComputeInstance makes a compute instance of a number of slices in a GPU instance, at the first free place.
func (n *Node) CreateComputeInstance(
	index int,
	id gpu.InstanceID,
	slices int,
) (gpu.ComputeID, error) {
	return n.CreateComputeInstanceAt(index, id, slices, gpu.Opt[int]{})
}

// CreateComputeInstanceAt makes a compute instance that starts at a slice of its GPU instance. The errors are as
// those of CreateGPUInstance.
func (n *Node) CreateComputeInstanceAt(index int, id gpu.InstanceID, slices int,
	start gpu.Opt[int]) (gpu.ComputeID, error) {
	b, op, err := n.change(index, opCreateCI, target{instance: id})
	if err != nil {
		return 0, fmt.Errorf("create compute instance: %w", err)
	}
	defer op.end()

	i := b.instance(id)
	if i == nil {
		return 0, fmt.Errorf("create compute instance in GPU instance %d: %w", id, gpu.ErrNotFound)
	}

	c, err := n.createCompute(b, i, slices, op.placeOfCompute(i, slices, start))
	if err != nil {
		return 0, fmt.Errorf("create compute instance in GPU instance %d: %w", id, err)
	}

	return c.ID, op.commit(
		Change{Op: opCreateCI, GI: id, CI: c.ID, Start: c.Placement.Start, Slices: slices},
	)
}

// DestroyComputeInstance removes a compute instance: ErrInUse while a process runs on it.
func (n *Node) DestroyComputeInstance(index int, id gpu.InstanceID, ci gpu.ComputeID) error {
	b, op, err := n.change(index, opDestroyCI, target{id, ci})
	if err != nil {
		return fmt.Errorf("destroy compute instance: %w", err)
	}
	defer op.end()

	i, c := b.compute(id, ci)
	if c == nil {
		return fmt.Errorf(
			"destroy compute instance %d of GPU instance %d: %w",
			ci,
			id,
			gpu.ErrNotFound,
		)
	}

	if slices.ContainsFunc(b.tasks, func(t *task) bool { return t.on.compute == c }) {
		return fmt.Errorf(
			"destroy compute instance %d of GPU instance %d: %w",
			ci,
			id,
			gpu.ErrInUse,
		)
	}

	if n.fakesDestruction(b, n.at, op) {
		return nil
	}

	n.removeCompute(b, i, c)

	return op.commit(Change{Op: opDestroyCI, GI: id, CI: ci})
}

func (n *Node) removeCompute(g *simGPU, i *Instance, c *Compute) {
	i.ComputeInstances = slices.DeleteFunc(i.ComputeInstances, func(o *Compute) bool {
		return o == c
	})
	n.treeChanged(g, i, c)
}

func (n *Node) createInstance(g *simGPU, profileID uint32, start gpu.Opt[int]) (*Instance, error) {
	if !g.migOn {
		return nil, gpu.ErrNotSupported
	}

	at := slices.IndexFunc(g.mig.Profiles, func(f gpu.Profile) bool { return f.ID == profileID })
	if at < 0 {
		return nil, gpu.ErrInvalidArgument
	}

	profile := g.mig.Profiles[at]
	candidates := preferred(profile, g.mig.AxisUnits)

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
			i := &Instance{
				ID:        g.newInstanceID(p, n.scenario.Node.GIIDs),
				Profile:   profile,
				Placement: p,
			}
			g.instances = append(g.instances, i)
			slices.SortFunc(g.instances, func(a, c *Instance) int {
				return a.Placement.Start - c.Placement.Start
			})
			n.treeChanged(g, i, nil)

			return i, nil
		}
	}

	return nil, gpu.ErrInsufficientResources
}

// newInstanceID numbers an instance in the range of its size: 0 for the whole axis, 1-2 for its halves, 3-6, 7-14.
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
	i *Instance,
	size int,
	start gpu.Opt[int],
) (*Compute, error) {
	candidates := ComputePlacements(i.Profile.ComputeSlices, size)
	if s, ok := start.Get(); ok {
		candidates = slices.DeleteFunc(candidates, func(p gpu.Placement) bool {
			return p.Start != s
		})
	}

	if len(candidates) == 0 {
		return nil, gpu.ErrInvalidArgument
	}

	for _, place := range candidates {
		if slices.ContainsFunc(i.ComputeInstances, func(c *Compute) bool {
			return c.Placement.Overlaps(place)
		}) {
			continue
		}

		c := &Compute{
			Profile:   computeName(i.Profile, size),
			Placement: place,
			SMs:       ComputeSMs(i.Profile, size),
		}
		for slices.ContainsFunc(i.ComputeInstances, func(o *Compute) bool { return o.ID == c.ID }) {
			c.ID++
		}

		c.UUID = n.migUUID(g, i, c)
		i.ComputeInstances = append(i.ComputeInstances, c)
		slices.SortFunc(i.ComputeInstances, func(a, o *Compute) int {
			return int(a.ID) - int(o.ID)
		})
		g.numberDevices()
		n.treeChanged(g, i, c)

		return c, nil
	}

	return nil, gpu.ErrInsufficientResources
}

// numberDevices renumbers the handle indexes of MIG devices, by GPU instance and compute instance. Between two
// creations the indexes of destroyed ones stay empty: the driver's list is sparse.
func (g *simGPU) numberDevices() {
	byID := slices.Clone(g.instances)
	slices.SortFunc(byID, func(a, c *Instance) int { return int(a.ID) - int(c.ID) })

	g.devices = nil
	for _, i := range byID {
		g.devices = append(g.devices, i.ComputeInstances...)
	}
}

// treeChanged requests a new sample and notifies watchers. If c was destroyed, its device index stays empty.
func (n *Node) treeChanged(g *simGPU, i *Instance, c *Compute) {
	for k, d := range g.devices {
		if d != nil && d == c && !slices.Contains(i.ComputeInstances, c) {
			g.devices[k] = nil
		}
	}

	n.resample = true
	event := Event{Kind: gpu.EventMIGChange, GPU: g.index, Time: n.at}

	if i != nil {
		event.Instance = gpu.Some(i.ID)
	}

	if c != nil {
		event.Compute = gpu.Some(c.ID)
	}

	n.emit(event)
}

func (g *simGPU) instance(id gpu.InstanceID) *Instance {
	for _, i := range g.instances {
		if i.ID == id {
			return i
		}
	}

	return nil
}

// compute finds a compute instance and its GPU instance; nil for one that is not there.
func (g *simGPU) compute(id gpu.InstanceID, ci gpu.ComputeID) (*Instance, *Compute) {
	i := g.instance(id)
	if i == nil {
		return nil, nil
	}

	c, _ := i.Compute(ci)

	return i, c
}
