package collector

import (
	"bytes"
	"math"
	"slices"
	"strconv"
)

// textTemplate is a text exposition of a layout without its values: for each family its comments,
// then its lines. To fill it in, we only format numbers.
type textTemplate struct {
	text        []byte
	families    []textFamily
	slots       []slot
	openMetrics bool // numbers are written as in OpenMetrics
}

// textFamily is a family of a template. Its text begins at the end of the previous family.
type textFamily struct {
	comments int // where its comments end in text
	slots    int // where its slots end in slots
}

// slot is a line of a template, to which a value is appended.
type slot struct {
	end    int // where the line ends in text; it begins where the previous one ends
	series int // index in renderState.metrics
	group  int // of the series: see Collector.groupIndex
}

// newTextTemplate returns nil if the text does not have the expected form.
func newTextTemplate(families []libraryFamily, openMetrics bool, groupOf groupFunc) seriesTemplate {
	t := &textTemplate{openMetrics: openMetrics}
	for i := range families {
		if !t.addFamily(&families[i], groupOf) {
			return nil
		}
	}

	t.text = slices.Clip(t.text)
	t.families = slices.Clip(t.families)
	t.slots = slices.Clip(t.slots)

	return t
}

// addFamily appends an encoded family without its values, which are at the end of each line that is
// no comment. It returns false unless there is one value for each series and no comment after the
// first value.
func (t *textTemplate) addFamily(f *libraryFamily, groupOf groupFunc) bool {
	first := len(t.slots)
	comments := len(t.text)

	for line := range bytes.Lines(f.encoded) {
		done := len(t.slots) - first
		if line[0] == '#' {
			t.text = append(t.text, line...)
			comments = len(t.text)

			if done > 0 {
				return false
			}

			continue
		}

		valueAt := bytes.LastIndexByte(line, ' ') + 1
		if done == len(f.series) || valueAt == 0 {
			return false
		}

		t.text = append(t.text, line[:valueAt]...)
		t.slots = append(
			t.slots,
			slot{
				end:    len(t.text),
				series: f.series[done],
				group:  groupOf(f.GetName(), f.Metric[done]),
			},
		)
	}

	t.families = append(t.families, textFamily{comments: comments, slots: len(t.slots)})

	return len(t.slots)-first == len(f.series)
}

// renderMetrics implements seriesTemplate.
func (t *textTemplate) renderMetrics(dst *bytes.Buffer, m metrics, selected groupSelection) error {
	if selected == nil {
		const numberSize = 12 // usually enough for a number and the line feed
		dst.Grow(len(t.text) + numberSize*len(t.slots))
	}

	out := dst.AvailableBuffer()

	begin := 0
	i := 0

	for _, f := range t.families {
		comments := t.text[begin:f.comments] // nil once they are written
		begin = f.comments

		for ; i < f.slots; i++ {
			s := &t.slots[i]
			line := t.text[begin:s.end]
			begin = s.end

			if selected.includes(s.group) {
				out = append(append(out, comments...), line...)
				out = append(appendFloat(out, m[s.series].value, t.openMetrics), '\n')
				comments = nil
			}
		}
	}

	_, err := dst.Write(out)

	return err
}

// appendFloat appends a number in the text format; in OpenMetrics it always has a point or an
// exponent.
func appendFloat(dst []byte, f float64, openMetrics bool) []byte {
	switch {
	case f == 0: // a negative zero, too
		dst = append(dst, '0')
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 0):
		return strconv.AppendFloat(dst, f, 'g', -1, 64)
	default:
		begin := len(dst)

		dst = strconv.AppendFloat(dst, f, 'g', -1, 64)
		if bytes.ContainsAny(dst[begin:], "e.") {
			return dst
		}
	}

	if openMetrics {
		dst = append(dst, '.', '0')
	}

	return dst
}
