package migctl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// detail collects the lines about one device.
type detail struct {
	v     *topView
	width int
	lines []frameLine
}

// labelWidth is the width of the names in a detail.
const labelWidth = 20

func (d *detail) add(spans ...span) { d.lines = append(d.lines, lineOf(spans...)) }

// fact adds a named fact on as many lines as it needs, unless the value is empty.
func (d *detail) fact(name, value string) { d.coloredFact(plain, name, value) }

func (d *detail) coloredFact(c color, name, value string) {
	if value == "" {
		return
	}

	for _, l := range wrap(d.v.p.clean(value), max(1, d.width-labelWidth)) {
		d.add(text("%s", d.v.p.cell(name, labelWidth)).in(dim), span{l, c})
		name = ""
	}
}

// section adds a heading.
func (d *detail) section(name string) {
	d.add()
	d.add(text("%s", name).in(bold))
}

// detailFrame returns the screen with all about the selected node or device.
func (v *topView) detailFrame(s topState) []frameLine {
	d := &detail{v: v, width: s.width}

	r := s.selectedRow()
	switch {
	case r == nil:
		d.add(text("It is not there any more.").in(dim))
	case r.key.level == levelNode:
		d.addNode(s, r.node)
	default:
		d.addDevice(s, r)
	}

	room := max(1, s.height-2)
	from := min(s.scrolled, max(0, len(d.lines)-room))
	shown := d.lines[from:min(from+room, len(d.lines))]
	lines := append([]frameLine{v.titleLine(s)}, shown...)

	for len(lines) < s.height-1 {
		lines = append(lines, frameLine{})
	}

	more := ""
	if from+room < len(d.lines) {
		more = fmt.Sprintf("  %s below", nodedoc.Count(len(d.lines)-from-room, "line", "lines"))
	}

	return append(lines, lineOf(text("Esc back  j k scroll  q quit%s", more).in(dim)))
}

func (d *detail) addNode(s topState, n *topNode) {
	d.lines = append(d.lines, lineOf(d.v.nodeLine(s, n)...))
	d.fact("address", n.address)

	if n.trouble != "" {
		d.coloredFact(red, "not live", n.trouble)

		next := max(0, n.troubleSince.Add(n.retryAfter).Sub(s.now)).Round(time.Second)
		d.fact("next attempt", "in "+next.String())
	}

	if n.view == nil {
		return
	}

	host := &n.view.doc.Node
	d.fact("read", n.view.doc.Time.UTC().Format(time.RFC3339))
	d.fact("driver", joinTexts(host.DriverVersion, prefixed("NVML ", host.NVMLVersion),
		prefixed("CUDA ", host.CUDAVersion)))

	if e := host.ReadEvery; e != nil {
		d.fact("reads every",
			fmt.Sprintf("%gs, slow readings every %gs", e.FastSeconds, e.SlowSeconds))
	}

	for _, w := range allWarnings(&n.view.doc) {
		d.coloredFact(w.color, "! warning", w.text)
	}

	d.section("Sources")

	for i := range host.Sources {
		src := &host.Sources[i]
		state := "up"

		switch {
		case src.NotConfigured:
			state = "not configured"
		case !src.Up || src.Stale:
			state = sourceErrorText(src)
		}

		d.fact(src.Name, state)
	}
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}

	return prefix + s
}

// joinTexts joins texts that are not empty.
func joinTexts(parts ...string) string {
	var all []string

	for _, p := range parts {
		if p != "" {
			all = append(all, p)
		}
	}

	return strings.Join(all, ", ")
}

func (d *detail) addDevice(s topState, r *topRow) {
	host := orUnknown(r.node.view.doc.Node.Hostname)
	d.add(
		text("%s", r.shortTitle()).in(bold),
		text("  %s  node %s", shortName(r.gpu.Name), host).in(dim),
	)

	if late := lateText(s, r.node); late != "" {
		d.coloredFact(red, "! not live", late)
	}

	if !r.up() {
		d.coloredFact(red, "! state", "not answering")
	}

	d.fact("UUID", r.uuid())
	d.fact("memory", d.memoryFact(r))
	d.fact("SM activity", d.activityFact(r))
	d.fact("power", powerFact(r))

	switch {
	case r.compute != nil:
		d.fact("part of",
			fmt.Sprintf("%s, GPU instance %d", placedProfile(r.instance.Profile, r.instance.Placement), r.instance.ID))
		d.fact("SMs", optText(r.compute.SMs))
	case r.instance != nil:
		d.fact("GPU instance",
			fmt.Sprintf("%d at %s", r.instance.ID, placementText(r.instance.Placement)))
		d.fact("SMs", optText(r.instance.SMs))
	default:
		d.addGPU(r.gpu)
	}

	d.addPipes(r)

	d.section("Used by")
	d.addUse(r.use())

	if hidesProcesses(r.gpu.Errors) {
		d.fact("processes", nodedoc.ProcessesHidden)
	}

	if r.instance != nil && r.compute == nil && !isWhole(r.instance) {
		d.addParts(r)
	}

	d.addProcesses(r)
	d.addXIDs(r)
	d.addErrors(r.failures())

	if r.key.level == levelGPU && isMIG(r.gpu) {
		d.section("Slices")

		for _, spans := range d.v.axis(r, d.width) {
			d.add(spans...)
		}
	}

	d.add()
	d.lines = append(d.lines, d.v.historyLines(s, false)...)
}

// shortTitle names a device of a node.
func (r *topRow) shortTitle() string {
	if r.key.level == levelGPU {
		return fmt.Sprintf("GPU %d", r.gpu.Index)
	}

	return fmt.Sprintf("GPU %d %s", r.gpu.Index, r.title())
}

func (d *detail) memoryFact(r *topRow) string {
	if r.compute != nil {
		return ""
	}

	ratio := r.memoryRatio()

	t := memoryText(r.memory()) + " GiB"
	if ratio.Present() {
		t += ", " + percentText(ratio)
	}

	if ratio.Or(0) >= memoryFull {
		t += " (nearly full)"
	}

	return t
}

func (d *detail) activityFact(r *topRow) string {
	ratio, isUtilization := r.activityRatio()

	switch {
	case isUtilization:
		return "not known; the driver's utilization is " + percentText(ratio)
	case !ratio.Present() && r.gpu.Up && !r.gpu.Activity.SM.Present():
		return nodedoc.WhyNoActivity(r.gpu.Activity.Source, r.node.source(gpu.SourceDCGM))
	case !ratio.Present():
		return "not known"
	case r.key.level == levelGPU && r.gpu.Activity.Source != "":
		return percentText(ratio) + ", from " + string(r.gpu.Activity.Source)
	default:
		return percentText(ratio)
	}
}

func powerFact(r *topRow) string {
	w, ok := r.watts().Get()
	if !ok {
		return ""
	}

	if r.instance != nil {
		return fmt.Sprintf("%.0f W, estimated", w)
	}

	t := fmt.Sprintf("%.0f W", w)
	if limit, ok := r.gpu.Power.LimitWatts.Get(); ok {
		t += fmt.Sprintf(" of %.0f W", limit)
	}

	if r.atPowerLimit() {
		t += " (at the limit)"
	}

	return t
}

func optText[T any](v gpu.Opt[T]) string {
	value, ok := v.Get()
	if !ok {
		return ""
	}

	return fmt.Sprint(value)
}

// addGPU adds the facts that GPUs have and slices do not.
func (d *detail) addGPU(g *nodedoc.GPU) {
	d.fact("model", joinTexts(
		g.Name,
		g.Architecture,
		prefixed("PCI ", g.PCIBusID),
		prefixed("serial ", g.Serial),
		prefixed("VBIOS ", g.VBIOS),
	))
	d.fact("MIG mode", joinTexts(g.MIGMode.Current, pendingText(g.MIGMode)))
	d.fact("temperature", d.temperatureFact(&g.Temperature))
	d.fact("clocks", joinTexts(
		clockText("SM", g.Clocks.SMHertz),
		clockText("memory", g.Clocks.MemoryHertz),
		prefixed("P", optText(g.PerformanceState)),
	))
	d.coloredFact(yellow, "slowed by", slowdownReasons(g.ClockEvents))
	d.fact("PCIe", joinTexts(
		linkText(&g.PCIe),
		rateText("in", g.PCIe.ReceiveRate),
		rateText("out", g.PCIe.TransmitRate),
		countText("replays", g.PCIe.Replays.Or(0)),
	))
	d.fact("NVLink", joinTexts(
		rateText("in", g.NVLink.ReceiveRate),
		rateText("out", g.NVLink.TransmitRate),
	))
	d.fact("ECC errors", eccFact(g.ECC))
	d.fact("remapped rows", rowsFact(g.RemappedRows))

	if action := g.RecoveryAction.Or(gpu.RecoveryNone); action != gpu.RecoveryNone {
		d.coloredFact(red, "! driver asks", string(action))
	}

	if c := g.Capacity; c != nil {
		var fit []string

		for _, p := range c.Profiles {
			if p.Available > 0 {
				fit = append(fit, fmt.Sprintf("%d x %s", p.Available, p.Name))
			}
		}

		d.fact("would fit", strings.Join(fit, " or "))
	}
}

func pendingText(m nodedoc.Mode) string {
	if m.Pending == "" || m.Pending == m.Current {
		return ""
	}

	return m.Pending + " after a reset"
}

func (d *detail) temperatureFact(t *nodedoc.Temperature) string {
	part := func(name string, v gpu.Opt[float64]) string {
		if !v.Present() {
			return ""
		}

		return name + d.v.celsius(v)
	}

	fact := joinTexts(
		part("", t.GPUCelsius),
		part("memory ", t.MemoryCelsius),
		part("margin ", t.MarginCelsius),
	)
	if t.MarginCelsius.Or(marginCelsius+1) <= marginCelsius {
		fact += " (near the limit)"
	}

	return fact
}

func clockText(name string, hertz gpu.Opt[float64]) string {
	v, ok := hertz.Get()
	if !ok {
		return ""
	}

	return fmt.Sprintf("%s %.0f MHz", name, v/1e6)
}

// slowdownReasons lists why clocks are below their highest now. An idle GPU's clocks are low, but
// slow down no work.
func slowdownReasons(events []nodedoc.ClockEvent) string {
	var all []string

	for i := range events {
		if e := &events[i]; e.Active && e.Reason != "gpu_idle" {
			all = append(all, nodedoc.ClockEventText(e.Reason))
		}
	}

	return strings.Join(all, ", ")
}

func linkText(p *nodedoc.PCIe) string {
	generation, ok := p.LinkGeneration.Get()
	if !ok {
		return ""
	}

	return fmt.Sprintf("generation %d", generation) + prefixed(" x", optText(p.LinkWidth))
}

func rateText(name string, bytes gpu.Opt[float64]) string {
	v, ok := bytes.Get()
	if !ok {
		return ""
	}

	return fmt.Sprintf("%s %.1f MiB/s", name, v/(1<<20))
}

func countText(name string, n uint64) string {
	if n == 0 {
		return ""
	}

	return fmt.Sprintf("%d %s", n, name)
}

// eccFact lists the errors that were counted; "none" if none were.
func eccFact(counts []gpu.ECCCount) string {
	var all []string

	for _, c := range nodedoc.ECCErrors(counts) {
		location := strings.ReplaceAll(c.Location, "_", " ")
		all = append(all, fmt.Sprintf("%d %s %s (%s)", c.Count, c.Severity, location, c.Lifetime))
	}

	if len(counts) > 0 && len(all) == 0 {
		return "none"
	}

	return strings.Join(all, ", ")
}

func rowsFact(rows gpu.Opt[gpu.RemappedRows]) string {
	r, ok := rows.Get()
	if !ok {
		return ""
	}

	t := fmt.Sprintf("%d correctable, %d uncorrectable", r.Correctable, r.Uncorrectable)
	if r.Pending {
		t += ", pending a reset"
	}

	if r.Failure {
		t += ", a remapping has failed"
	}

	return t
}

// addPipes adds the activity of a device's parts: tensor cores, memory, and arithmetic units.
func (d *detail) addPipes(r *topRow) {
	activity := r.gpu.Activity.Activity

	switch {
	case r.compute != nil:
		activity = r.compute.Activity
	case r.instance != nil:
		activity = r.instance.Activity
	}

	part := func(name string, v gpu.Opt[float64]) string {
		if !v.Present() {
			return ""
		}

		return name + " " + percentText(v)
	}

	d.fact("pipes", joinTexts(part("tensor", activity.Tensor), part("DRAM", activity.DRAM),
		part("FP64", activity.FP64), part("FP32", activity.FP32), part("FP16", activity.FP16),
		part("occupancy", activity.SMOccupancy)))
}

// addUse adds all pods and jobs that hold the device, and the number of its processes.
func (d *detail) addUse(use deviceUse) {
	// A slice and the compute instance that is all of it have the same holders.
	seen := map[string]bool{}

	for i := range use.Holders {
		h := &use.Holders[i]
		id := h.PodUID + containerName(h.Namespace, h.Pod, h.Container) + h.Resource + h.Replica

		if seen[id] {
			continue
		}

		seen[id] = true

		d.fact(prefixed("pod ", fmt.Sprint(len(seen))), joinTexts(
			containerName(h.Namespace, h.Pod, h.Container),
			h.Workload,
			h.Resource,
			string(h.Sharing),
			prefixed("replica ", h.Replica),
		))

		if isUnconfirmed(h) {
			why := cmp.Or(h.UnconfirmedReason, "it may not hold the device")
			d.coloredFact(yellow, "", "unconfirmed: "+why)
		}
	}

	for _, job := range use.Jobs {
		d.fact("job", job)
	}

	if n, ok := use.Processes.Get(); ok {
		d.fact("processes", fmt.Sprint(n))
	}

	if len(use.users()) == 0 {
		d.fact("", use.summary())
	}
}

// addParts adds the compute instances of a GPU instance.
func (d *detail) addParts(r *topRow) {
	d.section("Compute instances")

	for i := range r.instance.ComputeInstances {
		c := &r.instance.ComputeInstances[i]
		d.fact(orUnknown(c.Profile), joinTexts(string(c.UUID), "SM "+percentText(c.Activity.SM),
			r.node.view.computeUse(r.instance, c).summary()))
	}
}

// addProcesses adds the processes on the device, in the document's order: those with most memory
// come first.
func (d *detail) addProcesses(r *topRow) {
	first := true

	for i := range r.gpu.ProcessList {
		p := &r.gpu.ProcessList[i]
		if r.instance != nil && p.GPUInstance != gpu.Some(r.instance.ID) ||
			r.compute != nil && p.ComputeInstance != gpu.Some(r.compute.ID) {
			continue
		}

		if first {
			d.section("Processes")

			first = false
		}

		holder := prefixed("job ", p.Job)
		if p.Pod != "" {
			holder = containerName(p.Namespace, p.Pod, p.Container)
		}

		memory := ""
		if bytes, ok := p.MemoryUsedBytes.Get(); ok {
			memory = formatGiB(bytes) + " GiB"
		}

		d.fact(fmt.Sprint(p.PID),
			joinTexts(p.Name, prefixed("user ", p.User), p.Type, memory, holder))
	}
}

// addXIDs adds the errors that the driver has reported, with NVIDIA's names.
func (d *detail) addXIDs(r *topRow) {
	var xids []nodedoc.XID

	switch {
	case r.compute != nil:
	case r.instance != nil:
		xids = r.instance.XIDErrors
	case r.gpu.XIDs != nil:
		xids = r.gpu.XIDs.ByXID
	}

	if len(xids) == 0 {
		return
	}

	d.section("XIDs (docs/faults.md)")

	for i := range xids {
		x := &xids[i]

		last := ""
		if !x.Last.IsZero() {
			last = "last " + x.Last.UTC().Format(time.RFC3339)
		}

		d.coloredFact(red, fmt.Sprintf("XID %d", x.XID),
			joinTexts(gpu.XIDName(x.XID), nodedoc.Count(int(x.Count), "time", "times"), last,
				r.xidSlices(x.XID)))
	}
}

// xidSlices names the slices of a GPU on which an XID came: "of 1g.10gb@0".
func (r *topRow) xidSlices(xid uint64) string {
	if r.key.level != levelGPU {
		return ""
	}

	var named []string

	for i := range r.gpu.GPUInstances {
		inst := &r.gpu.GPUInstances[i]
		if slices.ContainsFunc(inst.XIDErrors, func(x nodedoc.XID) bool { return x.XID == xid }) {
			named = append(named, placedProfile(inst.Profile, inst.Placement))
		}
	}

	return prefixed("of ", strings.Join(named, ", "))
}

func (d *detail) addErrors(errs []nodedoc.Error) {
	if len(errs) == 0 {
		return
	}

	d.section("Readings that fail")

	for _, e := range errs {
		d.coloredFact(red, string(e.Reading), fmt.Sprintf("%s: %s", e.Reason, e.Message))
	}
}

// keysFrame lists the keys and the signs.
func (v *topView) keysFrame(s topState) []frameLine {
	lines := []frameLine{lineOf(text("Keys").in(bold))}

	for _, k := range [][2]string{
		{"j k, arrows", "select; PgUp, PgDn, Home, End, g, G"},
		{"Tab, [ ]", "next and previous GPU"},
		{"Enter", "all about the selected GPU, slice or node; Esc goes back"},
		{"/", "filter by pod, namespace, profile, UUID, model; Esc drops it"},
		{"s", "order: index, memory, activity; or i, m, a"},
		{"o", "all GPUs with their slices, or the selected one if not all fit"},
		{"Ctrl+L", "draw again"},
		{"q, Ctrl+C", "quit; Ctrl+Z: stop, until fg"},
	} {
		lines = append(lines, lineOf(text("  %s", v.p.cell(k[0], 14)).in(cyan), text("%s", k[1])))
	}

	lines = append(lines, frameLine{}, lineOf(text("Signs").in(bold)))

	some := gpu.Some(0.5)
	for _, k := range [][2]string{
		{v.memoryBar(some, 8), "memory in use"},
		{v.activityBar(some, 8), "activity of the SMs"},
		{"~31%", "the driver's utilization: SM activity is not known"},
		{"!", "over 95 % of memory, at the power limit, near the temperature limit; an error"},
		{"?", "unconfirmed: it is not known whether the pod holds the device"},
		{"mem, sm", "the last 15 minutes of the selected GPU or slice"},
		{"L X", "in them: the layout changed, an XID came"},
	} {
		lines = append(lines, lineOf(text("  %s", v.p.cell(k[0], 14)).in(cyan), text("%s", k[1])))
	}

	for len(lines) < s.height-1 {
		lines = append(lines, frameLine{})
	}

	lines = lines[:max(1, min(len(lines), s.height-1))]

	return append(lines, lineOf(text("any key: back").in(dim)))
}
