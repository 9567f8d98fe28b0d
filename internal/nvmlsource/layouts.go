package nvmlsource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Layouts reads the present layouts of GPUs, sorted by index and without Busy: of all GPUs, or only
// of those named. A GPU that cannot be read completely is not in the list; its error is in the map,
// under its UUID or, if that is unknown, its index. It makes no calls for GPUs that are not named,
// unless a named one has to be looked up.
func (a *Actuator) Layouts(
	ctx context.Context,
	only ...gpu.UUID,
) ([]mig.GPULayout, map[gpu.UUID]error, error) {
	failed := map[gpu.UUID]error{}
	ids := slices.Compact(slices.Sorted(slices.Values(only)))

	if len(only) == 0 {
		inventory, err := runQueued(ctx, a, queueKey{}, a.source.rediscover)
		if err != nil {
			return nil, nil, fmt.Errorf("read layouts: %w", err)
		}

		for _, found := range inventory.GPUs {
			ids = append(ids, found.UUID)
		}

		for _, missing := range inventory.Missing {
			failed[gpu.UUID(strconv.Itoa(missing.Index))] = missing.Err
		}

		for _, released := range inventory.Released {
			failed[released.UUID] = gpu.ErrReleased
		}
	}

	list := make([]mig.GPULayout, len(ids))
	errs := make([]error, len(ids))

	var reading sync.WaitGroup
	for i, id := range ids {
		reading.Go(func() {
			list[i], errs[i] = runQueued(
				ctx,
				a,
				queueKey{id: id},
				func() (mig.GPULayout, error) { return a.readLayout(id) },
			)
		})
	}

	reading.Wait()
	complete := list[:0]

	for i, err := range errs {
		if err != nil {
			failed[ids[i]] = fmt.Errorf("read layout of GPU %s: %w", ids[i], err)
			continue
		}

		complete = append(complete, list[i])
	}

	slices.SortFunc(complete, func(a, b mig.GPULayout) int { return cmp.Compare(a.Index, b.Index) })

	return complete, failed, nil
}

// readLayout reads a GPU with handles of its own and without the parts of its gpuState that belong
// to a Read: one may be under way, or hang.
func (a *Actuator) readLayout(id gpu.UUID) (mig.GPULayout, error) {
	g, err := a.findGPU(id)
	if err != nil {
		return mig.GPULayout{}, err
	}

	for range maxTornScans {
		layout, err := a.readLayoutOnce(g)
		if !errors.Is(err, errTorn) {
			return layout, err
		}

		g.tables.Store(nil) // they may lack the profile of an instance
	}

	return mig.GPULayout{}, fmt.Errorf("%w: %w", gpu.ErrInUse, errTorn)
}

// readLayoutOnce reads the instances before and after their MIG devices, and returns errTorn unless
// all of that agrees.
func (a *Actuator) readLayoutOnce(g *gpuState) (mig.GPULayout, error) {
	mode, err := a.readModeOf(g)
	if err != nil {
		return mig.GPULayout{}, err
	}

	t, err := a.tablesOf(g, mode)
	if err != nil {
		return mig.GPULayout{}, err
	}

	layout := mig.GPULayout{
		Facts: gpu.Facts{
			UUID:     g.uuid,
			Index:    int(g.index.Load()),
			PCIBusID: t.pciBusID,
			Name:     t.name,
		},
		PCIDevice: t.pciDevice,
		MIG:       mode.enabled,
		Pending:   mode.pending,
	}

	minor, ret := g.handle.GetMinorNumber()
	if err := checkReturn("nvmlDeviceGetMinorNumber", ret); err == nil {
		layout.Minor = gpu.Some(minor)
	} else if losesDevice(err) {
		return mig.GPULayout{}, err
	}

	for i := range t.profiles {
		layout.Profiles = append(layout.Profiles, t.profiles[i].Profile)
	}

	if !mode.enabled.Or(false) {
		return layout, nil
	}

	before, err := a.readView(g)
	if err != nil {
		return mig.GPULayout{}, err
	}

	devices, err := a.readDevices(g, t.maxDevices, gpu.None[computeKey]())
	if err != nil {
		return mig.GPULayout{}, err
	}

	after, err := a.readView(g)
	if err != nil {
		return mig.GPULayout{}, err
	}

	if after.mode != mode || !mig.SameInstances(before.instances, after.instances) ||
		!after.addUUIDs(devices) {
		return mig.GPULayout{}, errTorn
	}

	layout.Instances = after.instances

	return layout, nil
}

// addUUIDs fills in the UUIDs of the MIG devices. It returns false if a compute instance has no MIG
// device, a MIG device has no compute instance, or two GPU instances overlap.
func (p partition) addUUIDs(devices map[computeKey]gpu.MIGUUID) bool {
	found := 0

	for i := range p.instances {
		gi := &p.instances[i]
		for k := range gi.ComputeInstances {
			c := &gi.ComputeInstances[k]

			uuid, ok := devices[computeKey{gi.ID, c.ID}]
			if !ok {
				return false
			}

			c.UUID = uuid
			found++
		}

		if i > 0 && gi.Placement.Overlaps(p.instances[i-1].Placement) {
			return false
		}
	}

	return found == len(devices)
}

// readDevices reads the UUIDs of a GPU's MIG devices, or of only one. maxDevices is how many the
// GPU can have.
func (a *Actuator) readDevices(
	g *gpuState,
	maxDevices int,
	only gpu.Opt[computeKey],
) (map[computeKey]gpu.MIGUUID, error) {
	uuids := map[computeKey]gpu.MIGUUID{}

	for h, err := range migDevices(g.handle, maxDevices) {
		if err != nil {
			return nil, err
		}

		key, uuid, err := readIdentity(h, only)
		switch {
		case losesEntity(err) && only.Present(): // the wanted device may still follow
		case losesEntity(err):
			return nil, errTorn
		case err != nil:
			return nil, err
		case only == gpu.Some(key) && uuid != "":
			return map[computeKey]gpu.MIGUUID{key: uuid}, nil
		case uuids[key] != "":
			return nil, errTorn
		case !only.Present():
			uuids[key] = uuid
		}
	}

	return uuids, nil
}
