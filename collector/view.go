package collector

import (
	"iter"
	"strconv"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// view is a Snapshot with the labels of its devices, which all groups share.
type view struct {
	*gpu.Snapshot
	root          labels // the empty set, which all labels of the Snapshot extend
	gpus          []gpuView
	devices       []deviceView // as Snapshot.Devices yields them
	withoutHandle []gpuView    // GPUs without a handle: only their index and errors are known
}

// gpuView is a GPU with its labels.
type gpuView struct {
	*gpu.GPU
	*deviceLabels
	devices []deviceView // the GPU and its instances
}

// deviceView is a device with its labels.
type deviceView struct {
	gpu.Visit
	deviceLabels
}

// deviceLabels are the labels of one device: a GPU, a GPU instance or a compute instance.
type deviceLabels struct {
	labels labels // for what the device is and does; they stay as long as the device exists
	use    labels // for how the device is used: in the mode series with its holder, else the same
	// heldSince is when the holder in use got the device; zero if use names none.
	heldSince time.Time
}

func newView(s *gpu.Snapshot, root labels, pods podLabels) *view {
	count := 0
	for range s.Devices() {
		count++
	}

	v := &view{
		Snapshot: s,
		root:     root,
		gpus:     make([]gpuView, 0, len(s.GPUs)),
		devices:  make([]deviceView, 0, count), // one allocation, not one for each device
	}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		devices := v.addDevices(g, pods)
		one := gpuView{GPU: g, deviceLabels: &devices[0].deviceLabels, devices: devices}

		if g.UUID == "" {
			v.withoutHandle = append(v.withoutHandle, one)
		} else {
			v.gpus = append(v.gpus, one)
		}
	}

	return v
}

// addDevices adds a GPU and its instances, and returns them.
func (v *view) addDevices(g *gpu.GPU, pods podLabels) []deviceView {
	first := len(v.devices)
	var ofGPU, ofInstance labels

	for d := range g.Devices() {
		var own labels

		switch {
		case d.Instance == nil:
			own = v.root.extend("gpu", strconv.Itoa(g.Index), "uuid", string(g.UUID))
			ofGPU = own
		case d.Compute == nil:
			own = ofGPU.extend(
				"gpu_instance", formatUint(d.Instance.ID),
				"mig_profile", d.Instance.Profile,
			)
			ofInstance = own
		default:
			own = ofInstance.extend(
				"compute_instance", formatUint(d.Compute.ID),
				"mig_uuid", string(d.Compute.UUID),
			)
		}

		v.devices = append(v.devices, deviceView{d, pods.labelsOfDevice(own, d, v.Time)})
	}

	return v.devices[first:]
}

// labelsOfDevice returns the labels of a device. In the mode series, families of use name its
// exclusive holder and its only batch job. We do not know when a job began: it counts as beginning
// now.
func (p podLabels) labelsOfDevice(plain labels, d gpu.Visit, now time.Time) deviceLabels {
	l := deviceLabels{labels: plain, use: plain}
	if p.mode != PodLabelsSeries {
		return l
	}

	if h := nameableHolder(d.Holders); h != nil {
		l.use = plain.extend(containerPairs(h.Container)...)
		l.heldSince = h.Since
	}

	if jobs := d.Jobs(); p.jobs && len(jobs) == 1 {
		l.use = l.use.extend("hpc_job", jobs[0])
		l.heldSince = now
	}

	return l
}

// instances iterates over the GPU instances of the node and their labels.
func (v *view) instances() iter.Seq2[*gpu.GPUInstance, *deviceLabels] {
	return func(yield func(*gpu.GPUInstance, *deviceLabels) bool) {
		for i := range v.devices {
			d := &v.devices[i]
			if d.Instance != nil && d.Compute == nil && !yield(d.Instance, &d.deviceLabels) {
				return
			}
		}
	}
}

// computeInstances iterates over the compute instances of the node and their labels.
func (v *view) computeInstances() iter.Seq2[*gpu.ComputeInstance, *deviceView] {
	return func(yield func(*gpu.ComputeInstance, *deviceView) bool) {
		for i := range v.devices {
			d := &v.devices[i]
			if d.Compute != nil && !yield(d.Compute, d) {
				return
			}
		}
	}
}

// splitComputeInstances iterates over the compute instances of split GPU instances and their
// labels. Other compute instances have the same readings as their GPU instance.
func (v *view) splitComputeInstances() iter.Seq2[*gpu.ComputeInstance, *deviceLabels] {
	return func(yield func(*gpu.ComputeInstance, *deviceLabels) bool) {
		for ci, d := range v.computeInstances() {
			if d.Instance.IsSplit() && !yield(ci, &d.deviceLabels) {
				return
			}
		}
	}
}

func formatUint[T ~uint32 | ~uint64](n T) string { return strconv.FormatUint(uint64(n), 10) }
