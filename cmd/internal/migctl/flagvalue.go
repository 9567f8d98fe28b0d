package migctl

import (
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// flagValue returns the kingpin.Value of a flag. name is the flag in errors, such as "--timeout (or
// MIGCTL_TIMEOUT)". parse sets the flag's target, and returns false for an invalid text.
func flagValue(name, expected string, parse func(string) bool) kingpin.Value {
	return &usage.Value{Wrong: name + " is %q; expected " + expected, Parse: parse}
}

// oneOf returns the value of a flag or an argument that takes one of a fixed set.
func oneOf(name string, target *string, values ...string) kingpin.Value {
	return flagValue(name, usage.Alternatives(values), func(s string) bool {
		*target = s
		return slices.Contains(values, s)
	})
}

func durationValue(name string, target *time.Duration) kingpin.Value {
	return flagValue(name, "a duration with its unit, such as 30s or 2m", func(s string) bool {
		d, err := time.ParseDuration(s)
		*target = d

		return err == nil && d > 0
	})
}

func numberValue(name string, target *float64) kingpin.Value {
	return flagValue(name, "a number", func(s string) bool {
		x, err := strconv.ParseFloat(s, 64)
		*target = x

		return err == nil
	})
}

// outputFlag declares the flag for the form of the output; the first form is the default.
func outputFlag(c *kingpin.CmdClause, o *options, help string, forms ...string) {
	c.Flag("output", help).
		Short('o').
		Default(forms[0]).
		HintOptions(forms...).
		SetValue(oneOf("--output", &o.Output, forms...))
}
