package dashboards

func nodeVariables(up, info, profile string) []object {
	return []object{
		datasourceVariable(),
		choice("cluster", "Cluster", "label_values("+up+", cluster)", false),
		choice("node", "Node", "label_values("+up+`{cluster=~"$cluster"}, instance)`, true),
		choice(
			"gpu",
			"GPU",
			"label_values("+up+`{cluster=~"$cluster",instance="$node"}, gpu)`,
			false,
		),
		choice(
			"profile",
			"Profile",
			"label_values("+info+`{cluster=~"$cluster",instance="$node"}, `+profile+")",
			false,
		),
	}
}

// events returns annotations of the events that explain other changes: new layouts and XIDs.
func events(s scope, text string) []object {
	return []object{
		annotation(
			"Layout changes",
			countHue,
			"sum by (cluster, instance, gpu) (increase("+s.gpu(
				"nvidia_gpu_mig_layout_changes_total",
			)+"[$__rate_interval])) > 0",
			"Layout changed",
			text,
		),
		annotation(
			"XIDs",
			red,
			"sum by (cluster, instance, gpu) (increase("+s.gpu(
				"nvidia_gpu_xids_total",
			)+"[$__rate_interval])) > 0",
			"XID",
			text,
		),
	}
}

func node() dashboard {
	s := newScope(`instance="$node"`).withGPU()

	return dashboard{
		uid:         nodeUID,
		title:       "GPU node",
		from:        "now-6h",
		tags:        []string{"gpu", "mig"},
		description: "One node: its GPUs and their slices, what they do, what is wrong, and which pods hold them.",
		variables:   nodeVariables("nvidia_gpu_up", "nvidia_mig_gpu_instance_info", "mig_profile"),
		annotations: events(s, "GPU {{gpu}}"),
		rows: []row{
			{title: "Right now", panels: append(nodeStats(s), nodeTable(s))},
			{title: "Slices on their GPUs", panels: nodeLayout(s)},
			{title: "Use", panels: nodeUse(s)},
			{title: "Memory", panels: nodeMemory(s)},
			{title: "Power and temperature", panels: nodePower(s)},
			{title: "Errors", panels: nodeErrors(s)},
			{title: "Compute instances of split slices", collapsed: true, panels: nodeCompute(s)},
			{
				title:     "The driver's own utilization (GPUs without MIG)",
				collapsed: true,
				panels:    nodeDriver(s),
			},
			{title: "PCIe and NVLink", collapsed: true, panels: nodeLinks(s)},
			{
				title:     "Peaks between scrapes (native histograms)",
				collapsed: true,
				panels:    nodePeaks(s),
			},
		},
	}
}

func nodeStats(s scope) []panel {
	up := s.eachGPU("nvidia_gpu_up")
	count := func(expr string) string { return "count(" + expr + ") or 0 * count(" + up + ")" }
	allocated := either(
		"("+s.eachGPU("nvidia_gpu_allocated")+" unless "+s.eachGPU("nvidia_gpu_mig_enabled")+" == 1)",
		s.eachSlice("nvidia_mig_gpu_instance_allocated"),
	)

	return []panel{
		{
			kind:  stat,
			title: "GPUs",
			unit:  "none",
			hue:   countHue,
			w:     4,
			h:     4,
			description: "GPUs that the exporter knows, also those that do not answer. \"no data\": the exporter of this node " +
				"is not scraped; look at Exporter health.",
			queries: []query{{expr: "count(" + up + ")", legend: "GPUs"}},
		},
		{
			kind:  stat,
			title: "GPUs that do not answer",
			unit:  "none",
			hue:   fine,
			steps: problemFrom(red),
			w:     5,
			h:     4,
			description: "GPUs whose last reading failed or did not end in time. Find them in the table below, then look for " +
				"an XID and in the log of the node's kernel.",
			queries: []query{{expr: count(up + " == 0"), legend: "do not answer"}},
		},
		{
			kind:  stat,
			title: "GPUs that need maintenance",
			unit:  "none",
			hue:   fine,
			steps: problemFrom(red),
			w:     5,
			h:     4,
			description: "GPUs for which the driver asks for a reset, a reboot or a drain, or whose memory could not be " +
				"repaired. Drain the node and do what the table's state says.",
			queries: []query{{legend: "need maintenance",
				expr: count(aggregate(
					"max",
					onGPU,
					either(
						s.gpu("nvidia_gpu_recovery_action", `action!="none"`),
						s.gpu("nvidia_gpu_row_remap_failure")+" > 0",
					),
				))}},
		},
		{
			kind:  stat,
			title: "Devices",
			unit:  "none",
			hue:   countHue,
			w:     5,
			h:     4,
			description: "Slices and GPUs without MIG, by whether a container holds them. Devices whose holder is unknown, " +
				"and free ones of GPUs that do not answer, are in neither number. \"no data\": neither a kubelet nor a batch " +
				"scheduler reports any.",
			queries: []query{
				{expr: "sum(" + allocated + ")", legend: "held"},
				{
					expr:   "sum(((" + allocated + ") == bool 0) * on (" + onGPU + ") group_left () " + up + ")",
					legend: "free",
				},
			},
		},
		{
			kind:        stat,
			title:       "Power",
			unit:        "watt",
			hue:         powerHue,
			w:           5,
			h:           4,
			description: "What the GPUs draw now, and the sum of their limits. Slices are inside: nothing is counted twice.",
			queries: []query{
				{expr: "sum(" + s.eachGPU("nvidia_gpu_power_watts") + ")", legend: "drawn"},
				{expr: "sum(" + s.eachGPU("nvidia_gpu_power_limit_watts") + ")", legend: "limit"},
			},
		},
	}
}

// mostWatts is the maximum of power gauges: no present GPU draws more. Without a maximum, one gauge
// that is n/a would empty all.
const mostWatts = 1400

func nodeTable(s scope) panel {
	of := func(family string) string {
		return s.onInventory(
			s.slice("nvidia_gpu_"+family),
			s.slice("nvidia_mig_gpu_instance_"+family),
		)
	}
	used := s.onInventory(s.memoryRatios())

	return panel{
		kind:  table,
		title: "GPUs and slices, and the pods that hold them",
		hue:   fine,
		w:     24,
		h:     12,
		description: "One row for each GPU and each slice, what is wrong first. n/a: the hardware or the driver does not " +
			"report it, or a slice has no such reading. State is the worst that holds: red: act now; amber: look " +
			"into it. fatal XID: the GPU or the node has to be reset, as the alerts GpuXidHardware and GpuXidNode " +
			"say; XID: another one, of the slice that the driver blames or else of the GPU. Click a GPU to see it " +
			"alone below, a holder to see the pod. The values of a GPU with slices are of the whole GPU, slices " +
			"included. \"by slice\": its slices are held one by one. no compute instance: the slice exists, but " +
			"no container can use it; delete it or add a compute instance.",
		queries: []query{
			{ref: "State", expr: s.state()},
			{ref: "Holder", expr: s.holders()},
			{ref: "SM", expr: of("sm_activity_ratio")},
			{ref: "DRAM", expr: of("dram_activity_ratio")},
			{ref: "Memory", expr: used},
			{
				ref: "Power",
				expr: s.onInventory(
					s.slice("nvidia_gpu_power_watts"),
					s.slice("nvidia_mig_gpu_instance_power_estimate_watts"),
				),
			},
			{
				ref:  "Temperature",
				expr: s.onInventory(s.slice("nvidia_gpu_temperature_celsius", `sensor="gpu"`), ""),
			},
			{ref: "Slowed",
				expr: s.onInventory(sumOfGPUs(
					onGPU,
					"reason",
					"rate("+s.slice(
						"nvidia_gpu_clock_event_seconds_total",
						throttling,
					)+"[$__rate_interval])",
				), "")},
		},
		columns: []column{
			{
				field: "gpu",
				title: "GPU",
				width: 60,
				links: []object{
					linkTo(
						"This GPU alone",
						nodeUID,
						fromField("node", "instance"),
						fromField("gpu", "gpu"),
					),
				},
			},
			{field: "slice", title: "Slice", width: 140},
			{field: "State", title: "State", width: 160, values: stateNames(), hue: fine},
			{
				field: "holder",
				title: "Held by",
				links: []object{
					linkTo(
						"Its pods",
						workloadUID,
						fromField("node", "instance"),
						fromField("namespace", "namespace"),
						fromField("pod", "pod"),
					),
				},
			},
			{
				field: "SM",
				title: "SM activity",
				unit:  "percentunit",
				hue:   activityHue,
				gauge: true,
				max:   1,
				width: 145,
			},
			{
				field: "DRAM",
				title: "Memory bandwidth",
				unit:  "percentunit",
				hue:   activityHue,
				gauge: true,
				max:   1,
				width: 155,
			},
			{
				field: "Memory",
				title: "Memory used",
				unit:  "percentunit",
				hue:   memoryHue,
				gauge: true,
				max:   1,
				width: 145,
				steps: []step{{0.95, amber}},
			},
			{
				field: "Power",
				title: "Power",
				unit:  "watt",
				hue:   powerHue,
				gauge: true,
				max:   mostWatts,
				width: 135,
			},
			{
				field: "Temperature",
				title: "Temperature",
				unit:  "celsius",
				hue:   temperatureHue,
				gauge: true,
				max:   100,
				width: 125,
				steps: []step{{85, amber}, {92, red}},
			},
			{
				field: "Slowed",
				title: "Slowed down",
				unit:  "percentunit",
				width: 110,
				hue:   fine,
				steps: []step{{0.01, amber}},
			},
			{field: "instance", hidden: true},
			{field: "namespace", hidden: true},
			{field: "pod", hidden: true},
		},
		sortBy: []string{"State", "GPU", "Slice"},
	}
}
