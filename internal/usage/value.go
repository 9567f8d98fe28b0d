package usage

import (
	"fmt"
	"strings"
)

// Value is the value of a flag or an argument with an error of its own: kingpin's name neither the
// flag nor what was expected.
type Value struct {
	Wrong string // the error of a text that is wrong, with %s or %q for it
	Parse func(string) bool

	text string
}

func (v *Value) String() string { return v.text }

// Set parses a text.
func (v *Value) Set(s string) error {
	if !v.Parse(s) {
		return fmt.Errorf(v.Wrong, s)
	}

	v.text = s

	return nil
}

// Alternatives joins two or more values: "auto, always or never".
func Alternatives(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
