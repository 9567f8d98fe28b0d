package migctl

import (
	"cmp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// slot is a box on the drawn placement axis of a GPU: an instance, or room between instances.
type slot struct {
	gpu.Placement
	reported    gpu.Opt[gpu.Placement] // the instance's placement in the document; absent for room
	label, note string                 // the lines in the box: the profile, and the users
	color       color
	stranded    bool
}

const (
	axisIndent = 2
	// unitMax is how many columns a unit takes at most on a page of tableWidth: a short axis does not
	// fill the line.
	unitMax      = 18
	unitsDrawn   = 24     // a longer axis is not drawn: its units would have no room for a profile
	freeLabel    = "free" // for a device that nothing holds, and for room without an instance
	strandedText = "stranded"
)

// boxLines are the characters with which boxes are drawn.
type boxLines struct {
	left, mid, right, footLeft, footMid, footRight, bar, edge, waste string
}

func (p *page) boxLines() boxLines {
	if p.utf8 {
		return boxLines{"┌", "┬", "┐", "└", "┴", "┘", "─", "│", "╱"}
	}

	return boxLines{"+", "+", "+", "+", "+", "+", "-", "|", "/"}
}

// drawAxis draws slots as boxes, each as wide as its placement. The slots are in order and without
// gaps, from unit 0 on. The numbers below the boxes are the units at which placements can begin.
func (p *page) drawAxis(units int, slots []slot) {
	columns := cmp.Or(p.width, tableWidth) - axisIndent - 1
	for _, line := range p.axisLines(columns, units, slots) {
		p.line(line...)
	}
}

// axisLines returns the lines of an axis that has a number of columns besides its indent; none if that
// is too little.
func (p *page) axisLines(columns, units int, slots []slot) [][]span {
	if units < 1 || units > min(unitsDrawn, columns) || len(slots) == 0 {
		return nil
	}

	unit := min(cmp.Or(p.unitMost, unitMax), columns/units)
	box := p.boxLines()
	indent := strings.Repeat(" ", axisIndent)
	var head, foot strings.Builder
	rows := [2][]span{{text("%s", indent)}, {text("%s", indent)}}

	for i, s := range slots {
		inner := s.Size*unit - 1
		head.WriteString(pick(i == 0, box.left, box.mid) + strings.Repeat(box.bar, inner))
		foot.WriteString(pick(i == 0, box.footLeft, box.footMid) + axisNumbers(s, unit, box.bar))

		top, bottom := s.boxTexts(inner)
		for r, t := range []string{top, bottom} {
			rows[r] = append(
				rows[r],
				text("%s", box.edge),
				span{p.fillBox(t, inner, s.stranded, box.waste), s.color},
			)
		}
	}

	return [][]span{
		{text("%s%s%s", indent, head.String(), box.right)},
		append(rows[0], text("%s", box.edge)),
		append(rows[1], text("%s", box.edge)),
		{text("%s%s%s", indent, foot.String(), box.footRight)},
	}
}

// boxTexts returns the two lines in a box: label and note, or the label on both lines, as "3g" and
// ".20gb", if the box is narrow. inner is how many columns a line has.
func (s slot) boxTexts(inner int) (top, bottom string) {
	if utf8.RuneCountInString(s.label) <= inner {
		return s.label, s.note
	}

	if slices, memory, ok := strings.Cut(s.label, "."); ok {
		return slices, "." + memory
	}

	return s.label, s.note
}

// fillBox pads a text to the width of its box. Stranded room is hatched.
func (p *page) fillBox(s string, inner int, stranded bool, waste string) string {
	if !stranded {
		return p.cell(p.cutMiddle(p.clean(s), inner), inner)
	}

	if s = p.clean(s); utf8.RuneCountInString(s) > inner {
		s = ""
	}

	return s + strings.Repeat(waste, inner-utf8.RuneCountInString(s))
}

// axisNumbers returns the lower edge of a box, with the number of each unit at its left.
func axisNumbers(s slot, unit int, bar string) string {
	var b strings.Builder

	for u := s.Start; u < s.End(); u++ {
		number := strconv.Itoa(u)
		if u > s.Start {
			b.WriteString(bar)
		}

		b.WriteString(number + strings.Repeat(bar, max(0, unit-1-len(number))))
	}

	return b.String()
}

func pick(first bool, a, b string) string {
	if first {
		return a
	}

	return b
}

// layOutSlots returns the slots of instances in the order of the axis, with slots for the room
// between them. It returns nil if the placements are unknown or contradict each other.
func layOutSlots(axis nodedoc.Axis, instances []slot) []slot {
	placements := make([]gpu.Opt[gpu.Placement], 0, len(instances))
	for _, s := range instances {
		placements = append(placements, s.reported)
	}

	var all []slot

	for _, segment := range axis.LayOut(placements) {
		s := slot{label: freeLabel, color: green, stranded: segment.Stranded}
		switch {
		case segment.Instance != nodedoc.Room:
			s = instances[segment.Instance]
		case segment.Stranded:
			s.label = strandedText
			s.color = yellow
		}

		s.Placement = segment.Placement
		all = append(all, s)
	}

	return all
}
