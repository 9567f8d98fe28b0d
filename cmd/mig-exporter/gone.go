package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// goneFlag is a flag that earlier versions had. We refuse the flag, and its environment variable:
// otherwise what it asks for would silently be missing.
type goneFlag struct {
	name   string
	became string // what to do instead, or which constant took the flag's place
	// variable is what to do instead of setting the flag's variable. Empty: became, with the variables
	// of the flags that it names.
	variable string
}

// goneFlags lists the flags that are gone, except --collector.NAME: see refuseGoneCollectors.
func goneFlags() []goneFlag {
	limits := advise.DefaultOptions()
	constant := func(name, format string, args ...any) goneFlag {
		return goneFlag{name: name, became: "leave it out: " + fmt.Sprintf(format, args...)}
	}
	window := func(name, newName, variable string) goneFlag {
		const value = "=MILLISECONDS, as in dcgm-exporter"

		return goneFlag{name, "use --" + newName + value, "use " + variable + value}
	}

	return []goneFlag{
		constant("advise.headroom", "a recommended slice has %v of the highest memory use free",
			limits.Headroom),
		constant("advise.target-busy", "a recommended slice is busy for at most %v at p99",
			limits.TargetBusy),
		constant("control.call-timeout", "a driver call is stuck after %s", callTimeout),
		constant("control.hook-timeout", "a hook may take %s", hookTimeout),
		constant("control.settle-timeout", "an operation is unsettled after %s, and succeeds when "+
			"the kubelet has followed", settleTimeout),
		window("dcgm.clock-events-window", clockEventsWindowFlag,
			"DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE"),
		{
			name:   "dcgm.counters.lenient",
			became: "correct or remove the rows of --dcgm.counters that mig-exporter check-config names",
			variable: "correct or remove the rows of the counters file that mig-exporter check-config " +
				"names",
		},
		{
			name: "dcgm.mode",
			became: "use --dcgm.address=HOST:PORT or --dcgm.address=embedded; " +
				"without it DCGM is off",
		},
		window("dcgm.xid-window", xidWindowFlag, "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"),
		{name: "force", became: "remove the file before mig-exporter capture writes it"},
		constant("kubernetes.container-logs", "the kubelet's links are in %s", logDir),
		constant(
			"kubernetes.stale-after",
			"the kubelet's last answer is used for %s",
			podsStaleAfter,
		),
		constant("path.procfs", "processes are read from %s", procDir),
		constant(
			"poll.stale-after",
			"readings of a GPU that does not answer end after %d intervals",
			staleIntervals,
		),
		constant("web.max-scrapes", "%d scrapes are served at the same time", maxScrapes),
		constant(
			"web.openmetrics-created",
			"protobuf says when counters began; Prometheus asks for it "+
				"with --enable-feature=created-timestamp-zero-ingestion",
		),
		constant("web.ready-max-age", "the node is not ready if its last reading is older than "+
			"%d intervals, and than %s", readyIntervals, leastReadyMaxAge),
		constant(
			"web.telemetry-path",
			"the metrics are at /metrics; a proxy can serve them elsewhere",
		),
	}
}

// refuseGone returns an error about flags and variables that are gone, which says what to do instead.
func refuseGone(args, environ []string) error {
	words, _, err := splitLine(args)
	if err != nil {
		return err
	}

	errs := []error{refuseGoneCollectors(words, environ)}
	lookup := lookupIn(environ)

	for _, g := range goneFlags() {
		has := func(w argument) bool { return w.alias == nil && hasFlag([]string{w.text}, g.name) }
		if slices.ContainsFunc(words, has) {
			errs = append(errs, fmt.Errorf("--%s is gone: %s", g.name, g.became))
		}

		if value, _ := lookup(envName(g.name)); value != "" {
			errs = append(errs, fmt.Errorf("%s is gone: %s", envName(g.name), g.forVariable()))
		}
	}

	return errors.Join(errs...)
}

// forVariable returns what to do instead of setting the flag's variable.
func (g *goneFlag) forVariable() string {
	if g.variable != "" {
		return g.variable
	}

	namedFlag := regexp.MustCompile(`--dcgm\.[a-z]+`)

	return namedFlag.ReplaceAllStringFunc(g.became, func(flag string) string {
		return envName(strings.TrimPrefix(flag, "--"))
	})
}

// collectorPrefix was the prefix of the flags of single collectors: --collector.ecc.
const collectorPrefix = "collector."

// refuseGoneCollectors returns an error about --collector.NAME and --no-collector.NAME, and about
// their variables. Each line of the error has a value of --collectors that replaces all of them.
func refuseGoneCollectors(words []argument, environ []string) error {
	var flags, variables, flagItems, variableItems []string

	for _, w := range words {
		name, value, hasValue := strings.Cut(w.text, "=")
		on := strings.HasPrefix(name, "--"+collectorPrefix)

		if w.alias != nil || !on && !strings.HasPrefix(name, "--no-"+collectorPrefix) {
			continue
		}

		_, name, _ = strings.Cut(name, collectorPrefix)

		flags = append(flags, w.text)
		flagItems = append(flagItems, goneItem(name, on, value, hasValue))
	}

	lookup := lookupIn(environ)
	for _, variable := range goneCollectorVariables(environ) {
		if value, _ := lookup(variable); value != "" {
			variables = append(variables, variable)
			variableItems = append(variableItems, goneItem(collectorOf(variable), true, value, true))
		}
	}

	return errors.Join(
		replaced(flags, "--"+collectorsFlag, flagItems),
		replaced(variables, envName(collectorsFlag), variableItems))
}

// goneCollectorVariables returns the names of variables of single collectors: first those of all
// collectors that exist, then others in the environment that have the prefix. It leaves out variables
// that the kubelet has set for a service.
func goneCollectorVariables(environ []string) []string {
	var variables []string

	for _, g := range collector.Groups() {
		variables = append(variables, envName(collectorPrefix+g.Name))
	}

	names := sortedNames(environ)
	for _, name := range names {
		if strings.HasPrefix(name, envName(collectorPrefix)) && !slices.Contains(variables, name) &&
			!isServiceVariable(name, names) {
			variables = append(variables, name)
		}
	}

	return variables
}

// collectorOf returns the name of the collector that had a variable; empty if there is none.
func collectorOf(variable string) string {
	for _, g := range collector.Groups() {
		if envName(collectorPrefix+g.Name) == variable {
			return g.Name
		}
	}

	return ""
}

// replaced returns an error that says for each name to use replacement, with all the items, instead.
func replaced(names []string, replacement string, items []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, fmt.Errorf("%s is gone: use %s=%s", name, replacement, strings.Join(items, ",")))
	}

	return errors.Join(errs...)
}

// goneItem returns the item of --collectors that replaces a flag or variable of one collector: "+ecc"
// for --collector.ecc, "-ecc" for --no-collector.ecc (on is false). With an unknown name or value, the
// reader has to choose: "+NAME", "+ecc or -ecc".
func goneItem(name string, on bool, value string, hasValue bool) string {
	known := slices.ContainsFunc(collector.Groups(), func(g collector.GroupInfo) bool { return g.Name == name })
	if !known {
		name = "NAME"
	}

	if hasValue {
		parsed, err := strconv.ParseBool(value)
		if err != nil {
			return "+" + name + " or -" + name
		}

		on = on == parsed
	}

	if on {
		return "+" + name
	}

	return "-" + name
}
