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
	name  string // without dashes
	short string // another name, one letter but once, or empty
	env   string
	// flag is this program's flag that it stands for. If the command line or the environment sets
	// that, the alias's environment variable is ignored.
	flag string
	// switches reports whether the flag takes no value and is on if it is given.
	switches bool
	// translate turns a value into flags of this program; nil if no flag stands for it.
	translate func(value string) ([]string, error)

	// The rest is for aliases without translate.

	verdict verdict
	// accepted lists the values with which the program behaves as always, dcgm-exporter's default
	// first.
	accepted []string
	advice   string // what to do instead, or why there is nothing to do
}

// aliases lists all flags and environment variables of dcgm-exporter.
func aliases() []alias {
	return slices.Concat(translatedAliases(), unservedAliases(), harmlessAliases())
}

// translatedAliases lists dcgm-exporter's flags and environment variables that flags of this
// program stand for.
func translatedAliases() []alias {
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
		{
			name:      "max-concurrent-scrapes",
			env:       "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES",
			flag:      "web.max-scrapes",
			translate: as("web.max-scrapes"),
		},
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

// Flags of dcgm-exporter that this program has under the same names, hidden: they are about its
// own names alone.
const (
	xidWindowFlag         = "xid-count-window-size"
	clockEventsWindowFlag = "clock-events-count-window-size"
)

// translateSwitch returns a translation of a switch into a flag with the value on or off. An empty
// value is no flag.
func translateSwitch(flag, on, off string) func(string) ([]string, error) {
	return func(value string) ([]string, error) {
		is, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("%q: expected true or false", value)
		}

		chosen := off
		if is {
			chosen = on
		}

		switch {
		case chosen == "":
			return nil, nil
		case chosen == "true": // a switch here, too
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

// resolveValue returns the flags that an alias with a value stands for. Name is the flag, with its
// dashes, or the variable that gave the value.
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
	case slices.Contains(a.accepted, value):
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

// translateAliases replaces dcgm-exporter's flags in a command line by this program's, and puts
// those that its environment variables stand for before them. The error names all that are not
// supported.
func translateAliases(
	args []string,
	lookup lookupFunc,
) (out []string, warnings []warning, err error) {
	words, rest, err := splitLine(args)
	if err != nil {
		return nil, nil, err
	}

	var errs []error
	given := map[string]bool{} // names of aliases

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
	unsaid := slices.DeleteFunc(aliases(), func(a alias) bool { return given[a.name] })
	flags, warns, err := translateEnvironment(unsaid, out, lookup)

	return append(flags, out...), append(warnings, warns...), errors.Join(append(errs, err)...)
}

// argument is an argument of a command line, with its value if it is a flag of dcgm-exporter.
type argument struct {
	text  string // as given; of a flag of dcgm-exporter without its value
	alias *alias // nil if it is no flag of dcgm-exporter
	value string // of a flag of dcgm-exporter
}

// splitLine splits a command line into its words, and what "--" and the arguments after it are.
func splitLine(args []string) (words []argument, rest []string, err error) {
	known := aliases()
	ownOutput := false // -o is this program's

	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return words, args[i:], nil
		}

		ownOutput = ownOutput || args[i] == commandCheckNode
		name, value, hasValue := strings.Cut(args[i], "=")
		a := findAlias(known, name)

		if ownOutput && name == "-o" {
			a = nil
		}

		switch {
		case a == nil:
			name = args[i]
		case hasValue:
		case a.switches:
			value = "true"
		case i+1 < len(args):
			i++
			value = args[i]
		default:
			return nil, nil, fmt.Errorf("%s: expected a value", name)
		}

		if a != nil && strings.TrimLeft(name, "-") == collectorsFlag && !isCountersFile(value) {
			a = nil
			name = "--" + collectorsFlag + "=" + value // our own flag of that name
		}

		words = append(words, argument{name, a, value})
	}

	return words, nil, nil
}

// flags returns the flags of this program that a word sets, each with its value as far as that is
// in the word.
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

// checkRepeated returns an error about the flags of app that a command line sets more than once, at
// least once by a name of dcgm-exporter, although they have one value. The error names the words
// that set them.
func checkRepeated(app *kingpin.Application, args []string) error {
	words, _, err := splitLine(args)
	if err != nil {
		return err
	}

	var errs []error

	for _, flag := range app.Model().Flags {
		if several, ok := flag.Value.(interface{ IsCumulative() bool }); ok &&
			several.IsCumulative() {
			continue
		}

		var by []string
		byAlias := false

		for _, w := range words {
			if hasFlag(w.flags(), flag.Name) {
				name, _, _ := strings.Cut(w.text, "=")
				by = append(by, name)
				byAlias = byAlias || w.alias != nil
			}
		}

		if byAlias && len(by) > 1 {
			errs = append(
				errs,
				fmt.Errorf(
					"--%s is set by %s: expected one of them",
					flag.Name,
					strings.Join(by, " and "),
				),
			)
		}
	}

	return errors.Join(errs...)
}

// findAlias finds what a word of the command line is the name of: "-f", "--f", "-collectors" or
// "--collectors", as Go's flag package has it.
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

// translateEnvironment returns the flags that dcgm-exporter's environment variables stand for. This
// program's own flags and variables take precedence; a variable that is set but empty is ignored.
func translateEnvironment(known []alias, args []string,
	lookup lookupFunc) (out []string, warnings []warning, err error) {
	var errs []error

	for _, a := range known {
		value, _ := lookup(a.env)
		own := false

		if a.flag != "" {
			variable, _ := lookup(envName(a.flag))
			own = variable != "" || hasFlag(args, a.flag)
		}

		if value == "" || own {
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
