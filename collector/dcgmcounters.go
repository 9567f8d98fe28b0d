package collector

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
)

// CounterType is the second column of a counters file.
type CounterType string

// The types. A label has no family of its own: its value is a label of all others, named after the
// field.
const (
	CounterGauge   CounterType = "gauge"
	CounterCounter CounterType = "counter"
	CounterLabel   CounterType = "label"
)

// Counter is one row of a counters file: a field of DCGM, or a counter that only dcgm-exporter has.
type Counter struct {
	Field string
	Type  CounterType // as in the file: a rate with type counter is served as a counter
	Help  string
}

// CounterError is a row that cannot be served. Columns count bytes from 1.
type CounterError struct {
	File         string
	Line, Column int
	Text         string // what is wrong and what was expected
}

// Error returns "file:line:column: text".
func (e *CounterError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// ParseCounters parses a counters file in dcgm-exporter's format: three columns, besides lines that
// begin with # and blank ones. faulty are the rows that cannot be served, each a *CounterError; a
// strict caller rejects the file for any of them. err is set if the file could not be read to its
// end.
func ParseCounters(file string, r io.Reader) (counters []Counter, faulty []error, err error) {
	p := counterParser{
		file:   file,
		csv:    csv.NewReader(r),
		fields: dcgmFields(),
		lines:  map[string]int{},
	}

	p.csv.Comment = '#'
	p.csv.FieldsPerRecord = -1

	for {
		row, err := p.csv.Read()

		var bad *csv.ParseError
		switch {
		case errors.Is(err, io.EOF):
			return p.counters, p.faulty, nil
		case errors.As(err, &bad):
			// A quote that is not closed swallows the rest of the file: where it begins is what
			// helps.
			p.addFault(
				bad.StartLine,
				bad.Column,
				"%v: expected field, type, help, with the help in quotes if it has commas or quotes",
				bad.Err,
			)
		case err != nil:
			return nil, nil, fmt.Errorf("read %s: %w", file, err)
		default:
			p.parseRow(row)
		}
	}
}

type counterParser struct {
	file     string
	csv      *csv.Reader
	fields   map[string]*dcgmField
	lines    map[string]int // for each field so far, its line
	counters []Counter
	faulty   []error
}

func (p *counterParser) addFault(line, column int, format string, args ...any) {
	p.faulty = append(p.faulty,
		&CounterError{File: p.file, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
}

// parseRow adds a row to the counters or to the faulty rows.
func (p *counterParser) parseRow(row []string) {
	if len(row) == 1 && strings.TrimSpace(row[0]) == "" {
		return
	}

	line, column := p.positionOf(row, 0)
	if len(row) != 3 {
		p.addFault(
			line,
			column,
			"%d columns: expected 3, field, type, help, with the help in quotes if it has commas",
			len(row),
		)

		return
	}

	c := Counter{Field: strings.TrimSpace(row[0]), Type: CounterType(strings.TrimSpace(row[1])),
		Help: strings.ToValidUTF8(strings.TrimSpace(row[2]), "\uFFFD")}

	field, known := p.fields[c.Field]
	if !known {
		p.addFault(line, column, "%s", unservedField(c.Field))
		return
	}

	if first, twice := p.lines[c.Field]; twice {
		p.addFault(
			line,
			column,
			"field %s: given in line %d already, expected once",
			c.Field,
			first,
		)

		return
	}

	if wrong := field.wrongType(c); wrong != "" {
		line, column = p.positionOf(row, 1)
		p.addFault(line, column, "%s", wrong)

		return
	}

	p.lines[c.Field] = line
	p.counters = append(p.counters, c)
}

// positionOf returns where a column's text begins.
func (p *counterParser) positionOf(row []string, i int) (line, column int) {
	line, column = p.csv.FieldPos(i)
	return line, column + len(row[i]) - len(strings.TrimLeft(row[i], " \t"))
}

// wrongType returns why a field cannot be served with the type of its row; empty if it can.
func (f *dcgmField) wrongType(c Counter) string {
	switch c.Type {
	case CounterGauge, CounterCounter:
		if f.label {
			return fmt.Sprintf("type %s: %s is text, expected label", c.Type, c.Field)
		}
	case CounterLabel:
		if !f.label {
			return fmt.Sprintf(
				"type label: %s is a number that changes, expected gauge or counter",
				c.Field,
			)
		}
	default:
		return fmt.Sprintf(
			"type %q of %s: expected gauge, counter or label",
			string(c.Type),
			c.Field,
		)
	}

	return ""
}

// unservedField returns why a field is not served, as far as known.
func unservedField(name string) string {
	if current, ok := strings.CutPrefix(name, "dcgm_"); ok && current != "" {
		return fmt.Sprintf(
			"field %q: the names of dcgm-exporter 1.x are not served, expected one that begins with "+
				"DCGM_FI_ or DCGM_EXP_",
			name,
		)
	}

	if knownToDCGM(name) {
		return fmt.Sprintf(
			"field %s: DCGM has it, but it is not served here: expected one of those in docs/dcgm-names.md",
			name,
		)
	}

	return fmt.Sprintf(
		"field %q: no field of DCGM that is known here, expected one such as DCGM_FI_DEV_GPU_TEMP",
		name,
	)
}

// knownToDCGM reports whether DCGM has a field of that name.
func knownToDCGM(name string) bool {
	return name != "" && !strings.ContainsAny(name, " \n") &&
		strings.Contains(dcgmNames, " "+name+"\n")
}

// WithoutValue returns the fields among the counters for which this program has no source: they are
// accepted, because dcgm-exporter's own files have them, and have no series.
func WithoutValue(counters []Counter) []string {
	fields := dcgmFields()
	var names []string

	for _, c := range counters {
		if f, ok := fields[c.Field]; ok && f.hasNoValue() {
			names = append(names, c.Field)
		}
	}

	return names
}
