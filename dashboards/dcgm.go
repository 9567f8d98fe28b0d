package dashboards

// The node's dashboard in the names of dcgm-exporter, for users that have not moved yet. It also
// reads dcgm-exporter itself, which repeats the values of a whole GPU on each of its instances: the
// queries take such a value once.

const (
	dcgmUnit = "cluster, instance, gpu, UUID, GPU_I_ID, GPU_I_PROFILE"
	dcgmRows = dcgmUnit + ", slice"
)

// dcgmScope makes queries of the dashboard. Its methods return PromQL expressions.
type dcgmScope struct{ selector string }

// field selects a field of DCGM, with further matchers.
func (d dcgmScope) field(name string, matchers ...string) string {
	return selectFamily("DCGM_FI_"+name, d.selector, matchers...)
}

// wholeGPU returns a value of the whole GPU, once.
func (d dcgmScope) wholeGPU(field string) string { return aggregate("max", byGPU, d.field(field)) }

// each returns one value for each instance: while a pod of the exporter is replaced, there are two.
func (d dcgmScope) each(expr string) string { return aggregate("max", dcgmUnit, expr) }

// held returns one value for each device and pod that holds it. If Prometheus honors labels, the pod
// is in the label pod. A device that no pod holds has the exporter's own pod there, which Prometheus
// adds to all series of a target, the series up included: unless leaves it out. If Prometheus does
// not honor labels, as with dcgm-exporter's chart, the pod is in the label exported_pod.
func (d dcgmScope) held() string {
	const fields = `{__name__=~"DCGM_FI_DEV_FB_USED|DCGM_FI_PROF_GR_ENGINE_ACTIVE",`
	honored := fields + `pod!="",exported_pod="",` + d.selector +
		`} unless on (cluster, instance, namespace, pod) up`

	exported := aggregate(
		"max",
		dcgmUnit+", exported_namespace, exported_pod",
		fields+`exported_pod!="",`+d.selector+`}`,
	)
	for _, name := range []string{"namespace", "pod"} {
		exported = `label_replace(` + exported + `, "` + name + `", "$1", "exported_` + name + `", "(.+)")`
	}

	return aggregate("max", dcgmUnit+", namespace, pod", either(honored, exported))
}

// named adds the label slice: the profile and id of an instance, 3g.20gb#1, since these metrics do
// not have its placement, and "whole" for a GPU.
func (d dcgmScope) named(expr string) string {
	return `label_replace(label_join(` + expr +
		`, "slice", "#", "GPU_I_PROFILE", "GPU_I_ID"), "slice", "whole", "slice", "#")`
}

// units returns one value for each instance, and for each GPU without instances.
func (d dcgmScope) units(field string) string {
	const instances = `GPU_I_ID!=""`

	return d.field(field, instances, `GPU_CI_ID=""`) + " or (" + d.field(field, `GPU_I_ID=""`) +
		" unless on (cluster, instance, UUID) " + d.field(field, instances) + ")"
}

// device returns the values of units with the labels of devices.
func (d dcgmScope) device(field string) string {
	return aggregate("max", byDevice, d.named("("+d.units(field)+")"))
}

// onGPUs returns one value for each GPU, with the labels of its row in a table.
func (d dcgmScope) onGPUs(expr string) string {
	return withSlice(aggregate("max", byGPU+", UUID", expr), wholeGPU)
}

// inventory returns a value for each row of a table: each GPU and each instance.
func (d dcgmScope) inventory() string {
	return aggregate("max", dcgmRows, either(
		d.onGPUs(d.field("DEV_GPU_TEMP")),
		d.named(d.field("DEV_FB_USED", `GPU_I_ID!=""`))))
}

// onInventory returns a value for each row of a table, NaN if the expressions have none. ofInstance
// is "" for fields that only whole GPUs have.
func (d dcgmScope) onInventory(ofGPU, ofInstance string) string {
	values := d.onGPUs(ofGPU)
	if ofInstance != "" {
		values = either(values, d.named(ofInstance))
	}

	return either(aggregate("max", dcgmRows, values), d.inventory()+" * NaN")
}

func dcgm() dashboard {
	d := dcgmScope{`cluster=~"$cluster",instance="$node",gpu=~"$gpu",GPU_I_PROFILE=~"$profile"`}
	xid := d.field("DEV_XID_ERRORS")
	const on = "cluster, instance, gpu, err_code"
	count := func(offset string) string {
		return aggregate("count", byGPU, aggregate("max", dcgmUnit+", GPU_CI_ID", d.field("DEV_FB_USED")+offset))
	}

	return dashboard{
		uid:   dcgmUID,
		title: "GPU node (dcgm-exporter's metrics)",
		from:  "now-6h",
		tags:  []string{"gpu", "mig", "dcgm"},
		description: "The node's dashboard on the metrics of dcgm-exporter, by their names before 4.9 " +
			"(--metrics.names=dcgm or both). It works with dcgm-exporter too, as its chart installs it, except for what that " +
			"does not serve.",
		variables: nodeVariables("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED", "GPU_I_PROFILE"),
		annotations: []object{
			annotation(
				"Number of slices",
				countHue,
				"abs("+count("")+" - "+count(" offset $__rate_interval")+") > 0",
				"Number of slices changed",
				"GPU {{gpu}}",
			),
			annotation(
				"XIDs",
				red,
				"max by ("+on+") ("+xid+" > 0) unless on ("+on+") ("+xid+" offset $__rate_interval)",
				"XID {{err_code}}",
				"GPU {{gpu}}",
			),
		},
		rows: []row{
			{title: "Right now", panels: append(dcgmStats(d), dcgmTable(d))},
			{title: "Use", panels: dcgmUse(d)},
			{title: "Memory", panels: dcgmMemory(d)},
			{title: "Power, temperature, clocks", panels: dcgmPower(d)},
			{title: "Errors", panels: dcgmErrors(d)},
			{title: "PCIe and NVLink", collapsed: true, panels: dcgmLinks(d)},
		},
	}
}

func dcgmStats(d dcgmScope) []panel {
	return []panel{
		figure("GPUs", "none", countHue, 8,
			"GPUs that report. One that does not answer has no series here: compare with the number that the "+
				"node should have.",
			"count("+d.wholeGPU("DEV_GPU_TEMP")+")", "GPUs"),
		figure("Slices", "none", countHue, 8,
			"GPU instances that have a compute instance.",
			"count("+d.each(d.field("DEV_FB_USED", `GPU_I_ID!=""`))+") or 0 * count("+
				d.wholeGPU("DEV_GPU_TEMP")+")", "slices"),
		figure("Power", "watt", powerHue, 8,
			"What the GPUs draw, each once. Dashboards that add up DCGM_FI_DEV_POWER_USAGE of dcgm-exporter "+
				"count a GPU again for each of its slices.",
			"sum("+d.wholeGPU("DEV_POWER_USAGE")+")", "drawn"),
	}
}

// dcgmMemoryShare returns the used part of all memory. Reserved memory counts as a part of all if it
// is exported, which dcgm-exporter does not do by default.
func dcgmMemoryShare(d dcgmScope, more ...string) string {
	field := func(name string) string { return d.each(d.field(name, more...)) }
	unreserved := field("DEV_FB_USED") + " + " + field("DEV_FB_FREE")

	return field("DEV_FB_USED") + " / (" +
		either(unreserved+" + "+field("DEV_FB_RESERVED"), unreserved) + ")"
}

func dcgmTable(d dcgmScope) panel {
	const instance, gpu = `GPU_I_ID!=""`, `GPU_I_ID=""`
	both := func(field string) string {
		return d.onInventory(d.field(field, gpu), d.field(field, instance, `GPU_CI_ID=""`))
	}
	pods := d.held()
	count := aggregate("count", dcgmUnit, pods)
	single := `label_join(` + pods + ` and on (` + dcgmUnit + `) (` + count + ` == 1), "holder", "/", "namespace", "pod")`
	several := `label_replace(count_values by (` + dcgmUnit + `) ("n", ` + count +
		` > 1), "holder", "$1 pods", "n", "(.*)")`
	holder := aggregate(
		"max",
		dcgmRows+", holder",
		`label_replace(`+d.named(
			"("+single+" or "+several+")",
		)+`, "slice", "`+wholeGPU+`", "slice", "whole")`,
	)
	bySlice := setLabel(d.onGPUs(d.field("DEV_FB_USED", instance)), "holder", "by slice")

	return panel{
		kind:  table,
		title: "GPUs and slices, and the pods that hold them",
		hue:   fine,
		w:     24,
		h:     11,
		description: "One row for each GPU, then one for each slice of it. n/a: these metrics do not have it, or a slice " +
			"has no such reading. free or unknown: no series names a pod; these metrics do not distinguish the two. The same " +
			"dashboard with mig-exporter's own metrics shows placement, state, and the power of a slice.",
		queries: []query{
			{
				ref: "Holder",
				expr: holder + " or on (" + dcgmRows + ") " + bySlice + " or on (" + dcgmRows + ") " +
					setLabel(
						d.inventory(),
						"holder",
						"free or unknown",
					),
			},
			{ref: "Engine", expr: both("PROF_GR_ENGINE_ACTIVE")},
			{ref: "Tensor", expr: both("PROF_PIPE_TENSOR_ACTIVE")},
			{ref: "DRAM", expr: both("PROF_DRAM_ACTIVE")},
			{
				ref:  "Memory",
				expr: d.onInventory(dcgmMemoryShare(d, gpu), dcgmMemoryShare(d, instance)),
			},
			{ref: "Power", expr: d.onInventory(d.field("DEV_POWER_USAGE"), "")},
			{ref: "Temperature", expr: d.onInventory(d.field("DEV_GPU_TEMP"), "")},
			// An instance without compute instances has an XID and no row.
			{
				ref:  "XID",
				expr: "(" + both("DEV_XID_ERRORS") + ") and on (" + dcgmRows + ") " + d.inventory(),
			},
		},
		columns: []column{
			gpuColumn(60, linkTo("This GPU alone", dcgmUID, toNode, toGPU)),
			{field: "slice", title: "Slice", width: 140},
			{field: "holder", title: "Held by"},
			shareColumn("Engine", "Engine active", activityHue, 150),
			shareColumn("Tensor", "Tensor active", activityHue, 150),
			shareColumn("DRAM", "Memory bandwidth", activityHue, 150),
			{
				field: "Memory",
				title: "Memory used",
				unit:  "percentunit",
				hue:   memoryHue,
				gauge: true,
				max:   1,
				width: 160,
				steps: []step{{0.95, amber}},
			},
			{
				field: "Power",
				title: "Power",
				unit:  "watt",
				hue:   powerHue,
				gauge: true,
				max:   mostWatts,
				width: 140,
			},
			{
				field: "Temperature",
				title: "Temperature",
				unit:  "celsius",
				hue:   temperatureHue,
				gauge: true,
				max:   100,
				width: 130,
				steps: []step{{85, amber}, {92, red}},
			},
			countColumn("XID", "Last XID", 90),
			{field: "instance", hidden: true},
		},
		sortBy: []string{"GPU", "Slice"},
	}
}

func dcgmUse(d dcgmScope) []panel {
	return []panel{
		ratios("Engine activity of each device", activityHue,
			"Part of the time in which the graphics or compute engine was active, of the device's own. It needs GPM (Hopper "+
				"and later) or DCGM.",
			d.device("PROF_GR_ENGINE_ACTIVE"), deviceLegend),
		ratios("Tensor activity of each device", activityHue,
			"Part of the cycles in which the tensor pipes worked.",
			d.device("PROF_PIPE_TENSOR_ACTIVE"), deviceLegend),
		ratios("Memory bandwidth of each device", activityHue,
			"Part of the cycles in which the device's memory moved data, of its own bandwidth.",
			d.device("PROF_DRAM_ACTIVE"), deviceLegend),
		ratios("Kernel running (GPUs without MIG)", activityHue,
			"DCGM_FI_DEV_GPU_UTIL: part of the time with at least one kernel running. The driver does not report it while MIG "+
				"is on: dashboards that have nothing else are empty there.",
			d.wholeGPU("DEV_GPU_UTIL")+" / 100", gpuLegend),
	}
}

func dcgmMemory(d dcgmScope) []panel {
	stack := lines("Memory used", "mbytes", memoryHue,
		"Memory in use on each device, on top of each other. A GPU with slices is there as its slices only.",
		d.device("DEV_FB_USED"), deviceLegend)
	stack.stacked = true
	holders := aggregate("max", byDevice+", namespace, pod", d.named(d.held())) + " * 0 + 1"

	return []panel{
		stack,
		{
			kind:  stateTimeline,
			title: "Pods by device",
			unit:  "none",
			hue:   activityHue,
			w:     12,
			h:     8,
			description: "Each pod for as long as it held a device: its labels are on the device's series, which end when " +
				"another pod gets the device.",
			values: []valueMap{{"1", "held", activityHue}},
			queries: []query{
				{expr: holders, legend: "GPU {{gpu}} {{slice}}: {{namespace}}/{{pod}}"},
			},
		},
	}
}

func dcgmPower(d dcgmScope) []panel {
	power := lines("Power of each GPU", "watt", powerHue,
		"What each GPU draws, with all its slices, once. There is no metric of a slice's power here.",
		d.wholeGPU("DEV_POWER_USAGE"), gpuLegend)
	power.stacked = true
	temperature := lines("Temperature", "celsius", temperatureHue,
		"Of the die and of the memory.",
		d.wholeGPU("DEV_GPU_TEMP"), "GPU {{gpu}} die").
		and(d.wholeGPU("DEV_MEMORY_TEMP"), "GPU {{gpu}} memory")
	temperature.steps = []step{{85, amber}, {92, red}}

	return []panel{
		power,
		temperature,
		lines("SM clock", "rotmhz", linkHue,
			"All slices of a GPU run at the same clock.",
			d.wholeGPU("DEV_SM_CLOCK"), gpuLegend),
		lines("Power, from the energy counter", "watt", powerHue,
			"Rate of the energy counter: mean power between scrapes, peaks included.",
			aggregate("max", byGPU, rate(d.field("DEV_TOTAL_ENERGY_CONSUMPTION")))+" / 1000", gpuLegend),
	}
}

func dcgmErrors(d dcgmScope) []panel {
	return []panel{
		{
			kind:  stateTimeline,
			title: "Last XID",
			unit:  "none",
			hue:   red,
			w:     12,
			h:     8,
			description: "The number of the last XID of each GPU and slice, which stays until the next one or a restart: 0 is " +
				"none since then. An XID of a slice is not repeated on its GPU. Alert on DCGM_EXP_XID_ERRORS_COUNT instead.",
			values: []valueMap{{"0", "none", fine}},
			queries: []query{
				{expr: aggregate("max", byDevice, d.named(d.field("DEV_XID_ERRORS", `GPU_CI_ID=""`))),
					legend: deviceLegend},
			},
		},
		lines("Remapped rows", "none", red,
			"Rows of memory that were replaced after uncorrectable errors. The driver does not report them while a GPU has "+
				"slices.",
			d.wholeGPU("DEV_UNCORRECTABLE_REMAPPED_ROWS"), gpuLegend),
	}
}

func dcgmLinks(d dcgmScope) []panel {
	return []panel{
		lines("PCIe", "Bps", linkHue,
			"Rates by the profiling counters. They need GPM (Hopper and later) or DCGM.",
			d.wholeGPU("PROF_PCIE_RX_BYTES"), "GPU {{gpu}} in").
			and(d.wholeGPU("PROF_PCIE_TX_BYTES"), "GPU {{gpu}} out"),
		lines("NVLink", "MBs", linkHue,
			"All NVLinks of the GPU together, both ways.",
			d.wholeGPU("DEV_NVLINK_BANDWIDTH_TOTAL"), gpuLegend),
		counts("PCIe replays", red,
			"Packets sent again in each interval. A rate that stays is a bad link.",
			aggregate("max", byGPU, increase(d.field("DEV_PCIE_REPLAY_COUNTER"))), gpuLegend),
	}
}
