package collector

import (
	"iter"
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

// gpuView is a GPU with its labels.
type gpuView struct {
	*gpu.GPU
	deviceLabels
}

// deviceLabels are the labels of one device: a GPU, a GPU instance or a compute instance.
type deviceLabels struct {
	labels labels // for what the device is and does; they stay as long as the device exists
	use    labels // for how the device is used; with its holder in the mode series
	// heldSince is when the holder in use got the device; zero if there is none.
	heldSince time.Time
	parts     []deviceLabels // of the instances that the device is divided into, in their order
}

func newView(s *gpu.Snapshot, root labels, pods podLabels) *view {
	v := &view{Snapshot: s, root: root, gpus: make([]gpuView, 0, len(s.GPUs))}
	spare := make([]deviceLabels, countInstances(s)) // one allocation, not one for each device
	take := func(n int) (taken []deviceLabels) {
		taken = spare[:n:n]
		spare = spare[n:]

		return taken
	}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		plain := root.extend("gpu", strconv.Itoa(g.Index), "uuid", string(g.UUID))
		one := gpuView{GPU: g, deviceLabels: pods.labelsOfDevice(plain, g.Holders, g.Jobs, s.Time)}

		if g.UUID == "" {
			v.withoutHandle = append(v.withoutHandle, one)
			continue
		}

		one.parts = take(len(g.Instances))
		for j := range g.Instances {
			gi := &g.Instances[j]
			plain := plain.extend("gpu_instance", formatUint(gi.ID), "mig_profile", gi.Profile)
			one.parts[j] = pods.labelsOfDevice(plain, gi.Holders, gi.Jobs, s.Time)
			one.parts[j].parts = take(len(gi.ComputeInstances))

			for k := range gi.ComputeInstances {
				ci := &gi.ComputeInstances[k]
				own := plain.extend(
					"compute_instance", formatUint(ci.ID),
					"mig_uuid", string(ci.UUID),
				)
				one.parts[j].parts[k] = pods.labelsOfDevice(own, ci.Holders, gi.Jobs, s.Time)
			}
		}

		v.gpus = append(v.gpus, one)
	}

	return v
}

// countInstances counts the GPU instances and compute instances of the Snapshot.
func countInstances(s *gpu.Snapshot) int {
	count := 0
	for i := range s.GPUs {
		count += len(s.GPUs[i].Instances)
		for j := range s.GPUs[i].Instances {
			count += len(s.GPUs[i].Instances[j].ComputeInstances)
		}
	}

	return count
}

// labelsOfDevice returns the labels of a device. In the mode series, families of use name its exclusive holder and its
// only batch job. When a job began is not known: it counts as beginning now.
func (p podLabels) labelsOfDevice(
	plain labels,
	holders []gpu.Holder,
	jobs []string,
	now time.Time,
) deviceLabels {
	d := deviceLabels{labels: plain, use: plain}
	if p.mode != PodLabelsSeries {
		return d
	}

	if h := nameableHolder(holders); h != nil {
		d.use = plain.extend(containerPairs(h.Container)...)
		d.heldSince = h.Since
	}

	if p.jobs && len(jobs) == 1 {
		d.use = d.use.extend("hpc_job", jobs[0])
		d.heldSince = now
	}

	return d
}

// instances iterates over the GPU instances of the node and their labels.
func (v *view) instances() iter.Seq2[*gpu.GPUInstance, *deviceLabels] {
	return func(yield func(*gpu.GPUInstance, *deviceLabels) bool) {
		for i := range v.gpus {
			g := &v.gpus[i]
			for j := range g.Instances {
				if !yield(&g.Instances[j], &g.parts[j]) {
					return
				}
			}
		}
	}
}

// splitComputeInstances iterates over the compute instances of split GPU instances and their labels. Other compute
// instances have the same readings as their GPU instance.
func (v *view) splitComputeInstances() iter.Seq2[*gpu.ComputeInstance, *deviceLabels] {
	return func(yield func(*gpu.ComputeInstance, *deviceLabels) bool) {
		for gi, of := range v.instances() {
			for k := range gi.ComputeInstances {
				if gi.IsSplit() && !yield(&gi.ComputeInstances[k], &of.parts[k]) {
					return
				}
			}
		}
	}
}

func formatUint[T ~uint32 | ~uint64](n T) string { return strconv.FormatUint(uint64(n), 10) }
