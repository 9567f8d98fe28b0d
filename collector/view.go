package collector

import (
	"strconv"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// view is a Snapshot with the labels of its devices, which are made once for all groups.
type view struct {
	*gpu.Snapshot
	root          labels // the empty set, which all labels of the Snapshot extend
	gpus          []gpuView
	withoutHandle []gpuView // GPUs without a handle: only their index and errors are known
}

// deviceLabels are the labels of one device.
type deviceLabels struct {
	labels labels // for what the device is and does; they stay as long as the device exists
	use    labels // for how the device is used; with its holder in the mode series
	// heldSince is when the holder in use got the device; zero if there is none.
	heldSince time.Time
}

type gpuView struct {
	*gpu.GPU
	deviceLabels
	instances []instanceView
}

type instanceView struct {
	*gpu.GPUInstance
	deviceLabels
	computeInstances []computeView
}

type computeView struct {
	*gpu.ComputeInstance
	deviceLabels
}

func newView(s *gpu.Snapshot, root labels, pods podLabels) *view {
	v := &view{Snapshot: s, root: root, gpus: make([]gpuView, 0, len(s.GPUs))}
	instances, computes := allocateViews(s)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		plain := root.extend("gpu", strconv.Itoa(g.Index), "uuid", string(g.UUID))
		one := gpuView{
			GPU: g, deviceLabels: pods.labelsOfDevice(plain, g.Holders, g.Jobs, s.Time),
		}
		if g.UUID == "" {
			v.withoutHandle = append(v.withoutHandle, one)
			continue
		}
		one.instances, instances = instances[:len(g.Instances):len(g.Instances)], instances[len(g.Instances):]
		for j := range g.Instances {
			gi := &g.Instances[j]
			one.instances[j].computeInstances, computes = computes[:len(gi.ComputeInstances):len(gi.ComputeInstances)],
				computes[len(gi.ComputeInstances):]
			one.instances[j].setInstance(plain, gi, pods, s.Time)
		}
		v.gpus = append(v.gpus, one)
	}
	return v
}

// allocateViews returns views for all devices of the Snapshot: one allocation of each kind, not one for each device.
func allocateViews(s *gpu.Snapshot) ([]instanceView, []computeView) {
	instances, computes := 0, 0
	for i := range s.GPUs {
		instances += len(s.GPUs[i].Instances)
		for j := range s.GPUs[i].Instances {
			computes += len(s.GPUs[i].Instances[j].ComputeInstances)
		}
	}
	return make([]instanceView, instances), make([]computeView, computes)
}

// setInstance sets everything of a GPU instance; the view has room for its compute instances.
func (v *instanceView) setInstance(parent labels, gi *gpu.GPUInstance, pods podLabels, now time.Time) {
	plain := parent.extend("gpu_instance", formatUint(gi.ID), "mig_profile", gi.Profile)
	v.GPUInstance, v.deviceLabels = gi, pods.labelsOfDevice(plain, gi.Holders, gi.Jobs, now)
	for k := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[k]
		own := plain.extend("compute_instance", formatUint(ci.ID), "mig_uuid", string(ci.UUID))
		v.computeInstances[k] = computeView{ComputeInstance: ci,
			deviceLabels: pods.labelsOfDevice(own, ci.Holders, gi.Jobs, now)}
	}
}

// labelsOfDevice returns the labels of a device. In the mode series, families of use name its exclusive holder and its
// only batch job. When a job began is not known: it counts as beginning now.
func (p podLabels) labelsOfDevice(plain labels, holders []gpu.Holder, jobs []string, now time.Time) deviceLabels {
	d := deviceLabels{labels: plain, use: plain}
	if p.mode != PodLabelsSeries {
		return d
	}
	if h := nameableHolder(holders); h != nil {
		d.use, d.heldSince = plain.extend(containerPairs(h.Container)...), h.Since
	}
	if p.jobs && len(jobs) == 1 {
		d.use, d.heldSince = d.use.extend("hpc_job", jobs[0]), now
	}
	return d
}

// eachInstance calls f for every GPU instance of the node.
func (v *view) eachInstance(f func(*gpuView, *instanceView)) {
	for i := range v.gpus {
		for j := range v.gpus[i].instances {
			f(&v.gpus[i], &v.gpus[i].instances[j])
		}
	}
}

// eachCompute calls f for every compute instance of the node.
func (v *view) eachCompute(f func(*computeView)) {
	v.eachInstance(func(_ *gpuView, gi *instanceView) {
		for k := range gi.computeInstances {
			f(&gi.computeInstances[k])
		}
	})
}

// eachSplitCompute calls f for every compute instance of a split GPU instance. Other compute instances have the same
// readings as their GPU instance.
func (v *view) eachSplitCompute(f func(*computeView)) {
	v.eachInstance(func(_ *gpuView, gi *instanceView) {
		if !gi.IsSplit() {
			return
		}
		for k := range gi.computeInstances {
			f(&gi.computeInstances[k])
		}
	})
}

func formatUint[T ~uint32 | ~uint64](n T) string { return strconv.FormatUint(uint64(n), 10) }
