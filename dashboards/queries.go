package dashboards

import "strings"

// Queries are written once for whole GPUs and slices. A device is a GPU instance, or a GPU without
// MIG: each is one line, so that nothing is counted twice. Lines are grouped by place (GPU index
// and placement), not by UUID: a line goes on when its GPU is replaced, its layout comes back or
// another pod gets the device.
//
// While a pod of the exporter is replaced, Prometheus has the series of the old and the new pod for
// minutes. They differ in the labels that it adds itself (namespace, pod, container, ...). A query
// that counts, adds up or matches first takes one value for each GPU or slice: eachGPU, eachSlice.

const (
	onGPU    = "cluster, instance, gpu, uuid"
	onSlice  = onGPU + ", gpu_instance"
	byDevice = "cluster, instance, gpu, slice" // the labels of a line on the dashboard of one node
	rows     = deviceRow + ", slice"           // the labels of a row in a table of devices
	wholeGPU = "(whole GPU)"
)

// scope has the label matchers of a dashboard. Its methods return PromQL expressions.
type scope struct {
	gpus   string // for families without profile
	slices string // for families of slices; it can choose the profile, too
}

func newScope(node string) scope {
	gpus := `cluster=~"$cluster",` + node
	return scope{gpus: gpus, slices: gpus}
}

func (s scope) withGPU() scope {
	gpus := s.gpus + `,gpu=~"$gpu"`
	return scope{gpus: gpus, slices: gpus + `,mig_profile=~"$profile"`}
}

// selectFamily selects a family, with further matchers.
func selectFamily(family, selector string, more ...string) string {
	return family + "{" + strings.Join(append([]string{selector}, more...), ",") + "}"
}

func (s scope) gpu(family string, more ...string) string {
	return selectFamily(family, s.gpus, more...)
}
func (s scope) slice(family string, more ...string) string {
	return selectFamily(family, s.slices, more...)
}

// eachGPU and eachSlice return one value for each GPU, or each slice, of a family.
func (s scope) eachGPU(family string, more ...string) string {
	return aggregate("max", onGPU, s.gpu(family, more...))
}

func (s scope) eachSlice(family string, more ...string) string {
	return aggregate("max", deviceRow, s.slice(family, more...))
}

// sumOfGPUs adds up the values of GPUs by labels and, unless it is "", by another label, which is
// one of the family's own.
func sumOfGPUs(labels, label, expr string) string {
	inner := onGPU

	if label != "" {
		labels += ", " + label
		inner = onGPU + ", " + label
	}

	return aggregate("sum", labels, aggregate("max", inner, expr))
}

func (s scope) sliceInfo() string { return s.slice("nvidia_mig_gpu_instance_info") }

// withPlacement adds the label slice, profile and placement as nvidia-smi prints them: 3g.20gb@4:4.
func (s scope) withPlacement(expr string) string { return withPlacement(expr, s.sliceInfo()) }

// withPlacement adds the label slice with the placements that series of nvidia_mig_gpu_instance_info
// have.
func withPlacement(expr, infos string) string {
	// The join fails if an instance has two placements: topk leaves one.
	place := "topk by (" + onSlice + ") (1, " + aggregate("max", onSlice+", placement", infos) + ")"

	return withSliceName(expr + " * on (" + onSlice + ") group_left (placement) " + place)
}

func withSliceName(expr string) string {
	return `label_join(` + expr + `, "slice", "@", "mig_profile", "placement")`
}

func withSlice(expr, slice string) string { return setLabel(expr, "slice", slice) }

// setLabel sets a label of an expression to a value.
func setLabel(expr, name, value string) string {
	return `label_replace(` + expr + `, "` + name + `", "` + value + `", "", "")`
}

func aggregate(op, labels, expr string) string { return op + " by (" + labels + ") (" + expr + ")" }

// rate and increase return by how much a counter grew between two points of a panel: for each
// second, or in all.
func rate(counter string) string     { return "rate(" + counter + "[$__rate_interval])" }
func increase(counter string) string { return "increase(" + counter + "[$__rate_interval])" }

func either(a, b string) string { return a + " or " + b }

// devices returns one line for each device, from an expression with values of GPUs and one with
// values of slices. It leaves out GPUs with MIG.
func (s scope) devices(ofGPU, ofSlice string) string {
	whole := withSlice(
		"("+ofGPU+") unless on ("+onGPU+") ("+s.gpu("nvidia_gpu_mig_enabled")+" == 1)",
		"whole",
	)

	return aggregate("max", byDevice, either(s.withPlacement("("+ofSlice+")"), whole))
}

// device returns one line for each device, for a family that both GPUs and slices have.
func (s scope) device(family string) string {
	return s.devices(s.slice("nvidia_gpu_"+family), s.slice("nvidia_mig_gpu_instance_"+family))
}

// inventory returns every GPU, also those that do not answer, and every slice.
func (s scope) inventory() string {
	return aggregate(
		"max",
		rows,
		either(withSlice(s.slice("nvidia_gpu_up"), wholeGPU), withSliceName(s.sliceInfo())),
	)
}

// onInventory returns a value for every row of a table, NaN if the expressions have none. ofSlice
// is "" for families that only whole GPUs have.
func (s scope) onInventory(ofGPU, ofSlice string) string {
	values := withSlice("("+ofGPU+")", wholeGPU)
	if ofSlice != "" {
		values = either(values, s.withPlacement("("+ofSlice+")"))
	}

	return either(aggregate("max", rows, values), s.inventory()+" * NaN")
}

// ratioOfGPU divides one family by another.
func (s scope) ratioOfGPU(used, total string) string {
	return s.eachGPU("nvidia_gpu_"+used) + " / " + s.eachGPU("nvidia_gpu_"+total)
}

func (s scope) memoryRatios() (ofGPU, ofSlice string) {
	const family, used, total = "nvidia_mig_gpu_instance_", "memory_used_bytes", "memory_total_bytes"
	return s.ratioOfGPU(used, total), s.eachSlice(family+used) + " / " + s.eachSlice(family+total)
}

// only returns the values above 0 of each GPU by a label. For a GPU without such values it returns
// one line at 0, with the text none in the label: a healthy GPU differs from one without data, and
// has one line instead of one for each kind of error.
func (s scope) only(label, none, expr string) string {
	last := label[strings.LastIndex(label, " ")+1:]

	return sumOfGPUs(byGPU, label, expr) + " > 0 or on (" + byGPU + ") label_replace(" +
		aggregate("sum", byGPU, expr) + `, "` + last + `", "` + none + `", "", "")`
}

// The states of a device or node, the worst first. If several hold, tables show the first.
const (
	stateDown      = "1"
	stateRecovery  = "2"
	stateMemory    = "3"
	stateFatalXID  = "4"
	stateGone      = "5" // of a node
	stateXID       = "6"
	stateOrphan    = "7"
	stateThrottled = "8"
	statePending   = "9"
	stateLeft      = "10" // of a node
	stateFine      = "11"
)

// fatalXIDs matches the XIDs after which the GPU or the node has to be reset: those of the alerts
// GpuXidNode and GpuXidHardware.
const fatalXIDs = "54|79|151|46|48|62|64|74|95|109|110|119|120|136|140|143|14[4-9]|150|155|156|158"

func stateNames() []valueMap {
	return []valueMap{
		{stateDown, "does not answer", red},
		{stateRecovery, "reset or drain", red},
		{
			stateMemory,
			"memory failed",
			red,
		},
		{stateFatalXID, "fatal XID", red},
		{stateGone, "no data", red},
		{stateXID, "XID", amber},
		{stateOrphan, "no compute instance", amber},
		{stateThrottled, "slowed down", amber},
		{statePending, "reset pending", amber},
		{stateLeft, "left", slate},
		{stateFine, "ok", "transparent"},
	}
}

const throttling = `reason=~"hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown"`

// constant returns an expression in which each value is replaced by another one.
func constant(value, expr string) string { return "(" + expr + ") * 0 + " + value }

// state returns the worst state of every row.
func (s scope) state() string {
	return either(aggregate(
		"max",
		rows,
		either(
			withSlice("("+s.gpuState()+")", wholeGPU),
			s.withPlacement("("+s.sliceState()+")"),
		),
	), s.inventory()+" * NaN")
}

// problems returns the states that are worse than fine, of the rows that have one. Unlike state it
// has no values of the other rows, which are nearly all of a large fleet.
func (s scope) problems() string {
	return either(
		aggregate("max", rows, withSlice("("+s.gpuProblem()+")", wholeGPU)),
		s.withPlacementOfFew("("+s.sliceProblem()+")"),
	)
}

// withPlacementOfFew is withPlacement for an expression that has values of few slices, one of each: it
// takes out the placements of these before it sorts and groups them. The rows have no other labels.
func (s scope) withPlacementOfFew(expr string) string {
	placed := s.sliceInfo() + " * on (" + deviceRow + ") group_left () " + expr

	// An instance that seems to have two placements has one row.
	return "topk by (" + deviceRow + ") (1, " + aggregate("max", rows, withSliceName(placed)) + ")"
}

const xidOfSlice = "nvidia_mig_gpu_instance_xid_last_timestamp_seconds"

// recent selects the timestamps of the last 10 minutes, and returns how many seconds ago they were.
func recent(timestamps string) string { return "time() - " + timestamps + " < 600" }

// xidsOfGPU selects the recent XIDs of GPUs, except those that the driver blames on a slice.
func (s scope) xidsOfGPU(more ...string) string {
	return recent(s.slice("nvidia_gpu_xid_last_timestamp_seconds", more...)) + " unless on (" +
		onGPU + ", xid) " + recent(selectFamily(xidOfSlice, s.gpus))
}

func (s scope) gpuState() string {
	return either(s.gpuProblem(), aggregate("max", onGPU, constant(stateFine, s.slice("nvidia_gpu_up"))))
}

func (s scope) gpuProblem() string {
	worst := func(expr string) string { return aggregate("max", onGPU, expr) }

	return strings.Join([]string{
		worst(constant(stateDown, s.slice("nvidia_gpu_up")+" == 0")),
		worst(constant(stateRecovery, s.slice("nvidia_gpu_recovery_action", `action!="none"`))),
		worst(constant(stateMemory, s.slice("nvidia_gpu_row_remap_failure")+" > 0")),
		worst(constant(stateFatalXID, s.xidsOfGPU(`xid=~"`+fatalXIDs+`"`))),
		worst(constant(stateXID, s.xidsOfGPU())),
		worst(constant(
			stateThrottled,
			rate(s.slice("nvidia_gpu_clock_event_seconds_total", throttling))+" > 0.01",
		)),
		worst(constant(statePending, s.slice("nvidia_gpu_row_remap_pending")+" > 0")),
		constant(
			statePending,
			s.eachGPU("nvidia_gpu_mig_pending")+" != "+s.eachGPU("nvidia_gpu_mig_enabled"),
		),
	}, " or ")
}

func (s scope) sliceState() string {
	return either(s.sliceProblem(),
		aggregate("max", deviceRow, constant(stateFine, s.slice("nvidia_mig_gpu_instance_up"))))
}

func (s scope) sliceProblem() string {
	worst := func(expr string) string { return aggregate("max", deviceRow, expr) }

	return strings.Join([]string{
		worst(constant(stateDown, s.slice("nvidia_mig_gpu_instance_up")+" == 0")),
		worst(constant(stateFatalXID, recent(s.slice(xidOfSlice, `xid=~"`+fatalXIDs+`"`)))),
		worst(constant(stateXID, recent(s.slice(xidOfSlice)))),
		worst(constant(stateOrphan, s.orphans())),
	}, " or ")
}

// orphans selects the slices that have no compute instance. It leaves out GPUs whose MIG devices the
// driver does not let the exporter read: they may have compute instances that are not listed.
func (s scope) orphans() string {
	return s.sliceInfo() + " unless on (" + onSlice + ") " +
		s.slice("nvidia_mig_compute_instance_info") + " unless on (" + onGPU + ") " +
		s.slice("nvidia_gpu_read_errors_total", `reading="mig"`, `reason="no_permission"`) +
		" > 0"
}

// podInfo matches the families that say which containers hold GPUs, slices and compute instances.
// They have a series for each container and device.
const podInfo = `__name__=~"nvidia_(gpu|mig_gpu_instance|mig_compute_instance)_pod_info"`

// holders returns one series for each row, with the label holder: the pod, the number of pods, or
// that the device is free. The labels namespace and pod are for links to the workloads dashboard:
// they name a single pod, and are All otherwise.
func (s scope) holders() string {
	// A large fleet has many devices: one join adds the names of GPUs and slices to all of them.
	place := "topk by (" + onSlice + ") (1, " + constant("1", s.inventory()) + ")"
	devices := s.anyHolder() + orHolder("n/a", either(s.slice("nvidia_gpu_up"), s.sliceInfo()))

	return rowsOfHolders("(" + devices + ") * on (" + onSlice + ") group_left (slice) " + place)
}

// problemsWithHolders returns problems with the labels of holders. It takes both together, since the
// problems of a large fleet are few and cost as much as its holders, which are many.
func (s scope) problemsWithHolders() string {
	// Problems are of slices that have an info and of any GPU, also if nvidia_gpu_up is not scraped.
	devices := s.anyHolder() + " or on (" + deviceRow + ") (" +
		either(s.gpuProblem(), aggregate("max", deviceRow, s.sliceInfo())) + ")"
	held := "(" + devices + ") * 0 + on (" + deviceRow + ") group_left (slice) (" + s.problems() + ")"

	return rowsOfHolders(`label_replace(` + held + `, "holder", "n/a", "holder", "")`)
}

// anyHolder returns one series for each GPU and GPU instance of which it is known who holds it, or
// that it is free.
func (s scope) anyHolder() string {
	return s.holdersOf(podInfo,
		either(s.slice("nvidia_gpu_allocated")+" == 0", s.slice("nvidia_mig_gpu_instance_allocated")+" == 0"))
}

// holdersOfGPUs returns holders for the rows of GPUs alone. It reads no families of slices, which
// have nearly all series of a large fleet.
func (s scope) holdersOfGPUs() string {
	devices := s.holdersOf(`__name__="nvidia_gpu_pod_info"`, s.slice("nvidia_gpu_allocated")+" == 0")

	return rowsOfHolders(wholeGPUs(devices + orHolder("n/a", s.slice("nvidia_gpu_up"))))
}

func rowsOfHolders(expr string) string {
	return allPods(aggregate("max", rows+", namespace, pod, holder", expr))
}

// holdersOf returns one series for each device that is held or free, with the label holder.
// containers matches the families that say which containers hold devices; free selects the devices
// that are free.
func (s scope) holdersOf(containers, free string) string {
	return s.podsOf(containers, "") +
		orHolder("by slice", s.slice("nvidia_gpu_mig_enabled")+" == 1") +
		orHolder("free", free)
}

// podsOf returns one series for each device that pods hold, with the label holder. among is "", or
// leaves series of containers out before they are grouped.
func (s scope) podsOf(containers, among string) string {
	const byHolder = deviceRow + ", namespace, pod"

	holding := func(more string) string {
		return aggregate("group", byHolder, "{"+containers+more+","+s.slices+"}"+among)
	}
	name := func(expr string) string { return `label_join(` + expr + `, "holder", "/", "namespace", "pod")` }
	unconfirmed := `label_replace(` + name(holding(`,confirmed="false"`)) +
		`, "holder", "$1 (unconfirmed)", "holder", "(.*)")`
	each := name(holding(`,confirmed!="false"`)) + " or on (" + byHolder + ") " + unconfirmed
	several := `label_replace(count_values by (` + deviceRow + `) ("n", ` + aggregate("count", deviceRow, holding("")) +
		` > 1), "holder", "$1 pods", "n", "(.*)")`

	// For a device with several pods, the series with their number takes the place of those of each.
	return several + " or on (" + onSlice + ") (" + each + ")"
}

// slicesWithHolders returns values of slices, with a label of theirs and those of holders. few selects
// the same slices: all others, which are nearly all of a large fleet, are left out before their series
// are grouped and joined.
func (s scope) slicesWithHolders(values, label, few string) string {
	among := " and on (" + onSlice + ") (" + few + ")"
	devices := s.podsOf(podInfo, among) +
		orHolder("free", s.slice("nvidia_mig_gpu_instance_allocated")+" == 0"+among) +
		" or on (" + deviceRow + ") " + aggregate("max", deviceRow, few)
	placed := withPlacement("("+values+")", s.sliceInfo()+among)
	held := "(" + devices + ") * 0 + on (" + deviceRow + ") group_left (slice, " + label + ") (" + placed + ")"
	named := `label_replace(` + held + `, "holder", "n/a", "holder", "")`

	return allPods(aggregate("max", rows+", namespace, pod, holder, "+label, named))
}

// orHolder returns the text holder for the devices of expr that no expression before it has.
func orHolder(holder, expr string) string {
	return " or on (" + onSlice + ") " +
		setLabel(aggregate("max", deviceRow, expr), "holder", holder)
}

// allPods sets the labels namespace and pod, of which links are made, to All where there are none.
func allPods(expr string) string { return orAll(orAll(expr, "namespace"), "pod") }

// orAll sets a label to All where there is none: Grafana takes that for all values of a variable.
func orAll(expr, name string) string {
	return `label_replace(` + expr + `, "` + name + `", "All", "` + name + `", "")`
}
