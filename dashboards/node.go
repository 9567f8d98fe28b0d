package dashboards

// nodeVariables returns the variables of a dashboard of one node. The family up has a series for each
// GPU, info one for each slice, with the label profile.
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
		annotation("Layout changes", countHue,
			aggregate("sum", byGPU, increase(s.gpu("nvidia_gpu_mig_layout_changes_total")))+" > 0",
			"Layout changed", text),
		annotation("XIDs", red,
			aggregate("sum", byGPU, increase(s.gpu("nvidia_gpu_xids_total")))+" > 0",
			"XID", text),
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

		variables: nodeVariables("nvidia_gpu_up", "nvidia_mig_gpu_instance_info", "mig_profile"),

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
		figure("GPUs", "none", countHue, 4,
			"GPUs that the exporter knows, also those that do not answer. \"no data\": the exporter of this node "+
				"is not scraped; look at Exporter health.",
			"count("+up+")", "GPUs"),
		problems("GPUs that do not answer", red, 5,
			"GPUs whose last reading failed or did not end in time. Find them in the table below, then look for "+
				"an XID and in the log of the node's kernel.",
			count(up+" == 0"), "do not answer"),
		problems("GPUs that need maintenance", red, 5,
			"GPUs for which the driver asks for a reset, a reboot or a drain, or whose memory could not be "+
				"repaired. Drain the node and do what the table's state says.",
			count(aggregate(
				"max",
				onGPU,
				either(
					s.gpu("nvidia_gpu_recovery_action", `action!="none"`),
					s.gpu("nvidia_gpu_row_remap_failure")+" > 0",
				),
			)), "need maintenance"),
		figure("Devices", "none", countHue, 5,
			"Slices and GPUs without MIG, by whether a container or, without a kubelet, a batch job or a process holds them. "+
				"Devices of which that is unknown, and free ones of GPUs that do not answer, are in neither number.",
			"sum("+allocated+")", "held").
			and("sum((("+allocated+") == bool 0) * on ("+onGPU+") group_left () "+up+")", "free"),
		figure("Power", "watt", powerHue, 5,
			"What the GPUs draw now, and the sum of their limits. Slices are inside: nothing is counted twice.",
			"sum("+s.eachGPU("nvidia_gpu_power_watts")+")", "drawn").
			and("sum("+s.eachGPU("nvidia_gpu_power_limit_watts")+")", "limit"),
	}
}

// mostWatts is the maximum of power gauges: no present GPU draws more. Without a maximum, one row
// with n/a would empty the gauges of all rows.
const mostWatts = 1400

func nodeTable(s scope) panel {
	values := func(family string) string {
		return s.onInventory(
			s.slice("nvidia_gpu_"+family),
			s.slice("nvidia_mig_gpu_instance_"+family),
		)
	}

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
			{ref: "SM", expr: values("sm_activity_ratio")},
			{ref: "DRAM", expr: values("dram_activity_ratio")},
			{ref: "Memory", expr: s.onInventory(s.memoryRatios())},
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
					rate(s.slice("nvidia_gpu_clock_event_seconds_total", throttling)),
				), "")},
		},
		columns: []column{
			gpuColumn(60, linkTo("This GPU alone", nodeUID, toNode, toGPU)),
			{field: "slice", title: "Slice", width: 140},
			{field: "State", title: "State", width: 160, values: stateNames(), hue: fine},
			holderColumn(),
			shareColumn("SM", "SM activity", activityHue, 145),
			shareColumn("DRAM", "Memory bandwidth", activityHue, 155),
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
