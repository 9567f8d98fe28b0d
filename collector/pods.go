package collector

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func newPods(c *catalog) collectFunc {
	labelNames := []string{
		"namespace",
		"pod",
		"container",
		"workload",
		"resource",
		"sharing",
		"replica",
		"confirmed",
	}
	const shared = "One series at most is exclusive and confirmed; a device that " +
		"containers share has one for each, with their sharing and replica. sharing is " +
		"unknown while what is known contradicts itself, confirmed false while it is not " +
		"known whether the container still holds the device."
	const held = "1 when a container or, on a node without a kubelet, a batch job or a process holds "
	const unknown = ", else 0; absent while it is not known, as after a restart of the kubelet or " +
		"this exporter until the kubelet's list is complete."
	gpuPod := c.newFamily(
		"nvidia_gpu_pod_info",
		"A container that was given the whole GPU, with the value 1.",
		"The holders of its instances are in the series of the instances. "+shared,
		labelNames...)
	giPod := c.newFamily("nvidia_mig_gpu_instance_pod_info",
		"The pod that holds every compute instance of the GPU instance, with the value 1.",
		"Absent if pods have parts of it. "+shared, labelNames...)
	ciPod := c.newFamily("nvidia_mig_compute_instance_pod_info",
		"A container that was given the compute instance, with the value 1.",
		"A MIG device. "+splitOnly+" "+shared, labelNames...)
	gpuAllocated := c.newFamily(
		"nvidia_gpu_allocated",
		held+"the GPU"+unknown,
		"1 also when any device of it is held.",
	)
	giAllocated := c.newFamily("nvidia_mig_gpu_instance_allocated",
		held+"the GPU instance"+unknown,
		"1 also when any compute instance of it is held.")
	ciAllocated := c.newFamily(
		"nvidia_mig_compute_instance_allocated",
		held+"the compute instance"+unknown,
		"A MIG device. "+splitOnly,
	)
	pods := c.pods

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOptBool(w, gpuAllocated, g.labels, g.Allocated)
			pods.writeHolderInfo(w, gpuPod, g.labels, g.Holders)
		}

		for gi, dev := range v.instances() {
			addOptBool(w, giAllocated, dev.labels, gi.Allocated)
			pods.writeHolderInfo(w, giPod, dev.labels, gi.Holders)
		}

		for ci, dev := range v.splitComputeInstances() {
			addOptBool(w, ciAllocated, dev.labels, ci.Allocated)
			pods.writeHolderInfo(w, ciPod, dev.labels, ci.Holders)
		}
	}
}

// writeHolderInfo writes a series for every holder of a device. The documented joins need at most
// one confirmed exclusive holder of a device: if there are several, it writes none of them and
// records an error.
func (p podLabels) writeHolderInfo(
	w *metricWriter,
	f *family,
	device labels,
	holders []gpu.Holder,
) {
	if p.mode == PodLabelsOff {
		return
	}

	exclusive := 0

	for i := range holders {
		if holders[i].Sharing == gpu.SharingExclusive && isConfirmed(&holders[i]) {
			exclusive++
		}
	}

	if exclusive > 1 {
		w.addError(
			fmt.Errorf("%s: a device with %d confirmed exclusive holders", f.desc, exclusive),
		)
	}

	for i := range holders {
		h := &holders[i]
		if h.Undescribed || h.Sharing == gpu.SharingExclusive && isConfirmed(h) && exclusive > 1 {
			continue
		}

		var pairs [16]string
		w.add(f, device.extend(p.infoPairs(pairs[:0], h)...), 1)
	}
}
