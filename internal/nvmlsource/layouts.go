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

// Layouts reads GPUs as they are now, by index, without Busy: all, or only those named. A GPU that cannot be read, or not
// completely, is left out of the list and its error is in the map, by index if its UUID is not known. Other GPUs than those
// named are not asked anything, unless one of these has to be looked up.
func (a *Actuator) Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.GPULayout, map[gpu.UUID]error, error) {
	failed := map[gpu.UUID]error{}
	ids := slices.Compact(slices.Sorted(slices.Values(only)))
	if len(only) == 0 {
		inventory, err := runQueued(ctx, a, queueKey{}, a.source.Discover)
		if err != nil {
			return nil, nil, fmt.Errorf("read layouts: %w", err)
		}
		for _, found := range inventory.GPUs {
			ids = append(ids, found.UUID)
		}
		for _, missing := range inventory.Missing {
			failed[gpu.UUID(strconv.Itoa(missing.Index))] = missing.Err
		}
	}
	list := make([]mig.GPULayout, len(ids))
	errs := make([]error, len(ids))
	var reading sync.WaitGroup
	for i, id := range ids {
		reading.Go(func() {
			list[i], errs[i] = runQueued(ctx, a, queueKey{id: id}, func() (mig.GPULayout, error) { return a.readLayout(id) })
		})
	}
	reading.Wait()
	whole := list[:0]
	for i, err := range errs {
		if err != nil {
			failed[ids[i]] = fmt.Errorf("read layout of GPU %s: %w", ids[i], err)
			continue
		}
		whole = append(whole, list[i])
	}
	slices.SortFunc(whole, func(a, b mig.GPULayout) int { return cmp.Compare(a.Index, b.Index) })
	return whole, failed, nil
}

// readLayout reads a GPU with handles of this moment and does not touch its gpuState: a Read that is under way, or hangs,
// does not matter.
func (a *Actuator) readLayout(id gpu.UUID) (mig.GPULayout, error) {
	b, err := a.stateOf(id)
	if err != nil {
		return mig.GPULayout{}, err
	}
	for range maxTornScans {
		g, err := a.readLayoutOnce(b)
		if !errors.Is(err, errTorn) {
			return g, err
		}
		b.tables.Store(nil) // they may lack the profile of an instance
	}
	return mig.GPULayout{}, fmt.Errorf("%w: %w", gpu.ErrInUse, errTorn)
}

// readLayoutOnce looks at the instances before and after it reads their MIG devices, and returns errTorn unless all of that
// agrees.
func (a *Actuator) readLayoutOnce(b *gpuState) (mig.GPULayout, error) {
	mode, err := a.readModeOf(b)
	if err != nil {
		return mig.GPULayout{}, err
	}
	t, err := a.tablesOf(b, mode)
	if err != nil {
		return mig.GPULayout{}, err
	}
	g := mig.GPULayout{
		Facts:     gpu.Facts{UUID: b.uuid, Index: int(b.index.Load()), PCIBusID: t.pciBusID, Name: t.name},
		PCIDevice: t.pciDevice, MIG: mode.enabled, Pending: mode.pending,
	}
	minor, ret := b.handle.GetMinorNumber()
	if err := a.source.checkReturn("nvmlDeviceGetMinorNumber", ret); err == nil {
		g.Minor = gpu.Some(minor)
	} else if losesDevice(err) {
		return mig.GPULayout{}, err
	}
	for i := range t.profiles {
		g.Profiles = append(g.Profiles, t.profiles[i].Profile)
	}
	if !mode.enabled.Or(false) {
		return g, nil
	}
	before, err := a.readView(b)
	if err != nil {
		return mig.GPULayout{}, err
	}
	devices, err := a.devices(b, t.mostMIG, gpu.None[unit]())
	if err != nil {
		return mig.GPULayout{}, err
	}
	after, err := a.readView(b)
	if err != nil {
		return mig.GPULayout{}, err
	}
	if after.mode != mode || !mig.SameInstances(before.instances(), after.instances()) || !after.identify(devices) {
		return mig.GPULayout{}, errTorn
	}
	g.Instances = after.instances()
	return g, nil
}

// identify fills in the UUIDs of the MIG devices. It reports whether each compute instance has one and each MIG device is of
// one of them, and no two GPU instances overlap.
func (p partition) identify(devices map[unit]gpu.MIGUUID) bool {
	found := 0
	for i := range p {
		for k := range p[i].ComputeInstances {
			c := &p[i].ComputeInstances[k]
			uuid, ok := devices[unit{p[i].ID, c.ID}]
			if !ok {
				return false
			}
			c.UUID = uuid
			found++
		}
		if i > 0 && p[i].Placement.Overlaps(p[i-1].Placement) {
			return false
		}
	}
	return found == len(devices)
}

// unit names a compute instance of a GPU by the driver's ids.
type unit struct {
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// devices finds the MIG devices of a GPU, or only that of one compute instance. Their indexes are sparse.
func (a *Actuator) devices(b *gpuState, most int, only gpu.Opt[unit]) (map[unit]gpu.MIGUUID, error) {
	found := map[unit]gpu.MIGUUID{}
	for i := range most {
		h, ret := b.handle.GetMigDeviceHandleByIndex(i)
		err := a.source.checkReturn("nvmlDeviceGetMigDeviceHandleByIndex", ret)
		if errors.Is(err, gpu.ErrNotFound) {
			continue
		}
		if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotSupported) {
			break // no index from here on
		}
		if err != nil {
			return nil, err
		}
		at, uuid, err := a.identifyDevice(h, only)
		switch {
		case losesEntity(err) && only.Present():
		case losesEntity(err):
			return nil, errTorn
		case err != nil:
			return nil, err
		case only == gpu.Some(at) && uuid != "":
			return map[unit]gpu.MIGUUID{at: uuid}, nil
		case found[at] != "":
			return nil, errTorn
		case !only.Present():
			found[at] = uuid
		}
	}
	return found, nil
}

// identifyDevice asks a MIG device for its compute instance and its UUID. It stops once it is another one than the only one
// looked for.
func (a *Actuator) identifyDevice(h MIGDevice, only gpu.Opt[unit]) (unit, gpu.MIGUUID, error) {
	wanted, one := only.Get()
	instance, ret := h.GetGpuInstanceId()
	at := unit{instance: gpu.InstanceID(instance)}
	if err := a.source.checkReturn("nvmlDeviceGetGpuInstanceId", ret); err != nil || one && at.instance != wanted.instance {
		return unit{}, "", err
	}
	compute, ret := h.GetComputeInstanceId()
	at.compute = gpu.ComputeID(compute)
	if err := a.source.checkReturn("nvmlDeviceGetComputeInstanceId", ret); err != nil || one && at != wanted {
		return unit{}, "", err
	}
	uuid, ret := h.GetUUID()
	return at, gpu.MIGUUID(validUTF8(uuid)), a.source.checkReturn("nvmlDeviceGetUUID", ret)
}
