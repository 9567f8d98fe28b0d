package dashboards

import "strings"

const (
	// namespaces and pods match the containers of the chosen namespaces, or pods.
	namespaces = inFleet + `,namespace=~"$namespace"`
	pods       = namespaces + `,pod=~"$pod"`
	podRows    = "cluster, instance, namespace, pod" // the labels of a row in a table of pods
)

// ruled ends the description of a panel that needs recording rules.
const ruled = " Needs the recording rules in deploy/prometheus."

func workloads() dashboard {
	holders := "{" + podInfo + "," + inFleet

	return dashboard{
		uid:         workloadUID,
		title:       "GPU workloads",
		from:        "now-24h",
		tags:        []string{"gpu", "mig"},
		description: "Which namespaces and pods hold GPUs and slices, and how much of them they use.",

		variables: []object{
			datasourceVariable(),
			choice("cluster", "Cluster", "label_values(nvidia_gpu_up, cluster)", false),
			choice(
				"node",
				"Node",
				`label_values(nvidia_gpu_up{cluster=~"$cluster"}, instance)`,
				false,
			),
			choice("namespace", "Namespace", "label_values("+holders+"}, namespace)", false),
			choice("pod", "Pod", "label_values("+holders+`,namespace=~"$namespace"}, pod)`, false),
			mostVariable(),
			chosenVariable(),
			placesVariable(),
		},

		annotations: nodeEvents(),
		rows: []row{
			{title: "Right now", panels: append(workloadStats(), workloadTable())},
			{title: "Namespaces", panels: workloadNamespaces()},
			{
				title:     "Pods and their devices (the " + mostPods + " pods that draw most power; choose others above)",
				collapsed: true,
				panels:    workloadPods(),
			},
		},
	}
}

func workloadStats() []panel {
	s := fleetScope()
	held := "max by (cluster, instance, uuid, gpu_instance) ({" + podInfo + "," + pods + "})"
	all := "count(" + s.eachSlice("nvidia_mig_gpu_instance_info") + " or (" + s.eachGPU("nvidia_gpu_up") + " unless " +
		s.eachGPU("nvidia_gpu_mig_enabled") + " == 1))"

	return []panel{
		figure("Pods with a GPU or slice", "none", countHue, 6,
			"Pods that hold at least one device now. \"no data\": none of those that are chosen does, or the "+
				"kubelet does not report any.",
			"count(max by ("+podRows+") ({"+podInfo+","+pods+"}))", "pods"),
		figure("Devices", "none", countHue, 6,
			"Slices and GPUs without MIG that the chosen pods hold, and all that there are on the chosen nodes. "+
				"A device that pods share counts once.",
			"count("+held+")", "held").
			and(all, "all"),
		figure("Power", "watt", powerHue, 6,
			"What the chosen pods draw on devices that they have to themselves, and what all GPUs draw. The "+
				"difference: other pods, shared devices, idle power of free devices.",
			"sum("+eachContainer("power_estimate_watts")+")", "of these pods").
			and("sum("+s.eachGPU("nvidia_gpu_power_watts")+")", "of all GPUs"),
		{
			kind:     stat,
			title:    "Energy in the time range",
			unit:     "kwatth",
			decimals: 1,
			hue:      powerHue,
			w:        6,
			h:        4,
			description: "Of the chosen namespaces, on devices that containers had to themselves: power, added up each " +
				"minute. Slices have estimates." + ruled,
			queries: []query{
				{
					expr: "sum(sum_over_time(" +
						selectFamily("namespace:nvidia_power_watts:sum", namespaces) +
						"[$__range])) * 60 / 3.6e6",
					legend: "energy",
				},
			},
		},
	}
}

// eachContainer returns one value for each container and device of the chosen pods.
func eachContainer(family string) string {
	return containersOf(selectFamily("nvidia_gpu_container_"+family, pods))
}

// containersOf returns one value for each container and device of the families of containers that an
// expression selects.
func containersOf(expr string) string {
	return aggregate("max", deviceRow+", compute_instance, namespace, pod, container, hpc_job", expr)
}

func workloadTable() panel {
	holding := "{" + podInfo + "," + pods + "}"
	each := func(expr string) string { return aggregate("group", podRows, expr) }
	// A cell says n/a, too, if its query has no such row: rows of NaN for all pods would be a large part
	// of what this table costs. A query that has no value at all gets some: Grafana merges by the labels
	// that all queries have, and takes a minute for thousands of rows if one has none.
	byPod := func(op, family string) string {
		some := "{" + podInfo + `,gpu="0",` + pods + "}"
		return aggregate(op, podRows, eachContainer(family)) + " or on () " + each(some) + " * NaN"
	}
	// The first of these that holds is shown; the columns below have their texts. As in idleOf, a pod
	// is idle that held the device an hour ago, too.
	state := strings.Join([]string{
		each("{" + podInfo + `,sharing="unknown",` + pods + "}"),
		each("{"+podInfo+`,confirmed="false",`+pods+"}") + " * 2",
		each(holding+" and on (cluster, uuid, gpu_instance) "+idle+
			" and on (cluster, uuid, gpu_instance, namespace, pod) "+heldBefore) + " * 3",
		each(holding) + " * 4",
	}, " or ")
	owned := podRows + ", workload"
	devices := "count by (" + owned + ") (" +
		aggregate("group", owned+", uuid, gpu_instance, compute_instance", holding) + ")"

	return panel{
		kind:  table,
		title: "All pods with a GPU or slice",
		hue:   fine,
		w:     24,
		h:     11,
		description: "What each pod uses of all its devices. Activity is the mean over them. Owner: the Deployment, " +
			"StatefulSet or Job of the pod, if the exporter may ask the API server. n/a: of devices that pods share, " +
			"activity and power are not known by pod. idle for 1 h: one of its devices was busy for less than 1 % of the " +
			"time, as the alerts GpuAllocatedIdle and MigSliceAllocatedIdle say; ask its owner whether it still needs it. " +
			"conflict: the kubelet's answers contradict each other; unconfirmed: the pod may have ended already. Click a " +
			"node to see it." + ruled,
		queries: []query{
			{ref: "State", expr: state},
			{
				ref:  "Devices", // with the label workload
				expr: `label_replace(topk by (` + podRows + `) (1, ` + devices + `), "workload", "n/a", "workload", "")`,
			},
			{ref: "SM", expr: byPod("avg", "sm_activity_ratio")},
			{ref: "Tensor", expr: byPod("avg", "tensor_activity_ratio")},
			{ref: "Memory", expr: byPod("sum", "memory_used_bytes")},
			{ref: "Power", expr: byPod("sum", "power_estimate_watts")},
		},
		columns: []column{
			{field: "namespace", title: "Namespace", width: 140},
			podColumn("This pod alone"),
			{field: "workload", title: "Owner"},
			nodeColumn(),
			{
				field: "State",
				title: "State",
				width: 130,
				hue:   fine,
				values: []valueMap{
					{"1", "conflict", red},
					{
						"2",
						"unconfirmed",
						amber,
					},
					{"3", "idle for 1 h", amber},
					{"4", "ok", "transparent"},
				},
			},
			{field: "Devices", title: "Devices", width: 80, unit: "none", hue: fine},
			shareColumn("SM", "SM activity", activityHue, 145),
			shareColumn("Tensor", "Tensor activity", activityHue, 145),
			{field: "Memory", title: "Memory used", unit: "bytes", hue: memoryHue, width: 130},
			{field: "Power", title: "Power", unit: "watt", hue: powerHue, width: 110},
		},
		sortBy:      []string{"State", "Namespace", "Pod"},
		firstHasAll: true,
	}
}

func workloadNamespaces() []panel {
	sum := func(rule string) string {
		return aggregate("sum", "cluster, namespace", selectFamily(rule, namespaces))
	}
	stack := func(title, unit, hue, text, expr string) panel {
		p := lines(title, unit, hue,
			text+ruled,
			expr, "{{namespace}}")
		p.stacked = true

		return p
	}
	held := lines("Devices: held and free", "none", countHue,
		"Slices and GPUs without MIG of the chosen nodes. Devices whose holder is unknown are not in it."+ruled,
		aggregate("sum", "state", selectFamily("instance:nvidia_devices:count", inFleet)), "{{state}}")
	held.stacked = true
	held.colors = heldColors()

	return []panel{
		held,
		stack("Devices held, by namespace", "none", countHue,
			"A device that pods of several namespaces share counts once for each of them.",
			sum("namespace:nvidia_devices_held:count")),
		ratios("SM activity, by namespace", activityHue,
			"Mean over the devices that containers of the namespace have to themselves. Low for days: smaller slices "+
				"would do."+ruled,
			sum("namespace:nvidia_sm_activity:sum")+" / "+sum("namespace:nvidia_sm_activity:count"), "{{namespace}}"),
		stack("Memory used, by namespace", "bytes", memoryHue,
			"What containers use, on shared devices too if the exporter sees the host's processes.",
			sum("namespace:nvidia_memory_used_bytes:sum")),
		stack("Power, by namespace", "watt", powerHue,
			"Of devices that containers have to themselves. A slice's power is an estimate.",
			sum("namespace:nvidia_power_watts:sum")),
		{
			kind:        barGauge,
			title:       "Energy in the time range, by namespace",
			unit:        "kwatth",
			decimals:    2,
			hue:         powerHue,
			w:           12,
			h:           8,
			description: "Power, added up each minute: the basis of a bill." + ruled,
			queries: []query{{expr: "sort_desc(sum by (cluster, namespace) (sum_over_time(" +
				selectFamily("namespace:nvidia_power_watts:sum", namespaces) +
				"[$__range]))) * 60 / 3.6e6",
				legend: "{{namespace}}"}},
		},
	}
}

// workloadPods returns panels with one line for each container and device, of the pods that are drawn.
func workloadPods() []panel {
	const legend = "{{namespace}}/{{pod}} {{container}}: {{instance}} GPU {{gpu}} {{slice}}"
	const labels = "cluster, instance, namespace, pod, container, gpu, slice"
	line := func(op, family string) string {
		return aggregate(op, labels, either(withPlacementOfDrawn(family),
			withSlice(containersOf(drawn(family, `gpu_instance=""`)), "whole")))
	}
	memory := lines("Memory used by each pod", "bytes", memoryHue,
		"On each device. On one that pods share it is what the pod's own processes use. A line that ends with its pod near "+
			"the device's size: it probably ran out of memory."+onlyMost,
		line("sum", "memory_used_bytes"), legend)
	memory.w = columns
	power := lines("Power of each pod", "watt", powerHue,
		"Measured for a whole GPU, estimated for a slice, absent for shared devices."+onlyMost,
		line("sum", "power_estimate_watts"), legend)
	power.w = columns
	sm := ratios("SM activity of each pod", activityHue,
		"Of each device that the pod has to itself, of the device's own SMs. Long at 100 %: a larger slice. Near 0 %: a "+
			"smaller one, or none."+onlyMost,
		line("avg", "sm_activity_ratio"), legend)
	sm.w = columns

	panels := []panel{sm, memory, power}
	for i := range panels {
		panels[i].points = fewPoints
	}

	return panels
}
