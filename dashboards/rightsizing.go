package dashboards

import "strings"

// The families of the advisor. Their series have the labels of the pod, too. The dashboard does not
// use these: a GPU that no pod holds has the exporter's pod there, which Prometheus adds.
const (
	candidate   = "nvidia_gpu_rightsizing_candidate"
	judged      = "nvidia_gpu_rightsizing_confidence_ratio" // has all whole GPUs that are held
	reclaimable = "nvidia_gpu_rightsizing_reclaimable_ratio"
	stretch     = "nvidia_gpu_rightsizing_stretch_ratio"
	latency     = "nvidia_gpu_rightsizing_latency_ratio"
	deciding    = "nvidia_gpu_rightsizing_deciding_ratio"
	freed       = "nvidia_gpu_rightsizing_freed_gpus"
	advised     = "nvidia_mig_gpu_instance_rightsizing_candidate"
)

// advisor ends the description of a panel that needs the advisor.
const advisor = " Needs the advisor in the exporter (--advise.enabled)."

func rightsizing() dashboard {
	s := fleetScope().withGPU()
	s.slices = s.gpus

	return dashboard{
		uid:   rightsizingUID,
		title: "GPU right-sizing",
		from:  "now-7d",
		tags:  []string{"gpu", "mig"},
		description: "Which whole GPUs are too large for what they do, which slice would do, what it costs kernels and " +
			"requests, and what it sets free; and which slices are too small, too large or idle. Nothing is changed by itself.",

		variables: []object{
			datasourceVariable(),
			choice("cluster", "Cluster", "label_values(nvidia_gpu_up, cluster)", false),
			choice(
				"node",
				"Node",
				`label_values(nvidia_gpu_up{cluster=~"$cluster"}, instance)`,
				false,
			),
			choice("gpu", "GPU", "label_values(nvidia_gpu_up{"+inFleet+"}, gpu)", false),
		},

		annotations: nodeEvents(),
		rows: []row{
			{title: "Right now", panels: append(rightsizingStats(s), candidateTable(s))},
			{title: "Other whole GPUs", panels: []panel{keptByReason(s), keptTable(s)}},
			{title: "Slices", panels: []panel{slicesByAction(s), sliceTable(s)}},
			{title: "Evidence (choose a node and a GPU)", panels: evidencePanels(s)},
			{title: "Over time", panels: rightsizingHistory(s)},
			{title: "Partition control", collapsed: true, panels: fleetControl()},
		},
	}
}

// candidates returns the GPUs that are candidates, each once: while an exporter is replaced, two
// may recommend for one GPU.
func (s scope) candidates() string { return s.eachGPU(candidate) }

// oneOf returns one value for each device, with a label of the family. While two exporters have
// different values in the label, it takes one of them.
func oneOf(device, label, expr string) string {
	return "topk by (" + device + ") (1, " + aggregate("max", device+", "+label, expr) + ")"
}

// rejections returns the GPUs that the advisor keeps whole, with the reason. It leaves out a GPU for
// which a slice would do by evidence that is not complete yet: underused counts it. And it leaves out
// one for which another exporter, which knows more, has a candidate, or such a slice.
func (s scope) rejections() string {
	kept := s.gpu("nvidia_gpu_rightsizing_rejected", `reason!="provisional"`)
	provisional := s.gpu("nvidia_gpu_rightsizing_rejected", `reason="provisional"`)

	return oneOf(onGPU, "reason", kept) + " unless on (" + onGPU + ") " + s.gpu(candidate) +
		" unless on (" + onGPU + ") " + provisional
}

// advisedSlices returns one value for each slice that should change. build makes the expression for
// the slices with an action, which selected selects. If two exporters advise different actions for a
// slice, the first of grow, idle and shrink counts.
func (s scope) advisedSlices(build func(action, selected string) string) string {
	var list []string
	for _, action := range []string{"grow", "idle", "shrink"} {
		list = append(list, build(action, s.slice(advised, `action="`+action+`"`)))
	}

	return strings.Join(list, " or on ("+onSlice+") ")
}

func (s scope) sliceActions() string {
	return s.advisedSlices(func(action, selected string) string {
		return setLabel(aggregate("max", deviceRow, selected), "action", action)
	})
}

// ofCandidates returns the values of a family for the candidates alone.
func (s scope) ofCandidates(family string, more ...string) string {
	return s.eachGPU(family, more...) + " and on (" + onGPU + ") " + s.gpu(candidate)
}

// decidedBy returns the candidates with the figure that decided, and its value, in the label
// decided: for example "latency 1.28".
func (s scope) decidedBy() string {
	figure := oneOf(onGPU, "figure", s.gpu(deciding)) + " and on (" + onGPU + ") " + s.gpu(candidate)
	valued := "count_values by (" + onGPU + `, figure) ("ratio", round(` + figure + ", 0.01))"

	return `label_join(` + valued + `, "decided", " ", "figure", "ratio") or on (` + onGPU + ") " +
		setLabel(s.candidates(), "decided", "n/a")
}

func wholeGPUs(expr string) string { return withSlice("("+expr+")", wholeGPU) }

// zeroIfJudged returns the value of an expression or, if it has none and the advisor has judged any
// GPU, 0.
func (s scope) zeroIfJudged(expr string) string {
	return expr + " or 0 * count(" + s.eachGPU(judged) + ")"
}

func rightsizingStats(s scope) []panel {
	count := "count(" + s.eachGPU(judged) + ")"
	number := func(title, unit, legend, expr, text string) panel {
		return figure(title, unit, countHue, 5,
			text,
			expr, legend)
	}
	gained := number(
		"GPUs to be gained",
		"none",
		"in GPUs",
		s.zeroIfJudged("sum("+s.ofCandidates(reclaimable)+")"),
		"SMs that the candidates would set free, in GPUs. How many whole GPUs become free depends on how the slices can be "+
			"packed: the table's column GPUs freed shows it."+advisor,
	)
	gained.decimals = 1
	slices := number("Slices to change", "none", "slices", "count("+s.sliceActions()+")",
		"Slices that are too small, too large or idle. \"no data\": none is, or no advisor runs.")
	slices.w = 4

	return []panel{
		number(
			"Whole GPUs that are held",
			"none",
			"observed",
			count,
			"GPUs without MIG whose use the advisor observes. \"no data\": none is held, or no advisor runs.",
		),
		underusedNumber(s),
		gained,
		number(
			"SMs to be gained",
			"percentunit",
			"of GPUs held",
			"("+s.zeroIfJudged("sum("+s.ofCandidates(reclaimable)+")")+") / "+count,
			"SMs that the candidates would free, as a share of those of all whole GPUs that are held."+advisor,
		),
		slices,
	}
}

// underusedNumber returns how many whole GPUs are larger than their work needs, and of how many that are held
// that is not known. It is 0 only if it is known of one at least that it is not.
func underusedNumber(s scope) panel {
	const (
		known = "(mig:gpu_rightsizing:answer == 0 or on (cluster, uuid) mig:gpu_underused:info or on (cluster, uuid) " +
			"(count_over_time(mig:gpu_busy:avg5m[2d]) >= 288 " +
			"unless on (cluster, uuid) last_over_time(mig:gpu_rightsizing:answer[26h]) < 0))"
		held = "(last_over_time(mig:gpu_busy:avg5m[10m]) or on (cluster, uuid) mig:gpu_rightsizing:answer " +
			"or on (cluster, uuid) group by (cluster, uuid) " +
			"(nvidia_gpu_allocated == 1 and on (cluster, uuid) nvidia_gpu_mig_enabled == 0))"
	)

	here := " and on (cluster, uuid) " + s.gpu("mig:gpu_target:sole")

	p := figure("Larger than their work needs", "none", countHue, 5,
		"Whole GPUs, by how that is known. week: the advisor's evidence of seven days or more, the alert GpuRightsizingCandidate; "+
			"provisional: evidence that is not complete yet; means: means of five minutes alone, where the advisor has no answer. For the last two "+
			"GpuUnderused fires. They are the rows of the fleet's table of underused GPUs. not known: GPUs that are or may be held, of which the advisor "+
			"says what is not known of their work, or has no answer, and means of five minutes have less than a day or do not exist."+ruled,
		aggregate("count", "evidence", s.underused())+" or on () "+
			setLabel("(0 * count("+known+here+"))", "evidence", "GPUs"),
		"{{evidence}}")
	p.queries = append(p.queries, query{
		expr:   "count(" + held + " unless on (cluster, uuid) " + known + here + ")",
		legend: "not known",
	})

	return p
}

// deviceColumns returns the first columns of a table of devices: node, GPU and holder. fromGPU is
// the link of the GPU's cells.
func deviceColumns(fromGPU object) []column {
	return []column{
		nodeColumn(),
		gpuColumn(60, fromGPU),
		holderColumn(),
		{field: "namespace", hidden: true},
		{field: "pod", hidden: true},
	}
}

func toEvidence() object {
	return linkTo("Its evidence", rightsizingUID, toNode, toGPU)
}

func candidateTable(s scope) panel {
	of := func(family string, more ...string) string {
		return aggregate(
			"max",
			rows,
			wholeGPUs(either(s.ofCandidates(family, more...), s.candidates()+" * NaN")),
		)
	}

	return panel{
		kind:  table,
		title: "Whole GPUs that should be slices",
		hue:   fine,
		w:     24,
		h:     10,
		description: "Candidates, those that free most GPUs first: of whole GPUs a share for each, since slices are " +
			"packed together; 0 makes room for slices alone. Kernels: how many times as long as now they would take in the " +
			"slice, from all alike to the worst mix; 1 costs nothing. Requests: the same of requests, waiting included, in " +
			"the busiest hour; 1000: they may queue without bound, n/a: the work answers none, or it is not known. Decided " +
			"by: the figure that is nearest to its limit, as times or as a share. Confidence: 100 % is a week of complete observation, an hour with kernels and a start that was seen; the least " +
			"of them decides. migctl recommend --explain GPU on the node has the evidence and the procedure. Click a GPU for " +
			"its evidence below." + advisor,
		queries: []query{
			{ref: "Freed", expr: of(freed)},
			{ref: "Gain", expr: of(reclaimable)},
			{ref: "Low", expr: of(stretch, `bound="low"`)},
			{ref: "High", expr: of(stretch, `bound="high"`)},
			{ref: "LatencyLow", expr: of(latency, `bound="low"`)},
			{ref: "LatencyHigh", expr: of(latency, `bound="high"`)},
			{ref: "Decided", expr: aggregate("max", rows+", decided", wholeGPUs(s.decidedBy()))},
			{ref: "Confidence", expr: of(judged)},
			{ref: "Profile", expr: aggregate("max", rows+", recommended_profile",
				wholeGPUs(oneOf(onGPU, "recommended_profile", s.gpu(candidate))))},
			{
				ref:  "Holder",
				expr: "(" + s.holdersOfGPUs() + ") and on (" + rows + ") " + wholeGPUs(s.candidates()),
			},
		},
		columns: append(
			deviceColumns(toEvidence()),
			column{field: "recommended_profile", title: "Slice that would do", width: 140},
			countColumn("Freed", "GPUs freed", 90),
			shareColumn("Gain", "SMs set free", countHue, 100),
			countColumn("Low", "Kernels from", 100),
			countColumn("High", "Kernels to", 90),
			countColumn("LatencyLow", "Requests from", 110),
			countColumn("LatencyHigh", "Requests to", 100),
			column{field: "decided", title: "Decided by", width: 120},
			shareColumn("Confidence", "Confidence", fine, 100),
			column{field: "cluster", title: "Cluster"},
		),
		sortBy:     []string{"GPUs freed"},
		descending: true,
	}
}

func keptByReason(s scope) panel {
	return panel{
		kind:  barGauge,
		title: "Why GPUs stay whole",
		unit:  "none",
		hue:   countHue,
		w:     9,
		h:     9,

		description: "GPUs for which no slice is recommended, by reason. stretch, latency, throughput, busy: a slice would be too slow. memory: " +
			"no slice has enough. preallocated: the framework takes all memory in advance; limit it there so that the need " +
			"can be seen. start-unseen: a slice would do, but how much a start needs is not known; restart one replica. GPUs " +
			"with too little evidence are not counted, nor those for which a slice would do by evidence that is not " +
			"complete yet." + advisor,
		queries: []query{
			{
				expr:   "sort_desc(" + aggregate("count", "reason", s.rejections()) + ")",
				legend: "{{reason}}",
			},
		},
	}
}

func keptTable(s scope) panel {
	confidence := either(s.eachGPU(judged)+" and on ("+onGPU+") ("+s.rejections()+")",
		aggregate("max", onGPU, s.rejections())+" * NaN")

	return panel{
		kind:  table,
		title: "GPUs that stay whole",
		hue:   fine,
		w:     15,
		h:     9,
		description: "Each with the reason. Some can be changed: a pod that opted out, a framework that takes all memory " +
			"in advance, activity that is not read. Click a GPU for its evidence below." + advisor,
		queries: []query{
			{ref: "Confidence", expr: aggregate("max", rows, wholeGPUs(confidence))},
			{ref: "Reason", expr: aggregate("max", rows+", reason", wholeGPUs(s.rejections()))},
			{
				ref:  "Holder",
				expr: "(" + s.holdersOfGPUs() + ") and on (" + rows + ") " + wholeGPUs(s.rejections()),
			},
		},
		columns: append(
			deviceColumns(toEvidence()),
			column{field: "reason", title: "Reason", width: 150},
			shareColumn("Confidence", "Confidence", fine, 140),
		),
		sortBy: []string{"Reason", "Node"},
	}
}

func slicesByAction(s scope) panel {
	return panel{
		kind:  barGauge,
		title: "Slices by what they should do",
		unit:  "none",
		hue:   countHue,
		w:     6,
		h:     9,
		description: "grow: too small, or its container did not come up or does not stay up; shrink: a smaller " +
			"profile would do; idle: its container has held memory for a day and run no kernel. " +
			"Slices that are right are not in it." + advisor,
		queries: []query{{expr: "sort_desc(" + aggregate("count", "action", s.sliceActions()) + ")",
			legend: "{{action}}"}},
	}
}

func sliceTable(s scope) panel {
	number := map[string]string{"grow": "1", "idle": "2", "shrink": "3"}
	state := s.advisedSlices(func(action, selected string) string {
		return constant(number[action], `label_replace(`+oneOf(deviceRow, "recommended_profile", selected)+
			`, "recommended_profile", "n/a", "recommended_profile", "")`)
	})

	return panel{
		kind:  table,
		title: "Slices that should change",
		hue:   fine,
		w:     18,
		h:     9,
		description: "Those that are too small first, with the profile that would do. n/a: the slice is idle, or no " +
			"profile has more than it has. Click a GPU to see what its slices do." + advisor,
		queries: []query{
			{ref: "Action", expr: s.slicesWithHolders(state, "recommended_profile", s.slice(advised))},
		},
		columns: append(
			deviceColumns(
				linkTo("This GPU", nodeUID, toNode, toGPU),
			),
			column{field: "slice", title: "Slice"},
			column{
				field: "Action",
				title: "Action",
				width: 100,
				hue:   fine,
				values: []valueMap{
					{"1", "grow", amber},
					{"2", "idle", "transparent"},
					{"3", "shrink", "transparent"},
				},
			},
			column{field: "recommended_profile", title: "Profile that would do", width: 170},
		),
		sortBy: []string{"Action", "Node"},
	}
}

// evidencePanels returns panels with a line for each chosen whole GPU. The lines are recorded means:
// a week of samples of each GPU of a fleet would be too many. So would be mig:gpu_target:sole, which is
// of all GPUs and more often recorded.
func evidencePanels(s scope) []panel {
	line := func(title, hue, text, recorded string) panel {
		placed := selectFamily(recorded, `cluster=~"$cluster"`) +
			" * on (cluster, uuid) group_left (instance, gpu) " + s.gpu("mig:gpu_without_mig:sole")
		p := ratios(title, hue,
			text+" Of GPUs without MIG, while they are held."+ruled,
			aggregate("max", byGPU, placed), "{{instance}} GPU {{gpu}}")
		p.points = fewPoints

		return p
	}

	return []panel{
		line(
			"Busy time",
			activityHue,
			"Part of the time in which any kernel ran, means of five minutes. Low beside a high SM activity while it runs: "+
				"rare kernels that fill the GPU; a slice would stretch each of them.",
			"mig:gpu_busy:avg5m",
		),
		line(
			"SM activity",
			activityHue,
			"Part of the SMs that were active, means of five minutes. Low beside a high busy time: narrow kernels, for "+
				"which a slice costs nothing.",
			"mig:gpu_sm_activity:avg5m",
		),
		line(
			"Memory bandwidth",
			activityHue,
			"Part of the memory bandwidth in use, means of five minutes. A slice has that of its memory slices.",
			"mig:gpu_dram_activity:avg5m",
		),
		line(
			"Memory used",
			memoryHue,
			"Of the GPU's memory, the most in five minutes. Flat near 100 % from the start: the framework takes it all in "+
				"advance.",
			"mig:gpu_memory:used_ratio_max5m",
		),
	}
}

func rightsizingHistory(s scope) []panel {
	byCluster := func(op, expr string) string {
		return aggregate(op, "cluster", expr) + " or 0 * " +
			aggregate("count", "cluster", s.eachGPU(judged))
	}
	gained := lines("SMs to be gained, in GPUs", "none", countHue,
		"What the candidates would set free, over time."+advisor,
		byCluster("sum", s.ofCandidates(reclaimable)), "{{cluster}}")
	gained.decimals = 1

	candidates := lines("GPUs for which a slice would do", "none", countHue,
		"Candidates. Fewer: they became slices, or their work grew; an exporter without --advise.state-dir forgets "+
			"its evidence when it is started again."+advisor,
		byCluster("count", s.candidates()), "{{cluster}}")

	// Few points are enough: advice changes over hours.
	candidates.points = fewPoints
	gained.points = fewPoints

	return []panel{candidates, gained}
}

// fleetRightsizing returns the most important panels of the right-sizing dashboard for the fleet's.
func fleetRightsizing() []panel {
	s := fleetScope()
	stats := rightsizingStats(s)
	candidates := stats[1]
	gained := stats[2]
	gained.w = 5
	gained.h = 9
	candidates.w = 5
	candidates.h = 9
	reasons := keptByReason(s)
	actions := slicesByAction(s)
	reasons.w = 8
	actions.w = 6

	return []panel{candidates, gained, reasons, actions}
}
