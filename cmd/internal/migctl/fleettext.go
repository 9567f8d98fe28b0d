package migctl

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// fleetTable is the table of groups as text: a row for each namespace, cluster and model. After the
// namespaces of a cluster and model comes a row with their total.
type fleetTable struct {
	head []string
	rows [][]string
	left int // how many columns, from the left, are texts; the others are numbers
}

// allNamespaces stands for the namespace in a total.
const allNamespaces = "(all namespaces)"

func newFleetTable(r *fleet.Report) *fleetTable {
	clusters := slices.ContainsFunc(r.GPUs, func(g fleet.GPU) bool { return g.Cluster != "" })
	costs := r.Fleet.CostPerWeek != nil
	t := &fleetTable{}
	row := func(g *fleet.Group, cluster, model, namespace string) {
		cells := []string{
			model,
			namespace,
			strconv.Itoa(g.GPUs),
			strconv.Itoa(g.Slices),
			strconv.Itoa(g.FreedGPUs),
			strconv.FormatFloat(g.GPUHoursPerWeek, 'f', 0, 64),
		}
		if clusters {
			cells = append([]string{cluster}, cells...)
		}

		if costs {
			cost := unknown
			if g.CostPerWeek != nil {
				cost = strconv.FormatFloat(*g.CostPerWeek, 'f', 2, 64)
			}

			cells = append(cells, cost)
		}

		t.rows = append(t.rows, cells)
	}

	t.head = []string{"MODEL", "NAMESPACE", "GPUS", "SLICES", "FREED", "GPU-H/WEEK"}
	t.left = 2

	if clusters {
		t.head = append([]string{"CLUSTER"}, t.head...)
		t.left = 3
	}

	if costs {
		t.head = append(t.head, "COST/WEEK")
	}

	for i := range r.Totals {
		total := &r.Totals[i]
		members := 0

		for k := range r.Groups {
			if g := &r.Groups[k]; g.Cluster == total.Cluster && g.Model == total.Model {
				row(g, orUnknown(g.Cluster), orUnknown(g.Model), orUnknown(g.Namespace))
				members++
			}
		}

		if members > 1 {
			row(total, orUnknown(total.Cluster), orUnknown(total.Model), allNamespaces)
		}
	}

	if len(r.Totals) > 1 {
		row(&r.Fleet, "(fleet)", "(all models)", allNamespaces)
	}

	return t
}

// columnWidths returns the widths of the columns. If the table is wider than the page, it narrows the
// widest columns of texts, but not below 8.
func (t *fleetTable) columnWidths(p *page) []int {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(p.clean(cell))))
		}
	}

	for {
		sum := len(widths) - 1 // the spaces between the columns
		for _, n := range widths {
			sum += n
		}

		widest := slices.Index(widths, slices.Max(widths[:t.left]))
		if sum <= p.width || widths[widest] <= 8 {
			return widths
		}

		widths[widest]--
	}
}

// maxListed is how many GPUs the text lists.
const maxListed = 20

// writeFleet writes the report as text.
func writeFleet(p *page, r *fleet.Report) {
	p.paragraph("", plain, fleetTitle(r))
	p.line()
	t := newFleetTable(r)
	widths := t.columnWidths(p)

	for i, row := range append([][]string{t.head}, t.rows...) {
		cells := make([]string, len(row))
		for k, cell := range row {
			if cells[k] = p.right(cell, widths[k]); k < t.left {
				cells[k] = p.cell(cell, widths[k])
			}
		}

		c := plain
		if i == 0 {
			c = dim
		}

		p.line(text("%s", strings.Join(cells, " ")).in(c))
	}

	p.paragraph("", dim, fleetLegend(r))
	p.line()
	writeFleetSlices(p, r)

	if len(r.Fleet.Reasons) > 0 {
		p.line(text("GPUs that stay as they are:").in(bold))

		for _, reason := range reasonsByCount(r.Fleet.Reasons) {
			p.paragraph(
				fmt.Sprintf("%6d  %-17s ", r.Fleet.Reasons[reason], reason),
				plain,
				r.ReasonText(reason),
			)
		}

		p.line()
	}

	for _, note := range r.Notes {
		p.paragraph("- ", dim, note)
	}
}

// fleetTitle returns a sentence with the question and its answer.
func fleetTitle(r *fleet.Report) string {
	window := nodedoc.Count(int(r.WindowHours), "hour", "hours")
	if days := r.WindowHours / 24; days == math.Trunc(days) {
		window = nodedoc.Count(int(days), "day", "days")
	}

	f := &r.Fleet

	return fmt.Sprintf(
		"%s on %s, by the history of %s in the %s before %s: %s.",
		nodedoc.Count(f.GPUs, "GPU", "GPUs"),
		nodedoc.Count(r.Nodes, "node", "nodes"),
		r.Prometheus,
		strings.TrimPrefix(window, "1 "),
		r.Time.Format("2006-01-02 15:04 UTC"),
		fleetAnswer(f),
	)
}

// fleetAnswer says how many GPUs could be slices, what that frees, and of how many it does not say that.
func fleetAnswer(f *fleet.Group) string {
	unknown := 0

	for reason, count := range f.Reasons {
		if fleet.IsUnknown(reason) {
			unknown += count
		}
	}

	answer := ""

	switch {
	case f.Slices == 0 && unknown == 0:
		answer = "none could be a MIG slice"
	case f.Slices == 0:
		answer = fmt.Sprintf("no GPU was found that could be a MIG slice; whether %d could is not known", unknown)
	case unknown == 0:
		answer = slicesAnswer(f)
	default:
		answer = fmt.Sprintf("%s; whether %d more could is not known", slicesAnswer(f), unknown)
	}

	if n := f.Reasons[fleet.ReasonMIGMode]; n > 0 {
		const (
			one     = "was in MIG mode, and is not judged"
			several = "were in MIG mode, and are not judged"
		)

		answer += "; " + nodedoc.Count(n, one, several)
	}

	return answer
}

// slicesAnswer is the answer for a fleet in which GPUs could be slices.
func slicesAnswer(f *fleet.Group) string {
	answer := nodedoc.Count(f.Slices, "could be a MIG slice", "could be MIG slices")
	which := ", which"

	if apart := slicesApart(f); apart != "" {
		answer += ", of them " + apart
		which = "; " + nodedoc.Count(f.Final, "final one", "final ones")
	}

	if f.Final == 0 {
		return answer + "; none is final, so that no GPU counts as freed yet" + freedByAll(f)
	}

	if f.FreedGPUs == 0 {
		return answer + which + " would free no whole GPU" + freedByAll(f)
	}

	answer += fmt.Sprintf(
		"%s would free %s, held for %.0f hours a week",
		which,
		nodedoc.Count(f.FreedGPUs, "GPU", "GPUs"),
		f.GPUHoursPerWeek,
	)
	if f.CostPerWeek != nil {
		answer += fmt.Sprintf(" that cost %.2f", *f.CostPerWeek)
	}

	return answer + freedByAll(f)
}

// freedByAll says how many GPUs the slices free that are not final either, if they become final as
// they are; it is empty if these free none.
func freedByAll(f *fleet.Group) string {
	if f.FreedByAll <= f.FreedGPUs {
		return ""
	}

	return fmt.Sprintf(
		"; all %d would free %s if they become final",
		f.Slices,
		nodedoc.Count(f.FreedByAll, "GPU", "GPUs"),
	)
}

// slicesApart counts the slices of which more is to be said. Those that are not final free nothing
// yet.
func slicesApart(f *fleet.Group) string {
	var list []string

	for _, c := range []struct {
		count int
		what  string
	}{
		{f.Provisional, "provisional"},
		{f.NotChecked, "with unknown use of media engines"},
		{f.Idle, "idle"},
	} {
		if c.count > 0 {
			list = append(list, fmt.Sprintf("%d %s", c.count, c.what))
		}
	}

	return strings.Join(list, ", ")
}

// fleetLegend explains the columns of the table of groups.
func fleetLegend(r *fleet.Report) string {
	legend := "SLICES: GPUs that could be a slice. FREED: how many GPUs fewer these slices need, packed " +
		"together, without those that are provisional or whose use of media engines is unknown; the row " +
		allNamespaces + " packs all namespaces together, which frees more. GPU-H/WEEK: hours a week " +
		"for which the freed GPUs are held today."
	if r.Fleet.CostPerWeek != nil {
		legend += " COST/WEEK: these hours at their --price."
	}

	return legend + " NAMESPACE: the one that held the GPU longest; " +
		unknown + " if nothing did or it is not known."
}

// freedBy returns how much of a GPU is freed if this one becomes a slice.
func freedBy(g *fleet.GPU) float64 {
	if g.Gain == nil {
		return 0
	}

	return g.Gain.FreedGPUs
}

// writeFleetSlices lists GPUs for which a slice is enough. Those that free most come first; of equal
// ones, the least busy.
func writeFleetSlices(p *page, r *fleet.Report) {
	var list []*fleet.GPU

	for i := range r.GPUs {
		if r.GPUs[i].Action == advise.ActionSlice {
			list = append(list, &r.GPUs[i])
		}
	}

	if len(list) == 0 {
		return
	}

	slices.SortStableFunc(list, func(a, b *fleet.GPU) int {
		return cmp.Or(cmp.Compare(freedBy(b), freedBy(a)), cmp.Compare(a.BusyMean, b.BusyMean))
	})
	p.line(
		text(
			"%-12s %-10s %-10s %-11s %4s %9s %-12s %s",
			"GPU",
			"NODE",
			"NAMESPACE",
			"SLICE",
			"BUSY",
			"STRETCH",
			"DECIDED BY",
			"NOTE",
		).in(dim),
	)

	for _, g := range list[:min(len(list), maxListed)] {
		stretch := "unknown"
		if t := g.StretchP95; t != nil {
			stretch = fleetStretchText(t.Low) + "-" + fleetStretchText(t.High)
		}

		p.line(
			text(
				"%s %s %s %s %3.0f%% %9s %s %s",
				p.cell(shortUUID(g.UUID), 12),
				p.cell(orUnknown(g.Node), 10),
				p.cell(
					orUnknown(g.Namespace),
					10,
				),
				p.cell(orUnknown(g.Profile), 11),
				100*g.BusyMean,
				stretch,
				p.cell(fleetDecided(g.Decided), 12),
				fleetMarks(g),
			),
		)
	}

	if more := len(list) - maxListed; more > 0 {
		p.paragraph(
			"",
			plain,
			fmt.Sprintf("... and %d more: -o csv lists all GPUs, with the evidence.", more),
		)
	}

	p.paragraph(
		"",
		dim,
		"BUSY: mean time in which kernels ran. STRETCH: how many times as long as now kernels take in "+
			"the slice at p95, if all kernels are alike and at worst. DECIDED BY: the figure nearest to "+
			"its limit: the expected stretch (with --strict the worst), busy time, or the share of the "+
			"slice's memory or media engines that is needed, with headroom. NOTE: p, provisional, by "+
			"evidence that is not complete yet; m, the slice has fewer media engines, which may be in "+
			"use; i, idle: held, and ran no kernel; r, frees no whole GPU, and makes room; o, another "+
			"replica of its owner needs this larger slice, or frees a GPU.",
	)
	p.line()
}

// fleetMarks returns the letters in the column NOTE.
func fleetMarks(g *fleet.GPU) string {
	marks := ""

	for _, m := range []struct {
		set    bool
		letter string
	}{{g.Provisional, "p"}, {g.NotChecked, "m"}, {g.Idle, "i"}, {g.Gain != nil && g.Gain.Room != "", "r"},
		{g.ByReplica || g.Gain != nil && *g.Gain == (advise.Gain{}), "o"}} {
		if m.set {
			marks += m.letter
		}
	}

	return marks
}

// fleetDecided formats the figure that decided: "memory 83%".
func fleetDecided(d *advise.Decided) string {
	switch {
	case d == nil:
		return ""
	case d.Figure == advise.FigureStretch,
		d.Figure == advise.FigureLatency,
		d.Figure == advise.FigureThroughput:
		return d.Figure + " " + fleetStretchText(d.Ratio)
	}

	return d.Figure + " " + shareText(d.Ratio)
}

func fleetStretchText(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// reasonsByCount returns the reasons, the most frequent first.
func reasonsByCount(reasons map[advise.Reason]int) []advise.Reason {
	return slices.SortedFunc(maps.Keys(reasons), func(a, b advise.Reason) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b))
	})
}

// writeFleetMarkdown writes the report as Markdown, for a page or a ticket.
func writeFleetMarkdown(p *page, r *fleet.Report) {
	width := p.width
	p.width = 0
	defer func() { p.width = width }()
	p.line(text("%s", markdownText(fleetTitle(r))))
	p.line()
	t := newFleetTable(r)
	line := func(cells []string) {
		safe := make([]string, len(cells))
		for i, cell := range cells {
			safe[i] = markdownText(cell)
		}

		p.line(text("| %s |", strings.Join(safe, " | ")))
	}
	line(t.head)
	p.line(
		text("|%s%s", strings.Repeat("---|", t.left), strings.Repeat("---:|", len(t.head)-t.left)),
	)

	for _, row := range t.rows {
		line(row)
	}

	p.line()
	p.line(text("%s", markdownText(fleetLegend(r))))
	p.line()

	if len(r.Fleet.Reasons) > 0 {
		p.line(text("| GPUs | stay as they are | |"))
		p.line(text("|---:|---|---|"))

		for _, reason := range reasonsByCount(r.Fleet.Reasons) {
			line(
				[]string{
					strconv.Itoa(r.Fleet.Reasons[reason]),
					string(reason),
					r.ReasonText(reason),
				},
			)
		}

		p.line()
	}

	for _, note := range r.Notes {
		p.line(text("- %s", markdownText(note)))
	}
}

// markdownText escapes the characters that Markdown takes for markup.
func markdownText(s string) string {
	return strings.NewReplacer(
		`\`, `\\`, "|", `\|`, "`", "\\`", "*", `\*`, "_", `\_`, "<", "&lt;", "[", `\[`, "&", "&amp;",
	).Replace(s)
}
