package migctl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

// flagValue is the value of a flag whose errors name the flag and what was expected, which
// kingpin's own do not.
type flagValue struct {
	flag     string // as the operator may have given it: --timeout (or MIGCTL_TIMEOUT)
	expected string
	text     string
	parse    func(string) bool
}

func (v *flagValue) String() string { return v.text }

// Set parses a value.
func (v *flagValue) Set(s string) error {
	if !v.parse(s) {
		return fmt.Errorf("%s is %q; expected %s", v.flag, s, v.expected)
	}

	v.text = s

	return nil
}

// oneOf makes the value of a flag or an argument one of a fixed set.
func oneOf(name string, target *string, values ...string) kingpin.Value {
	last := len(values) - 1

	return &flagValue{
		flag:     name,
		expected: strings.Join(values[:last], ", ") + " or " + values[last],
		parse: func(s string) bool {
			*target = s
			return slices.Contains(values, s)
		},
	}
}

func durationValue(name string, target *time.Duration) kingpin.Value {
	return &flagValue{
		flag:     name,
		expected: "a duration with its unit, such as 30s or 2m",
		parse: func(s string) bool {
			d, err := time.ParseDuration(s)
			*target = d

			return err == nil && d > 0
		},
	}
}

func numberValue(name string, target *float64) kingpin.Value {
	return &flagValue{
		flag:     name,
		expected: "a number",
		parse: func(s string) bool {
			x, err := strconv.ParseFloat(s, 64)
			*target = x

			return err == nil
		},
	}
}

// outputFlag declares the flag for the form of the output; the first form is the default.
func outputFlag(c *kingpin.CmdClause, o *options, help string, forms ...string) {
	c.Flag("output", help).
		Short('o').
		Default(forms[0]).
		HintOptions(forms...).
		SetValue(oneOf("--output", &o.Output, forms...))
}
