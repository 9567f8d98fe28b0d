package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kingpin/v2"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/collector"
)

// lookupFunc returns the value of an environment variable, like os.LookupEnv.
type lookupFunc func(string) (string, bool)

// lookupIn returns a lookupFunc for an environment in the form of os.Environ: "NAME=value".
func lookupIn(environ []string) lookupFunc {
	return func(name string) (string, bool) {
		for _, pair := range environ {
			if key, value, _ := strings.Cut(pair, "="); key == name {
				return value, true
			}
		}

		return "", false
	}
}

// sortedNames returns the names of the variables of an environment.
func sortedNames(environ []string) []string {
	names := make([]string, len(environ))
	for i, pair := range environ {
		names[i], _, _ = strings.Cut(pair, "=")
	}

	slices.Sort(names)

	return names
}

// maxFiles is how many files of arguments a command line may name. Without a limit, a file that names
// itself would be read forever.
const maxFiles = 100

// expandFiles replaces each argument @FILE by the lines of the file, which can be such arguments
// themselves. kingpin would do that, too, but only after we have looked at the command line.
func expandFiles(args []string) ([]string, error) {
	var out []string
	files := 0

	for rest := args; len(rest) > 0; {
		arg := rest[0]
		path, isFile := strings.CutPrefix(arg, "@")

		switch {
		case arg == "--":
			return append(out, rest...), nil
		case !isFile:
			out = append(out, arg)
			rest = rest[1:]

			continue
		case files == maxFiles:
			return nil, fmt.Errorf("%s: expected at most %d files of arguments", arg, maxFiles)
		}

		lines, err := kingpin.ExpandArgsFromFile(path)
		if err != nil {
			return nil, err
		}

		files++
		rest = slices.Concat(lines, rest[1:])
	}

	return out, nil
}

// envPrefix is the prefix of this program's variables.
const envPrefix = "MIG_EXPORTER_"

// dcgmExporterPrefix is the prefix of most of dcgm-exporter's variables.
const dcgmExporterPrefix = "DCGM_EXPORTER_"

// nodeNameVariable is the variable in which dcgm-exporter's manifests give the node's name. In a pod
// the host name is the pod's.
const nodeNameVariable = "NODE_NAME"

// envName returns the environment variable of a flag of this program.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(flag))
}

// allFlags returns the flags of all commands. Setting their values changes no configuration.
func allFlags() []*kingpin.FlagModel {
	app := newApp()
	declareCommands(app, &invocation{})
	model := app.Model()
	flags := slices.Clone(model.Flags)

	for _, c := range model.Commands {
		flags = append(flags, c.Flags...)
	}

	return slices.DeleteFunc(flags, func(f *kingpin.FlagModel) bool {
		return f.Hidden || f.Name == "help" || f.Name == "version"
	})
}

// flagAsTyped returns the name by which a command line sets a flag: the flag's own, or an alias of
// dcgm-exporter. It is empty if the command line does not set the flag.
func flagAsTyped(args []string, flag string) string {
	words, _, _ := splitLine(args) // after an error: the words before it

	for _, w := range words {
		switch {
		case w.alias == nil && hasFlag([]string{w.text}, flag):
			return "--" + flag
		case w.alias != nil && w.alias.flag == flag:
			return w.text
		}
	}

	return ""
}

// variableOf returns the environment variable that sets a flag; empty if none does.
func variableOf(flag string, args []string, lookup lookupFunc) string {
	if flagAsTyped(args, flag) != "" {
		return ""
	}

	if value, _ := lookup(envName(flag)); value != "" && flag != xidWindowFlag && flag != clockEventsWindowFlag {
		return envName(flag) // the two windows only have dcgm-exporter's variables
	}

	for _, a := range aliases() {
		if value, _ := lookup(a.env); value != "" && a.flag == flag {
			return a.env
		}
	}

	return ""
}

// checkVariables returns the errors of variables whose values their flags do not accept.
func checkVariables(args []string, lookup lookupFunc) error {
	var errs []error

	for _, f := range allFlags() {
		name := envName(f.Name)
		if variableOf(f.Name, args, lookup) != name {
			continue
		}

		value, _ := lookup(name)
		switch err := f.Value.Set(value); {
		case err == nil:
		case f.IsBoolFlag():
			errs = append(errs, fmt.Errorf("%s=%s: expected true or false", name, value))
		default:
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}

	return errors.Join(errs...)
}

// flagName is the name of a flag without dashes. In a message it prints with them.
type flagName string

func (n flagName) String() string { return "--" + string(n) }

// flagErrors collects errors about the values of flags.
type flagErrors struct {
	list  []error
	flags []flagName // the flags that the messages name, in order
}

// check adds an error if ok is false. It takes the arguments that are a flagName to be the flags that
// the error is about.
func (e *flagErrors) check(ok bool, format string, args ...any) {
	if ok {
		return
	}

	e.list = append(e.list, fmt.Errorf(format, args...))

	for _, arg := range args {
		if flag, isFlag := arg.(flagName); isFlag && !slices.Contains(e.flags, flag) {
			e.flags = append(e.flags, flag)
		}
	}
}

// join joins the errors, and says which environment variables set the flags in them.
func (e *flagErrors) join(args []string, lookup lookupFunc) error {
	var set []string

	for _, flag := range e.flags {
		if variable := variableOf(string(flag), args, lookup); variable != "" {
			set = append(set, fmt.Sprintf("%s is set by %s", flag, variable))
		}
	}

	err := errors.Join(e.list...)
	if len(set) == 0 {
		return err
	}

	return fmt.Errorf("%w (%s)", err, strings.Join(set, ", "))
}

// requirement is what some flags need to have an effect.
type requirement struct {
	flags []string
	isMet func(*Config) bool
	needs string // the requirement as a flag: "--driver=sim"
}

func requirements() []requirement {
	asDCGM := func(c *Config) bool { return c.Metrics.Names != collector.NamesNative }
	var control, advise []string

	for _, f := range allFlags() {
		switch {
		case strings.HasPrefix(f.Name, "control.") && f.Name != "control.enabled":
			control = append(control, f.Name)
		case strings.HasPrefix(f.Name, "advise.") && f.Name != "advise.enabled":
			advise = append(advise, f.Name)
		}
	}

	return []requirement{
		{control, func(c *Config) bool { return c.Control.Enabled }, controlEnabled.String()},
		{
			[]string{"kubernetes.node-events"},
			func(c *Config) bool { return c.Control.Enabled },
			controlEnabled.String(),
		},
		{advise, func(c *Config) bool { return c.Advise.Enabled }, "--advise.enabled"},
		{[]string{"dcgm.counters", "dcgm.repeat-gpu-fields", "dcgm.hostname-label", xidWindowFlag,
			clockEventsWindowFlag}, asDCGM, "--metrics.names=dcgm or both"},
		{
			[]string{"sim.clock"},
			func(c *Config) bool { return c.Driver.Kind == driverSim },
			"--driver=sim",
		},
		{
			[]string{"nvml.library-path"},
			func(c *Config) bool { return c.Driver.Kind == driverNVML },
			"--driver=nvml",
		},
	}
}

// controlEnabled is the requirement of the flags of partition control. Without it we refuse them:
// given alone, they would seem to turn control on.
const controlEnabled = flagName("control.enabled")

// findIneffective finds flags and variables that have no effect because a requirement is not met. It
// adds an error for each flag that we refuse then, and returns warnings for the others.
func findIneffective(
	cfg *Config,
	args []string,
	lookup lookupFunc,
	errs *flagErrors,
) (warnings []warning) {
	for _, r := range requirements() {
		if r.isMet(cfg) {
			continue
		}

		for _, flag := range r.flags {
			variable := variableOf(flag, args, lookup)
			name := flagAsTyped(args, flag)

			switch {
			case variable != "":
				warnings = append(
					warnings,
					warning{
						"variable has no effect",
						[]any{"variable", variable, "needs", r.needs},
					},
				)
			case name == "":
			case r.needs == controlEnabled.String():
				errs.check(false, "%s has no effect: expected %s with it", name, controlEnabled)
			default:
				warnings = append(
					warnings,
					warning{"flag has no effect", []any{"flag", name, "needs", r.needs}},
				)
			}
		}
	}

	return warnings
}

// findEmptyVariables returns a warning for each variable that is set to an empty text although an
// empty value of its flag means something. An empty variable has no effect, as if it were not set.
func findEmptyVariables(lookup lookupFunc) []warning {
	var list []warning

	for _, flag := range []string{"kubernetes.socket", "kubernetes.checkpoint", "release.socket"} {
		variable := envName(flag)
		if value, set := lookup(variable); set && value == "" {
			list = append(list, warning{
				"an empty variable has no effect",
				[]any{"variable", variable, "use", "--" + flag + "="},
			})
		}
	}

	return list
}

// asksForHelp reports whether a command line only asks for the help or the version.
func asksForHelp(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--version" || strings.HasPrefix(arg, "--help")
	})
}

// warning is a line for the log about the command line or the environment.
type warning struct {
	msg    string
	fields []any
}

func logWarnings(logger log.Logger, list []warning) {
	for _, w := range list {
		level.Warn(logger).Log(append([]any{"msg", w.msg}, w.fields...)...)
	}
}

// unknownVariables returns a warning for each variable with this program's prefix, or with
// dcgm-exporter's, that belongs to no flag.
func unknownVariables(environ []string) []warning {
	var own []string
	flags := map[string]string{}

	for _, f := range allFlags() {
		own = append(own, envName(f.Name))
		flags[envName(f.Name)] = "--" + f.Name
	}

	known := slices.Clone(own)
	for _, a := range aliases() {
		known = append(known, a.env)
	}

	names := sortedNames(environ)
	var list []warning

	for _, name := range names {
		switch {
		case slices.Contains(known, name) || isServiceVariable(name, names):
		case strings.HasPrefix(name, envPrefix):
			best := slices.MinFunc(own, func(a, b string) int {
				return editDistance(name, a) - editDistance(name, b)
			})
			list = append(list, warning{"variable belongs to no flag; it has no effect",
				[]any{"variable", name, "nearest", best, "flag", flags[best]}})
		case strings.HasPrefix(name, dcgmExporterPrefix):
			list = append(list, warning{"variable is unknown to dcgm-exporter; it has no effect",
				[]any{"variable", name, "see", "docs/migration.md"}})
		}
	}

	return list
}

// serviceSuffix matches what follows the service's name in the variables that the kubelet sets for a
// service, as in MIG_EXPORTER_PORT_9401_TCP_ADDR.
const serviceSuffix = `_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|` +
	`PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`

// isServiceVariable reports whether the kubelet has set a variable for a service, such as
// "mig-exporter". names are all variables, sorted: each service has a variable ..._SERVICE_HOST.
func isServiceVariable(name string, names []string) bool {
	suffix := regexp.MustCompile(serviceSuffix).FindStringIndex(name)
	if suffix == nil {
		return false
	}

	_, found := slices.BinarySearch(names, name[:suffix[0]]+"_SERVICE_HOST")

	return found
}

// editDistance returns how many letters have to be inserted, deleted or replaced to turn a into b
// (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // the distances of what we have seen of a to each prefix of b
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1

		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}

			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}

	return row[len(b)]
}
