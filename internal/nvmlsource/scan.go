package nvmlsource

import (
	"errors"
	"iter"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// scan lists the GPU instances and MIG devices of a GPU, by few calls. Two scans with the same
// identities are of the same tree. A scan's handles become stale with any change of the tree.
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

// identity tells MIG devices apart, also after a layout change. The driver makes a UUID from the
// GPU instance's id and from the engine at which the compute instance begins, not from its size
// (open-gpu-kernel-modules 595.45.04, kmigmgrGenerateComputeInstanceUuid). A legacy UUID has only
// the ids. Neither shows the profile of the GPU instance, and several profiles can have the same
// placement; the profile is in the name, and in the list of GPU instances if the process may read
// that.
type identity struct {
	computeKey
	uuid  gpu.MIGUUID
	name  string
	named bool // name was read
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

func (s *scan) has(key computeKey) bool {
	return slices.ContainsFunc(s.devices, func(e migEntry) bool { return e.computeKey == key })
}

// isTorn reports whether the scan contradicts itself, because the layout changed between its calls:
// a MIG device's GPU instance is not listed, or two GPU instances overlap.
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

// scanTree scans the tree. It reports whether an entity vanished meanwhile. If it fails, the scan
// is not complete; the error is also among the step's errors.
func (r *gpuRead) scanTree(q *querier, result *scan) (vanished bool, err error) {
	result.devices = result.devices[:0]
	result.clearInstances()

	if vanished, err = r.scanInstances(q, result); err != nil {
		return vanished, err
	}

	gone, err := r.scanDevices(q, result, !result.listed)

	return vanished || gone, err
}

func (s *scan) clearInstances() {
	s.instances = s.instances[:0]
	s.handles = s.handles[:0]
}

// failScan records an error that makes a scan fail, because the identity of an entity cannot be
// read. Unlike addError it also records ErrNotSupported: without the identity the tree is unknown.
func (q *querier) failScan(err error) error {
	if losesDevice(err) {
		q.lost = err
		return err
	}

	q.errs = append(q.errs, gpu.ReadError{Reading: gpu.ReadingMIG, Err: err})

	return err
}

// migDevices iterates over the handles of a GPU's MIG devices, or the errors of getting them. The
// GPU can have at most maxDevices; some indexes may be free.
func migDevices(d Device, maxDevices int) iter.Seq2[MIGDevice, error] {
	return func(yield func(MIGDevice, error) bool) {
		for i := range maxDevices {
			h, ret := d.GetMigDeviceHandleByIndex(i)

			err := checkReturn("nvmlDeviceGetMigDeviceHandleByIndex", ret)
			if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotSupported) {
				return // there is no further index
			}

			if !errors.Is(err, gpu.ErrNotFound) && !yield(h, err) {
				return
			}
		}
	}
}

// readIdentity reads the ids and the UUID of a MIG device. If the caller looks for only one, it
// stops at the first id that is another one, and returns no UUID.
func readIdentity(
	h MIGDevice,
	only gpu.Opt[computeKey],
) (key computeKey, uuid gpu.MIGUUID, err error) {
	wanted, looksForOne := only.Get()

	instance, ret := h.GetGpuInstanceId()
	key.instance = gpu.InstanceID(instance)

	err = checkReturn("nvmlDeviceGetGpuInstanceId", ret)
	if err != nil || looksForOne && key.instance != wanted.instance {
		return computeKey{}, "", err
	}

	compute, ret := h.GetComputeInstanceId()
	key.compute = gpu.ComputeID(compute)

	err = checkReturn("nvmlDeviceGetComputeInstanceId", ret)
	if err != nil || looksForOne && key != wanted {
		return computeKey{}, "", err
	}

	text, ret := h.GetUUID()

	return key, gpu.MIGUUID(validUTF8(text)), checkReturn("nvmlDeviceGetUUID", ret)
}

// scanDevices lists the MIG devices. It reads their names if withNames is set.
func (r *gpuRead) scanDevices(q *querier, result *scan, withNames bool) (vanished bool, err error) {
	maxDevices, err := r.queryMaxDevices(q)
	if err != nil {
		return false, err
	}

	denied := false

	for h, err := range migDevices(r.dev, maxDevices) {
		var e migEntry
		if err == nil {
			e, err = r.identifyDevice(h, withNames)
		}

		switch {
		case err == nil && !result.has(e.computeKey):
			result.devices = append(result.devices, e)
		case err == nil, losesEntity(err): // a device that is listed twice was created again meanwhile
			vanished = true
		case !errors.Is(err, gpu.ErrNoPermission):
			return vanished, q.failScan(err)
		case !denied:
			denied = true
			r.source.privilege.markMissing(hiddenDevices)
			q.addError(gpu.ReadingMIG, err)
		default: // another device was denied before, which is reported
		}
	}

	if r.state.tree.hidden && !denied {
		r.source.privilege.markRegained(hiddenDevices)
	}

	r.state.tree.hidden = denied

	return vanished, nil
}

// queryMaxDevices returns how many MIG devices the GPU can have, 0 if the driver does not report
// it. The answer holds until the MIG mode changes.
func (r *gpuRead) queryMaxDevices(q *querier) (int, error) {
	known := &r.state.static.maxDevices
	if n, ok := known.Get(); ok {
		return n, nil
	}

	n, err := query(
		q,
		"nvmlDeviceGetMaxMigDeviceCount",
		gpu.ReadingMIG,
		r.dev.GetMaxMigDeviceCount,
	)
	if errors.Is(err, gpu.ErrNotSupported) {
		return 0, nil
	}

	if err == nil && n > 0 { // drivers answer 0 while MIG is not on yet
		*known = gpu.Some(n)
	}

	return n, err
}

// identifyDevice reads the identity of a MIG device. It reads the name if withName is set, or if
// the UUID does not show where the compute instance is.
func (r *gpuRead) identifyDevice(h MIGDevice, withName bool) (migEntry, error) {
	e := migEntry{handle: h}

	var err error
	if e.computeKey, e.uuid, err = readIdentity(h, gpu.None[computeKey]()); err != nil {
		return e, err
	}

	if _, legacy, err := gpu.ParseMIGUUID(string(e.uuid)); withName || err != nil || legacy.Present() {
		name, ret := h.GetName()

		err := checkReturn("nvmlDeviceGetName", ret)
		if err != nil && !errors.Is(err, gpu.ErrNotSupported) {
			return e, err
		}

		e.name = name
		e.named = true
	}

	return e, nil
}

// scanInstances lists the GPU instances, including those without compute instances. That needs
// privilege; without it, buildTree infers the GPU instances from the MIG devices.
func (r *gpuRead) scanInstances(q *querier, result *scan) (vanished bool, err error) {
	profiles := r.state.static.profiles
	result.listed = len(profiles) > 0

	for i := range profiles {
		p := &profiles[i]

		list, err := query(q, p.call, gpu.ReadingMIG, func() ([]GPUInstance, nvml.Return) {
			return r.dev.GetGpuInstances(p.ID, max(p.instanceCount, len(p.Placements)))
		})
		switch {
		case errors.Is(err, gpu.ErrNoPermission):
			result.clearInstances()
			result.listed = false

			return vanished, nil
		case errors.Is(err, gpu.ErrNotSupported):
			result.listed = false
		case err != nil:
			return vanished, err
		}

		for _, h := range list {
			info, ret := h.GetInfo()
			err := checkReturn("nvmlGpuInstanceGetInfo", ret)

			switch {
			case err == nil:
				result.instances = append(result.instances, info)
				result.handles = append(result.handles, h)
			case losesEntity(err):
				vanished = true
			default:
				return vanished, q.failScan(err)
			}
		}
	}

	return vanished, nil
}
