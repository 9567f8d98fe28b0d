package nvmlsrc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Layouts reads GPUs as they are now, by index, without Busy: all, or only those named. A GPU that cannot be read, or not
// wholly, is left out of the list and its error is in the map, by index where its UUID is not known.
func (a *Actuator) Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.NodeGPU, map[gpu.UUID]error, error) {
	inventory, err := run(ctx, a, laneKey{}, a.source.Discover)
	if err != nil {
		return nil, nil, fmt.Errorf("read layouts: %w", err)
	}
	wanted := slices.Clone(inventory.GPUs)
	if len(only) > 0 {
		wanted = slices.DeleteFunc(wanted, func(g gpu.FoundGPU) bool { return !slices.Contains(only, g.UUID) })
	}
	list := make([]mig.NodeGPU, len(wanted))
	errs := make([]error, len(wanted))
	var reading sync.WaitGroup
	for i, found := range wanted {
		reading.Go(func() {
			list[i], errs[i] = run(ctx, a, laneKey{id: found.UUID}, func() (mig.NodeGPU, error) {
				r, err := a.layout(found.UUID)
				if err != nil {
					return mig.NodeGPU{}, err
				}
				return r.nodeGPU(), nil
			})
		})
	}
	reading.Wait()
	failed := map[gpu.UUID]error{}
	for _, missing := range inventory.Missing {
		failed[gpu.UUID(strconv.Itoa(missing.Index))] = missing.Err
	}
	whole := list[:0]
	for i, err := range errs {
		if err != nil {
			failed[wanted[i].UUID] = fmt.Errorf("read layout of GPU %s: %w", wanted[i].UUID, err)
			continue
		}
		whole = append(whole, list[i])
	}
	return whole, failed, nil
}

// layout reads what a GPU is cut into, with handles of this moment, on a board of its own: a Read of the GPU that is under
// way, or hangs, is no matter. It is as the driver says twice, or gpu.ErrInUse where somebody is changing it all the time.
func (a *Actuator) layout(id gpu.UUID) (*round, error) {
	b, err := a.board(id)
	if err != nil {
		return nil, err
	}
	for range mostLooks {
		r := newRound(a.source, newBoard(b.uuid, b.handle, int(b.index.Load())))
		steady, err := r.readLayout()
		if err != nil {
			return nil, err
		}
		if steady {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w: its instances contradict each other, or are being changed", gpu.ErrInUse)
}

// readLayout reads mode, profiles and instances. Everything of it must be readable.
func (r *round) readLayout() (steady bool, err error) {
	r.readMode()
	r.readFacts()
	r.readTree()
	if err := r.layoutError(); err != nil {
		return false, err
	}
	t := &r.board.tree
	if r.moved || t.scan.torn() {
		return false, nil
	}
	if !r.board.mode.enabled.Or(false) {
		return true, nil
	}
	if !t.scan.listed {
		return false, fmt.Errorf("%w: the driver does not list the GPU instances", gpu.ErrNotSupported)
	}
	if same, err := r.computesListed(); !same || err != nil {
		return false, err
	}
	if !r.lookAgain(t) {
		return false, r.layoutError()
	}
	return !r.moved && t.scan.equal(&t.spare), nil
}

// layoutError is what keeps the layout from being known.
func (r *round) layoutError() error {
	if r.fatal != nil {
		return r.fatal
	}
	for _, e := range slices.Concat(r.errs, r.board.static.errs, r.board.tree.errs) {
		if e.Reading == gpu.ReadingMIG {
			return e.Err
		}
	}
	return nil
}

// computesListed tells whether each GPU instance has those compute instances whose MIG devices were found.
func (r *round) computesListed() (bool, error) {
	t := &r.board.tree
	for _, e := range t.scan.instances {
		list, ret := e.handle.GetComputeInstances()
		err := r.source.check("nvmlGpuInstanceGetComputeInstances", ret)
		if losesEntity(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		n := r.node(func(n *instanceNode) bool { return n.ID == gpu.InstanceID(e.info.ID) })
		if n == nil || len(list) != len(n.computes) {
			return false, nil
		}
		for _, info := range list {
			if !slices.ContainsFunc(n.computes, func(c computeNode) bool { return c.ID == gpu.ComputeID(info.ID) }) {
				return false, nil
			}
		}
	}
	return true, nil
}

// node finds a GPU instance of the layout; nil where there is none such.
func (r *round) node(is func(*instanceNode) bool) *instanceNode {
	for i := range r.board.tree.nodes {
		if n := &r.board.tree.nodes[i]; is(n) {
			return n
		}
	}
	return nil
}

// nodeGPU is the layout as partition control plans with it.
func (r *round) nodeGPU() mig.NodeGPU {
	b := r.board
	g := mig.NodeGPU{
		UUID: b.uuid, Index: int(b.index.Load()), PCIBusID: b.facts.PCIBusID, Name: b.facts.Name, Minor: b.facts.Minor,
		MIG: b.mode.enabled, Pending: b.mode.pending, Profiles: b.facts.Profiles,
	}
	pci, ret := r.dev.GetPciInfo()
	if r.source.check("nvmlDeviceGetPciInfo", ret) == nil {
		g.PCIDevice = pci.PciDeviceId
	}
	for i := range b.tree.nodes {
		n := &b.tree.nodes[i]
		at := mig.NodeInstance{
			ID: n.ID, Placed: mig.Placed{Profile: n.Profile, ProfileID: n.ProfileID.Or(0), Placement: n.Placement.Or(gpu.Placement{})},
		}
		for _, c := range n.computes {
			slices := c.ComputeSlices.Or(c.Placement.Or(gpu.Placement{}).Size)
			at.Computes = append(at.Computes, mig.NodeCompute{ID: c.ID, UUID: c.UUID, Slices: slices, Placement: c.place()})
		}
		for k, place := range mig.ComputePlacements(at) {
			at.Computes[k].Placement = gpu.Some(place)
		}
		g.Instances = append(g.Instances, at)
	}
	return g
}

// place is where a compute instance stands, as long as it has slices. A driver may say that it takes more: in the tables of
// NVIDIA's emulated GPUs (go-nvml) the one of all 7 slices has a place of 8.
func (c *computeNode) place() gpu.Opt[gpu.Placement] {
	at, told := c.Placement.Get()
	if !told {
		return c.Placement
	}
	return gpu.Some(gpu.Placement{Start: at.Start, Size: c.ComputeSlices.Or(at.Size)})
}

// Processes lists who runs on a GPU: what computes, what draws, and clients of MPS. In MIG mode each has its instances; one
// without them may be on any. Where one of the lists cannot be read, there is an error and no list; only those of graphics and
// MPS need not be offered.
func (a *Actuator) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	list, err := run(ctx, a, laneKey{id: id}, func() ([]gpu.Process, error) {
		b, err := a.board(id)
		if err != nil {
			return nil, err
		}
		compute, ret := b.handle.GetComputeRunningProcesses()
		computeErr := a.source.check("nvmlDeviceGetComputeRunningProcesses", ret)
		graphics, ret := b.handle.GetGraphicsRunningProcesses()
		graphicsErr := a.source.check("nvmlDeviceGetGraphicsRunningProcesses", ret)
		mps, ret := b.handle.GetMPSComputeRunningProcesses()
		mpsErr := a.source.check("nvmlDeviceGetMPSComputeRunningProcesses", ret)
		if err := errors.Join(computeErr, unlessNotOffered(graphicsErr), unlessNotOffered(mpsErr)); err != nil {
			return nil, err
		}
		list := mergeProcesses(compute, graphics, mps)
		now, _, ret := b.handle.GetMigMode()
		err = a.source.check("nvmlDeviceGetMigMode", ret)
		if err != nil && !errors.Is(err, gpu.ErrNotSupported) {
			return nil, err
		}
		if err != nil || now != nvml.DEVICE_MIG_ENABLE {
			outsideInstances(list)
		}
		return list, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the processes of GPU %s: %w", id, err)
	}
	return list, nil
}

// unlessNotOffered leaves out that a driver does not offer a list of processes beside that of compute. A GPU on which no
// graphics can run has none to list, and what drivers knew of MPS before they listed its clients, its server, is among the
// processes of compute.
func unlessNotOffered(err error) error {
	if errors.Is(err, gpu.ErrNotSupported) {
		return nil
	}
	return err
}
