package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

// alias is a flag of dcgm-exporter, with its environment variable.
type alias struct {
	name  string // without dashes: "collectors"
	short string // its short name, without a dash: "f"; empty if it has none
	env   string // its environment variable
	// flag is the flag of this program for the same thing. If the command line or the environment
	// sets flag, we ignore the alias's environment variable.
	flag string
	// switches says that the flag takes no value: to give it switches it on.
	switches bool
	// translate turns a value into flags of this program; nil if we have no flag for it.
	translate func(value string) ([]string, error)

	// The fields below are for aliases without translate.

	verdict verdict
	// accepted lists the values with which this program already does what the flag asks for,
	// dcgm-exporter's default first.
	accepted []string
	advice   string // what to do instead, or why nothing needs to be done
}

// aliases lists all flags and environment variables of dcgm-exporter.
func aliases() []alias {
	return slices.Concat(translatedAliases(), unservedAliases(), harmlessAliases())
}

// translatedAliases lists the flags of dcgm-exporter for which this program has flags of its own.
func translatedAliases() []alias {
	// as returns the translation for a flag that takes the same values as dcgm-exporter's.
	as := func(flag string) func(string) ([]string, error) {
		return func(value string) ([]string, error) { return []string{"--" + flag + "=" + value}, nil }
	}

	return []alias{
		{name: "collectors", short: "f", env: "DCGM_EXPORTER_COLLECTORS", flag: "dcgm.counters",
			translate: as("dcgm.counters")},
		{name: "address", short: "a", env: "DCGM_EXPORTER_LISTEN", flag: "web.listen-address",
			translate: as("web.listen-address")},
		{name: "collect-interval", short: "c", env: "DCGM_EXPORTER_INTERVAL", flag: "poll.interval",
			translate: translateMilliseconds("poll.interval")},
		{
			name:      "kubernetes",
			short:     "k",
			env:       "DCGM_EXPORTER_KUBERNETES",
			flag:      "kubernetes.labels",
			switches:  true,
			translate: translateSwitch("kubernetes.labels", "container", "off"),
		},
		{
			name:  "remote-hostengine-info",
			short: "r",
			env:   "DCGM_REMOTE_HOSTENGINE_INFO",
			flag:  "dcgm.address",
			translate: func(value string) ([]string, error) {
				return []string{"--dcgm.address=" + strings.TrimPrefix(value, "tcp://")}, nil
			},
		},
		{
			name:      "no-hostname",
			short:     "n",
			env:       "DCGM_EXPORTER_NO_HOSTNAME",
			flag:      "dcgm.hostname-label",
			switches:  true,
			translate: translateSwitch("dcgm.hostname-label", "off", ""),
		},
		{name: "web-config-file", env: "DCGM_EXPORTER_WEB_CONFIG_FILE", flag: "web.config.file",
			translate: as("web.config.file")},
		{
			name:      "web-systemd-socket",
			env:       "DCGM_EXPORTER_SYSTEMD_SOCKET",
			flag:      "web.systemd-socket",
			switches:  true,
			translate: translateSwitch("web.systemd-socket", "true", "false"),
		},
		{
			name:      "pod-resources-kubelet-socket",
			env:       "DCGM_POD_RESOURCES_KUBELET_SOCKET",
			flag:      "kubernetes.socket",
			translate: as("kubernetes.socket"),
		},
		{
			name:      "nvidia-resource-names",
			env:       "NVIDIA_RESOURCE_NAMES",
			flag:      "kubernetes.resource-name",
			translate: translateResourceNames,
		},
		{name: "hpc-job-mapping-dir", env: "DCGM_HPC_JOB_MAPPING_DIR", flag: "hpc.job-mapping-dir",
			translate: as("hpc.job-mapping-dir")},
		{name: "enable-pprof", env: "DCGM_EXPORTER_ENABLE_PPROF", flag: "web.pprof", switches: true,
			translate: translateSwitch("web.pprof", "true", "false")},
		{name: "debug", env: "DCGM_EXPORTER_DEBUG", flag: "log.level", switches: true,
			translate: translateSwitch("log.level", "debug", "")},
		{
			name:      "log-format",
			env:       "DCGM_EXPORTER_LOG_FORMAT",
			flag:      "log.format",
			translate: translateLogFormat,
		},
		{
			name:      xidWindowFlag,
			short:     "x",
			env:       "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",
			flag:      xidWindowFlag,
			translate: as(xidWindowFlag),
		},
		{
			name:      clockEventsWindowFlag,
			env:       "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
			flag:      clockEventsWindowFlag,
			translate: as(clockEventsWindowFlag),
		},
	}
}

// These flags of dcgm-exporter are hidden flags of this program, with the same names: they only
// affect metrics under dcgm-exporter's names.
const (
	xidWindowFlag         = "xid-count-window-size"
	clockEventsWindowFlag = "clock-events-count-window-size"
)

// translateSwitch returns a translation of a switch into a flag of this program, which gets the value on
// or off. If that value is empty, the translation sets no flag. If it is "true" or "false", our flag is
// a switch, too: --flag or --no-flag.
func translateSwitch(flag, on, off string) func(string) ([]string, error) {
	return func(value string) ([]string, error) {
		isOn, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("%q: expected true or false", value)
		}

		chosen := off
		if isOn {
			chosen = on
		}

		switch {
		case chosen == "":
			return nil, nil
		case chosen == "true":
			return []string{"--" + flag}, nil
		case chosen == "false":
			return []string{"--no-" + flag}, nil
		}

		return []string{"--" + flag + "=" + chosen}, nil
	}
}

// translateMilliseconds returns a translation of a number of milliseconds into a flag with a
// duration.
func translateMilliseconds(flag string) func(string) ([]string, error) {
	return func(value string) ([]string, error) {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q: expected a number of milliseconds", value)
		}

		return []string{"--" + flag + "=" + (time.Duration(n) * time.Millisecond).String()}, nil
	}
}

func translateResourceNames(value string) ([]string, error) {
	var flags []string

	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			flags = append(flags, "--kubernetes.resource-name="+name)
		}
	}

	return flags, nil
}

func translateLogFormat(value string) ([]string, error) {
	switch value {
	case "text":
		return []string{"--log.format=logfmt"}, nil
	case "json":
		return []string{"--log.format=json"}, nil
	}

	return nil, fmt.Errorf("%q: expected text or json", value)
}

// resolveValue returns the flags of this program for an alias with a value. If there are none, it
// returns a warning or an error, unless this program does what the alias asks for anyway. name is what
// set the value: the flag with its dashes, or the environment variable.
func (a *alias) resolveValue(name, value string) (flags []string, warnings []warning, err error) {
	if a.translate != nil {
		flags, err = a.translate(value)
		if err != nil {
			return nil, nil, fmt.Errorf("%s=%w", name, err)
		}

		return flags, nil, nil
	}

	if a.switches {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, nil, fmt.Errorf("%s=%q: expected true or false", name, value)
		}

		value = strconv.FormatBool(on)
	}

	switch {
	case slices.Contains(a.accepted, value): // it changes nothing
		return nil, nil, nil
	case a.verdict == warned:
		kind := "variable"
		if strings.HasPrefix(name, "-") {
			kind = "flag"
		}

		return nil, []warning{
			{kind + " of dcgm-exporter has no effect", []any{kind, name, "why", a.advice}},
		}, nil
	}

	return nil, nil, fmt.Errorf(
		"%s=%s of dcgm-exporter is not supported: %s",
		name,
		value,
		a.advice,
	)
}

// translateAliases replaces dcgm-exporter's flags in a command line by flags of this program, and
// puts the flags for its environment variables before them. The error names all flags and variables
// that are not supported.
func translateAliases(
	args []string,
	lookup lookupFunc,
) (out []string, warnings []warning, err error) {
	words, rest, err := splitLine(args)
	if err != nil {
		return nil, nil, err
	}

	var errs []error
	given := map[string]bool{} // the aliases on the command line, by name

	for _, w := range words {
		if w.alias == nil {
			out = append(out, w.text)
			continue
		}

		given[w.alias.name] = true
		flags, warns, err := w.alias.resolveValue(w.text, w.value)
		out = append(out, flags...)
		warnings = append(warnings, warns...)
		errs = append(errs, err)
	}

	out = append(out, rest...)

	// As in dcgm-exporter, the command line takes precedence over the environment.
	notGiven := slices.DeleteFunc(aliases(), func(a alias) bool { return given[a.name] })
	flags, warns, err := translateEnvironment(notGiven, out, lookup)

	return append(flags, out...), append(warnings, warns...), errors.Join(append(errs, err)...)
}

// argument is an argument of a command line. A flag of dcgm-exporter and its value are one argument,
// also if they are two words, as in "-f counters.csv".
type argument struct {
	text  string // as given; of a flag of dcgm-exporter only the name
	alias *alias // nil if it is not a flag of dcgm-exporter
	value string // the value of a flag of dcgm-exporter
}

// splitLine splits a command line into its arguments; rest is "--" and everything after it.
func splitLine(args []string) (words []argument, rest []string, err error) {
	known := aliases()
	ownOutput := false // whether -o is this program's --output: after the command check-node

	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return words, args[i:], nil
		}

		ownOutput = ownOutput || args[i] == commandCheckNode
		name, value, hasValue := strings.Cut(args[i], "=")

		a := findAlias(known, name)
		if a == nil || ownOutput && name == "-o" {
			words = append(words, argument{text: args[i]})
			continue
		}

		switch {
		case hasValue:
		case a.switches:
			value = "true"
		case i+1 < len(args): // the value is the next word
			i++
			value = args[i]
		default:
			return nil, nil, fmt.Errorf("%s: expected a value", name)
		}

		// Both programs have a flag of this name: ours lists collectors, dcgm-exporter's names a file.
		if strings.TrimLeft(name, "-") == collectorsFlag && !isCountersFile(value) {
			words = append(words, argument{text: "--" + collectorsFlag + "=" + value})
			continue
		}

		words = append(words, argument{text: name, alias: a, value: value})
	}

	return words, nil, nil
}

// flags returns the flags of this program that an argument sets.
func (w *argument) flags() []string {
	if w.alias == nil {
		return []string{w.text}
	}

	if w.alias.translate == nil {
		return nil
	}

	flags, err := w.alias.translate(w.value)
	if err != nil {
		return nil // translateAliases reports it
	}

	return flags
}

// checkRepeated returns an error if a command line sets a flag of app more than once, at least once
// by a name of dcgm-exporter, although the flag takes one value. The error names the arguments that
// set it. (kingpin itself reports flags that are repeated by their own names.)
func checkRepeated(app *kingpin.Application, args []string) error {
	words, _, err := splitLine(args)
	if err != nil {
		return err
	}

	var errs []error

	for _, flag := range app.Model().Flags {
		if repeatable, ok := flag.Value.(interface{ IsCumulative() bool }); ok &&
			repeatable.IsCumulative() {
			continue
		}

		var setters []string // the arguments that set the flag
		byAlias := false     // one of them is a flag of dcgm-exporter

		for _, w := range words {
			if hasFlag(w.flags(), flag.Name) {
				name, _, _ := strings.Cut(w.text, "=")
				setters = append(setters, name)
				byAlias = byAlias || w.alias != nil
			}
		}

		if byAlias && len(setters) > 1 {
			errs = append(
				errs,
				fmt.Errorf(
					"--%s is set by %s: expected one of them",
					flag.Name,
					strings.Join(setters, " and "),
				),
			)
		}
	}

	return errors.Join(errs...)
}

// findAlias finds the alias that a word of the command line names. As in Go's flag package, "-f",
// "--f", "-collectors" and "--collectors" are the same.
func findAlias(known []alias, word string) *alias {
	bare := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	if bare == word || bare == "" {
		return nil
	}

	i := slices.IndexFunc(known, func(a alias) bool { return bare == a.name || bare == a.short })
	if i < 0 {
		return nil
	}

	return &known[i]
}

// translateEnvironment returns the flags of this program for dcgm-exporter's environment variables.
// This program's own flags and variables take precedence. A variable that is set but empty is
// ignored.
func translateEnvironment(known []alias, args []string,
	lookup lookupFunc) (out []string, warnings []warning, err error) {
	var errs []error

	for _, a := range known {
		value, _ := lookup(a.env)
		overridden := false

		if a.flag != "" {
			variable, _ := lookup(envName(a.flag))
			overridden = variable != "" || hasFlag(args, a.flag)
		}

		if value == "" || overridden {
			continue
		}

		flags, warns, err := a.resolveValue(a.env, value)
		out = append(out, flags...)
		warnings = append(warnings, warns...)
		errs = append(errs, err)
	}

	return out, warnings, errors.Join(errs...)
}

// hasFlag reports whether a command line has a flag.
func hasFlag(args []string, flag string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == "--"+flag || name == "--no-"+flag
	})
}
