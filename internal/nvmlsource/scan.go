package nvmlsource

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// scan lists the entities of a GPU's tree of GPU instances and compute instances, by few calls. Two scans with the same
// identities are of the same tree. Handles are those of the moment, and become stale with any change.
type scan struct {
	devices   []migEntry      // MIG devices, by NVML's index
	instances []instanceEntry // GPU instances; empty if the process may not list them
	listed    bool            // the instances are all there are
}

type migEntry struct {
	handle MIGDevice
	identity
}

// identity identifies a MIG device. Its UUID determines the placements of the instances; the legacy form has only their ids. The
// profile of the GPU instance, of which several fit some placements, is in the name, and in the list of GPU instances if the
// process may read that.
type identity struct {
	instance gpu.InstanceID
	compute  gpu.ComputeID
	uuid     gpu.MIGUUID
	name     string
	named    bool // the name was read
}

type instanceEntry struct {
	handle GPUInstance
	info   GPUInstanceInfo
}

func (s *scan) equal(other *scan) bool {
	return slices.EqualFunc(s.devices, other.devices, func(a, b migEntry) bool { return a.identity == b.identity }) &&
		slices.EqualFunc(s.instances, other.instances, func(a, b instanceEntry) bool { return a.info == b.info })
}

func (s *scan) has(instance gpu.InstanceID, compute gpu.ComputeID) bool {
	return slices.ContainsFunc(s.devices, func(e migEntry) bool { return e.instance == instance && e.compute == compute })
}

// isTorn reports whether the scan contradicts itself, as it does if the layout changed between its calls: a MIG device is of an
// instance that is not listed, or two instances overlap.
func (s *scan) isTorn() bool {
	if !s.listed {
		return false
	}
	for _, d := range s.devices {
		if !slices.ContainsFunc(s.instances, func(e instanceEntry) bool { return gpu.InstanceID(e.info.ID) == d.instance }) {
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

func (e instanceEntry) placement() gpu.Placement {
	return gpu.Placement{Start: int(e.info.Placement.Start), Size: int(e.info.Placement.Size)}
}

// scanTree scans the tree and reports whether that succeeded; if not, it has added an error. It sets r.scan.vanished if
// something vanished meanwhile.
func (r *gpuRead) scanTree(to *scan) bool {
	to.devices, to.instances = to.devices[:0], to.instances[:0]
	var ok bool
	to.listed, ok = r.scanInstances(to)
	return ok && r.scanDevices(to, !to.listed)
}

// addScanError adds the error of an entity that does not report what it is, also if that is not supported: without it the
// tree is not known.
func (r *gpuRead) addScanError(err error) {
	r.errs = append(r.errs, gpu.ReadError{Reading: gpu.ReadingMIG, Err: err})
}

// scanDevices lists the MIG devices, with their names if named. Their indexes are sparse.
func (r *gpuRead) scanDevices(to *scan, named bool) bool {
	most, ok := r.maxDevices()
	denied := false
	for i := 0; ok && i < most; i++ {
		h, ret := r.dev.GetMigDeviceHandleByIndex(i)
		err := r.source.checkReturn("nvmlDeviceGetMigDeviceHandleByIndex", ret)
		var e migEntry
		if err == nil {
			e, err = r.identifyDevice(h, named)
		} else if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotSupported) {
			break // there is no further index
		} else if errors.Is(err, gpu.ErrNotFound) {
			continue
		}
		switch {
		case err == nil && !to.has(e.instance, e.compute):
			to.devices = append(to.devices, e)
		case err == nil, losesEntity(err): // one that is listed twice was created again meanwhile
			r.scan.vanished = true
		case errors.Is(err, gpu.ErrNoPermission):
			if !denied {
				r.source.privilege.markMissing(hiddenDevices)
				r.addError(gpu.ReadingMIG, err)
			}
			denied = true
		case losesDevice(err):
			r.fatal = err
			return false
		default:
			r.addScanError(err)
			return false
		}
	}
	if r.state.tree.hidden && !denied {
		r.source.privilege.markRegained(hiddenDevices)
	}
	r.state.tree.hidden = denied
	return ok
}

// maxDevices returns how many MIG devices the GPU can have. The call is made once in a MIG mode.
func (r *gpuRead) maxDevices() (int, bool) {
	st := &r.state.static
	if !st.mostKnown {
		most, ok := query(&r.querier, "nvmlDeviceGetMaxMigDeviceCount", gpu.ReadingMIG, r.dev.GetMaxMigDeviceCount)
		if !ok {
			return 0, r.unsupported["nvmlDeviceGetMaxMigDeviceCount"]
		}
		st.mostMIG, st.mostKnown = most, most > 0 // drivers answer 0 while MIG is not on yet
	}
	return st.mostMIG, true
}

// identifyDevice reads the identity of a MIG device.
func (r *gpuRead) identifyDevice(h MIGDevice, named bool) (migEntry, error) {
	e := migEntry{handle: h}
	instance, ret := h.GetGpuInstanceId()
	if err := r.source.checkReturn("nvmlDeviceGetGpuInstanceId", ret); err != nil {
		return e, err
	}
	compute, ret := h.GetComputeInstanceId()
	if err := r.source.checkReturn("nvmlDeviceGetComputeInstanceId", ret); err != nil {
		return e, err
	}
	uuid, ret := h.GetUUID()
	if err := r.source.checkReturn("nvmlDeviceGetUUID", ret); err != nil {
		return e, err
	}
	e.instance, e.compute, e.uuid = gpu.InstanceID(instance), gpu.ComputeID(compute), gpu.MIGUUID(validUTF8(uuid))
	if _, legacy, err := gpu.ParseMIGUUID(string(e.uuid)); named || err != nil || legacy.Present() {
		name, ret := h.GetName()
		if err := r.source.checkReturn("nvmlDeviceGetName", ret); err != nil && !errors.Is(err, gpu.ErrNotSupported) {
			return e, err
		}
		e.name, e.named = name, true
	}
	return e, nil
}

// scanInstances lists the GPU instances, also those without a compute instance. That needs privilege; without it the tree is
// inferred from the MIG devices. listed reports whether all are listed; ok is false if that is not known.
func (r *gpuRead) scanInstances(to *scan) (listed, ok bool) {
	listed = len(r.state.static.profiles) > 0
	for i := range r.state.static.profiles {
		p := &r.state.static.profiles[i]
		list, ok := query(&r.querier, p.list, gpu.ReadingMIG, func() ([]GPUInstance, nvml.Return) {
			return r.dev.GetGpuInstances(p.ID, max(p.instanceCount, len(p.Placements)))
		})
		switch {
		case r.denied[p.list] != nil:
			to.instances = to.instances[:0]
			return false, true
		case !ok && !r.unsupported[p.list]:
			return false, false
		case !ok:
			listed = false
		}
		for _, h := range list {
			info, ret := h.GetInfo()
			err := r.source.checkReturn("nvmlGpuInstanceGetInfo", ret)
			switch {
			case err == nil:
				to.instances = append(to.instances, instanceEntry{handle: h, info: info})
			case losesEntity(err):
				r.scan.vanished = true
			case losesDevice(err):
				r.fatal = err
				return false, false
			default:
				r.addScanError(err)
				return false, false
			}
		}
	}
	return listed, true
}
