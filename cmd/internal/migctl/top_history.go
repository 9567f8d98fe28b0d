package migctl

import (
	"math"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/history"
)

// historyPane returns the lines of the selected device's last 15 minutes.
func (v *topView) historyPane(s topState) []frameLine {
	lines := v.historyLines(s, s.historyHeight() == 1)
	for len(lines) < s.historyHeight() {
		lines = append(lines, frameLine{})
	}

	return lines
}

// historyLines draws the last 15 minutes of the selected device: memory and activity on one line if
// short, otherwise memory, activity, power and events on a line each.
func (v *topView) historyLines(s topState, short bool) []frameLine {
	r := s.selectedRow()
	if r == nil || r.key.level == levelNode {
		return []frameLine{{}}
	}

	past := findPast(r)
	if past == nil {
		return []frameLine{lineOf(text("no history of %s", r.shortTitle()).in(dim))}
	}

	// The values that fill the height of a sparkline. A compute instance has no memory limit of its
	// own, and a slice no power limit.
	fullMemory := float64(r.memory().Total.Or(0))
	if r.compute != nil {
		fullMemory = highest(past.MemoryUsedBytes)
	}

	fullPower := highest(past.PowerWatts)
	if r.key.level == levelGPU {
		fullPower = max(fullPower, r.gpu.Power.LimitWatts.Or(0))
	}

	if short {
		return []frameLine{v.shortHistory(s, r, past, fullMemory)}
	}

	const label = 10 // columns
	width := max(1, s.width-label)
	doc := r.node.past
	kept := min(history.Span, doc.Until.Sub(doc.Since).Round(time.Second))
	lines := []frameLine{lineOf(
		text("%s", r.shortTitle()).in(bold),
		text("  the last %s", strings.Replace(kept.String(), "m0s", "m", 1)).in(dim),
	)}

	add := func(name, drawn string, c color) {
		lines = append(lines, lineOf(text("%s", v.p.cell(name, label)).in(dim), span{drawn, c}))
	}

	add("memory", v.sparkline(past.MemoryUsedBytes, fullMemory, width), cyan)
	add("SM", v.sparkline(past.SMActivityRatio, 1, width), green)
	add("power", v.sparkline(past.PowerWatts, fullPower, width), yellow)

	if marks := v.markLine(r, width); marks != "" {
		add("events", marks, red)
	}

	return lines
}

// shortHistory draws memory and activity beside each other.
func (v *topView) shortHistory(
	s topState,
	r *topRow,
	past *history.Device,
	fullMemory float64,
) frameLine {
	const name = 18 // columns
	title := v.p.cell(r.shortTitle(), name)
	width := max(1, (s.width-name-len(" mem  sm "))/2)

	return lineOf(
		text("%s", title).in(bold),
		text(" mem ").in(dim),
		span{v.sparkline(past.MemoryUsedBytes, fullMemory, width), cyan},
		text(" sm ").in(dim),
		span{v.sparkline(past.SMActivityRatio, 1, width), green},
	)
}

// selectedRow returns the line that is selected, nil if there is none.
func (s topState) selectedRow() *topRow {
	for _, r := range s.allRows() {
		if r.key == s.selected {
			return &r
		}
	}

	return nil
}

// findPast returns the last 15 minutes of a device, nil if they are not known.
func findPast(r *topRow) *history.Device {
	if r.node.past == nil {
		return nil
	}

	for i := range r.node.past.Devices {
		d := &r.node.past.Devices[i]
		inst, isInstance := d.GPUInstance.Get()
		part, isPart := d.ComputeInstance.Get()

		sameLevel := isInstance == (r.instance != nil) && isPart == (r.compute != nil)
		if d.Gone || d.UUID != r.gpu.UUID || !sameLevel {
			continue
		}

		// Ids are used again after a layout change, which the history may not know yet.
		switch {
		case isPart && part == r.compute.ID && inst == r.instance.ID && d.Generation == r.compute.Generation,
			!isPart && isInstance && inst == r.instance.ID && d.Generation == r.instance.Generation,
			!isInstance:
			return d
		}
	}

	return nil
}

// sparkline draws a series of values from 0 to full in a number of columns, the newest at the right.
// A column shows the mean of its values, or nothing if all of them are absent.
func (v *topView) sparkline(series history.Series, full float64, columns int) string {
	var b strings.Builder

	points := int(history.Span / history.Step)
	missing := points - len(series) // a young exporter has a shorter series
	columns = min(columns, points)

	for column := range columns {
		from := column*points/columns - missing
		to := (column+1)*points/columns - missing
		sum := 0.0
		count := 0

		for i := max(0, from); i < min(to, len(series)); i++ {
			if value := float64(series[i]); !math.IsNaN(value) {
				sum += value
				count++
			}
		}

		if count == 0 || full <= 0 {
			b.WriteByte(' ')
			continue
		}

		b.WriteString(v.levelSign(sum / float64(count) / full))
	}

	return b.String()
}

// markLine shows at which times the layout of the GPU changed (L) and XIDs came (X); it is empty
// if there were none.
func (v *topView) markLine(r *topRow, columns int) string {
	columns = min(columns, int(history.Span/history.Step))
	line := []byte(strings.Repeat(" ", columns))
	doc := r.node.past
	found := false

	for i := range doc.Marks {
		m := &doc.Marks[i]
		age := max(0, doc.Until.Sub(m.Time))
		column := columns - 1 - int(age*time.Duration(columns)/history.Span)

		isOtherSlice := r.instance != nil && m.GPUInstance.Present() &&
			!m.IsOf(r.instance.ID, r.instance.Generation)
		if m.UUID != r.gpu.UUID || isOtherSlice || column < 0 {
			continue
		}

		found = true
		line[column] = 'X'

		if m.Kind == history.MarkLayout {
			line[column] = 'L'
		}
	}

	if !found {
		return ""
	}

	return string(line)
}

func highest(s history.Series) float64 {
	highest := 0.0

	for _, v := range s {
		if !math.IsNaN(float64(v)) { // absent
			highest = max(highest, float64(v))
		}
	}

	return highest
}
