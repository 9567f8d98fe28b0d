package main

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// slot is a run of units on a GPU's placement axis as it is drawn.
type slot struct {
	gpu.Placement
	label, note string // what it is; who has it
	color       color
	stranded    bool
}

const (
	axisIndent   = 2
	axisColumns  = tableWidth - axisIndent - 1
	unitMax      = 18 // columns of a unit: a short axis is not drawn wide
	unitsDrawn   = 24 // a longer axis would have no room for a profile
	freeLabel    = "free"
	strandedText = "stranded"
)

// strokes are what boxes are drawn of.
type strokes struct {
	left, mid, right, footLeft, footMid, footRight, bar, edge, waste string
}

func (p *page) strokes() strokes {
	if p.utf8 {
		return strokes{"┌", "┬", "┐", "└", "┴", "┘", "─", "│", "╱"}
	}
	return strokes{"+", "+", "+", "+", "+", "+", "-", "|", "/"}
}

// drawAxis draws slots, gapless from 0 and in order, as boxes whose widths are those of their placements. The numbers
// below are the memory slices at which placements can begin.
func (p *page) drawAxis(units int, slots []slot) {
	if units < 1 || units > unitsDrawn || len(slots) == 0 {
		return
	}
	unit := min(unitMax, axisColumns/units)
	k := p.strokes()
	indent := strings.Repeat(" ", axisIndent)
	var head, foot strings.Builder
	rows := [2][]span{{text("%s", indent)}, {text("%s", indent)}}
	for i, s := range slots {
		inner := s.Size*unit - 1
		head.WriteString(pick(i == 0, k.left, k.mid) + strings.Repeat(k.bar, inner))
		foot.WriteString(pick(i == 0, k.footLeft, k.footMid) + ruler(s, unit, k.bar))
		top, bottom := s.texts(inner)
		for r, t := range []string{top, bottom} {
			rows[r] = append(rows[r], text("%s", k.edge), span{p.fill(t, inner, s.stranded, k.waste), s.color})
		}
	}
	p.line(text("%s%s%s", indent, head.String(), k.right))
	for _, row := range rows {
		p.line(append(row, text("%s", k.edge))...)
	}
	p.line(text("%s%s%s", indent, foot.String(), k.footRight))
}

// texts are the two lines in a box: the profile and its holder, or the profile in two lines where the box is narrow.
func (s slot) texts(inner int) (top, bottom string) {
	if utf8.RuneCountInString(s.label) <= inner {
		return s.label, s.note
	}
	if slices, memory, ok := strings.Cut(s.label, "."); ok {
		return slices, "." + memory
	}
	return s.label, s.note
}

// fill makes a text as wide as its box. Stranded room is hatched.
func (p *page) fill(s string, inner int, stranded bool, waste string) string {
	if !stranded {
		return p.cell(s, inner)
	}
	if s = p.clean(s); utf8.RuneCountInString(s) > inner {
		s = ""
	}
	return s + strings.Repeat(waste, inner-utf8.RuneCountInString(s))
}

// ruler is the foot of a box with the number of each unit at its left.
func ruler(s slot, unit int, bar string) string {
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

// withRoom puts slots in order and lays room between them. It gives nil where they overlap or leave the axis. usable tells
// of a unit whether some instance could still be created there; nil is all of them.
func withRoom(units int, slots []slot, usable []bool) []slot {
	slots = slices.Clone(slots)
	known := len(usable) == units
	slices.SortFunc(slots, func(a, b slot) int { return a.Start - b.Start })
	var all []slot
	at := 0
	for _, s := range append(slots, slot{Placement: gpu.Placement{Start: units}}) {
		if s.Start < at || s.End() > units {
			return nil
		}
		for ; at < s.Start; at++ {
			all = addRoom(all, at, known && !usable[at])
		}
		if s.Size > 0 {
			all = append(all, s)
		}
		at = s.End()
	}
	return all
}

// addRoom appends a unit of room, to the last slot where that is room of the same kind.
func addRoom(all []slot, at int, stranded bool) []slot {
	room := slot{Placement: gpu.Placement{Start: at, Size: 1}, label: freeLabel, color: green, stranded: stranded}
	if stranded {
		room.label, room.color = strandedText, yellow
	}
	if n := len(all); n > 0 && all[n-1].label == room.label {
		all[n-1].Size++
		return all
	}
	return append(all, room)
}
