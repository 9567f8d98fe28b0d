package dashboards

// ofExporters matches the chosen exporters.
const ofExporters = `cluster=~"$cluster",job=~"$job",instance=~"$node"`

func health() dashboard {
	return dashboard{
		uid:         healthUID,
		title:       "GPU exporter health",
		from:        "now-6h",
		tags:        []string{"exporter"},
		description: "Whether mig-exporter itself works: scrapes, sources, readings, what it costs.",

		variables: []object{
			datasourceVariable(),
			choice("cluster", "Cluster", "label_values(mig_exporter_build_info, cluster)", false),
			choice(
				"job",
				"Job",
				`label_values(mig_exporter_build_info{cluster=~"$cluster"}, job)`,
				false,
			),
			choice(
				"node",
				"Node",
				`label_values(mig_exporter_build_info{cluster=~"$cluster",job=~"$job"}, instance)`,
				false,
			),
		},

		annotations: nodeEvents(),
		rows: []row{
			{title: "Right now", panels: append(healthStats(), healthTable())},
			{title: "Sources and readings", panels: healthSources()},
			{title: "Scrapes", panels: healthScrapes()},
			{title: "The process", collapsed: true, panels: healthProcess()},
		},
	}
}

// ofJobs limits a series that Prometheus makes of each target to the jobs of the chosen exporters.
// A job counts while one of its exporters answers.
const ofJobs = "and on (cluster, job) group by (cluster, job) (mig_exporter_build_info{" + ofExporters + "})"

// scrapedUp returns up for all exporters that Prometheus knows, 0 for those that do not answer. A
// job counts if one of its exporters has answered within a day.
const scrapedUp = "max by (" + nodeRows + ", job) (up{" + ofExporters +
	"} and on (cluster, job) max by (cluster, job) (max_over_time(mig_exporter_build_info{" + ofExporters + "}[1d])))"

// eachOf returns one value for each exporter and value of a label.
func eachOf(label, family string) string {
	return aggregate("max", nodeRows+", "+label, selectFamily(family, ofExporters))
}

// failing returns, for each exporter, how many values of eachOf are 0.
func failing(label, family string) string {
	return aggregate("count", nodeRows, eachOf(label, family)+" == 0") + " or 0 * " +
		selectFamily("mig_exporter_snapshot_generation", ofExporters)
}

// offBy returns, for each exporter, by how many seconds the time of its Snapshot differs from that of
// Prometheus's scrape, in either direction. If a node has two pods of it, the smaller one counts.
func offBy() string {
	taken := selectFamily("mig_exporter_snapshot_timestamp_seconds", ofExporters)
	return aggregate("min", nodeRows, "abs(timestamp("+taken+") - "+taken+")")
}

// fellBehind returns, for each exporter, by how many seconds its Snapshots have fallen behind the
// scrapes within the last 10 minutes. A clock that is wrong makes no difference: it is as wrong at
// the beginning of the 10 minutes as at the end.
func fellBehind() string {
	taken := selectFamily("mig_exporter_snapshot_timestamp_seconds", ofExporters)
	lag := func(offset string) string {
		return aggregate("min", nodeRows, "timestamp("+taken+offset+") - "+taken+offset)
	}

	return "clamp_min(" + lag("") + " - " + lag(" offset 10m") + ", 0)"
}

func healthStats() []panel {
	orZero := " or 0 * count(" + selectFamily("mig_exporter_build_info", ofExporters) + ")"

	return []panel{
		figure("Exporters", "none", countHue, 6,
			"Exporters that answered the last scrape.",
			"sum(max by ("+nodeRows+") ("+scrapedUp+"))", "answer"),
		problems("Exporters that do not answer", red, 6,
			"Targets of the same jobs whose last scrape failed. Their GPUs have no data. Look at the pod or the "+
				"service on the node.",
			"count(("+scrapedUp+") == 0)"+orZero, "do not answer"),
		problems("Sources that do not answer", amber, 6,
			"NVML, DCGM, the kubelet, its checkpoint, the API server, job files. Without nvml there are no GPUs; "+
				"without the others parts are missing: the table shows which.",
			"count("+eachOf("source", "mig_exporter_source_up")+" == 0)"+orZero, "sources"),
		{
			kind:  stat,
			title: "Age of readings",
			unit:  "s",
			hue:   fine,
			steps: []step{{60, amber}, {300, red}},
			w:     6,
			h:     4,
			description: "The most by which the time of a Snapshot differs from that of its scrape. It should be about the " +
				"poll interval. If it is more, either the exporter no longer reads its GPUs or the clock of the node is wrong: " +
				"the table below says which.",
			queries: []query{{expr: "max(" + offBy() + ")", legend: "at most"}},
		},
	}
}

func healthTable() panel {
	orNaN := func(expr string) string {
		return either(aggregate("max", nodeRows, expr), aggregate("max", nodeRows, scrapedUp)+" * NaN")
	}

	return panel{
		kind:  table,
		title: "All exporters",
		hue:   fine,
		w:     24,
		h:     9,
		description: "One row for each target. n/a: it does not answer, so nothing is known. Age: the time between the " +
			"Snapshot and its scrape. No readings for: the part of the last 10 minutes in which the exporter did not read its " +
			"GPUs, by the clock of the node. If only the age is large, the clock of the node is wrong; if both are, the log " +
			"says what hangs. Sources and collectors: how many fail now. Hung calls: calls of the driver that do not return. " +
			"Unmatched: devices that were given to containers and no longer exist; restart the device plugin. Failed " +
			"readings are of the last hour.",
		queries: []query{
			{ref: "Up", expr: aggregate("max", nodeRows, scrapedUp)},
			{
				ref: "Version",
				expr: "topk by (" + nodeRows + ") (1, max by (" + nodeRows +
					", version) (timestamp(" +
					selectFamily("mig_exporter_build_info", ofExporters) + "))) or on (" +
					nodeRows + ") max by (" + nodeRows + ") (" + scrapedUp + ") * NaN",
			},
			{ref: "Age", expr: orNaN(offBy())},
			{ref: "Behind", expr: orNaN(fellBehind())},
			{ref: "Sources", expr: orNaN(failing("source", "mig_exporter_source_up"))},
			{ref: "Collectors", expr: orNaN(failing("collector", "mig_exporter_collector_success"))},
			{ref: "Hung", expr: orNaN(selectFamily("mig_exporter_hung_driver_calls", ofExporters))},
			{
				ref:  "Unmatched",
				expr: orNaN(selectFamily("mig_exporter_unmatched_device_ids", ofExporters)),
			},
			{ref: "Failed",
				expr: orNaN(sumOfGPUs(
					nodeRows,
					"reading, reason",
					"increase("+selectFamily("nvidia_gpu_read_errors_total", ofExporters)+"[1h])",
				))},
			{ref: "Series", expr: orNaN(selectFamily("scrape_samples_scraped", ofExporters))},
		},
		columns: []column{
			nodeColumn(),
			{field: "Up", title: "Scrape", width: 80, hue: fine,
				values: []valueMap{{"0", "fails", red}, {"1", "ok", "transparent"}}},
			{field: "version", title: "Version", width: 90},
			{
				field: "Age",
				title: "Age",
				unit:  "s",
				width: 80,
				hue:   fine,
				steps: []step{{60, amber}, {300, red}},
			},
			{field: "Behind", title: "No readings for", unit: "s", width: 130, hue: fine,
				steps: []step{{60, amber}, {300, red}}},
			problemColumn("Sources", "Sources down", amber, 115),
			problemColumn("Collectors", "Collectors down", amber, 135),
			problemColumn("Hung", "Hung calls", red, 100),
			problemColumn("Unmatched", "Unmatched", amber, 105),
			problemColumn("Failed", "Failed readings", amber, 130),
			countColumn("Series", "Series", 80),
			{field: "cluster", title: "Cluster"},
		},
		sortBy: []string{"Scrape", "Node"},
	}
}

func healthSources() []panel {
	return []panel{
		{
			kind:        stateTimeline,
			title:       "Sources",
			unit:        "none",
			hue:         fine,
			w:           12,
			h:           8,
			description: "Whether each source answers. stale: it does not, and its last answer is still used for a while.",
			values: []valueMap{
				{"0", "does not answer", red},
				{"1", "answers", fine},
				{"2", "stale", amber},
			},
			queries: []query{{legend: "{{instance}} {{source}}", expr: "(" +
				eachOf("source", "mig_exporter_source_stale") + " == 1) * 2 or " +
				eachOf("source", "mig_exporter_source_up")}},
		},
		lines("Duration of a reading (99th percentile)", "s", linkHue,
			"How long the exporter took to read all GPUs, in the 5 minutes before each point. Near the poll interval: it "+
				"cannot keep up; look for a slow GPU."+ruled,
			aggregate("max", nodeRows, selectFamily("instance:mig_exporter_poll_duration_seconds:p99_5m", inFleet)),
			"{{instance}}"),
		lines("Driver calls", "cps", linkHue,
			"Calls to NVML and to DCGM. They change with the number of devices, not with scrapes. While one of the class "+
				"exclusive runs, no process on the node enters the driver.",
			aggregate("sum", nodeRows+", source, class",
				rate(selectFamily("mig_exporter_driver_calls_total", ofExporters))),
			"{{instance}} {{source}} {{class}}"),
		counts("Failed readings", amber,
			"Readings of GPUs that failed, in the 5 minutes before each point. The dashboard of the node shows which."+ruled,
			aggregate("max", nodeRows, selectFamily("instance:nvidia_read_errors:increase5m", inFleet)), "{{instance}}"),
	}
}

func healthScrapes() []panel {
	return []panel{
		lines("Duration of a scrape", "s", linkHue,
			"As Prometheus sees it. A scrape calls no driver: a slow one is a slow node or network.",
			aggregate("max", nodeRows, selectFamily("scrape_duration_seconds", ofExporters)+" "+ofJobs), "{{instance}}"),
		lines("Series of a scrape", "none", countHue,
			"Grows with devices and pods. docs/metrics.md says how many to expect, and collectors that can be switched off.",
			aggregate("max", nodeRows, selectFamily("scrape_samples_scraped", ofExporters)+" "+ofJobs), "{{instance}}"),
		counts("Scrapes refused", amber,
			"Beyond 40 at the same time, in each interval. Too many clients scrape this exporter.",
			aggregate("sum", nodeRows,
				increase(selectFamily("mig_exporter_scrapes_total", ofExporters, `result="rejected"`))),
			"{{instance}}"),
		lines("Allocated devices that no longer exist", "none", amber,
			"Device ids that the kubelet gave to containers and that name no device of the node: restart the device plugin, "+
				"then delete the pod.",
			aggregate("max", nodeRows, selectFamily("mig_exporter_unmatched_device_ids", ofExporters)), "{{instance}}"),
	}
}

func healthProcess() []panel {
	return []panel{
		lines("Memory", "bytes", memoryHue,
			"Resident memory of the exporter. Some tens of MiB; a line that only grows is a leak: report it.",
			aggregate("max", nodeRows, selectFamily("process_resident_memory_bytes", ofExporters)), "{{instance}}"),
		lines("CPU", "percentunit", activityHue,
			"Of one core.",
			aggregate("max", nodeRows, rate(selectFamily("process_cpu_seconds_total", ofExporters))), "{{instance}}"),
		lines("Goroutines", "none", countHue,
			"A line that only grows is a leak, or driver calls that hang.",
			aggregate("max", nodeRows, selectFamily("go_goroutines", ofExporters)), "{{instance}}"),
		lines("Open files", "none", countHue,
			"Of the exporter's process.",
			aggregate("max", nodeRows, selectFamily("process_open_fds", ofExporters)), "{{instance}}"),
	}
}
