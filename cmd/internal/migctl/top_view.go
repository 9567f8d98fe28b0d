package migctl

import (
	"fmt"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// topView draws states of a live view. What it draws depends on the state alone.
type topView struct {
	p *page // knows which characters the terminal has, and cleans texts of others for it
}

func newTopView(p *page) *topView { return &topView{p} }

// frameLine is a line of a frame.
type frameLine struct {
	spans    []span
	selected bool
}

func lineOf(spans ...span) frameLine { return frameLine{spans: spans} }

// frame returns the lines of the screen.
func (v *topView) frame(s topState) []frameLine {
	if s.height > 0 && (s.height < smallestHeight || s.width < smallestWidth) {
		return []frameLine{lineOf(text("%dx%d is too small", s.width, s.height))}
	}

	switch s.screen {
	case screenDetail:
		return v.detailFrame(s)
	case screenKeys:
		return v.keysFrame(s)
	default:
		return v.listFrame(s)
	}
}

// listFrame returns the lines of the list, with the history and the keys below it.
func (v *topView) listFrame(s topState) []frameLine {
	c := topColumnsOf(s.width)
	lines := []frameLine{v.titleLine(s), v.headLine(c)}
	list := v.listLines(s, c)

	if s.height == 0 { // the frame is printed, not shown on a screen
		return append(append(lines, list...), v.warningLines(s)...)
	}

	list = list[min(s.offset, len(list)):]
	for len(list) < s.listHeight() {
		list = append(list, frameLine{})
	}

	lines = append(lines, list[:s.listHeight()]...)
	lines = append(lines, v.historyPane(s)...)

	return append(lines, v.footLine(s))
}

// titleLine names the program, the time of the latest reading, and the order and filter of the list
// if they are not the default.
func (v *topView) titleLine(s topState) frameLine {
	var latest time.Time

	for i := range s.nodes {
		if n := &s.nodes[i]; n.view != nil && n.view.doc.Time.After(latest) {
			latest = n.view.doc.Time
		}
	}

	spans := []span{text("migctl top").in(bold)}
	if !latest.IsZero() {
		spans = append(spans, text("  %s", latest.UTC().Format(time.RFC3339)).in(dim))
	}

	if s.order != orderIndex {
		spans = append(spans, text("  by %s", s.order).in(cyan))
	}

	if s.editing || s.filter != "" {
		spans = append(spans, text("  filter: %s", s.filter).in(cyan))
	}

	if s.editing {
		spans = append(spans, text(" ").in(reverse))
	}

	return lineOf(spans...)
}

// footLine names the keys.
func (v *topView) footLine(s topState) frameLine {
	if s.editing {
		return lineOf(text(
			"type: pod, namespace, profile, UUID   Enter keeps the filter, Esc drops it").in(dim))
	}

	return lineOf(text(
		"q quit  ? keys  Enter detail  / filter  s sort (i m a)  o open all  Tab next GPU").in(dim))
}

// topColumns holds the widths of the list's columns that depend on the width of the screen, in
// characters: the device's name, each of the two bars, and the users.
type topColumns struct {
	name, bar, use int
}

// fixedColumns is the width of all else in a line of the list: the cursor and the mark, memory,
// activity, power, temperature, and the spaces and alarms between them.
const fixedColumns = 2 + 1 + 1 + 9 + 1 + 1 + 5 + 5 + 1 + 5 + 1

// topColumnsOf shares out the width of the screen. Beyond the width of a table, a sixth of the rest
// goes to the name and to each bar, up to a limit, and all else to the users.
func topColumnsOf(width int) topColumns {
	more := width - tableWidth

	c := topColumns{name: 16 + min(max(0, more)/6, 14), bar: 8 + min(max(0, more)/6, 16)}
	if more < 0 {
		c.bar = max(1, c.bar+more/2)
	}

	c.use = max(0, width-fixedColumns-c.name-2*c.bar)

	return c
}

func (v *topView) headLine(c topColumns) frameLine {
	p := v.p

	return lineOf(
		text("  %s ", p.cell("GPU, SLICE", c.name)).in(dim),
		text("%s ", p.cell("MEMORY GiB", c.bar+10)).in(dim),
		text("%s", p.cell("SM", c.bar+6)).in(dim),
		text("POWER  TEMP USED BY").in(dim),
	)
}

// listLines returns all lines of the list.
func (v *topView) listLines(s topState, c topColumns) []frameLine {
	var lines []frameLine

	for _, r := range s.rows() {
		selected := r.key == s.selected && s.height > 0
		if r.key.level == levelNode {
			spans := append([]span{cursor(selected)}, v.nodeLine(s, r.node)...)
			lines = append(lines, frameLine{spans, selected})

			continue
		}

		spans := append([]span{cursor(selected)}, v.deviceLine(&r, c)...)
		lines = append(lines, frameLine{spans, selected})

		if r.open {
			for _, spans := range v.axis(&r, s.width) {
				lines = append(lines, lineOf(spans...))
			}
		}
	}

	return lines
}

// cursor is the first character of a line: a mark, if the line is selected.
func cursor(selected bool) span {
	if selected {
		return text(">").in(bold)
	}

	return text(" ")
}

// nodeLine names a node, says how old its reading is if it may be too old, and counts its devices
// and warnings.
func (v *topView) nodeLine(s topState, n *topNode) []span {
	if n.view == nil {
		if n.trouble == "" {
			return []span{text("%s", n.address).in(bold), text("  no reading yet").in(dim)}
		}

		return []span{
			text("%s", n.address).in(bold),
			text("  ! no reading: %s", n.trouble).in(red),
		}
	}

	doc := &n.view.doc
	spans := []span{text("%s", orUnknown(doc.Node.Hostname)).in(bold)}

	if late := lateText(s, n); late != "" {
		spans = append(spans, text("  ! %s", late).in(red))
	}

	instances := 0
	for i := range doc.GPUs {
		instances += len(doc.GPUs[i].GPUInstances)
	}

	spans = append(spans, text("  %s, %s  driver %s", nodedoc.Count(len(doc.GPUs), "GPU", "GPUs"),
		nodedoc.Count(instances, "slice", "slices"), orUnknown(doc.Node.DriverVersion)).in(dim))

	if count := len(allWarnings(doc)); count > 0 {
		warnings := nodedoc.Count(count, "warning", "warnings")
		spans = append(spans, text("  ! %s", warnings).in(yellow))
	}

	return spans
}

// warningLines returns the warnings that nodeLine counts, for a frame that is printed: it has no screen on
// which to open the node.
func (v *topView) warningLines(s topState) []frameLine {
	var lines []frameLine

	for i := range s.nodes {
		n := &s.nodes[i]
		if n.view == nil {
			continue
		}

		name := ""
		if len(s.nodes) > 1 {
			name = orUnknown(n.view.doc.Node.Hostname) + ": "
		}

		for _, w := range allWarnings(&n.view.doc) {
			mark := "! "
			for _, line := range wrap(v.p.clean(name+w.text), min(s.width, tableWidth)-len(mark)) {
				lines = append(lines, lineOf(span{mark, w.color}, span{line, w.color}))
				mark = "  "
			}
		}
	}

	return lines
}

// lateText says how old a node's reading is, and why. It is empty for a reading that the stream has
// brought lately.
func lateText(s topState, n *topNode) string {
	sinceRead := s.now.Sub(n.read)
	age := (sinceRead + n.delay).Round(time.Second)

	switch {
	case n.trouble != "" && n.polled:
		return fmt.Sprintf("polled %s ago: %s", age, n.trouble)
	case n.trouble != "":
		return fmt.Sprintf("read %s ago: %s", age, n.trouble)
	case age >= n.quietLimit() && n.delay > sinceRead:
		return fmt.Sprintf("read %s ago: the connection is slow", age)
	case age >= n.quietLimit():
		return fmt.Sprintf("read %s ago: the stream is quiet", age)
	default:
		return ""
	}
}

// quietLimit returns the age from which on a reading is shown as old: staleAfter, or the time of 3
// readings if the node is read seldom (--poll.interval, or its driver is slow).
func (n *topNode) quietLimit() time.Duration {
	if n.view == nil || n.view.doc.Node.ReadEvery == nil {
		return staleAfter
	}

	interval := n.view.doc.Node.ReadEvery.FastSeconds

	return max(staleAfter, time.Duration(3*interval*float64(time.Second)))
}

// title names a device.
func (r *topRow) title() string {
	switch {
	case r.compute != nil:
		return orUnknown(r.compute.Profile)
	case r.instance != nil:
		return placedProfile(r.instance.Profile, r.instance.Placement)
	default:
		return fmt.Sprintf("GPU %d %s", r.gpu.Index, orUnknown(shortName(r.gpu.Name)))
	}
}

// name returns the device's title in the list. It is indented below the line of what the device is a
// part of, and names the GPU if there is no such line.
func (r *topRow) name() string {
	switch {
	case r.flat && r.instance != nil:
		return fmt.Sprintf("GPU %d %s", r.gpu.Index, r.title())
	case r.compute != nil:
		return "    " + r.title()
	case r.instance != nil:
		return "  " + r.title()
	default:
		return r.title()
	}
}

// Limits beyond which a value is marked with "!". They are chosen.
const (
	memoryFull    = 0.95 // of the memory
	powerAtLimit  = 0.98 // of the power limit
	marginCelsius = 5.0  // below the temperature at which the GPU slows down
)

// deviceLine returns the line of a device: bars, power, temperature and users.
func (v *topView) deviceLine(r *topRow, c topColumns) []span {
	p := v.p
	memory := r.memoryRatio()
	activity, isUtilization := r.activityRatio()
	activityText := percentText(activity)

	if isUtilization {
		activityText = "~" + activityText
	}

	memoryLabel := ""
	if r.compute == nil {
		memoryLabel = memoryText(r.memory())
	}

	watts := ""
	if w := r.watts(); w.Present() || r.key.level == levelGPU {
		watts = wattsText(w)
	}

	temperature := ""

	var margin gpu.Opt[float64]

	if r.key.level == levelGPU {
		margin = r.gpu.Temperature.MarginCelsius
		temperature = v.celsius(r.gpu.Temperature.GPUCelsius)
	}

	state := plain
	if !r.up() {
		state = red
	} else if r.key.level == levelGPU {
		state = bold
	}

	hot := margin.Or(marginCelsius+1) <= marginCelsius
	spans := []span{
		{v.mark(r), red},
		{p.cell(r.name(), c.name) + " ", state},
		{v.memoryBar(memory, c.bar), cyan},
		text(" %s", p.right(memoryLabel, 9)),
		v.alarm(memory.Or(0) >= memoryFull),
		{v.activityBar(activity, c.bar), green},
		text(" %s", p.right(activityText, 5)),
		text("%s", p.right(watts, 5)),
		v.alarm(r.atPowerLimit()),
		text("%s", p.right(temperature, 5)),
		v.alarm(hot),
	}

	return append(spans, v.useSpans(r, c.use)...)
}

// mark returns the sign before a device's name: "!" if it does not answer, or readings fail.
func (v *topView) mark(r *topRow) string {
	if !r.up() || len(r.failures()) > 0 {
		return "!"
	}

	return " "
}

// alarm returns the sign after a value: a space, or "!" if the value is beyond its limit.
func (v *topView) alarm(beyond bool) span {
	if beyond {
		return text("!").in(red)
	}

	return text(" ")
}

// atPowerLimit reports whether a GPU draws as much as it may.
func (r *topRow) atPowerLimit() bool {
	limit := r.gpu.Power.LimitWatts.Or(0)
	return r.key.level == levelGPU && limit > 0 && r.gpu.Power.Watts.Or(0) >= powerAtLimit*limit
}

func (v *topView) celsius(t gpu.Opt[float64]) string {
	c, ok := t.Get()
	if !ok {
		return unknown
	}

	if v.p.utf8 {
		return fmt.Sprintf("%.0f°C", c)
	}

	return fmt.Sprintf("%.0fC", c)
}

// useSpans says who uses a device. For a GPU in MIG mode it is a small axis if its slices are not
// shown, and otherwise how many of them are held.
func (v *topView) useSpans(r *topRow, columns int) []span {
	if !r.up() {
		return []span{text("not answering").in(red)}
	}

	if r.key.level == levelGPU && isMIG(r.gpu) {
		small := v.smallAxis(r, columns)
		if !r.open && small != "" && len(r.gpu.GPUInstances) > 0 {
			return []span{text("%s", small)}
		}

		return []span{text("%s", slicesText(r)).in(dim)}
	}

	if n := len(r.failures()); n > 0 {
		failing := nodedoc.Count(n, "error", "errors") + ", "
		return []span{text("%s", failing).in(red), v.usersSpan(r, columns-len(failing))}
	}

	return []span{v.usersSpan(r, columns)}
}

func (v *topView) usersSpan(r *topRow, columns int) span {
	if r.instance != nil && r.compute == nil && len(r.instance.ComputeInstances) > 1 {
		parts := len(r.instance.ComputeInstances)
		return text("%s", nodedoc.Count(parts, "compute instance", "compute instances")).in(dim)
	}

	use := r.use()

	all := v.p.clean(use.summary())

	// If several users don't fit, the first is shown with the number of the others.
	if users := use.users(); len(users) > 1 && columnsOf(all) > columns {
		others := fmt.Sprintf(" +%d", len(users)-1)
		all = v.p.cutMiddle(v.p.clean(users[0]), columns-len(others)) + others
	}

	return text("%s", v.p.cutMiddle(all, columns)).in(useColorOf(use))
}

// slicesText counts the slices of a GPU that are held, and those of which it is not known whether
// they are.
func slicesText(r *topRow) string {
	if len(r.gpu.GPUInstances) == 0 {
		return "no slices"
	}

	held := 0
	unknown := 0

	for i := range r.gpu.GPUInstances {
		switch r.node.view.instanceUse(&r.gpu.GPUInstances[i]).state {
		case nodedoc.Held:
			held++
		case nodedoc.UnknownUse:
			unknown++
		case nodedoc.Free:
		}
	}

	t := fmt.Sprintf("%d of %d held", held, len(r.gpu.GPUInstances))
	if unknown > 0 {
		t += fmt.Sprintf(", %d unknown", unknown)
	}

	return t
}

// memoryBar draws a bar of blocks. It differs from activityBar's by more than the color.
func (v *topView) memoryBar(ratio gpu.Opt[float64], columns int) string {
	if v.p.utf8 {
		return bar(ratio, columns, "█", "░")
	}

	return bar(ratio, columns, "#", ".")
}

// activityBar draws a bar as a line.
func (v *topView) activityBar(ratio gpu.Opt[float64], columns int) string {
	if v.p.utf8 {
		return bar(ratio, columns, "━", "─")
	}

	return bar(ratio, columns, "=", "-")
}

// bar draws a ratio of 0-1. A ratio above 0 fills at least one column; an absent one is blank.
func bar(ratio gpu.Opt[float64], columns int, full, empty string) string {
	r, ok := ratio.Get()
	if !ok {
		return strings.Repeat(" ", columns)
	}

	filled := int(min(max(r, 0), 1)*float64(columns) + 0.5)
	if r > 0 {
		filled = max(1, filled)
	}

	return strings.Repeat(full, filled) + strings.Repeat(empty, columns-filled)
}

// axis returns the lines of a GPU's axis. The box of a slice has its profile and the activity of its
// SMs.
func (v *topView) axis(r *topRow, width int) [][]span {
	slots := r.node.view.slots(r.gpu)
	units := axisOf(r.gpu).Units
	columns := width - axisIndent - 1

	if units > 0 {
		unit := min(unitMax, columns/units) // columns of a unit of the axis

		for i := range slots {
			inst := instanceAt(r.gpu, slots[i].Placement)
			if inst != nil && inst.Up && inst.Activity.SM.Present() {
				slots[i].note = v.activityBar(inst.Activity.SM, max(0, slots[i].Size*unit-1))
			}
		}
	}

	lines := v.p.axisLines(columns, units, slots)
	for len(lines) < axisHeight {
		lines = append(lines, nil)
	}

	return lines
}

// instanceAt returns the GPU instance at a placement, nil if there is none.
func instanceAt(g *nodedoc.GPU, wanted gpu.Placement) *nodedoc.Instance {
	for i := range g.GPUInstances {
		if place, ok := g.GPUInstances[i].Placement.Get(); ok && place == wanted {
			return &g.GPUInstances[i]
		}
	}

	return nil
}

// smallAxis draws a GPU's axis in one line: each slice is as wide as its part of the GPU, and filled
// with the sign of its activity's level.
func (v *topView) smallAxis(r *topRow, columns int) string {
	slots := r.node.view.slots(r.gpu)
	units := axisOf(r.gpu).Units

	if len(slots) == 0 || units == 0 {
		return ""
	}

	unit := min(4, (columns-len(slots)+1)/units) // columns of a unit of the axis
	if unit < 1 {
		return ""
	}

	levels := make([]string, 0, len(slots))
	for _, s := range slots {
		levels = append(levels, v.slotLevel(r.gpu, &s, s.Size*unit))
	}

	return strings.Join(levels, v.p.boxLines().edge)
}

// slotLevel draws a slice or room on the axis, in a number of columns. A slice whose activity is not
// known has its profile instead.
func (v *topView) slotLevel(g *nodedoc.GPU, s *slot, columns int) string {
	inst := instanceAt(g, s.Placement)

	switch {
	case inst == nil && s.stranded:
		return strings.Repeat(v.p.boxLines().waste, columns)
	case inst == nil:
		return strings.Repeat(" ", columns)
	case inst.Activity.SM.Present():
		return strings.Repeat(v.levelSign(inst.Activity.SM.Or(0)), columns)
	case len(inst.Profile) <= columns:
		return v.p.cell(inst.Profile, columns)
	default:
		return strings.Repeat(".", columns)
	}
}

// levelSign returns the character that shows a ratio of 0-1 by its height, or in ASCII as a digit.
func (v *topView) levelSign(ratio float64) string {
	levels := []rune("_123456789")
	if v.p.utf8 {
		levels = []rune("▁▂▃▄▅▆▇█")
	}

	return string(levels[int(min(max(ratio, 0), 1)*float64(len(levels)-1)+0.5)])
}
