package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// eccTotal is the location that includes the others.
const eccTotal = "total"

func newECC(c *catalog) collectFunc {
	const gpuWide = "Of the whole GPU."
	const withheld = "Of the whole GPU; the driver gives none while it has instances."
	errs := c.newFamily(
		"nvidia_gpu_ecc_errors_total",
		"Memory errors by severity (corrected or uncorrected), lifetime (volatile: "+
			"since the driver was loaded; aggregate: of the GPU's life) and location; "+
			"total if the driver reports no location.",
		"Of the whole GPU; before Hopper the driver gives no volatile counts.",
		"severity",
		"lifetime",
		"location",
	)
	rows := c.newFamily(
		"nvidia_gpu_remapped_rows",
		"Rows of memory replaced by spare ones, by the severity of the errors that "+
			"led to it (corrected or uncorrected).",
		withheld,
		"severity",
	)
	failure := c.newFamily(
		"nvidia_gpu_row_remap_failure",
		"1 when a row could not be replaced: no spare is left.",
		withheld,
	)
	pending := c.newFamily(
		"nvidia_gpu_row_remap_pending",
		"1 when a row will be replaced at the next reset.",
		withheld,
	)
	recovery := c.newFamily(
		"nvidia_gpu_recovery_action",
		"What the driver asks an operator to do (none, reset, reboot, drain, ...), with the value 1.",
		gpuWide,
		"action",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			for _, e := range g.Readings.ECC {
				if e.Location == eccTotal && hasLocations(g.Readings.ECC, e) {
					continue
				}

				w.add(
					errs,
					g.labels.extend(
						"severity",
						e.Severity,
						"lifetime",
						e.Lifetime,
						"location",
						e.Location,
					),
					float64(e.Count),
				)
			}

			if r, ok := g.Readings.RemappedRows.Get(); ok {
				w.add(rows, g.labels.extend("severity", "corrected"), float64(r.Correctable))
				w.add(rows, g.labels.extend("severity", "uncorrected"), float64(r.Uncorrectable))
				w.addBool(failure, g.labels, r.Failure)
				w.addBool(pending, g.labels, r.Pending)
			}

			if action, ok := g.Readings.RecoveryAction.Get(); ok {
				w.add(recovery, g.labels.extend("action", string(action)), 1)
			}
		}
	}
}

func newInstanceECC(c *catalog) collectFunc {
	const help = "Memory errors of the MIG device by severity, lifetime and location, as " +
		"nvidia_gpu_ecc_errors_total. Drivers count the uncorrectable ones of SRAM since " +
		"they were loaded; absent if they do not."
	instance := c.newFamily("nvidia_mig_gpu_instance_ecc_errors_total", help,
		"Of its only compute instance. A split GPU instance has none: see its compute instances.",
		"severity", "lifetime", "location")
	compute := c.newFamily("nvidia_mig_compute_instance_ecc_errors_total", help, splitOnly,
		"severity", "lifetime", "location")

	write := func(w *metricWriter, f *family, l labels, counts []gpu.ECCCount) {
		for _, e := range counts {
			w.add(
				f,
				l.extend("severity", e.Severity, "lifetime", e.Lifetime, "location", e.Location),
				float64(e.Count),
			)
		}
	}

	return func(w *metricWriter, v *view) {
		for gi, dev := range v.instances() {
			if len(gi.ComputeInstances) == 1 && !gi.IsSplit() {
				write(w, instance, dev.labels, gi.ComputeInstances[0].ECC)
			}
		}

		for ci, dev := range v.splitComputeInstances() {
			write(w, compute, dev.labels, ci.ECC)
		}
	}
}

// hasLocations reports whether the errors of a total are also counted by location.
func hasLocations(counts []gpu.ECCCount, total gpu.ECCCount) bool {
	return slices.ContainsFunc(counts, func(e gpu.ECCCount) bool {
		return e.Location != eccTotal && e.Severity == total.Severity &&
			e.Lifetime == total.Lifetime
	})
}
