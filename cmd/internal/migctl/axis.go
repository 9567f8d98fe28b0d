package migctl

import (
	"cmp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// slot is a box on the drawn placement axis of a GPU.
type slot struct {
	gpu.Placement
	at          gpu.Opt[gpu.Placement] // the placement of the instance, before it is laid out
	label, note string                 // the profile, and the users
	color       color
	stranded    bool
}

const (
	axisIndent = 2
	// columns of a unit at most, on a page of tableWidth: a short axis does not fill the line
	unitMax      = 18
	unitsDrawn   = 24     // a longer axis would have no room for a profile
	freeLabel    = "free" // held by nothing: room without an instance, or a device
	strandedText = "stranded"
)

// boxLines are the characters that boxes are drawn with.
type boxLines struct {
	left, mid, right, footLeft, footMid, footRight, bar, edge, waste string
}

func (p *page) boxLines() boxLines {
	if p.utf8 {
		return boxLines{"┌", "┬", "┐", "└", "┴", "┘", "─", "│", "╱"}
	}

	return boxLines{"+", "+", "+", "+", "+", "+", "-", "|", "/"}
}

// drawAxis draws slots, gapless from 0 and in order, as boxes whose widths are those of their
// placements. The numbers below are the memory slices at which placements can begin.
func (p *page) drawAxis(units int, slots []slot) {
	columns := cmp.Or(p.width, tableWidth) - axisIndent - 1
	for _, line := range p.axisLines(columns, units, slots) {
		p.line(line...)
	}
}

// axisLines returns the lines of an axis that is drawn in a number of columns, behind an indent;
// none if there is too little room.
func (p *page) axisLines(columns, units int, slots []slot) [][]span {
	if units < 1 || units > min(unitsDrawn, columns) || len(slots) == 0 {
		return nil
	}

	unit := min(cmp.Or(p.unitMost, unitMax), columns/units)
	k := p.boxLines()
	indent := strings.Repeat(" ", axisIndent)
	var head, foot strings.Builder
	rows := [2][]span{{text("%s", indent)}, {text("%s", indent)}}

	for i, s := range slots {
		inner := s.Size*unit - 1
		head.WriteString(pick(i == 0, k.left, k.mid) + strings.Repeat(k.bar, inner))
		foot.WriteString(pick(i == 0, k.footLeft, k.footMid) + axisNumbers(s, unit, k.bar))

		top, bottom := s.boxTexts(inner)
		for r, t := range []string{top, bottom} {
			rows[r] = append(
				rows[r],
				text("%s", k.edge),
				span{p.fillBox(t, inner, s.stranded, k.waste), s.color},
			)
		}
	}

	return [][]span{
		{text("%s%s%s", indent, head.String(), k.right)},
		append(rows[0], text("%s", k.edge)),
		append(rows[1], text("%s", k.edge)),
		{text("%s%s%s", indent, foot.String(), k.footRight)},
	}
}

// boxTexts returns the two lines in a box: the profile and its users, or the profile on two lines
// if the box is narrow.
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
// between them. It returns nil if that is not possible.
func layOutSlots(axis nodedoc.Axis, instances []slot) []slot {
	placements := make([]gpu.Opt[gpu.Placement], 0, len(instances))
	for _, s := range instances {
		placements = append(placements, s.at)
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
