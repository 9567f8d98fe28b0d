package migctl

import (
	"os"
	"strings"

	"golang.org/x/term"
)

// isTerminal reports whether a file is a terminal. /dev/null is a character device, too, but has no
// terminal attributes.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// sizeOf returns the columns and rows of a terminal; 0 if they are not known.
func sizeOf(f *os.File) (columns, rows int) {
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}

	return columns, rows
}

// terminalSize returns the columns and rows of standard output; 0 if it is no terminal, or they are
// not known.
func (s *session) terminalSize() (columns, rows int) {
	if !s.outTerminal || s.size == nil {
		return 0, 0
	}

	return s.size()
}

// usesUTF8 reports whether the locale's character set is UTF-8. The first of the three variables
// that is set decides, as in setlocale(3).
func usesUTF8(lookup func(string) (string, bool)) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v, _ := lookup(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}

	return false
}

// wantsColor reports whether to write colors: always and never decide; with auto, a terminal that
// is not dumb has them unless NO_COLOR (no-color.org) is set.
func wantsColor(when string, terminal bool, lookup func(string) (string, bool)) bool {
	switch when {
	case "always":
		return true
	case "never":
		return false
	}

	noColor, _ := lookup("NO_COLOR")
	term, _ := lookup("TERM")

	return terminal && noColor == "" && term != "dumb"
}
