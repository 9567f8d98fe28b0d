package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/collector"
)

// collectorsFlag is the flag that chooses the collectors. It has the name of one of
// dcgm-exporter's flags, whose values are paths: see isCountersFile.
const collectorsFlag = "collectors"

// collectorsValue is the value of --collectors.
type collectorsValue struct {
	text     string
	disabled map[string]bool // whether a collector is off, for each by its name
}

func (v *collectorsValue) String() string { return v.text }

func (v *collectorsValue) Set(s string) error {
	disabled, err := parseCollectors(s)
	if err != nil {
		return fmt.Errorf("--%s=%s: %w", collectorsFlag, s, err)
	}

	v.text = s
	for name, off := range disabled {
		v.disabled[name] = off
	}

	return nil
}

// declareCollectors declares --collectors. The flag sets for each collector, by its name in disabled,
// whether it is off.
func declareCollectors(app *kingpin.Application, disabled map[string]bool) {
	value := &collectorsValue{disabled: disabled}
	if err := value.Set(""); err != nil {
		panic(err) // cannot happen: the empty list is the default set
	}

	on, off := collectorNames()
	app.Flag(collectorsFlag, "Collectors to serve: +NAME adds one to the default set and -NAME "+
		"takes one out, as in +pipes,-ecc; names without signs are the whole set. On by "+
		"default: "+strings.Join(on, ", ")+". Off by default: "+strings.Join(off, ", ")+".").
		PlaceHolder("+NAME,-NAME,...").
		SetValue(value)
}

// parseCollectors reads a list of collectors, such as "+pipes,-ecc" or "info,up,memory", and
// returns for each collector whether it is off. The empty list is the default set.
func parseCollectors(text string) (disabled map[string]bool, err error) {
	disabled = map[string]bool{}
	for _, g := range collector.Groups() {
		disabled[g.Name] = g.OptIn
	}

	items := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })

	isWholeSet := len(items) > 0 && !isSigned(items[0])
	if isWholeSet {
		for name := range disabled {
			disabled[name] = true
		}
	}

	seen := map[string]string{} // the items so far, by name

	for _, item := range items {
		name := strings.TrimLeft(item, "+-")
		if len(item)-len(name) > 1 {
			name = item // "++ecc" is no collector's name
		}

		_, known := disabled[name]
		earlier, twice := seen[name]

		switch {
		case !known:
			return nil, fmt.Errorf("there is no collector %q: %s; a file of dcgm-exporter's counters is "+
				"--dcgm.counters=FILE", name, expectedCollectors())
		case isSigned(item) == isWholeSet:
			return nil, fmt.Errorf("%q and %q do not go together: expected +NAME and -NAME, which "+
				"change the default set, or names alone, which are the whole set; %s",
				items[0], item, expectedCollectors())
		case twice && earlier != item:
			return nil, fmt.Errorf("%q and %q contradict each other: expected one of them",
				earlier, item)
		}

		seen[name] = item
		disabled[name] = item[0] == '-'
	}

	return disabled, nil
}

func isSigned(item string) bool { return item[0] == '+' || item[0] == '-' }

// expectedCollectors lists the collectors for an error.
func expectedCollectors() string {
	on, off := collectorNames()

	return "expected some of " + strings.Join(on, ", ") + " (on by default), " +
		strings.Join(off, ", ") + " (off by default)"
}

// collectorNames returns the names of the collectors that are on by default, and of the others.
func collectorNames() (on, off []string) {
	for _, g := range collector.Groups() {
		if g.OptIn {
			off = append(off, g.Name)
		} else {
			on = append(on, g.Name)
		}
	}

	return on, off
}

// describeCollectors returns the rows of --help about the collectors, each with its sign in the
// default set.
func describeCollectors() [][2]string {
	var rows [][2]string

	for _, g := range collector.Groups() {
		sign := "+"
		if g.OptIn {
			sign = "-"
		}

		rows = append(rows, [2]string{sign + g.Name, g.Help})
	}

	return rows
}

// isCountersFile reports whether a value of --collectors is meant for dcgm-exporter's flag of that
// name: the path of a counters file. It has a slash or a dot, unlike the names of collectors.
func isCountersFile(value string) bool { return strings.ContainsAny(value, "/.") }
