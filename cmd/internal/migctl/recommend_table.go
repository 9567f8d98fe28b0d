package migctl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// wholeLegend explains the columns of the table of whole GPUs.
const wholeLegend = "FREED: whole GPUs that the move sets free, packed with the others. STRETCH: " +
	"how many times as long as now kernels take in the slice at p95, if all kernels are alike and " +
	"with the worst mix. CONF: how far the evidence can be relied on. DECIDED BY: of a slice the " +
	"figure nearest to its limit, else why the GPU stays as it is. latency: how many times as long " +
	"as now requests take at p95, waiting included; stretch: the same of kernels; throughput: the " +
	"same of all work, of jobs and of clients that wait for each answer; busy: p99 of busy time; memory, " +
	"media: the share of the slice's memory or media engines that is needed, with headroom."

// boundLegend follows wholeLegend if a busy time in the table is only a bound.
const boundLegend = "busy at most, at least: of the minutes it is only known that hardly any is " +
	"busier than the limit, or that some are."

// writeWholeGPUs lists the whole GPUs. Those whose move frees most come first.
func writeWholeGPUs(p *page, devices []advise.Recommendation) {
	whole := slices.DeleteFunc(slices.Clone(devices), func(r advise.Recommendation) bool {
		return r.Instance.Present()
	})
	if len(whole) == 0 {
		return
	}

	slices.SortStableFunc(whole, func(a, b advise.Recommendation) int {
		return cmp.Compare(gainRank(&b), gainRank(&a))
	})
	cells := func(c [7]string) string {
		return p.right(c[0], 3) + " " + p.cell(c[1], 19) + " " + p.cell(c[2], 11) + " " +
			p.right(c[3], 5) + " " + p.right(c[4], 9) + " " + p.right(c[5], 4) + " " +
			p.cell(c[6], 23)
	}
	p.line()
	p.line(
		span{
			cells(
				[...]string{
					"GPU",
					"WORKLOAD",
					"RECOMMENDED",
					"FREED",
					"STRETCH",
					"CONF",
					"DECIDED BY",
				},
			),
			dim,
		},
	)

	sliced := false
	bounded := false

	for i := range whole {
		r := &whole[i]
		row := [...]string{
			fmt.Sprint(r.Index),
			workloadName(r),
			string(r.Action),
			"",
			"",
			confidenceText(r),
			string(r.Reason),
		}
		c := plain

		switch r.Action {
		case advise.ActionSlice:
			c = green
			sliced = true
			bounded = bounded || r.Predicted.Decided.Figure == advise.FigureBusy &&
				advise.BoundOfBusy(r.Predicted.Decided.Ratio) != ""
			row[2] = r.Recommended
			row[3] = freedText(r)
			row[4] = stretchText(r.Predicted)
			row[6] = cmp.Or(caveat(r), decidedText(r.Predicted.Decided))
		case advise.ActionFree:
			c = dim
		case advise.ActionShare, advise.ActionUnknown:
			c = yellow
		}

		p.line(span{cells(row), c})
	}

	if !sliced {
		return
	}

	p.paragraph("", dim, wholeLegend)

	if bounded {
		p.paragraph("", dim, boundLegend)
	}
}

// gainRank returns a number that is higher the more an answer frees. Slices without a gain yet rank
// below those with one (which free 0 or more), and all other answers below them.
func gainRank(r *advise.Recommendation) float64 {
	switch {
	case r.Action != advise.ActionSlice:
		return -2
	case r.Gain == nil:
		return -1
	}

	return r.Gain.FreedGPUs
}

// freedText says how many whole GPUs a slice frees.
func freedText(r *advise.Recommendation) string {
	switch {
	case r.Gain == nil:
		return ""
	case r.Gain.FreedGPUs == 0:
		return "none"
	}

	return fmt.Sprintf("%.2f", r.Gain.FreedGPUs)
}

// decidedText writes the figure that decided and its limit: "stretch 1.21 of 1.50". It is empty if
// the server named no figure, as an older one.
func decidedText(d advise.Decided) string {
	switch d.Figure {
	case "":
		return ""
	case advise.FigureStretch, advise.FigureLatency, advise.FigureThroughput:
		return fmt.Sprintf("%s %.2f of %.2f", d.Figure, d.Ratio, d.Limit)
	}

	share := shareText(d.Ratio)
	if d.Figure == advise.FigureBusy {
		share = busyText(d.Ratio)
	}

	if d.Limit == 1 { // "of 100%" would say nothing
		return d.Figure + " " + share
	}

	return fmt.Sprintf("%s %s of %s", d.Figure, share, shareText(d.Limit))
}

// busyText writes the busy time that is expected in a slice at p99: "at most 90%" if only a bound is
// known.
func busyText(p99 float64) string {
	share := shareText(p99)
	if bound := advise.BoundOfBusy(p99); bound != "" {
		share = string(bound) + " " + share
	}

	return share
}

// sliceLegend explains the columns of the table of slices.
const sliceLegend = "FREED: the part of the slice's SMs that becomes free. " +
	"STRETCH: how many times as long as now kernels take in the smaller slice at p95. " +
	"CONF: how far the evidence can be relied on."

// writeSlices lists the GPU instances that should become smaller or larger or are idle, each on a
// line of its own. Instances that are free, or stay as they are, share a line by GPU and reason.
func writeSlices(p *page, devices []advise.Recommendation) {
	cells := func(c [8]string) string {
		return p.right(c[0], 3) + " " + p.cell(c[1], 24) + " " + p.cell(c[2], 12) + " " +
			p.cell(c[3], 6) + " " + p.cell(c[4], 10) + " " + p.right(c[5], 5) + " " +
			p.right(c[6], 9) + " " + p.right(c[7], 4)
	}
	var rows []span

	for i := range devices {
		r := &devices[i]
		if stateOf(r.Action) != "" || !r.Instance.Present() {
			continue
		}

		row := [...]string{
			fmt.Sprint(r.Index),
			workloadName(r),
			placedProfile(r.Profile, r.Placement),
			string(r.Action),
			r.Recommended,
			"",
			"",
			confidenceText(r),
		}
		c := yellow

		switch r.Action {
		case advise.ActionShrink:
			c = green
			row[5] = shareText(r.Reclaimable)
			row[6] = stretchText(r.Predicted)
		case advise.ActionGrow:
			if r.Recommended == "" {
				row[4] = "whole GPU"
			}
		}

		rows = append(rows, span{cells(row), c})
		if r.Explanation != "" && r.Action != advise.ActionShrink {
			rows = append(rows, span{"    " + r.Explanation, dim})
		}
	}

	others := unchangedSlices(devices)
	if len(rows)+len(others) == 0 {
		return
	}

	p.line()

	if len(rows) > 0 {
		p.line(
			span{
				cells(
					[...]string{
						"GPU",
						"WORKLOAD",
						"SLICE",
						"ACTION",
						"TO",
						"FREED",
						"STRETCH",
						"CONF",
					},
				),
				dim,
			},
		)
	}

	for _, row := range rows {
		p.line(row)
	}

	if slices.ContainsFunc(devices, func(r advise.Recommendation) bool {
		return r.Action == advise.ActionShrink
	}) {
		p.paragraph("", dim, sliceLegend)
	}

	for _, o := range others {
		count := nodedoc.Count(len(o.slices), o.state+" slice", o.state+" slices")
		if o.reason != "" {
			count += " (" + o.reason + ")"
		}

		p.paragraph(p.right(fmt.Sprint(o.index), 3)+" ", dim, count+": "+strings.Join(o.slices, ", "))
	}
}

// unchangedGroup holds the slices of a GPU that stay as they are in the same state for the same
// reason.
type unchangedGroup struct {
	index         int // of the GPU
	state, reason string
	slices        []string // "1g.10gb at 0-1"
}

// stateOf names the state of a slice that stays as it is. It is empty for an action that changes
// the slice.
func stateOf(action advise.Action) string {
	switch action {
	case advise.ActionKeep:
		return "kept"
	case advise.ActionFree:
		return "free"
	case advise.ActionUnknown:
		return "unknown"
	}

	return ""
}

func unchangedSlices(devices []advise.Recommendation) []unchangedGroup {
	var groups []unchangedGroup

	for i := range devices {
		r := &devices[i]

		state := stateOf(r.Action)
		if state == "" || !r.Instance.Present() {
			continue
		}

		group := unchangedGroup{index: r.Index, state: state, reason: string(r.Reason)}

		n := slices.IndexFunc(groups, func(g unchangedGroup) bool {
			return g.index == group.index && g.state == group.state && g.reason == group.reason
		})
		if n < 0 {
			n = len(groups)
			groups = append(groups, group)
		}

		groups[n].slices = append(groups[n].slices, placedProfile(r.Profile, r.Placement))
	}

	return groups
}
