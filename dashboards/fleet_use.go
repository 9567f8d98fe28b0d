package dashboards

// idle selects the devices that were held and idle for the last hour, as the recording rule defines
// it. idleOf selects the pods that held them, now and an hour ago.
const (
	idle       = "device:nvidia_held_idle{" + inFleet + "}"
	heldBefore = `mig:holder:info{pod!=""} offset 1h`
	idleOf     = "max by (" + deviceRow + ", namespace, pod) (" + idle +
		" * on (cluster, uuid, gpu_instance) group_right (instance, gpu, mig_profile) (" +
		`mig:holder:info{pod!=""} and on (cluster, uuid, gpu_instance, namespace, pod) ` + heldBefore + `))`
)

func fleetUse() []panel {
	sum := func(name, labels string) string {
		return aggregate("sum", labels, selectFamily(name, inFleet))
	}

	activity := ratios("SM activity of whole GPUs and of slices", activityHue,
		"Of all SMs of the devices, 5-minute means. whole: GPUs without MIG; slice: GPU instances. SMs in no slice, and "+
			"devices that do not report activity, are not in it. Whole GPUs are often at 10 to 30 %."+ruled,
		sum("instance:nvidia_sms_active:sum", "kind")+" / "+sum("instance:nvidia_sms:sum", "kind"), "{{kind}}")
	activity.colors = map[string]string{"whole": "dark-blue", "slice": activityHue}

	devices := lines("Devices: held and free", "none", countHue,
		"Slices and GPUs without MIG, on top of each other. Devices whose holder is unknown are not in it. Free all day: "+
			"too many; nothing free all day: pods wait."+ruled,
		sum("instance:nvidia_devices:count", "kind, state"), "{{kind}}, {{state}}")
	devices.stacked = true
	devices.colors = map[string]string{
		"slice, held": activityHue,
		"whole, held": "dark-blue",
		"free":        slate,
	}

	count := lines("Held and idle for an hour", "none", countHue,
		"Devices that pods have held for an hour and that were busy for less than 1 % of the time: those for which the "+
			"alerts GpuAllocatedIdle and MigSliceAllocatedIdle fire. The table beside names them."+ruled,
		sum("instance:nvidia_devices_held_idle:count", "kind"), "{{kind}}")
	count.colors = activity.colors

	return []panel{
		activity,
		devices,
		count,
		{
			kind:  table,
			title: "Idle devices and their pods",
			hue:   fine,
			w:     12,
			h:     8,
			description: "Devices that were held and idle for the last hour, and the pods that held them for all of it. Ask " +
				"the owners whether they still need them; often it is a notebook that was left open." + ruled,
			queries: []query{{ref: "Busy", expr: `label_replace(` + idleOf +
				`, "mig_profile", "whole", "mig_profile", "")`}},
			columns: []column{
				nodeColumn(),
				{
					field: "gpu",
					title: "GPU",
					width: 60,
				},
				{field: "mig_profile", title: "Profile", width: 100},
				{field: "namespace", title: "Namespace"},
				podColumn("This pod"),
			},
			descending: true,
			sortBy:     []string{"Profile", "Namespace"}, // whole GPUs first, then the largest slices
		},
	}
}

// underused returns the whole GPUs that are larger than their work needs: those of the recording
// rule mig:gpu_underused:info, for which the alerts GpuUnderused and GpuRightsizingCandidate fire.
func (s scope) underused() string {
	return "max by (" + onGPU + ", evidence) (mig:gpu_underused:info * on (cluster, uuid) group_left (instance, gpu) " +
		s.gpu("mig:gpu_target:sole") + ")"
}

const underusedTitle = "Whole GPUs that are larger than their work needs"

func fleetUnderused() panel {
	s := fleetScope()
	of := func(value string) string {
		known := aggregate(
			"max",
			rows,
			wholeGPUs(s.underused()+" * on (cluster, uuid) group_left () "+value),
		)

		return either(known, aggregate("max", rows, wholeGPUs(s.underused()+" * NaN")))
	}
	sm := "mig:gpu_sm_activity:avg5m[2d]"
	evidence := s.underused()

	for _, e := range []struct{ value, text string }{
		{"week", "advisor, a week"},
		{"provisional", "advisor, not complete"},
		{"means", "five-minute means alone"},
	} {
		evidence = `label_replace(` + evidence + `, "known", "` + e.text + `", "evidence", "` + e.value + `")`
	}

	profile := `label_replace(` + oneOf(onGPU, "recommended_profile", s.gpu(candidate)) +
		` and on (` + onGPU + `) ` + s.underused() + ` or on (` + onGPU + `) ` + s.underused() +
		`, "recommended_profile", "n/a", "recommended_profile", "")`

	return panel{
		kind:  table,
		title: underusedTitle,
		hue:   fine,
		w:     24,
		h:     8,
		description: "GPUs without MIG for which the alerts GpuRightsizingCandidate (after a week of evidence) and " +
			"GpuUnderused fire. Known by: the right-sizing advisor of the node, or, where it has no answer, means of five " +
			"minutes over two days, which know no starts and no latency, and media engines only if they are read " +
			"(--collectors=+media). A GPU that the advisor keeps whole is not in it. " +
			"Values are of the last two days in which the GPU was held, whatever the time range. n/a: the profile is not " +
			"known before the advisor's evidence is complete; migctl recommend on the node has it." + ruled,
		queries: []query{
			{ref: "Mean", expr: of("avg_over_time(" + sm + ")")},
			{ref: "Highest", expr: of("max_over_time(" + sm + ")")},
			{ref: "Memory", expr: of("max_over_time(mig:gpu_memory:used_ratio_max5m[2d])")},
			{ref: "Known", expr: aggregate("max", rows+", known", wholeGPUs(evidence))},
			{
				ref:  "Profile",
				expr: aggregate("max", rows+", recommended_profile", wholeGPUs(profile)),
			},
			{ref: "Holder", expr: "(" + s.holdersOfGPUs() + ") and on (" + rows + ") " +
				aggregate("max", rows, wholeGPUs(s.underused()))},
		},
		columns: append(
			deviceColumns(toEvidence()),
			column{field: "known", title: "Known by", width: 190},
			column{field: "recommended_profile", title: "Slice that would do", width: 150},
			shareColumn("Mean", "Mean SM activity", activityHue, 160),
			shareColumn("Highest", "Highest 5 minutes", activityHue, 160),
			shareColumn("Memory", "Most memory used", memoryHue, 160),
		),
		sortBy: []string{"Mean SM activity"},
	}
}
