package dashboards

import "strings"

const (
	inFleet   = `cluster=~"$cluster",instance=~"$node"`
	nodeRows  = "cluster, instance"
	deviceRow = onSlice + ", mig_profile" // a new instance can have the id of an old one of another profile
)

func fleet() dashboard {
	return dashboard{
		uid:   fleetUID,
		title: "GPU fleet",
		from:  "now-24h",
		tags:  []string{"gpu", "mig"},
		description: "All nodes: what is wrong, how much of the GPUs and slices is held and used, what is underused or " +
			"stranded, power, and what changed.",

		variables: []object{
			datasourceVariable(),
			choice("cluster", "Cluster", "label_values(nvidia_gpu_up, cluster)", false),
			choice(
				"node",
				"Node",
				`label_values(nvidia_gpu_up{cluster=~"$cluster"}, instance)`,
				false,
			),
			choice(
				"profile",
				"Profile",
				"label_values(nvidia_gpu_mig_profile_instances_available{"+inFleet+"}, mig_profile)",
				false,
			),
		},

		annotations: nodeEvents(),
		rows: []row{
			{title: "Right now", panels: append(fleetStats(), fleetProblems(), fleetNodes())},
			{title: "Use", panels: fleetUse()},
			{title: "Underused whole GPUs", panels: []panel{fleetUnderused()}},
			{
				title:  "Right-sizing (see the dashboard GPU right-sizing)",
				panels: fleetRightsizing(),
			},
			{title: "Free and stranded slices", panels: fleetRoom()},
			{title: "Power and energy", panels: fleetPower()},
			{title: "What changed", panels: fleetHistory()},
			{title: "Partition control", collapsed: true, panels: fleetControl()},
		},
	}
}

// gone returns the nodes that reported within a day and do not now, in some states: "down" are the
// nodes of the alert MigExporterDown, "died" and "unknown" those of MigNodeGone, "left" those that were
// removed with nothing on their GPUs.
func gone(states string) string {
	return selectFamily("mig:node_gone:count", inFleet, `state=~"`+states+`"`)
}

func fleetStats() []panel {
	up := fleetScope().eachGPU("nvidia_gpu_up")
	// Without the recording rules it is not known that none is gone.
	noneGone := " or 0 * count(" + selectFamily("mig:exporter:info", inFleet) + ")"

	return []panel{
		figure("Nodes that report", "none", countHue, 4,
			"Nodes whose exporter reports GPUs now.",
			"count(count by ("+nodeRows+") ("+up+"))", "report"),
		{
			kind:   stat,
			title:  "Nodes without data",
			unit:   "none",
			hue:    fine,
			steps:  problemFrom(red),
			w:      4,
			h:      4,
			colors: map[string]string{"left": slate},
			description: "Nodes that reported within the last day and do not now, and whose GPUs no other target reports. " +
				"without data: they do not answer, or died, or it is not known whether their GPUs were held, as the alerts MigExporterDown and MigNodeGone say; look at Exporter " +
				"health. left: they were removed from service discovery with nothing on their GPUs, which is no fault." + ruled,
			queries: []query{
				{
					expr:   "count(" + gone("down|died|unknown") + ")" + noneGone,
					legend: "without data",
				},
				{expr: "count(" + gone("left") + ")" + noneGone, legend: "left"},
			},
		},
		figure("GPUs", "none", countHue, 4,
			"GPUs of the nodes that report.",
			"count("+up+")", "GPUs"),
		problems("GPUs that do not answer", red, 4,
			"GPUs whose last reading failed. They are in the table below.",
			"count("+up+" == 0) or 0 * count("+up+")", "do not answer"),
		figure("Devices", "none", countHue, 4,
			"Slices and GPUs without MIG, by whether a container or, without a kubelet, a batch job or a process holds them. "+
				"Devices of which that is unknown, and free ones of GPUs that do not answer, are in neither number."+ruled,
			aggregate("sum", "state", selectFamily("instance:nvidia_devices:count", inFleet)), "{{state}}"),
		figure("Power now", "watt", powerHue, 4,
			"What all GPUs draw now. Slices are inside: nothing is counted twice.",
			"sum("+fleetScope().eachGPU("nvidia_gpu_power_watts")+")", "drawn"),
	}
}

func fleetScope() scope { return scope{gpus: inFleet, slices: inFleet} }

func fleetProblems() panel {
	s := fleetScope()
	ofNode := func(state, expr string) string {
		return setLabel(
			setLabel(constant(state, aggregate("max", nodeRows, expr)), "slice", "(node)"),
			"gpu",
			"All",
		)
	}
	nodes := either(ofNode(stateGone, gone("down|died|unknown")), ofNode(stateLeft, gone("left")))
	healthy := setLabel(
		constant(stateFine, "count("+selectFamily("nvidia_gpu_up", inFleet)+")"),
		"slice",
		"(all that report)",
	)

	return panel{
		kind:  table,
		title: "Problems and affected pods",
		hue:   fine,
		w:     24,
		h:     10,
		description: "GPUs and slices with a problem, the worst first, with the pods that hold them, and nodes that " +
			"stopped reporting within the last day; left: with nothing on their GPUs, which is no fault. One row with ok: nothing is wrong " +
			"on the nodes that report. Empty: there is no data at all. Click a node for its dashboard, a holder for the pod.",
		queries: []query{
			{ref: "State", expr: either(s.problemsWithHolders(), allPods(nodes)) + " or on () " + healthy},
		},
		columns: []column{
			{field: "State", title: "State", width: 170, hue: fine, values: stateNames()},
			nodeColumn(),
			gpuColumn(70, linkTo("This GPU", nodeUID, toNode, toGPU)),
			{field: "slice", title: "Slice"},
			holderColumn(),
			{field: "cluster", title: "Cluster"},
			{field: "namespace", hidden: true},
			{field: "pod", hidden: true},
		},
		sortBy: []string{"State"},
	}
}

func fleetNodes() panel {
	s := fleetScope()
	inventory := aggregate("count", nodeRows, s.eachGPU("nvidia_gpu_up"))
	orNaN := func(expr string) string { return either(expr, inventory+" * NaN") }
	rule := func(name string, more ...string) string {
		return aggregate("sum", nodeRows, selectFamily(name, inFleet, more...))
	}
	sum := func(family string, more ...string) string {
		return aggregate("sum", nodeRows, s.eachGPU(family, more...))
	}

	return panel{
		kind:  table,
		title: "All nodes",
		hue:   fine,
		w:     24,
		h:     9,
		description: "One row for each node that reports. SM activity is of all SMs of its devices, of the last 5 minutes. " +
			"Held and idle: devices that pods have held for an hour and that were busy for less than 1 % of the time: those " +
			"for which the alerts GpuAllocatedIdle and MigSliceAllocatedIdle fire. Stranded: memory slices that no profile " +
			"can use as the layout is. n/a: not known." + ruled,
		queries: []query{
			{ref: "GPUs", expr: inventory},
			{ref: "Held", expr: orNaN(rule("instance:nvidia_devices:count", `state="held"`))},
			{ref: "Free", expr: orNaN(rule("instance:nvidia_devices:count", `state="free"`))},
			{ref: "Idle", expr: orNaN(rule("instance:nvidia_devices_held_idle:count"))},
			{
				ref: "SM",
				expr: orNaN(
					rule("instance:nvidia_sms_active:sum") + " / " + rule("instance:nvidia_sms:sum"),
				),
			},
			{
				ref: "Memory",
				expr: orNaN(
					sum("nvidia_gpu_memory_used_bytes") + " / " + sum("nvidia_gpu_memory_total_bytes"),
				),
			},
			{ref: "Power", expr: orNaN(sum("nvidia_gpu_power_watts"))},
			{
				ref:  "Stranded",
				expr: orNaN(sum("nvidia_gpu_mig_slices", `kind="memory",state="stranded"`)),
			},
		},
		columns: []column{
			nodeColumn(),
			{field: "cluster", title: "Cluster"},
			countColumn("GPUs", "GPUs", 80),
			countColumn("Held", "Held", 80),
			countColumn("Free", "Free", 80),
			problemColumn("Idle", "Held and idle", amber, 120),
			shareColumn("SM", "SM activity", activityHue, 170),
			shareColumn("Memory", "Memory used", memoryHue, 170),
			{field: "Power", title: "Power", unit: "watt", hue: powerHue, width: 110},
			countColumn("Stranded", "Stranded", 100),
		},
		sortBy:     []string{"Held and idle", "Node"},
		descending: true,
	}
}

func fleetRoom() []panel {
	room := lines("Memory slices: used, free, stranded", "none", countHue,
		"Of all GPUs with MIG. Stranded ones are free, but no profile that could still be placed covers them."+ruled,
		aggregate("sum", "state", selectFamily("instance:nvidia_mig_slices:sum", inFleet, `kind="memory"`)), "{{state}}")
	room.stacked = true
	room.colors = sliceColors()

	available := fleetScope().eachSlice("nvidia_gpu_mig_profile_instances_available",
		`mig_profile=~"$profile"`)

	return []panel{
		room,
		{
			kind:  barGauge,
			title: "Room for more slices",
			unit:  "none",
			hue:   countHue,
			w:     6,
			h:     8,
			description: "GPU instances of each profile that could be created now, on all nodes. Profiles compete for the " +
				"same room: these numbers do not add up.",
			queries: []query{{
				expr:   "sort_desc(" + aggregate("sum", "mig_profile", available) + ")",
				legend: "{{mig_profile}}",
			}},
		},
		{
			kind:        table,
			title:       "GPUs with stranded memory slices",
			hue:         fine,
			w:           6,
			h:           8,
			description: "Another layout would make these slices usable. migctl plans one that keeps the slices that are held.",
			queries: []query{{ref: "Slices", expr: aggregate("max", byGPU,
				selectFamily("nvidia_gpu_mig_slices", inFleet, `kind="memory",state="stranded"`)) +
				" > 0"}},
			columns: []column{
				{
					field: "instance",
					title: "Node",
					links: []object{
						linkTo("This GPU", nodeUID, toNode, toGPU),
					},
				},
				{
					field: "gpu",
					title: "GPU",
					width: 60,
				},
				{field: "Slices", title: "Slices", unit: "none", hue: countHue, width: 70},
			},
			sortBy:     []string{"Slices"},
			descending: true,
		},
	}
}

func fleetPower() []panel {
	sum := func(name string) string { return aggregate("sum", "cluster", selectFamily(name, inFleet)) }
	power := lines("Power", "watt", powerHue,
		"What the GPUs of each cluster draw, and the sum of their limits. not in a slice: the part of GPUs with MIG that "+
			"no slice is given, such as idle power of free room."+ruled,
		sum("instance:nvidia_power_watts:sum"), "{{cluster}} drawn").
		and(sum("instance:nvidia_power_limit_watts:sum"), "{{cluster}} limit").
		and(sum("instance:nvidia_power_unallocated_watts:sum"), "{{cluster}} not in a slice")
	power.colors = map[string]string{"limit": "#7fd1c7", "not in a slice": slate}

	return []panel{
		power,
		{
			kind:        barGauge,
			title:       "Energy in the time range",
			unit:        "kwatth",
			decimals:    1,
			hue:         powerHue,
			w:           12,
			h:           8,
			description: "Of all GPUs: power, added up each minute. Minutes without data are not in it." + ruled,
			queries: []query{{expr: "sum by (cluster) (sum_over_time(" +
				selectFamily("instance:nvidia_power_watts:sum", inFleet) +
				"[$__range])) * 60 / 3.6e6", legend: "{{cluster}}"}},
		},
	}
}

func fleetHistory() []panel {
	changed := func(title, hue, text, rule string) panel {
		selected := selectFamily(rule, inFleet)

		return counts(title, hue,
			text+" In the 5 minutes before each point; the line at 0 is of all other nodes."+ruled,
			aggregate("sum", nodeRows, selected)+" > 0 or on () "+
				setLabel("sum("+selected+")", "instance", "all nodes"), "{{instance}}")
	}

	return []panel{
		changed(
			"Layout changes",
			countHue,
			"Slices that were created or destroyed, by any program.",
			"instance:nvidia_layout_changes:increase5m",
		),
		changed("XIDs", red, "XIDs by node. The dashboard of the node shows which, and the slice.",
			"instance:nvidia_xids:increase5m"),
	}
}

func fleetControl() []panel {
	state := func(name, value string) string {
		selected := selectFamily("mig_control_state", inFleet, `state="`+name+`"`)

		return aggregate("max", nodeRows, selected+" == 1") + " * " + value
	}

	return []panel{
		counts("Operations", countHue,
			"Operations of partition control that ended in each interval, by kind and result. failed and interrupted: migctl "+
				"operations says why.",
			aggregate("sum", "verb, result", aggregate("max", nodeRows+", verb, result",
				increase(selectFamily("mig_control_operations_total", inFleet))))+" > 0 or on () "+
				setLabel("0 * sum("+selectFamily("mig_control_state", inFleet)+")", "result", "none"),
			"{{verb}} {{result}}"),
		{
			kind:  stateTimeline,
			title: "State of partition control",
			unit:  "none",
			hue:   fine,
			w:     12,
			h:     8,
			description: "degraded, stuck, read-only and off need an operator: migctl on the node says what to do. Nodes " +
				"without partition control have no line.",
			values: []valueMap{
				{"1", "idle", fine},
				{"2", "running", activityHue},
				{"3", "degraded", amber},
				{"4", "stuck", red},
				{"5", "read-only", amber},
				{"6", "off", amber},
			},
			queries: []query{
				{
					legend: "{{instance}}",
					expr: strings.Join([]string{
						state("off", "6"),
						state("read-only", "5"),
						state("stuck", "4"),
						state("degraded", "3"),
						state("running", "2"),
						state("idle", "1"),
					}, " or "),
				},
			},
		},
	}
}
