package collector

import (
	"strconv"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The ratios of each group, as indexes of gpu.Activity.All: graphics engine, SM, occupancy, tensor
// and DRAM; FP64, FP32 and FP16.
func basicActivityRatios() []int { return []int{0, 1, 2, 3, 7} }
func pipeActivityRatios() []int  { return []int{4, 5, 6} }

func newActivity(c *catalog) collectFunc {
	write := newActivityRatios(c, basicActivityRatios())
	source := c.newFamily(
		"nvidia_gpu_activity_source",
		"Where the activity ratios of the GPU and its instances come from (gpm or dcgm), "+
			"with the value 1; absent if there are none.",
		"rollup is true if the GPU's own ratios are rolled up from its GPU instances, else false.",
		"source",
		"rollup",
	)
	anomalies := c.newFamily(
		"nvidia_gpu_activity_anomalies_total",
		"Activity ratios that cannot be: above 1, which are passed on, "+
			"and such as are no numbers, which are absent.",
		"Those of its instances are counted here too.",
	)

	return func(w *metricWriter, v *view) {
		write(w, v)

		for i := range v.gpus {
			g := &v.gpus[i]
			if g.ActivitySource != gpu.ActivityUnknown && hasAnyActivity(g.GPU) {
				l := g.labels.extend(
					"source", string(g.ActivitySource),
					"rollup", strconv.FormatBool(g.ActivityRollup),
				)
				w.add(source, l, 1)
			}

			addOptCounter(w, anomalies, g.labels, g.Totals.ActivityAnomalies)
		}
	}
}

func newPipes(c *catalog) collectFunc {
	return collectFunc(newActivityRatios(c, pipeActivityRatios()))
}

// newActivityRatios declares ratios at every level, and returns a function that writes them. The
// ratios are named by their indexes in gpu.Activity.All.
func newActivityRatios(c *catalog, ratios []int) func(*metricWriter, *view) {
	const above = ", over the SMs of the largest profile. Absent if the activity of one of them is not reported."
	gpuFamilies := newActivityFamilies(c, ratios, "nvidia_gpu_", "the GPU", activityMeaning{
		sm: "Rolled up from the GPU instances while any has a compute instance: " +
			"sum of each one's ratio times its SMs" + above,
		dram: "Rolled up from the GPU instances while any has a compute instance: sum of each one's " +
			"ratio times its memory slices, over the memory slices of the largest profile. Absent if the " +
			"activity of one of them is not reported.",
	})
	instance := newActivityFamilies(
		c,
		ratios,
		"nvidia_mig_gpu_instance_",
		"the GPU instance",
		activityMeaning{
			sm:   "Relative to the GPU instance: 1 is all of its own SMs, not of the GPU's.",
			dram: "Relative to the GPU instance: 1 is the bandwidth of its own memory slices, not the GPU's.",
		},
	)
	compute := newActivityFamilies(
		c,
		ratios,
		"nvidia_mig_compute_instance_",
		"the compute instance",
		activityMeaning{
			sm: "Relative to the compute instance: 1 is all of its own SMs, " +
				"not those of its GPU instance. " + splitOnly,
		},
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			gpuFamilies.writeRatios(w, v.gpus[i].use, &v.gpus[i].Activity)
		}

		for gi, dev := range v.instances() {
			instance.writeRatios(w, dev.use, &gi.Activity)
		}

		for ci, dev := range v.splitComputeInstances() {
			compute.writeRatios(w, dev.use, &ci.Activity)
		}
	}
}

// hasAnyActivity reports whether the GPU or any instance has a ratio: a source may have none for a
// while.
func hasAnyActivity(g *gpu.GPU) bool {
	for d := range g.Devices() {
		for _, ratio := range d.Activity.All() {
			if ratio.Present() {
				return true
			}
		}
	}

	return false
}

// activityMeaning is what the ratios mean under MIG, in sm for ratios of the SMs; empty if the
// device has no such ratio.
type activityMeaning struct{ sm, dram string }

// activityFamilies are the families of one level: GPU, GPU instance or compute instance.
type activityFamilies struct {
	// families are in the order of gpu.Activity's fields; nil for a ratio that the device does not
	// have or that another group serves.
	families [8]*family
}

func newActivityFamilies(
	c *catalog,
	ratios []int,
	prefix, device string,
	mig activityMeaning,
) activityFamilies {
	pipe := func(pipes string) string {
		return "Part of the cycles in which the " + pipes + " of " + device + " were active, 0-1."
	}
	texts := [8]struct{ name, help, mig string }{
		{
			"graphics_engine_activity",
			"Part of the time in which the graphics or compute engine of " + device +
				" was active, 0-1.",
			mig.sm,
		},
		{
			"sm_activity",
			"Part of the time in which an SM of " + device + " had at least one warp, mean over its SMs, 0-1.",
			mig.sm,
		},
		{
			"sm_occupancy",
			"Warps that were resident on the SMs of " + device + ", of those possible, mean over its SMs, 0-1.",
			mig.sm,
		},
		{"tensor_activity", pipe("tensor pipes"), mig.sm},
		{"fp64_activity", pipe("FP64 pipes"), mig.sm},
		{"fp32_activity", pipe("FP32 pipes"), mig.sm},
		{"fp16_activity", pipe("FP16 pipes"), mig.sm},
		{
			"dram_activity",
			"Part of the cycles in which the device memory of " + device + " moved data, 0-1.",
			mig.dram,
		},
	}
	var f activityFamilies

	for _, i := range ratios {
		if texts[i].mig != "" {
			f.families[i] = c.newFamily(prefix+texts[i].name+"_ratio", texts[i].help, texts[i].mig)
		}
	}

	return f
}

func (f *activityFamilies) writeRatios(w *metricWriter, l labels, a *gpu.Activity) {
	for i, ratio := range a.All() {
		if f.families[i] != nil {
			addOpt(w, f.families[i], l, *ratio)
		}
	}
}
