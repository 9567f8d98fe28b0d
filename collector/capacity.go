package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newCapacity(c *catalog) collectFunc {
	slices := c.newFamily(
		"nvidia_gpu_mig_slices",
		"Slices of a kind (compute or memory) by state; used, free and stranded add up to the total.",
		"Memory is stranded if no profile that could still be placed covers it; compute slices are stranded "+
			"if they are beyond what the best completion of the layout could use.",
		"kind",
		"state",
	)
	available := c.newFamily(
		"nvidia_gpu_mig_profile_instances_available",
		"GPU instances of the profile that could be created now.",
		"0 while MIG is off. Given what is placed; profiles compete for the same slices, so do not add them up.",
		"mig_profile",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]

			capacity, ok := g.Capacity.Get()
			if !ok {
				continue
			}

			if g.MIG.Enabled.Or(false) {
				addSlices(w, slices, g.labels.extend("kind", "compute"), capacity.Compute)
				addSlices(w, slices, g.labels.extend("kind", "memory"), capacity.Memory)
			}

			for _, p := range capacity.Profiles {
				w.add(available, g.labels.extend("mig_profile", p.Name), float64(p.Available))
			}
		}
	}
}

func newProfileMax(c *catalog) collectFunc {
	fits := c.newFamily(
		"nvidia_gpu_mig_profile_instances_max",
		"GPU instances of the profile that fit on the empty GPU.",
		"Served while MIG is off too, if the driver lists its profiles.",
		"mig_profile",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			for _, p := range g.Capacity.Or(gpu.Capacity{}).Profiles {
				w.add(fits, g.labels.extend("mig_profile", p.Name), float64(p.Max))
			}
		}
	}
}

func addSlices(w *metricWriter, f *family, l labels, c gpu.SliceCount) {
	w.add(f, l.extend("state", "used"), float64(c.Used))
	w.add(f, l.extend("state", "free"), float64(c.Free))
	w.add(f, l.extend("state", "stranded"), float64(c.Stranded))
}
