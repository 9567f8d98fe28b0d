package collector

import (
	"strconv"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func newActivity(c *catalog) collectFunc {
	board := newActivityFamilies(c, "nvidia_gpu_", "the GPU", activityMeaning{
		sm: "Rolled up from the GPU instances while any has a compute instance: sum of each one's ratio times its SMs, over the SMs " +
			"of the largest profile. Absent where one of them does not tell.",
		dram: "Rolled up from the GPU instances while any has a compute instance: sum of each one's ratio times its memory slices, " +
			"over the memory slices of the largest profile. Absent where one of them does not tell.",
	})
	instance := newActivityFamilies(c, "nvidia_mig_gpu_instance_", "the GPU instance", activityMeaning{
		sm:   "Relative to the GPU instance: 1 is all of its own SMs, not of the board's.",
		dram: "Relative to the GPU instance: 1 is the bandwidth of its own memory slices, not the board's.",
	})
	compute := newActivityFamilies(c, "nvidia_mig_compute_instance_", "the compute instance", activityMeaning{
		sm: "Relative to the compute instance: 1 is all of its own SMs, not those of its GPU instance.",
	})
	source := c.family("nvidia_gpu_activity_source",
		"Where the activity ratios of the GPU and its instances come from (gpm or dcgm), with the value 1; absent where nobody tells any.",
		"rollup is true where the GPU's own ratios are rolled up from its GPU instances, else false.", "source", "rollup")
	anomalies := c.family("nvidia_gpu_activity_anomalies_total",
		"Activity ratios that cannot be, by kind: above_one, which were passed on, and garbled, which were no numbers and are absent.",
		"Those of its instances are counted here too.", "kind")
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			board.write(k, g.labels, &g.Activity)
			if g.ActivitySource != gpu.ActivityUnknown && tellsActivity(g.GPU) {
				l := g.labels.extend("source", string(g.ActivitySource), "rollup", strconv.FormatBool(g.ActivityRollup))
				k.add(source, l, 1)
			}
			anomaly(k, anomalies, g, "above_one", g.Totals.ActivityAboveOne)
			anomaly(k, anomalies, g, "garbled", g.Totals.ActivityGarbled)
		}
		v.eachInstance(func(_ *gpuView, gi *instanceView) { instance.write(k, gi.labels, &gi.Activity) })
		v.eachCompute(func(ci *computeView) { compute.write(k, ci.labels, &ci.Activity) })
	}
}

// tellsActivity tells whether there is any ratio of the GPU or of a device of it: a source may have none for a while.
func tellsActivity(g *gpu.GPU) bool {
	some := hasRatio(&g.Activity)
	for i := range g.Instances {
		gi := &g.Instances[i]
		some = some || hasRatio(&gi.Activity)
		for c := range gi.Computes {
			some = some || hasRatio(&gi.Computes[c].Activity)
		}
	}
	return some
}

func hasRatio(a *gpu.Activity) bool {
	for _, ratio := range a.All() {
		if ratio.Present() {
			return true
		}
	}
	return false
}

func anomaly(k *sink, f *family, g *gpuView, kind string, count gpu.Opt[gpu.Counter]) {
	if c, ok := count.Get(); ok {
		k.count(f, g.labels.extend("kind", kind), c, g.heldSince)
	}
}

// activityMeaning is what the ratios mean under MIG: of the SMs, and of the memory; empty where there is none of it.
type activityMeaning struct{ sm, dram string }

// activityFamilies are the same for a GPU, a GPU instance and a compute instance.
type activityFamilies struct {
	// of are the families in the order of gpu.Activity's fields; nil for a ratio that the device does not have.
	of [8]*family
}

func newActivityFamilies(c *catalog, prefix, of string, mig activityMeaning) activityFamilies {
	name := func(what string) string { return prefix + what + "_ratio" }
	pipe := func(what, says string) *family {
		return c.family(name(what+"_activity"), "Part of the cycles in which the "+says+" of "+of+" were active, 0-1.", mig.sm)
	}
	f := activityFamilies{of: [8]*family{
		c.family(name("graphics_engine_activity"),
			"Part of the time in which the graphics or compute engine of "+of+" was active, 0-1.", mig.sm),
		c.family(name("sm_activity"),
			"Part of the time in which an SM of "+of+" had at least one warp, mean over its SMs, 0-1.", mig.sm),
		c.family(name("sm_occupancy"),
			"Warps that were resident on the SMs of "+of+", of those possible, mean over its SMs, 0-1.", mig.sm),
		pipe("tensor", "tensor pipes"), pipe("fp64", "FP64 pipes"), pipe("fp32", "FP32 pipes"), pipe("fp16", "FP16 pipes"),
	}}
	if mig.dram != "" {
		f.of[7] = c.family(name("dram_activity"), "Part of the cycles in which the device memory of "+of+" moved data, 0-1.", mig.dram)
	}
	return f
}

func (f *activityFamilies) write(k *sink, l labels, a *gpu.Activity) {
	for i, ratio := range a.All() {
		if f.of[i] != nil {
			addOpt(k, f.of[i], l, *ratio)
		}
	}
}
