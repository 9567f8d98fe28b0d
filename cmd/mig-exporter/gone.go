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

// goneFlag is a flag of an earlier version. A command line with it, or an environment with its
// variable, is refused: what the flag asked for would silently be missing.
type goneFlag struct {
	name   string
	became string // what to do instead, or what holds now
	// variable is what to do instead of its variable. Empty: what became says, with the variables
	// of the flags that it names.
	variable string
}

// goneFlags lists the flags of earlier versions. Those of collectors are in refuseGoneCollectors.
func goneFlags() []goneFlag {
	limits := advise.DefaultOptions()
	constant := func(name, format string, args ...any) goneFlag {
		return goneFlag{name: name, became: "leave it out: " + fmt.Sprintf(format, args...)}
	}
	window := func(name, theirs, variable string) goneFlag {
		const value = "=MILLISECONDS, as in dcgm-exporter"

		return goneFlag{name, "use --" + theirs + value, "use " + variable + value}
	}

	return []goneFlag{
		constant("advise.headroom", "a recommended slice has %v of the highest memory use free",
			limits.Headroom),
		constant("advise.target-busy", "a recommended slice is busy for at most %v at p99",
			limits.TargetBusy),
		constant("control.hook-timeout", "a hook may take %s", hookTimeout),
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

// refuseGone returns an error about the flags and variables of earlier versions, with what became
// of each.
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

// forVariable returns what became of the flag's variable.
func (g *goneFlag) forVariable() string {
	if g.variable != "" {
		return g.variable
	}

	ours := regexp.MustCompile(`--dcgm\.[a-z]+`)

	return ours.ReplaceAllStringFunc(g.became, func(flag string) string {
		return envName(strings.TrimPrefix(flag, "--"))
	})
}

// collectorPrefix began the names of the flags of collectors.
const collectorPrefix = "collector."

// refuseGoneCollectors returns an error about --collector.NAME and --no-collector.NAME, and about
// their variables. Each line of it has the value of --collectors that does what all of them did.
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

// goneCollectorVariables returns the variables of collectors in an environment: first those of
// collectors that exist, in the order of these, then others. What the kubelet has set for a service
// is none of them.
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

// replaced returns an error that says of each name that one list replaces all of them.
func replaced(names []string, by string, items []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, fmt.Errorf("%s is gone: use %s=%s", name, by, strings.Join(items, ",")))
	}

	return errors.Join(errs...)
}

// goneItem returns the item of --collectors that does what a switch of one collector did: on is
// what it said by its name. A name that no collector has, or a value that is neither true nor
// false, leaves the choice to the reader.
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
