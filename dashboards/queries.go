package dashboards

import "strings"

// Queries are written once for whole GPUs and slices. A device is a GPU instance, or a GPU without
// MIG: each is one line, so that nothing is counted twice. Lines are grouped by place (GPU index
// and placement), not by identity: they go on when a GPU is replaced, a layout comes back or
// another pod gets the device.
//
// While a pod of the exporter is replaced, Prometheus has the series of both for minutes, which
// differ in the labels that it adds itself (namespace, pod, container, ...). Whatever counts, adds
// up or matches does so on one value for each GPU or slice: eachGPU, eachSlice.

const (
	onGPU   = "cluster, instance, gpu, uuid"
	onSlice = onGPU + ", gpu_instance"
	// byDevice groups the lines of a dashboard of one node; rows are the devices of a table.
	byDevice = "cluster, instance, gpu, slice"
	rows     = onSlice + ", mig_profile, slice"
	wholeGPU = "(whole GPU)"
)

// scope has the label selectors of a dashboard.
type scope struct {
	gpus, slices string // of GPU families, and of those that can be filtered by profile
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
	return aggregate("max", onSlice+", mig_profile", s.slice(family, more...))
}

// sumOfGPUs adds up over GPUs, by labels of which label is one of the family.
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
func (s scope) withPlacement(expr string) string {
	// The join fails if an instance has two placements: topk leaves one.
	place := "topk by (" + onSlice + ") (1, " +
		aggregate("max", onSlice+", placement", s.sliceInfo()) + ")"

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

// rate and increase return what a counter gained, a second or in all, between two points.
func rate(counter string) string     { return "rate(" + counter + "[$__rate_interval])" }
func increase(counter string) string { return "increase(" + counter + "[$__rate_interval])" }

func either(a, b string) string { return a + " or " + b }

// devices returns one line for each device from an expression of GPUs and one of slices.
func (s scope) devices(ofGPU, ofSlice string) string {
	whole := withSlice(
		"("+ofGPU+") unless on ("+onGPU+") ("+s.gpu("nvidia_gpu_mig_enabled")+" == 1)",
		"whole",
	)

	return aggregate("max", byDevice, either(s.withPlacement("("+ofSlice+")"), whole))
}

// device returns devices for a family that GPUs and slices have.
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

// only returns what is above 0 of each GPU by a label, and one line at 0 for a GPU without:
// explicit, so that healthy differs from missing, and not one for each of many kinds.
func (s scope) only(label, none, expr string) string {
	last := label[strings.LastIndex(label, " ")+1:]

	return sumOfGPUs(byGPU, label, expr) + " > 0 or on (" + byGPU + ") label_replace(" +
		aggregate("sum", byGPU, expr) + `, "` + last + `", "` + none + `", "", "")`
}

// The states of a device, the worst first: the least of them is shown.
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

// fatalXIDs are those after which the GPU or the node has to be reset: those of the alerts
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

// constant returns a value in the place of the values of an expression.
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

// problems returns the states of the rows with a problem: those of state that are worse than fine,
// without a value for each of the others, which are nearly all of a large fleet.
func (s scope) problems() string {
	return aggregate("max", rows, either(
		withSlice("("+s.gpuProblem()+")", wholeGPU),
		s.withPlacement("("+s.sliceProblem()+")"),
	))
}

const xidOfSlice = "nvidia_mig_gpu_instance_xid_last_timestamp_seconds"

// recent selects times of the last 10 minutes.
func recent(timestamps string) string { return "time() - " + timestamps + " < 600" }

// xidsOfGPU selects the recent XIDs of GPUs that the driver blames on no slice.
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
		aggregate("max", onSlice+", mig_profile", constant(stateFine, s.slice("nvidia_mig_gpu_instance_up"))))
}

func (s scope) sliceProblem() string {
	worst := func(expr string) string { return aggregate("max", onSlice+", mig_profile", expr) }

	return strings.Join([]string{
		worst(constant(stateDown, s.slice("nvidia_mig_gpu_instance_up")+" == 0")),
		worst(constant(stateFatalXID, recent(s.slice(xidOfSlice, `xid=~"`+fatalXIDs+`"`)))),
		worst(constant(stateXID, recent(s.slice(xidOfSlice)))),
		worst(constant(stateOrphan, s.orphans())),
	}, " or ")
}

// orphans selects the slices that have no compute instance. Where the driver has denied MIG
// devices, those that are not listed may exist.
func (s scope) orphans() string {
	return s.sliceInfo() + " unless on (" + onSlice + ") " +
		s.slice("nvidia_mig_compute_instance_info") + " unless on (" + onGPU + ") " +
		s.slice("nvidia_gpu_read_errors_total", `reading="mig"`, `reason="no_permission"`) +
		" > 0"
}

// podInfo is which containers hold GPUs, slices and compute instances: one series for each
// container and device.
const podInfo = `__name__=~"nvidia_(gpu|mig_gpu_instance|mig_compute_instance)_pod_info"`

// holders returns one series for each row with the label holder: the pod, how many pods, or that
// the device is free. namespace and pod are those of a link: of the pod if it is one, else All.
func (s scope) holders() string {
	said := s.sayHolders(
		podInfo,
		either(s.slice("nvidia_gpu_allocated")+" == 0", s.slice("nvidia_mig_gpu_instance_allocated")+" == 0"),
		either(s.slice("nvidia_gpu_up"), s.sliceInfo()),
	)

	// The list of a large fleet is long: it gets the names of GPUs and slices in one join.
	place := "topk by (" + onSlice + ") (1, " + constant("1", s.inventory()) + ")"

	return rowsOfHolders("(" + said + ") * on (" + onSlice + ") group_left (slice) " + place)
}

// holdersOfGPUs is holders without the rows of slices: it reads none of their families, which are
// nearly all series of a large fleet.
func (s scope) holdersOfGPUs() string {
	return rowsOfHolders(wholeGPUs(s.sayHolders(
		`__name__="nvidia_gpu_pod_info"`, s.slice("nvidia_gpu_allocated")+" == 0", s.slice("nvidia_gpu_up"),
	)))
}

func rowsOfHolders(expr string) string {
	return allPods(aggregate("max", rows+", namespace, pod, holder", expr))
}

// sayHolders returns the holders of devices, which selections give: the containers that hold one,
// those that are free, and all of them.
func (s scope) sayHolders(containers, free, all string) string {
	const byHolder = onSlice + ", mig_profile, namespace, pod"

	pods := func(confirmed string) string {
		return `label_join(` +
			aggregate("max", byHolder, "{"+containers+","+confirmed+","+s.slices+"}") +
			`, "holder", "/", "namespace", "pod")`
	}
	unsure := `label_replace(` + pods(`confirmed="false"`) +
		`, "holder", "$1 (unconfirmed)", "holder", "(.*)")`
	each := pods(`confirmed!="false"`) + " or on (" + byHolder + ") " + unsure
	count := aggregate("count", onSlice+", mig_profile", each)
	several := `label_replace(count_values by (` + onSlice + `, mig_profile) ("n", ` + count +
		` > 1), "holder", "$1 pods", "n", "(.*)")`
	// A device with several pods has the line that counts them, and none for each.
	known := several + " or on (" + onSlice + ") (" + each + ")"

	// What is said of a device holds if nothing before it does.
	orSay := func(holder, expr string) string {
		return " or on (" + onSlice + ") " +
			setLabel(aggregate("max", onSlice+", mig_profile", expr), "holder", holder)
	}

	return known +
		orSay("by slice", s.slice("nvidia_gpu_mig_enabled")+" == 1") +
		orSay("free", free) +
		orSay("n/a", all)
}

// allPods sets the labels that links to pods are made of if there are none.
func allPods(expr string) string { return orAll(orAll(expr, "namespace"), "pod") }

// orAll sets a label to what Grafana takes for all values of a variable if there is none.
func orAll(expr, name string) string {
	return `label_replace(` + expr + `, "` + name + `", "All", "` + name + `", "")`
}
