package dashboards

const (
	deviceLegend = "GPU {{gpu}} {{slice}}"
	gpuLegend    = "GPU {{gpu}}"
	byGPU        = "cluster, instance, gpu"
)

func nodeLayout(s scope) []panel {
	held := s.devices(s.slice("nvidia_gpu_allocated"), s.slice("nvidia_mig_gpu_instance_allocated"))
	exists := s.devices(s.slice("nvidia_gpu_up")+" * 0 + 2", s.sliceInfo()+" * 0 + 2")
	pods := "{" + podInfo + "," + s.slices + "}"
	holding := aggregate(
		"max",
		byDevice+", namespace, pod",
		either(
			s.withPlacement("("+pods+")"),
			withSlice(pods+" unless on ("+onSlice+") "+s.sliceInfo(), "whole"),
		),
	)
	available := s.eachSlice("nvidia_gpu_mig_profile_instances_available")

	return []panel{
		{
			kind:  stateTimeline,
			title: "Devices over time",
			unit:  "none",
			hue:   fine,
			w:     12,
			h:     10,
			description: "Every slice, and every GPU without MIG, for as long as it was there, and whether it was " +
				"held. A line that ends is a slice that was destroyed, one that begins was created: the layout changed. Unknown: " +
				"the kubelet does not answer or, without one, processes or batch jobs are not known.",
			values: []valueMap{
				{"0", "free", slate},
				{"1", "held", activityHue},
				{"2", "unknown", unknownHue},
			},
			queries: []query{{expr: either(held, exists), legend: deviceLegend}},
		},
		{
			kind:  stateTimeline,
			title: "Pods by device",
			unit:  "none",
			hue:   activityHue,
			w:     12,
			h:     10,
			description: "Each pod for as long as it held a device. Several pods on one device at a time share it. Hand-overs " +
				"are where one line ends and another begins.",
			values: []valueMap{{"1", "held", activityHue}},
			queries: []query{
				{expr: holding, legend: "GPU {{gpu}} {{slice}}: {{namespace}}/{{pod}}"},
			},
		},
		{
			kind:  barGauge,
			title: "Room for more slices",
			unit:  "none",
			hue:   countHue,
			w:     12,
			h:     8,
			description: "GPU instances of each profile that could be created now, on all GPUs that are chosen. Profiles " +
				"compete for the same room: these numbers do not add up. 0 everywhere with MIG on: the node is full, or what is " +
				"left is stranded.",
			queries: []query{{
				expr:   "sort_desc(" + aggregate("sum", "mig_profile", available) + ")",
				legend: "{{mig_profile}}",
			}},
		},
		{
			kind:    timeSeries,
			title:   "Memory slices: used, free, stranded",
			unit:    "none",
			hue:     countHue,
			stacked: true,
			w:       12,
			h:       8,
			colors:  sliceColors(),
			description: "Memory slices of the GPUs with MIG. Stranded ones are free, but no profile that could still be " +
				"placed covers them: only another layout of the GPU makes them usable.",
			queries: []query{{expr: aggregate(
				"sum",
				"state",
				aggregate(
					"max",
					onGPU+", state",
					s.gpu("nvidia_gpu_mig_slices", `kind="memory"`),
				),
			), legend: "{{state}}"}},
		},
	}
}

func nodeUse(s scope) []panel {
	return []panel{
		ratios("SM activity of each device", activityHue,
			"Part of the time in which an SM had work, mean over the device's own SMs: a small slice at 100 % is full, "+
				"whatever the rest of the GPU does. Long at 100 %: the pod needs a larger slice. Long near 0 % and held: a "+
				"smaller one would do, or none.",
			s.device("sm_activity_ratio"), deviceLegend),
		ratios("Memory bandwidth of each device", activityHue,
			"Part of the cycles in which the device's memory moved data, of its own bandwidth. High with low SM activity: the "+
				"work waits for memory; more memory slices help, more SMs do not.",
			s.device("dram_activity_ratio"), deviceLegend),
		ratios("Tensor activity of each device", activityHue,
			"Part of the cycles in which the tensor pipes worked. Near 0 % for a model that should use them: look at its "+
				"number format.",
			s.device("tensor_activity_ratio"), deviceLegend),
		ratios("SM activity of each GPU with all its slices", activityHue,
			"Of all SMs of the GPU. Under MIG it is rolled up from the slices; SMs in no slice count as idle. Compare GPUs "+
				"with it, not pods.",
			aggregate("max", byGPU, s.gpu("nvidia_gpu_sm_activity_ratio")), gpuLegend),
	}
}

func nodeMemory(s scope) []panel {
	share := ratios("Memory used, relative to the device's", memoryHue,
		"Part of the device's own memory. Above 95 %: the next allocation may fail. Ask for a profile with more memory, or "+
			"find the leak.",
		s.devices(s.memoryRatios()), deviceLegend)
	share.steps = []step{{0.95, amber}}
	stack := lines("Memory used", "bytes", memoryHue,
		"Memory in use on each device, on top of each other. A GPU with MIG is there as its slices only: the sum is what "+
			"the node uses in its devices.",
		s.device("memory_used_bytes"), deviceLegend)
	stack.stacked = true

	return []panel{share, stack}
}

func nodePower(s scope) []panel {
	power := lines("Power by device", "watt", powerHue,
		"The parts add up to what the GPUs draw. A slice's part is an estimate: a GPU has no sensor for parts of it. \"not "+
			"in a slice\" is idle power of SMs that no slice has, and active power that cannot be attributed, as on Ampere "+
			"without DCGM.",
		either(
			s.devices(s.gpu("nvidia_gpu_power_watts"),
				selectFamily("nvidia_mig_gpu_instance_power_estimate_watts", s.gpus)),
			aggregate(
				"max",
				byDevice,
				withSlice(s.gpu("nvidia_gpu_power_unallocated_watts"), "not in a slice"),
			),
		), deviceLegend)
	power.stacked = true
	slowed := ratios("Clocks slowed down, by reason", amber,
		"Part of the time in which clocks were held down. sw_power_cap, in slate, is normal under full load. "+
			"hw_thermal_slowdown and sw_thermal_slowdown: look at the cooling; hw_power_brake_slowdown: at the power supply.",
		s.only(
			"reason",
			"none",
			rate(s.gpu("nvidia_gpu_clock_event_seconds_total")),
		), "GPU {{gpu}} {{reason}}")
	slowed.colors = map[string]string{" sw_power_cap": slate, " none": fine}
	temperature := lines("Temperature", "celsius", temperatureHue,
		"Of the die and of the memory. All slices of a GPU share it. A GPU slows down by itself before it is damaged; the "+
			"panel beside shows the reasons.",
		aggregate(
			"max",
			byGPU+", sensor",
			s.gpu("nvidia_gpu_temperature_celsius"),
		), "GPU {{gpu}} {{sensor}}")
	temperature.steps = []step{{85, amber}, {92, red}}
	capped := lines("Power relative to the limit", "percentunit", powerHue,
		"What each GPU draws, relative to the limit in force. At 100 % the GPU slows its clocks down (sw_power_cap); it "+
			"may be above for a moment.",
		aggregate("max", byGPU, s.ratioOfGPU("power_watts", "power_limit_watts")), gpuLegend)
	capped.max = 1.1

	return []panel{
		power,
		capped,
		temperature,
		slowed,
	}
}

func nodeErrors(s scope) []panel {
	ecc := counts("Memory errors (ECC)", red,
		"New errors in each interval, all locations together. Corrected ones cost nothing by themselves; uncorrected ones "+
			"end processes. Under MIG the driver reports aggregate counts only.",
		aggregate(
			"sum",
			byGPU+", severity",
			aggregate(
				"max",
				onGPU+", severity, location",
				increase(s.gpu("nvidia_gpu_ecc_errors_total",
					`lifetime="aggregate"`)),
			),
		), "GPU {{gpu}} {{severity}}")
	ecc.colors = map[string]string{" corrected": countHue}

	ofSlices := selectFamily(xidOfSlice, s.gpus)
	ofGPUs := s.gpu("nvidia_gpu_xid_last_timestamp_seconds") +
		" unless on (" + onGPU + ", xid) " + ofSlices
	lastSeen := aggregate("max", byGPU+", slice, xid",
		either(s.withPlacement("("+ofSlices+")"), withSlice(ofGPUs, wholeGPU)))

	return []panel{
		{
			kind:  table,
			title: "XIDs of the last week",
			hue:   red,
			w:     12,
			h:     8,
			description: "The last time each XID was seen since the exporter started, in the last week, and the slice that " +
				"the driver attributed it to. 13, 31, 43 and 45 usually mean the application; 48, 63, 64, 79, 94 and 95 the GPU; " +
				"74 NVLink. NVIDIA's XID catalog says what to do. The table is empty if there were none.",
			queries: []query{{
				ref:  "Seen",
				expr: lastSeen + " * 1000 > (time() - 7 * 86400) * 1000",
			}},
			columns: []column{
				{
					field: "gpu",
					title: "GPU",
					width: 60,
				},
				{field: "slice", title: "Slice", width: 150},
				{field: "xid", title: "XID", width: 80},
				{field: "Seen", title: "Last seen", unit: "dateTimeFromNow", hue: fine},
			},
			sortBy: []string{"GPU"},
		},
		counts("XIDs", red,
			"How many XIDs came in each interval. See the table for their numbers.",
			sumOfGPUs(
				byGPU,
				"",
				increase(s.gpu("nvidia_gpu_xids_total")),
			), gpuLegend),
		ecc,
		counts("Failed readings", amber,
			"Readings of a GPU that failed in each interval, by what was read and why. lost: it fell off the bus; "+
				"reset_required: reset it; timeout: it hangs.",
			s.only(
				"reading, reason",
				"none",
				increase(s.gpu("nvidia_gpu_read_errors_total")),
			), "GPU {{gpu}} {{reading}} {{reason}}"),
	}
}

func nodeCompute(s scope) []panel {
	const on = onSlice + ", compute_instance"
	line := aggregate("max", byDevice+", compute_instance",
		s.withPlacement("("+s.slice("nvidia_mig_compute_instance_sm_activity_ratio")+")"))

	return []panel{
		ratios("SM activity of each compute instance", activityHue,
			"Of the compute instance's own SMs. Only split slices have these; their memory belongs to the slice and is shared.",
			line, "GPU {{gpu}} CI {{compute_instance}} of {{slice}}"),
		{
			kind:        table,
			title:       "Pods by compute instance",
			hue:         fine,
			w:           12,
			h:           8,
			description: "The pods of split slices. They share the memory of the slice, and an error of one can end the other.",
			queries: []query{
				{ref: "Held", expr: aggregate("max", rows+", compute_instance, namespace, pod",
					s.withPlacement("("+s.slice("nvidia_mig_compute_instance_pod_info")+")")) +
					" or on (" + on + ") " + aggregate("max", rows+", compute_instance",
					s.withPlacement("("+s.slice("nvidia_mig_compute_instance_up")+")")) + " * NaN"},
			},
			columns: []column{
				{
					field: "gpu",
					title: "GPU",
					width: 60,
				},
				{field: "slice", title: "Slice", width: 150},
				{field: "compute_instance", title: "CI", width: 60},
				{field: "namespace", title: "Namespace"},
				podColumn("This pod"),
			},
			sortBy: []string{"GPU"},
		},
	}
}

func nodeDriver(s scope) []panel {
	return []panel{
		ratios("Kernel running", activityHue,
			"Part of the time with at least one kernel running, as nvidia-smi says. It is no measure of how full a GPU is: "+
				"one small kernel makes it 100 %. The driver does not report it while MIG is on.",
			aggregate("max", byGPU, s.gpu("nvidia_gpu_utilization_ratio")), gpuLegend),
		ratios("Memory being read or written", activityHue,
			"Part of the time in which memory was read or written, as nvidia-smi says. The driver does not report it while "+
				"MIG is on.",
			aggregate("max", byGPU, s.gpu("nvidia_gpu_memory_copy_utilization_ratio")), gpuLegend),
	}
}

func nodeLinks(s scope) []panel {
	ofGPUs := func(family string) string { return sumOfGPUs(byGPU, "", rate(s.gpu(family))) }
	link := func(title, name, text string) panel {
		return lines(title, "Bps", linkHue, text,
			ofGPUs("nvidia_gpu_"+name+"_receive_bytes_total"), "GPU {{gpu}} in").
			and(ofGPUs("nvidia_gpu_"+name+"_transmit_bytes_total"), "GPU {{gpu}} out")
	}

	return []panel{
		link(
			"PCIe",
			"pcie",
			"Bytes that each GPU received and sent over PCIe. Slices of a GPU share its link.",
		),
		link(
			"NVLink",
			"nvlink",
			"Data that each GPU received and sent over its NVLinks. Empty if the GPU has no NVLink, or nothing uses it.",
		),
		counts("Link errors", red,
			"NVLink errors by kind, and PCIe packets that were sent again, in each interval. A few "+
				"replays are normal; a rate that stays is a bad link.",
			s.only(
				"kind",
				"none",
				either(increase(s.gpu("nvidia_gpu_nvlink_errors_total")),
					setLabel(increase(s.gpu("nvidia_gpu_pcie_replays_total")), "kind", "pcie replay")),
			), "GPU {{gpu}} {{kind}}"),
		lines("Clocks", "hertz", linkHue,
			"Clock of the SMs and of the memory. All slices of a GPU run at the same clocks.",
			aggregate(
				"max",
				byGPU+", domain",
				s.gpu("nvidia_gpu_clock_hertz", `domain=~"sm|memory"`),
			), "GPU {{gpu}} {{domain}}"),
	}
}

func nodePeaks(s scope) []panel {
	peak := func(family string) string {
		quantile := func(f string) string { return "histogram_quantile(1, " + increase(f) + ")" }

		return s.devices(
			quantile(s.slice("nvidia_gpu_"+family)),
			quantile(s.slice("nvidia_mig_gpu_instance_"+family)),
		)
	}

	return []panel{
		lines("Highest SM activity of each device", "percentunit", activityHue,
			"The highest of all readings in each interval, which the exporter makes more often than Prometheus scrapes: up to "+
				"9 % too high. Empty unless Prometheus scrapes native histograms.",
			peak("sm_activity_distribution"), deviceLegend),
		lines("Most memory used on each device", "bytes", memoryHue,
			"The highest of all readings in each interval, up to 9 % too high. A peak that the lines above do not show can "+
				"still end a process. Empty unless Prometheus scrapes native histograms.",
			peak("memory_used_distribution_bytes"), deviceLegend),
	}
}
