package main

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
	flag     string
	expected string
	text     string
	parse    func(string) bool
}

func (v *flagValue) String() string { return v.text }

func (v *flagValue) Set(s string) error {
	if !v.parse(s) {
		return fmt.Errorf("--%s=%s: expected %s", v.flag, s, v.expected)
	}

	v.text = s

	return nil
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

	last := len(names) - 1
	app.Flag(name, help).Default(string(initial)).HintOptions(names...).SetValue(&flagValue{
		flag:     name,
		expected: strings.Join(names[:last], ", ") + " or " + names[last],
		parse: func(s string) bool {
			*target = T(s)
			return slices.Contains(values, T(s))
		},
	})
}

func durationFlag(app *kingpin.Application, name, help, initial string, target *time.Duration) {
	app.Flag(name, help).Default(initial).SetValue(&flagValue{
		flag:     name,
		expected: "a duration such as " + initial,
		parse: func(s string) bool {
			d, err := time.ParseDuration(s)
			*target = d

			return err == nil
		},
	})
}

func intFlag(app flagOwner, name, help, initial string, target *int) {
	app.Flag(name, help).Default(initial).SetValue(&flagValue{
		flag:     name,
		expected: "a number such as " + initial,
		parse: func(s string) bool {
			n, err := strconv.Atoi(s)
			*target = n

			return err == nil
		},
	})
}

func floatFlag(app flagOwner, name, help string, initial float64, target *float64) {
	text := strconv.FormatFloat(initial, 'g', -1, 64)
	app.Flag(name, help).Default(text).SetValue(&flagValue{
		flag:     name,
		expected: "a number such as " + text,
		parse: func(s string) bool {
			x, err := strconv.ParseFloat(s, 64)
			*target = x

			return err == nil
		},
	})
}
