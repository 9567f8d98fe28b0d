package nvmlsource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// partition holds the GPU instances of a GPU by placement, with their compute instances and their
// handles, as one reading found them. It has no UUIDs of MIG devices.
type partition struct {
	instances      []mig.Instance
	handles        map[gpu.InstanceID]GPUInstance
	computeHandles map[computeKey]ComputeInstance // empty if the driver can only be read
}

// view is what the Actuator reads of a GPU in one go. The tables are nil if MIG is off.
type view struct {
	mode   modeState
	tables *tables
	partition
}

var (
	errTorn     = errors.New("its instances changed while they were read, or contradict each other")
	errUnsteady = errors.New("its instances change all the time")
)

// readView reads the MIG mode of a GPU and its partition. It returns errTorn if it notices that the
// partition changed meanwhile.
func (a *Actuator) readView(g *gpuState) (view, error) {
	var v view

	var err error
	if v.mode, err = a.readModeOf(g); err != nil {
		return view{}, err
	}

	enabled, ok := v.mode.enabled.Get()
	if !ok {
		return view{}, fmt.Errorf("%w: the GPU has no MIG mode", gpu.ErrNotSupported)
	}

	if !enabled {
		return v, nil
	}

	if v.tables, err = a.tablesForStep(g, v.mode); err != nil {
		return view{}, err
	}

	v.partition, err = a.readPartition(g, v.tables)
	if losesEntity(err) { // or the tables are out of date
		g.tables.Store(nil)
		err = fmt.Errorf("%w: %s", errTorn, err.Error())
	}

	return v, err
}

// readExpected reads a GPU until it has the expected instances, or twice in a row the same ones: a
// reading takes many calls, between which another client may change the GPU. After maxTornScans it
// gives up with errUnsteady, or errTorn if the last reading was not complete.
func (a *Actuator) readExpected(g *gpuState, expected []mig.Instance) (view, error) {
	var last *view

	for range maxTornScans {
		v, err := a.readView(g)
		if errors.Is(err, errTorn) {
			last = nil
			continue
		}

		if err != nil {
			return view{}, err
		}

		if mig.SameInstances(v.instances, expected) ||
			last != nil && mig.SameInstances(v.instances, last.instances) {
			return v, nil
		}

		last = &v
	}

	if last == nil {
		return view{}, fmt.Errorf("%w: %w", gpu.ErrDriver, errTorn)
	}

	return view{}, fmt.Errorf("%w: %w", gpu.ErrDriver, errUnsteady)
}

// readModeOf reads the MIG mode, which is absent if the GPU has none.
func (a *Actuator) readModeOf(g *gpuState) (modeState, error) {
	now, next, ret := g.handle.GetMigMode()

	err := checkReturn("nvmlDeviceGetMigMode", ret)
	if errors.Is(err, gpu.ErrNotSupported) {
		return modeState{}, nil
	}

	if err != nil {
		return modeState{}, err
	}

	return modeState{enabled: gpu.Some(now == nvml.DEVICE_MIG_ENABLE),
		pending: gpu.Some(next == nvml.DEVICE_MIG_ENABLE)}, nil
}

// readPartition lists the instances of every profile, those without compute instances included.
func (a *Actuator) readPartition(g *gpuState, t *tables) (partition, error) {
	if len(t.profiles) == 0 {
		return partition{}, fmt.Errorf(
			"%w: the driver does not list the GPU instances",
			gpu.ErrNotSupported,
		)
	}

	p := partition{
		handles:        map[gpu.InstanceID]GPUInstance{},
		computeHandles: map[computeKey]ComputeInstance{},
	}
	infos := map[uint32]GPUInstanceInfo{}

	for i := range t.profiles {
		e := &t.profiles[i]

		list, ret := g.handle.GetGpuInstances(e.ID, max(e.instanceCount, len(e.Placements)))
		if err := checkReturn("nvmlDeviceGetGpuInstances", ret); err != nil {
			return partition{}, err
		}

		for _, h := range list {
			info, ret := h.GetInfo()
			if err := checkReturn("nvmlGpuInstanceGetInfo", ret); err != nil {
				return partition{}, err
			}

			if before, twice := infos[info.ID]; twice {
				if before != info {
					return partition{}, errTorn
				}

				continue
			}

			infos[info.ID] = info
			p.instances = append(p.instances, t.instanceOf(info))
			p.handles[gpu.InstanceID(info.ID)] = h
		}
	}

	for i := range p.instances {
		if err := a.readComputeInstances(t, &p, &p.instances[i]); err != nil {
			return partition{}, err
		}
	}

	slices.SortFunc(p.instances, func(a, b mig.Instance) int {
		return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.ID, b.ID))
	})

	return p, nil
}

// instanceOf returns a GPU instance, without its compute instances.
func (t *tables) instanceOf(info GPUInstanceInfo) mig.Instance {
	placed := mig.Placed{ProfileID: info.ProfileID, Placement: info.placement()}
	for i := range t.profiles {
		if t.profiles[i].ID == info.ProfileID {
			placed.Profile = t.profiles[i].Name
		}
	}

	return mig.Instance{ID: gpu.InstanceID(info.ID), Placed: placed}
}

// readComputeInstances reads the compute instances of a GPU instance of p.
func (a *Actuator) readComputeInstances(t *tables, p *partition, instance *mig.Instance) error {
	infos := map[uint32]ComputeInstanceInfo{}
	add := func(info ComputeInstanceInfo, computeSlices int) error {
		if before, twice := infos[info.ID]; twice {
			if before != info {
				return errTorn
			}

			return nil
		}

		infos[info.ID] = info
		addCompute(instance, info, computeSlices)

		return nil
	}
	handle := p.handles[instance.ID]

	gi, ok := handle.(MutableInstance)
	if !ok {
		list, ret := handle.GetComputeInstances()
		err := checkReturn("nvmlGpuInstanceGetComputeInstances", ret)

		for _, info := range list {
			// We cannot ask this driver for the compute profile: the placement shows the slices, but it
			// may be longer than all of the GPU instance.
			computeSlices := min(int(info.Placement.Size), t.computeSlices(instance.ProfileID))
			err = cmp.Or(err, add(info, computeSlices))
		}

		completeComputeInstances(instance)

		return err
	}

	profiles, err := a.listComputeProfiles(t, gi, instance.ProfileID)
	if err != nil {
		return err
	}

	for _, profile := range profiles {
		handles, ret := gi.GetComputeInstancesOf(profile.Id, int(profile.InstanceCount))
		if err := checkReturn("nvmlGpuInstanceGetComputeInstances", ret); err != nil {
			return err
		}

		for _, h := range handles {
			info, ret := h.GetInfo()
			if err := checkReturn("nvmlComputeInstanceGetInfo", ret); err != nil {
				return err
			}

			if err := add(info, int(profile.SliceCount)); err != nil {
				return err
			}

			p.computeHandles[computeKey{instance.ID, gpu.ComputeID(info.ID)}] = h
		}
	}

	completeComputeInstances(instance)

	return nil
}

// computeSlices returns how many compute slices an instance of a profile has. If the profile is
// unknown, it returns more than any has.
func (t *tables) computeSlices(profileID uint32) int {
	for i := range t.profiles {
		if t.profiles[i].ID == profileID {
			return t.profiles[i].ComputeSlices
		}
	}

	return maxProfiles
}

// addCompute adds a compute instance to its GPU instance. Its placement is as long as it has
// slices: a driver may report a longer one. (In the tables of NVIDIA's emulated GPUs, in go-nvml,
// the one of all 7 slices has a placement of 8.)
func addCompute(instance *mig.Instance, info ComputeInstanceInfo, computeSlices int) {
	c := mig.ComputeInstance{ID: gpu.ComputeID(info.ID), Slices: computeSlices}
	if info.Placement.Size > 0 {
		c.Placement = gpu.Some(gpu.Placement{Start: int(info.Placement.Start), Size: computeSlices})
	}

	instance.ComputeInstances = append(instance.ComputeInstances, c)
}

// completeComputeInstances orders the compute instances and fills in the placements that the driver does
// not report.
func completeComputeInstances(instance *mig.Instance) {
	slices.SortFunc(
		instance.ComputeInstances,
		func(a, b mig.ComputeInstance) int { return cmp.Compare(a.ID, b.ID) },
	)
	instance.FillComputePlacements()
}
