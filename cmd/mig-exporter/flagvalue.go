package main

import (
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// flagValue returns the kingpin.Value of a flag. parse sets the flag's target, and returns false for
// an invalid text; the error then says what was expected.
func flagValue(name, expected string, parse func(string) bool) kingpin.Value {
	return &usage.Value{Wrong: "--" + name + "=%s: expected " + expected, Parse: parse}
}

// flagOwner is the program, or one of its commands, that has a flag.
type flagOwner interface {
	Flag(name, help string) *kingpin.FlagClause
}

// enumFlag declares a flag with a fixed set of values.
func enumFlag[T ~string](
	app *kingpin.Application,
	name, help string,
	initial T,
	target *T,
	values ...T,
) {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}

	app.Flag(name, help).Default(string(initial)).HintOptions(names...).SetValue(
		flagValue(name, usage.Alternatives(names), func(s string) bool {
			*target = T(s)
			return slices.Contains(values, T(s))
		}),
	)
}

func durationFlag(app *kingpin.Application, name, help, initial string, target *time.Duration) {
	value := flagValue(name, "a duration such as "+initial, func(s string) bool {
		d, err := time.ParseDuration(s)
		*target = d

		return err == nil
	})

	app.Flag(name, help).Default(initial).SetValue(value)
}

func intFlag(app flagOwner, name, help, initial string, target *int) {
	value := flagValue(name, "a number such as "+initial, func(s string) bool {
		n, err := strconv.Atoi(s)
		*target = n

		return err == nil
	})

	app.Flag(name, help).Default(initial).SetValue(value)
}

func floatFlag(app flagOwner, name, help string, initial float64, target *float64) {
	text := strconv.FormatFloat(initial, 'g', -1, 64)

	value := flagValue(name, "a number such as "+text, func(s string) bool {
		x, err := strconv.ParseFloat(s, 64)
		*target = x

		return err == nil
	})

	app.Flag(name, help).Default(text).SetValue(value)
}
