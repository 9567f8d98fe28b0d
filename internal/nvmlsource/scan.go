package nvmlsource

import (
	"errors"
	"iter"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// scan lists the GPU instances and MIG devices of a GPU, by few calls. Two scans with the same
// identities are of the same tree. Handles become stale with any change of the tree.
type scan struct {
	devices   []migEntry        // MIG devices, by NVML's index
	instances []GPUInstanceInfo // GPU instances; empty if the process may not list them
	handles   []GPUInstance     // of the GPU instances, in the same order
	listed    bool              // the list of instances is complete
}

// migEntry is a MIG device of a scan.
type migEntry struct {
	handle MIGDevice
	identity
}

// identity identifies a MIG device. Its UUID is made of the GPU instance's id and of the engine at
// which the compute instance begins, not of its size (open-gpu-kernel-modules 595.45.04,
// kmigmgrGenerateComputeInstanceUuid); the legacy form has only their ids. The profile of the GPU
// instance, of which several fit some placements, is in the name, and in the list of GPU instances
// if the process may read that.
type identity struct {
	computeKey
	uuid  gpu.MIGUUID
	name  string
	named bool // the name was read
}

// computeKey names a compute instance of a GPU by the driver's ids.
type computeKey struct {
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// equal reports whether two scans are of the same tree.
func (s *scan) equal(other *scan) bool {
	same := func(a, b migEntry) bool { return a.identity == b.identity }

	return slices.EqualFunc(s.devices, other.devices, same) &&
		slices.Equal(s.instances, other.instances)
}

func (i GPUInstanceInfo) placement() gpu.Placement {
	return gpu.Placement{Start: int(i.Placement.Start), Size: int(i.Placement.Size)}
}

func (s *scan) has(of computeKey) bool {
	return slices.ContainsFunc(s.devices, func(e migEntry) bool { return e.computeKey == of })
}

// isTorn reports whether the scan contradicts itself, as it does if the layout changed between its
// calls: a MIG device is of an instance that is not listed, or two instances overlap.
func (s *scan) isTorn() bool {
	if !s.listed {
		return false
	}

	for _, d := range s.devices {
		isItsInstance := func(i GPUInstanceInfo) bool { return gpu.InstanceID(i.ID) == d.instance }
		if !slices.ContainsFunc(s.instances, isItsInstance) {
			return true
		}
	}

	for i, a := range s.instances {
		for _, b := range s.instances[:i] {
			if a.placement().Overlaps(b.placement()) {
				return true
			}
		}
	}

	return false
}

// scanTree scans the tree. It reports whether an entity vanished meanwhile. An error, which is also
// one of the step's, says that the scan is not complete.
func (r *gpuRead) scanTree(q *querier, to *scan) (vanished bool, err error) {
	to.devices = to.devices[:0]
	to.clearInstances()

	if vanished, err = r.scanInstances(q, to); err != nil {
		return vanished, err
	}

	gone, err := r.scanDevices(q, to, !to.listed)

	return vanished || gone, err
}

func (s *scan) clearInstances() {
	s.instances = s.instances[:0]
	s.handles = s.handles[:0]
}

// failScan returns the error of an entity whose identity cannot be read, which makes a scan fail,
// and adds it to those of the step, also if it says that a call is not supported: without it the
// tree is unknown.
func (q *querier) failScan(err error) error {
	if losesDevice(err) {
		q.lost = err
		return err
	}

	q.errs = append(q.errs, gpu.ReadError{Reading: gpu.ReadingMIG, Err: err})

	return err
}

// migDevices iterates over the handles of a GPU's MIG devices, of which it can have at most so
// many, and the errors of those that have none. Their indexes are sparse.
func (s *Source) migDevices(d Device, most int) iter.Seq2[MIGDevice, error] {
	return func(yield func(MIGDevice, error) bool) {
		for i := range most {
			h, ret := d.GetMigDeviceHandleByIndex(i)

			err := s.checkReturn("nvmlDeviceGetMigDeviceHandleByIndex", ret)
			if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotSupported) {
				return // there is no further index
			}

			if !errors.Is(err, gpu.ErrNotFound) && !yield(h, err) {
				return
			}
		}
	}
}

// readIdentity reads the ids and the UUID of a MIG device. If only one is looked for, it makes no
// further call once the device is another one, and returns no UUID.
func (s *Source) readIdentity(
	h MIGDevice,
	only gpu.Opt[computeKey],
) (key computeKey, uuid gpu.MIGUUID, err error) {
	wanted, looksForOne := only.Get()

	instance, ret := h.GetGpuInstanceId()
	key.instance = gpu.InstanceID(instance)

	err = s.checkReturn("nvmlDeviceGetGpuInstanceId", ret)
	if err != nil || looksForOne && key.instance != wanted.instance {
		return computeKey{}, "", err
	}

	compute, ret := h.GetComputeInstanceId()
	key.compute = gpu.ComputeID(compute)

	err = s.checkReturn("nvmlDeviceGetComputeInstanceId", ret)
	if err != nil || looksForOne && key != wanted {
		return computeKey{}, "", err
	}

	text, ret := h.GetUUID()

	return key, gpu.MIGUUID(validUTF8(text)), s.checkReturn("nvmlDeviceGetUUID", ret)
}

// scanDevices lists the MIG devices, with their names if named.
func (r *gpuRead) scanDevices(q *querier, to *scan, named bool) (vanished bool, err error) {
	most, err := r.queryMaxDevices(q)
	if err != nil {
		return false, err
	}

	denied := false

	for h, err := range r.source.migDevices(r.dev, most) {
		var e migEntry
		if err == nil {
			e, err = r.identifyDevice(h, named)
		}

		switch {
		case err == nil && !to.has(e.computeKey):
			to.devices = append(to.devices, e)
		case err == nil, losesEntity(err): // one that is listed twice was created again meanwhile
			vanished = true
		case !errors.Is(err, gpu.ErrNoPermission):
			return vanished, q.failScan(err)
		case !denied:
			denied = true
			r.source.privilege.markMissing(hiddenDevices)
			q.addError(gpu.ReadingMIG, err)
		default: // that devices are denied is reported already
		}
	}

	if r.state.tree.hidden && !denied {
		r.source.privilege.markRegained(hiddenDevices)
	}

	r.state.tree.hidden = denied

	return vanished, nil
}

// queryMaxDevices returns how many MIG devices the GPU can have, 0 if the driver does not report
// it. The call is made once in a MIG mode.
func (r *gpuRead) queryMaxDevices(q *querier) (int, error) {
	known := &r.state.static.mostMIG
	if most, ok := known.Get(); ok {
		return most, nil
	}

	most, err := query(
		q,
		"nvmlDeviceGetMaxMigDeviceCount",
		gpu.ReadingMIG,
		r.dev.GetMaxMigDeviceCount,
	)
	if errors.Is(err, gpu.ErrNotSupported) {
		return 0, nil
	}

	if err == nil && most > 0 { // drivers answer 0 while MIG is not on yet
		*known = gpu.Some(most)
	}

	return most, err
}

// identifyDevice reads the identity of a MIG device, with its name if named, or if the UUID does
// not determine the placements.
func (r *gpuRead) identifyDevice(h MIGDevice, named bool) (migEntry, error) {
	e := migEntry{handle: h}

	var err error
	if e.computeKey, e.uuid, err = r.source.readIdentity(h, gpu.None[computeKey]()); err != nil {
		return e, err
	}

	if _, legacy, err := gpu.ParseMIGUUID(string(e.uuid)); named || err != nil || legacy.Present() {
		name, ret := h.GetName()

		err := r.source.checkReturn("nvmlDeviceGetName", ret)
		if err != nil && !errors.Is(err, gpu.ErrNotSupported) {
			return e, err
		}

		e.name = name
		e.named = true
	}

	return e, nil
}

// scanInstances lists the GPU instances, also those without a compute instance. That needs
// privilege; without it the tree is inferred from the MIG devices.
func (r *gpuRead) scanInstances(q *querier, to *scan) (vanished bool, err error) {
	profiles := r.state.static.profiles
	to.listed = len(profiles) > 0

	for i := range profiles {
		p := &profiles[i]

		list, err := query(q, p.call, gpu.ReadingMIG, func() ([]GPUInstance, nvml.Return) {
			return r.dev.GetGpuInstances(p.ID, max(p.instanceCount, len(p.Placements)))
		})
		switch {
		case errors.Is(err, gpu.ErrNoPermission):
			to.clearInstances()
			to.listed = false

			return vanished, nil
		case errors.Is(err, gpu.ErrNotSupported):
			to.listed = false
		case err != nil:
			return vanished, err
		}

		for _, h := range list {
			info, ret := h.GetInfo()
			err := r.source.checkReturn("nvmlGpuInstanceGetInfo", ret)

			switch {
			case err == nil:
				to.instances = append(to.instances, info)
				to.handles = append(to.handles, h)
			case losesEntity(err):
				vanished = true
			default:
				return vanished, q.failScan(err)
			}
		}
	}

	return vanished, nil
}
