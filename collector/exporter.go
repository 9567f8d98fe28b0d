package collector

import (
	"errors"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func newExporter(c *catalog) collectFunc {
	timestamp := c.newFamily("mig_exporter_snapshot_timestamp_seconds",
		"When the Snapshot that is served was made, as Unix time.", "")
	generation := c.newFamily("mig_exporter_snapshot_generation",
		"Number of the Snapshot that is served, from 1 at the start.", "")
	addSources := newSources(c)
	calls := c.newFamily(
		"mig_exporter_driver_calls_total",
		"Calls made to the driver (nvml) and to the DCGM host engine (dcgm), by whom they keep waiting "+
			"while they run: exclusive (every process on the node), gpu (those that use the same GPU), "+
			"mapped (none), or unknown. Some need several calls of the C library: that for a GPU "+
			"instance's compute instances one for each of their profiles.",
		"",
		"source",
		"class",
	)
	seconds := c.newFamily(
		"mig_exporter_driver_seconds_total",
		"Time spent in calls of the driver that have returned, added up over threads, by class as in "+
			"mig_exporter_driver_calls_total.",
		"",
		"class",
	)
	hung := c.newFamily("mig_exporter_hung_driver_calls",
		"Driver calls that have not returned in time and may never return.", "")
	interval := c.newFamily(
		"mig_exporter_poll_interval_seconds",
		"Time between two readings of a GPU, for what every poll reads (fast) and for "+
			"what is dear or seldom changes (slow). Longer than configured while driver "+
			"calls take more than --poll.driver-budget.",
		"",
		"tier",
	)
	configured := c.newFamily(
		"mig_exporter_poll_configured_interval_seconds",
		"What mig_exporter_poll_interval_seconds is while driver calls are within --poll.driver-budget.",
		"",
		"tier",
	)
	unmatched := c.newFamily("mig_exporter_unmatched_device_ids",
		"Device ids that the kubelet gave out and that name no device of this node.", "")
	witness := c.newFamily(
		"mig_exporter_kubelet_witness",
		"1 when a witness pod is named, 0 when none is: then the kubelet's list never counts as "+
			"complete, and no device is ever known to be free (--kubernetes.witness-pod).",
		"",
	)
	driver := c.newFamily(
		"nvidia_driver_info",
		"Versions of the driver, of NVML and of CUDA, with the value 1.",
		"",
		"driver_version",
		"nvml_version",
		"cuda_version",
	)
	driverUse := c.driverUse
	profilerCalls := c.profilerCalls

	return func(w *metricWriter, v *view) {
		w.addTimestamp(timestamp, nil, v.Time)
		w.add(generation, nil, float64(v.Generation))
		addSources(w, v)
		w.add(hung, nil, float64(v.HungCalls))
		addPace(w, v, interval, configured)
		w.add(unmatched, nil, float64(len(v.Unmatched)))

		if named, ok := v.Witness.Get(); ok {
			w.addBool(witness, nil, named)
		}

		if d, ok := v.Driver.Get(); ok {
			w.add(
				driver,
				v.root.extend(
					"driver_version",
					d.Version,
					"nvml_version",
					d.NVML,
					"cuda_version",
					d.CUDA,
				),
				1,
			)
		}

		addDriverUse(w, v, calls, seconds, driverUse)

		if profilerCalls != nil { // what the host engine asks the driver for is unknown
			w.add(
				calls,
				v.root.extend("source", gpu.SourceDCGM, "class", string(gpu.CallUnknown)),
				float64(profilerCalls()),
			)
		}
	}
}

// newSources declares what is served about the sources that readings come from.
func newSources(c *catalog) collectFunc {
	up := c.newFamily(
		"mig_exporter_source_up",
		"1 when the source (nvml, dcgm, kubelet, kubelet_checkpoint, kubernetes, "+
			"hpc_jobs, kernel_log, node_labels) answered last, else 0.",
		"",
		"source",
	)
	stale := c.newFamily(
		"mig_exporter_source_stale",
		"1 while what the source said last is still in use although it no longer answers, else 0.",
		"",
		"source",
	)
	success := c.newFamily("mig_exporter_source_last_success_timestamp_seconds",
		"When the source last answered, as Unix time.", "", "source")

	return func(w *metricWriter, v *view) {
		for _, s := range v.Sources {
			if errors.Is(s.Err, gpu.ErrNotConfigured) {
				continue // there is nothing that could be up or down
			}

			l := v.root.extend("source", s.Name)
			w.addBool(up, l, s.Up)
			w.addBool(stale, l, s.Stale)
			w.addTimestamp(success, l, s.LastSuccess)
		}
	}
}

// addPace adds how often the fast and the slow tier are read, if that is known.
func addPace(w *metricWriter, v *view, interval, configured *family) {
	for _, tier := range []struct {
		name string
		gpu.TierPace
	}{{"fast", v.Pace.Fast}, {"slow", v.Pace.Slow}} {
		if tier.Configured > 0 {
			l := v.root.extend("tier", tier.name)
			w.add(interval, l, tier.Now.Seconds())
			w.add(configured, l, tier.Configured.Seconds())
		}
	}
}

// addDriverUse adds the number and the duration of driver calls, unless they are not counted.
func addDriverUse(
	w *metricWriter,
	v *view,
	calls, seconds *family,
	driverUse func() []gpu.CallUse,
) {
	if driverUse == nil {
		return
	}

	for _, use := range driverUse() {
		class := string(use.Class)
		w.add(calls, v.root.extend("source", gpu.SourceNVML, "class", class), float64(use.Calls))
		w.add(seconds, v.root.extend("class", class), use.Took.Seconds())
	}
}

// statusFamilies declares the families about the groups themselves. They cannot be switched off.
func statusFamilies(c *catalog) (success, duration *family) {
	success = c.newFamily(
		"mig_exporter_collector_success",
		"1 when the collector could write everything that the Snapshot has for it, "+
			"0 when something had to be left out.",
		"",
		"collector",
	)
	duration = c.newFamily("mig_exporter_collector_duration_seconds",
		"Time that the collector took to write its metrics.", "", "collector")

	return success, duration
}
