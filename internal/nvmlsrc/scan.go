package nvmlsrc

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// scan is a cheap look at a GPU's GI/CI tree: which entities there are. Two scans with the same identities are of the
// same tree; handles are those of the moment, and go stale with any change.
type scan struct {
	devices   []migEntry      // MIG devices, by NVML's index
	instances []instanceEntry // GPU instances; empty where the process may not list them
	listed    bool            // the instances are all there are
}

type migEntry struct {
	handle MIGDevice
	identity
}

// identity is what a MIG device is known by. A UUID tells the places of the instances, the legacy form only their ids. The
// profile of the GPU instance, of which several fit some places, is in the name, and in the list of GPU instances where
// the process may see that.
type identity struct {
	instance gpu.InstanceID
	compute  gpu.ComputeID
	uuid     gpu.MIGUUID
	name     string
	named    bool // the name was asked for
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

// torn tells whether the scan contradicts itself, which it does where a GPU was cut anew between its calls: a MIG device
// is of no instance that there is, or two instances share memory.
func (s *scan) torn() bool {
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

// look scans the tree. It is false where that failed, with the error on record; r.moved is set where something vanished
// while it was looked at.
func (r *round) look(to *scan) bool {
	to.devices, to.instances = to.devices[:0], to.instances[:0]
	var ok bool
	to.listed, ok = r.lookForInstances(to)
	return ok && r.lookForDevices(to, !to.listed)
}

// failScan makes an error of an entity that does not tell what it is, also where that is not supported: without it the
// tree is not known.
func (r *round) failScan(err error) {
	r.errs = append(r.errs, gpu.ReadError{Reading: gpu.ReadingMIG, Err: err})
}

// lookForDevices finds the MIG devices, with their names where wanted. Their indexes are sparse.
func (r *round) lookForDevices(to *scan, named bool) bool {
	most, ok := r.mostDevices()
	denied := false
	for i := 0; ok && i < most; i++ {
		h, ret := r.dev.GetMigDeviceHandleByIndex(i)
		err := r.source.check("nvmlDeviceGetMigDeviceHandleByIndex", ret)
		var e migEntry
		if err == nil {
			e, err = r.identify(h, named)
		} else if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotSupported) {
			break // no index from here on
		} else if errors.Is(err, gpu.ErrNotFound) {
			continue
		}
		switch {
		case err == nil && !to.has(e.instance, e.compute):
			to.devices = append(to.devices, e)
		case err == nil, losesEntity(err): // one that is there twice was made anew behind our back
			r.moved = true
		case errors.Is(err, gpu.ErrNoPermission):
			if !denied {
				r.source.privilege.lacks(hiddenDevices)
				r.fail(gpu.ReadingMIG, err)
			}
			denied = true
		case losesDevice(err):
			r.fatal = err
			return false
		default:
			r.failScan(err)
			return false
		}
	}
	if r.board.tree.hidden && !denied {
		r.source.privilege.regained(hiddenDevices)
	}
	r.board.tree.hidden = denied
	return ok
}

// mostDevices is how many MIG devices the GPU can have, asked once per MIG mode.
func (r *round) mostDevices() (int, bool) {
	st := &r.board.static
	if !st.mostKnown {
		most, ok := ask(&r.asker, "nvmlDeviceGetMaxMigDeviceCount", gpu.ReadingMIG, r.dev.GetMaxMigDeviceCount)
		if !ok {
			return 0, r.unsupported["nvmlDeviceGetMaxMigDeviceCount"]
		}
		st.mostMIG, st.mostKnown = most, most > 0 // 0 is what a driver says whose MIG is only about to be on
	}
	return st.mostMIG, true
}

// identify asks a MIG device what it is.
func (r *round) identify(h MIGDevice, named bool) (migEntry, error) {
	e := migEntry{handle: h}
	instance, ret := h.GetGpuInstanceId()
	if err := r.source.check("nvmlDeviceGetGpuInstanceId", ret); err != nil {
		return e, err
	}
	compute, ret := h.GetComputeInstanceId()
	if err := r.source.check("nvmlDeviceGetComputeInstanceId", ret); err != nil {
		return e, err
	}
	uuid, ret := h.GetUUID()
	if err := r.source.check("nvmlDeviceGetUUID", ret); err != nil {
		return e, err
	}
	e.instance, e.compute, e.uuid = gpu.InstanceID(instance), gpu.ComputeID(compute), gpu.MIGUUID(text(uuid))
	if _, legacy, err := gpu.ParseMIGUUID(string(e.uuid)); named || err != nil || legacy.Present() {
		name, ret := h.GetName()
		if err := r.source.check("nvmlDeviceGetName", ret); err != nil && !errors.Is(err, gpu.ErrNotSupported) {
			return e, err
		}
		e.name, e.named = name, true
	}
	return e, nil
}

// lookForInstances finds the GPU instances, those without a compute instance too. That needs privilege; without it the
// tree is what the MIG devices tell. It tells whether all are listed, and is not ok where that is not known.
func (r *round) lookForInstances(to *scan) (listed, ok bool) {
	listed = len(r.board.static.profiles) > 0
	for i := range r.board.static.profiles {
		p := &r.board.static.profiles[i]
		list, ok := ask(&r.asker, p.list, gpu.ReadingMIG, func() ([]GPUInstance, nvml.Return) {
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
			err := r.source.check("nvmlGpuInstanceGetInfo", ret)
			switch {
			case err == nil:
				to.instances = append(to.instances, instanceEntry{handle: h, info: info})
			case losesEntity(err):
				r.moved = true
			case losesDevice(err):
				r.fatal = err
				return false, false
			default:
				r.failScan(err)
				return false, false
			}
		}
	}
	return listed, true
}
