package dashboards

// A fleet has thousands of pods: more lines than a screen can show, and a query for all of them takes
// many seconds. So panels with a line for each pod draw the pods that are chosen or, if none is
// chosen, those that draw most power. Hidden variables say which these are, and on which nodes: a
// query reads only the series that its matchers leave.

// mostPods is how many pods are drawn at most if none is chosen.
const mostPods = "50"

// onlyMost ends the description of a panel with a line for each pod.
const onlyMost = " Without a choice of pods: the " + mostPods + " that draw most power now, in the chosen namespaces " +
	"and nodes; where power is not known, those with most memory, after them. Pods of one name count as one. A pod that has ended is drawn if you choose it."

// mostVariable returns the variable with the pods, and batch jobs without pods, that draw most power
// now. Those whose power is not known come last.
func mostVariable() object {
	rank := func(by, more string) string {
		sum := func(family string) string {
			return aggregate("sum", by, selectFamily("nvidia_gpu_container_"+family, pods, more))
		}

		// It takes a petabyte of memory to pass for a watt.
		return either(sum("power_estimate_watts"), sum("memory_used_bytes")+" / 1e15")
	}
	ranks := either(rank("pod", `pod!=""`), rank("hpc_job", `pod="",hpc_job!=""`))

	return computed("most", "Pods that draw most", "topk("+mostPods+", "+ranks+")", "(?:pod|hpc_job)", true)
}

// chosenVariable returns the variable with a pattern for the chosen pods, and for none if all are.
func chosenVariable() object {
	const noPod = "-" // no pod has such a name

	chosen := setLabel("vector(1)", "pod", "$pod")

	return computed("chosen", "Chosen pods",
		`label_replace(`+chosen+`, "pod", "`+noPod+`", "pod", "[.][*]")`, "pod", false)
}

// placesVariable returns the variable with the nodes on which the pods and jobs that are drawn were in
// the time range.
func placesVariable() object {
	const families = `__name__=~"nvidia_gpu_container_(sm_activity_ratio|memory_used_bytes|power_estimate_watts)"`

	return hidden(choice("places", "Nodes of the pods that are drawn",
		"label_values({"+families+","+namespaces+`,pod=~"$most|$chosen|"}, instance)`, false))
}

// computed returns a hidden variable whose values are those of a label in the result of a query. Many
// are all of them at once, otherwise the first is taken as it is.
func computed(name, label, expr, of string, many bool) object {
	v := hidden(choice(name, label, "query_result("+expr+")", !many))
	v["query"] = object{
		"qryType": 3,
		"query":   v["definition"],
		"refId":   "PrometheusVariableQueryEditor-VariableQuery",
	}
	v["regex"] = `/` + of + `="([\s\S]*)"\} /`

	return v
}

// hidden returns a variable that is not shown. All are its options: it has no other pattern for them.
func hidden(v object) object {
	v["hide"] = 2
	v["skipUrlSync"] = true
	delete(v, "allValue")

	return v
}

// drawn selects a family of containers of the pods and jobs that are drawn.
func drawn(family string, more ...string) string {
	of := func(who string) string {
		return selectFamily("nvidia_gpu_container_"+family, namespaces+","+who, more...)
	}

	return either(of(`pod=~"$most|$chosen",pod!=""`), of(`pod="",hpc_job=~"$most"`))
}

// withPlacementOfDrawn is withPlacement for the values of each container that is drawn of a family.
func withPlacementOfDrawn(family string) string {
	values := drawn(family)
	slices := selectFamily("nvidia_mig_gpu_instance_info", inFleet, `instance=~"$places"`)

	return withPlacement(containersOf(values), slices+" and on ("+onSlice+") ("+values+")")
}
