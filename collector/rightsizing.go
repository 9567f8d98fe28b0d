package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Advice is what right-sizing says of a whole GPU or of a GPU instance.
type Advice struct {
	GPU       gpu.UUID
	Instance  gpu.Opt[gpu.InstanceID] // present if the device is a GPU instance
	Placement gpu.Opt[gpu.Placement]
	// Holder is the container that holds the device; zero if not exactly one does.
	Holder gpu.Container
	// Action is set if the device should be another one: "slice" for a whole GPU; "shrink", "grow"
	// or "idle" for a GPU instance.
	Action string
	// Profile is the recommended profile; empty if there is none.
	Profile string
	// Rejected is why no slice is recommended for a whole GPU; empty if there is no reason to show.
	Rejected                string
	Confidence, Reclaimable gpu.Opt[float64]
	StretchLow, StretchHigh gpu.Opt[float64]
	LatencyLow, LatencyHigh gpu.Opt[float64] // absent if unknown, or if the workload answers no requests
	// Figure names the figure of a candidate that is nearest to its limit, such as "latency" or
	// "memory"; Deciding is its value. FreedGPUs is the candidate's share of the whole GPUs that
	// become free.
	Figure              string
	Deciding, FreedGPUs gpu.Opt[float64]
}

// rightsizingFamilies are the families of the group.
type rightsizingFamilies struct {
	candidate, rejected, confidence, stretch, latency, deciding, reclaimable, freed, instance *family
}

func declareRightsizing(c *catalog) *rightsizingFamilies {
	f := &rightsizingFamilies{}
	const whole = "Of a GPU that is held as a whole; GPUs in MIG mode have none."
	pod := []string{"namespace", "pod", "container", "recommended_profile"}
	f.candidate = c.newFamily(
		"nvidia_gpu_rightsizing_candidate",
		"1 for a whole GPU whose work a GPU instance of recommended_profile does, by the evidence of "+
			"seven days or more; docs/rightsizing.md says what that is.",
		whole,
		pod...)
	f.rejected = c.newFamily(
		"nvidia_gpu_rightsizing_rejected",
		"1 with the reason for which no slice is recommended for a whole GPU; absent "+
			"while there is too little evidence.",
		whole,
		"reason",
	)
	f.confidence = c.newFamily(
		"nvidia_gpu_rightsizing_confidence_ratio",
		"How much the evidence on a whole GPU's workload can be relied on, 0-1: 1 is "+
			"a week of complete observation with an hour of kernels and a start that "+
			"was seen; what is known least decides.",
		whole,
	)
	f.stretch = c.newFamily(
		"nvidia_gpu_rightsizing_stretch_ratio",
		"How many times as long as now a candidate's kernels take in the recommended slice, at p95: at "+
			"least (low), and with the worst mix of kernels (high). Absent if nothing ran: it is unknown.",
		whole,
		"bound",
	)
	f.latency = c.newFamily(
		"nvidia_gpu_rightsizing_latency_ratio",
		"How many times as long as now a candidate's requests take in the recommended slice, waiting "+
			"included, at p95 of the busiest hour: at least (low) and at most (high; 1000: their queue may "+
			"grow without bound). Absent if the work answers no requests, or if it is unknown.",
		whole,
		"bound",
	)
	f.deciding = c.newFamily(
		"nvidia_gpu_rightsizing_deciding_ratio",
		"The figure of a candidate that is nearest to its limit in the recommended slice: how many "+
			"times as long requests take at p95 (latency), kernels (stretch), or all work of jobs, of "+
			"clients that wait or that the slice has no time for (throughput); p99 of busy time or its "+
			"busiest ten minutes (busy); or the share of the slice's memory, with headroom and growth, or "+
			"of its media engines that is needed (memory, media).",
		whole,
		"figure",
	)
	f.reclaimable = c.newFamily("nvidia_gpu_rightsizing_reclaimable_ratio",
		"Share of a candidate's SMs that the recommended slice would set free, 0-1.", whole)
	f.freed = c.newFamily(
		"nvidia_gpu_rightsizing_freed_gpus",
		"A candidate's share of the whole GPUs that its node has free after all "+
			"candidates have moved; 0 if it only makes room.",
		whole,
	)
	f.instance = c.newFamily(
		"nvidia_mig_gpu_instance_rightsizing_candidate",
		"1 for a GPU instance that should be smaller (action shrink) or larger (grow), or whose "+
			"container has held its memory for a day and run no kernel (idle).",
		"recommended_profile is a profile of the same GPU; absent if no other one is recommended.",
		append([]string{"action"}, pod...)...)

	return f
}

func newRightsizing(c *catalog) collectFunc {
	families := declareRightsizing(c)
	advice := c.advice
	pods := c.pods

	return func(w *metricWriter, v *view) {
		if advice == nil {
			return
		}

		for _, a := range advice() {
			at := slices.IndexFunc(v.gpus, func(g gpuView) bool { return g.UUID == a.GPU })
			if at < 0 {
				continue
			}

			g := &v.gpus[at]
			if !a.Instance.Present() {
				if !g.MIG.Enabled.Or(false) && isStillHeldBy(g.Holders, a.Holder) {
					families.writeWhole(w, g.labels, &a, pods)
				}

				continue
			}

			if d := g.findAdvised(&a); d != nil {
				holder := a.Holder
				if d.Instance.IsSplit() {
					holder = gpu.Container{} // others may have parts of it
				}

				w.add(
					families.instance,
					d.labels.extend(
						append(pods.advicePairs(&a, holder), "action", a.Action)...), 1,
				)
			}
		}
	}
}

// writeWhole writes the advice for a whole GPU that has the labels l.
func (f *rightsizingFamilies) writeWhole(w *metricWriter, l labels, a *Advice, pods podLabels) {
	if a.Action != "" {
		w.add(f.candidate, l.extend(pods.advicePairs(a, a.Holder)...), 1)
	}

	if a.Rejected != "" {
		w.add(f.rejected, l.extend("reason", a.Rejected), 1)
	}

	addOpt(w, f.confidence, l, a.Confidence)
	addOpt(w, f.reclaimable, l, a.Reclaimable)
	addOpt(w, f.freed, l, a.FreedGPUs)

	if a.Deciding.Present() {
		addOpt(w, f.deciding, l.extend("figure", a.Figure), a.Deciding)
	}

	if a.StretchLow.Present() {
		addOpt(w, f.stretch, l.extend("bound", "low"), a.StretchLow)
		addOpt(w, f.stretch, l.extend("bound", "high"), a.StretchHigh)
	}

	if a.LatencyLow.Present() {
		addOpt(w, f.latency, l.extend("bound", "low"), a.LatencyLow)
		addOpt(w, f.latency, l.extend("bound", "high"), a.LatencyHigh)
	}
}

// findAdvised returns the GPU instance that the advice is about; nil if another instance has its id
// now, or another container holds it.
func (g *gpuView) findAdvised(a *Advice) *deviceView {
	for i := range g.devices {
		d := &g.devices[i]

		id := d.ID()
		if id.Instance() == a.Instance && !id.Compute().Present() && d.Instance.Placement == a.Placement &&
			(d.Instance.IsSplit() || isStillHeldBy(d.Holders, a.Holder)) {
			return d
		}
	}

	return nil
}

// isStillHeldBy reports whether only this container holds the device; for the zero container,
// whether not exactly one does.
func isStillHeldBy(holders []gpu.Holder, container gpu.Container) bool {
	if len(holders) != 1 {
		return container == gpu.Container{}
	}

	return holders[0].Container == container && !holders[0].Undescribed
}

// advicePairs returns the labels of a candidate besides those of its device, as alternating names
// and values.
func (p podLabels) advicePairs(a *Advice, holder gpu.Container) []string {
	pairs := []string{"recommended_profile", a.Profile}
	if p.mode == PodLabelsOff {
		return pairs
	}

	return append(pairs, containerPairs(holder)...)
}
