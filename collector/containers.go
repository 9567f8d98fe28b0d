package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newContainers(c *catalog) collectFunc {
	labelNames := []string{
		"gpu_instance",
		"mig_profile",
		"compute_instance",
		"mig_uuid",
		"namespace",
		"pod",
		"container",
		"hpc_job",
		"sharing",
	}
	const deviceHelp = "gpu_instance, mig_profile, compute_instance and mig_uuid say " +
		"which device, if it is a part of the GPU."
	const alone = "of the device that a container has to itself; absent for a device that containers share. "
	declare := func(name, help string) *family {
		return c.newFamily("nvidia_gpu_container_"+name, help, deviceHelp, labelNames...)
	}
	memory := declare(
		"memory_used_bytes",
		"Framebuffer memory that a container uses: all of a device that it has to itself, that of "+
			"the processes there if this is a part of a split GPU instance, and that of the "+
			"container's own processes on a device that containers share. The processes are those of "+
			"the driver's last list, which is read when the memory in use of the GPU or of one of "+
			"its instances moves, and every 15 seconds.",
	)
	ratios := []struct {
		family *family
		value  func(*gpu.Activity) gpu.Opt[float64]
	}{
		{
			declare("sm_activity_ratio", "SM activity "+alone+"0-1."),
			func(a *gpu.Activity) gpu.Opt[float64] { return a.SM },
		},
		{
			declare(
				"dram_activity_ratio",
				"DRAM activity "+alone+"0-1; a part of a split GPU instance has none.",
			),
			func(a *gpu.Activity) gpu.Opt[float64] { return a.DRAM },
		},
		{declare("tensor_activity_ratio", "Activity of the tensor pipes "+alone+"0-1."),
			func(a *gpu.Activity) gpu.Opt[float64] { return a.Tensor }},
	}
	watts := declare(
		"power_estimate_watts",
		"Power "+alone+"A whole GPU's is measured, that of a part of one estimated.",
	)
	joules := declare(
		"energy_estimate_joules_total",
		"Energy "+alone+"It begins at 0 when the container gets the device.",
	)
	pods := c.pods

	return func(w *metricWriter, v *view) {
		if !pods.namesContainers() {
			return
		}

		for i := range v.gpus {
			g := &v.gpus[i]
			for u := range g.Containers {
				use := &g.Containers[u]

				device, activity := g.findDevice(use)
				if device == nil || use.Container == (gpu.Container{}) && !pods.jobs {
					continue
				}

				l := device.extend(pods.usePairs(use)...)
				addOpt(w, memory, l, use.MemoryUsed)
				addOpt(w, watts, l, use.PowerWatts)
				addOptCounter(w, joules, l, use.EnergyJoules)

				if use.Sharing != gpu.SharingExclusive {
					continue
				}

				for r := range ratios {
					addOpt(w, ratios[r].family, l, ratios[r].value(activity))
				}
			}
		}
	}
}

// usePairs returns the labels of a container's use of a device, besides those of the device, as
// alternating names and values.
func (p podLabels) usePairs(use *gpu.ContainerUse) []string {
	pairs := append(containerPairs(use.Container), "sharing", string(use.Sharing))
	if p.jobs {
		pairs = append(pairs, "hpc_job", use.Job)
	}

	return pairs
}

// findDevice returns the labels and the activity of the used device; nil if it does not exist.
func (g *gpuView) findDevice(use *gpu.ContainerUse) (labels, *gpu.Activity) {
	for i := range g.devices {
		d := &g.devices[i]
		if id := d.ID(); id.Instance() != use.Instance || id.Compute() != use.Compute {
			continue
		}

		if d.Compute != nil && !d.Instance.IsSplit() {
			return d.labels, &d.Instance.Activity
		}

		return d.labels, &d.Activity
	}

	return nil, nil
}
