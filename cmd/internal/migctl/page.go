package migctl

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// tableWidth is the width of all output, except that of get on a wider terminal and of -o wide.
const tableWidth = 80

// color is an SGR parameter; empty is the terminal's own.
type color string

const (
	plain  color = ""
	bold   color = "1"
	dim    color = "2"
	red    color = "31"
	green  color = "32"
	yellow color = "33"
	cyan   color = "36"
	// reverse marks the selected line of a live view.
	reverse color = "7"
)

// span is a piece of a line in one color.
type span struct {
	text  string
	color color
}

func text(format string, args ...any) span { return span{text: fmt.Sprintf(format, args...)} }

func (s span) in(c color) span { return span{text: s.text, color: c} }

// page writes lines of limited width to a buffer; flush returns the first error of the writer.
type page struct {
	w     *bufio.Writer
	color bool // whether colors are written
	utf8  bool // whether characters beyond ASCII are written
	width int  // in columns; 0: no limit
	// unitMost is how many columns a unit of an axis takes at most; 0 is unitMax.
	unitMost int
	// rename changes migctl's commands in a text to those of the program that runs them; may be nil.
	rename func(string) string
}

func newPage(w io.Writer, color, utf8 bool) *page {
	return &page{w: bufio.NewWriter(w), color: color, utf8: utf8, width: tableWidth}
}

func (p *page) flush() error { return p.w.Flush() }

// prompt writes a question after which the cursor stays on the line.
func (p *page) prompt(question string) error {
	p.w.WriteString(p.clean(question)) //nolint:errcheck // a bufio.Writer keeps its first error for Flush
	return p.flush()
}

// line writes spans as a line, cut to the width, without trailing spaces. It drops control characters,
// so that a text from the server cannot move the cursor.
func (p *page) line(spans ...span) {
	p.writeSpans(spans...)
	p.w.WriteByte('\n') //nolint:errcheck // a bufio.Writer keeps its first error for Flush
}

// uncut writes a line that must not be cut, such as a command to copy.
func (p *page) uncut(s string) {
	//nolint:errcheck // a bufio.Writer keeps its first error for Flush
	p.w.WriteString(p.clean(s) + "\n")
}

// command writes a command about an operation on a line of its own, for the operator to copy.
func (p *page) command(purpose, command, operation string) {
	p.line(text("%s: ", purpose).in(cyan), text("%s %s", command, operation))
}

// writeSpans writes spans like line, but does not end the line.
func (p *page) writeSpans(spans ...span) {
	left := p.width // columns

	// Trailing spaces can go over several spans.
	for n := len(spans); n > 0; n-- {
		if spans[n-1].text = strings.TrimRight(spans[n-1].text, " "); spans[n-1].text != "" {
			break
		}
	}

	for _, s := range spans {
		t := p.clean(s.text)
		if p.width > 0 {
			t = p.cut(t, left)
			left -= columnsOf(t)
		}

		if p.color && s.color != plain && t != "" {
			t = "\x1b[" + string(s.color) + "m" + t + "\x1b[0m"
		}

		p.w.WriteString(t) //nolint:errcheck // a bufio.Writer keeps its first error for Flush
	}
}

// clean makes a text safe for the terminal: it drops control characters, and replaces characters that
// the terminal does not have. It also renames commands.
func (p *page) clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		case r > unicode.MaxASCII && !p.utf8:
			return '?'
		}

		return r
	}, p.renameCommands(s))
}

// renameCommands returns a text with the commands of the program that runs: see rename.
func (p *page) renameCommands(s string) string {
	if p.rename == nil {
		return s
	}

	return p.rename(s)
}

// columnsOf returns how many columns of a terminal a text takes: two for a wide character, none for
// a combining one.
func columnsOf(s string) int { return uniseg.StringWidth(s) }

// cut shortens a text to a number of columns, with an ellipsis in the last.
func (p *page) cut(s string, columns int) string {
	if columnsOf(s) <= columns {
		return s
	}

	if columns <= 0 {
		return ""
	}

	return s[:clustersWithin(s, columns-1)] + p.ellipsis()
}

// clustersWithin returns the length, in bytes, of the longest beginning of a text that takes no more
// than a number of columns. It splits no character from the marks that it combines with.
func clustersWithin(s string, columns int) int {
	length := 0
	characters := uniseg.NewGraphemes(s)

	for characters.Next() {
		if columns -= characters.Width(); columns < 0 {
			break
		}

		length += len(characters.Str())
	}

	return length
}

// cutMiddle shortens a text to a number of columns, with an ellipsis in the middle: names of pods
// differ at their ends.
func (p *page) cutMiddle(s string, columns int) string {
	const least = 8 // with fewer columns there is no room for two ends
	if columnsOf(s) <= columns || columns < least {
		return p.cut(s, columns)
	}

	runes := []rune(s)
	end := len(runes)

	for columnsOf(string(runes[end-1:])) <= columns/2 {
		end--
	}

	tail := string(runes[end:])

	return p.cut(s, columns-columnsOf(tail)) + tail
}

// cell cuts or pads a text to a number of columns; 0 leaves it as it is.
func (p *page) cell(s string, columns int) string {
	if columns == 0 {
		return s
	}

	s = p.cut(p.clean(s), columns)

	return s + strings.Repeat(" ", max(0, columns-columnsOf(s)))
}

// right is cell, but aligns the text to the right.
func (p *page) right(s string, columns int) string {
	s = p.cut(p.clean(s), columns)
	return strings.Repeat(" ", max(0, columns-columnsOf(s))) + s
}

func (p *page) ellipsis() string {
	if p.utf8 {
		return "…"
	}

	return "~"
}

// paragraph writes a text as a paragraph: the first line after a mark, the others indented below the
// text. It breaks a word that is longer than a line, such as a path.
func (p *page) paragraph(mark string, c color, s string) {
	mark = p.clean(mark)
	indent := strings.Repeat(" ", columnsOf(mark))
	// Longer lines than tableWidth are hard to read, however wide the terminal is.
	for _, l := range wrap(p.clean(s), min(p.width, tableWidth)-len(indent)) {
		p.line(span{mark, c}, span{l, c})
		mark = indent
	}
}

// wrap breaks a text at spaces into lines of a width in columns; 0 or less is no limit.
func wrap(s string, width int) []string {
	if width <= 0 {
		return []string{s}
	}

	var lines []string
	line := ""

	for _, word := range strings.Fields(s) {
		for columnsOf(word) > width {
			if line != "" {
				lines = append(lines, line)
				line = ""
			}

			// A character that is wider than the line gets one of its own.
			_, first := utf8.DecodeRuneInString(word)
			length := max(clustersWithin(word, width), first)
			lines = append(lines, word[:length])
			word = word[length:]
		}

		switch {
		case line == "":
			line = word
		case columnsOf(line)+1+columnsOf(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}

	return append(lines, line)
}
