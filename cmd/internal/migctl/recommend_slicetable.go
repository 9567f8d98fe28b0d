package migctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// sliceLegend explains the columns of the table of slices.
const sliceLegend = "FREED: the part of the slice's SMs that becomes free. " +
	"STRETCH: how many times as long as now kernels take in the smaller slice at p95. " +
	"CONF: how far the evidence can be relied on."

// writeSlices lists the GPU instances that should become smaller or larger or are idle. Free ones
// have one line for each GPU, those that stay one for each GPU and reason.
func writeSlices(p *page, devices []advise.Recommendation) {
	cells := func(c [8]string) string {
		return p.right(c[0], 3) + " " + p.cell(c[1], 24) + " " + p.cell(c[2], 12) + " " +
			p.cell(c[3], 6) + " " + p.cell(c[4], 10) + " " + p.right(c[5], 5) + " " +
			p.right(c[6], 9) + " " + p.right(c[7], 4)
	}
	var rows []span

	for i := range devices {
		r := &devices[i]
		if _, stays := unchangedWord(r.Action); stays || !r.Instance.Present() {
			continue
		}

		row := [...]string{
			fmt.Sprint(r.Index),
			workloadName(r),
			sliceText(r),
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
		p.para("", dim, sliceLegend)
	}

	for _, o := range others {
		count := nodedoc.Count(len(o.slices), o.what+" slice", o.what+" slices")
		if o.reason != "" {
			count += " (" + o.reason + ")"
		}

		p.para(p.right(fmt.Sprint(o.index), 3)+" ", dim, count+": "+strings.Join(o.slices, ", "))
	}
}

// unchanged are the slices of a GPU that are free, or stay as they are for one reason.
type unchanged struct {
	index        int
	what, reason string
	slices       []string
}

// unchangedWord names what nothing is done about, and false for an action that changes something.
func unchangedWord(action advise.Action) (string, bool) {
	switch action {
	case advise.ActionKeep:
		return "kept", true
	case advise.ActionFree:
		return "free", true
	case advise.ActionUnknown:
		return "unknown", true
	}

	return "", false
}

func unchangedSlices(devices []advise.Recommendation) []unchanged {
	var list []unchanged

	for i := range devices {
		r := &devices[i]

		what, stays := unchangedWord(r.Action)
		if !stays || !r.Instance.Present() {
			continue
		}

		o := unchanged{index: r.Index, what: what, reason: string(r.Reason)}

		at := slices.IndexFunc(list, func(u unchanged) bool {
			return u.index == o.index && u.what == o.what && u.reason == o.reason
		})
		if at < 0 {
			at = len(list)
			list = append(list, o)
		}

		list[at].slices = append(list[at].slices, sliceText(r))
	}

	return list
}

// sliceText is a slice's profile and where it begins.
func sliceText(r *advise.Recommendation) string {
	if place, ok := r.Placement.Get(); ok {
		return fmt.Sprintf("%s@%d", orUnknown(r.Profile), place.Start)
	}

	return orUnknown(r.Profile)
}
