package main

import (
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// hintTimeout bounds the requests for the shell's completions.
const hintTimeout = time.Second

// runFlags are the flags of runs, which migctl's commands do not have.
type runFlags struct {
	resume, run string // names of runs
	evict       bool
	options     rollout.Options
	eviction    rollout.Eviction
	// given says, by name, which flags of a new run the command line has.
	given map[string]*bool
}

// firstGiven returns the name of a flag of a new run that the command line has, "" if it has none.
func (f *runFlags) firstGiven() string {
	var names []string

	for name, given := range f.given {
		if *given {
			names = append(names, name)
		}
	}

	if len(names) == 0 {
		return ""
	}

	return slices.Min(names)
}

// extend declares the command runs, and the flags of runs.
func (p *plugin) extend(app *kingpin.Application, output func(*kingpin.CmdClause)) {
	f := &p.runFlags
	f.given = map[string]*bool{}

	plan := app.GetCommand(commandPlan)
	f.declare(plan)

	apply := app.GetCommand(commandApply)
	f.declare(apply)
	apply.Flag("resume", "Go on with this run, with the flags that it was begun with.").
		PlaceHolder("RUN").
		HintAction(p.runNames).
		StringVar(&f.resume)

	rollback := app.GetCommand(commandRollback)
	rollback.Flag("run", "Roll back what this run has done, on all of its nodes or on those that are named.").
		PlaceHolder("RUN").
		HintAction(p.runNames).
		StringVar(&f.run)

	runs := app.Command(commandRuns, "List the runs over many nodes, the latest first; or the nodes of one.")
	runs.Arg("run", "The run.").HintAction(p.runNames).StringVar(&f.run)
	output(runs)
}

// declare declares the flags of a new run.
func (f *runFlags) declare(c *kingpin.CmdClause) {
	f.flag(c, "max-unavailable", "How many nodes are repartitioned at a time.").Default("1").
		SetValue(intValue("--max-unavailable", "1 or more", 1, &f.options.MaxUnavailable))
	f.flag(c, "node-timeout", "How long a node is waited for in vain: for its exporter, for processes of "+
		"evicted pods to end, for its allocatable to have the new devices.").Default("5m").
		SetValue(durationValue("--node-timeout", "such as 5m", 1, &f.options.Timeout))

	f.flag(c, "evict", "Evict the pods that hold the devices concerned, by kubectl drain's rules. Without it, "+
		"a node with such pods is refused.").BoolVar(&f.evict)
	f.flag(c, "eviction-force", "Evict pods too that declare no controller: drain's --force.").
		BoolVar(&f.eviction.Force)
	f.flag(c, "eviction-timeout", "How long evictions from a node are tried: drain's --timeout. 0: for ever.").
		Default("10m").
		SetValue(durationValue("--eviction-timeout", "such as 10m, or 0", 0, &f.eviction.Timeout))

	// These have drain's names.
	f.flag(c, "ignore-daemonsets", "Ignore pods of DaemonSets.").BoolVar(&f.eviction.IgnoreDaemonSets)
	f.flag(c, "delete-emptydir-data", "Evict pods too that use emptyDir.").
		BoolVar(&f.eviction.DeleteEmptyDirData)
	f.flag(c, "disable-eviction", "Delete pods instead, past PodDisruptionBudgets.").
		BoolVar(&f.eviction.DisableEviction)
	f.flag(c, "grace-period", "Seconds that a pod is given to end; -1: its own.").Default("-1").
		SetValue(intValue("--grace-period", "seconds, or -1", -1, &f.eviction.GracePeriodSeconds))
	f.flag(c, "pod-selector", "Labels of the pods that may be evicted.").
		SetValue(selectorValue("--pod-selector", &f.eviction.PodSelector))
	f.flag(c, "skip-wait-for-delete-timeout", "Seconds after which a pod that is being deleted is not waited "+
		"for; 0: it is.").Default("0").
		SetValue(intValue("--skip-wait-for-delete-timeout", "seconds", 0, &f.eviction.SkipWaitForDeleteAfter))
}

// flag declares a flag of a new run. plan and apply declare the same flags, and share what is given.
func (f *runFlags) flag(c *kingpin.CmdClause, name, help string) *kingpin.FlagClause {
	given := f.given[name]
	if given == nil {
		given = new(bool)
		f.given[name] = given
	}

	return c.Flag(name, help).IsSetByUser(given)
}

// runFlagNames lists the flags of runs, for --help.
func runFlagNames() []string {
	return []string{
		"resume", "run", "max-unavailable", "node-timeout", "evict", "eviction-force", "eviction-timeout",
		"ignore-daemonsets", "delete-emptydir-data", "disable-eviction", "grace-period", "pod-selector",
		"skip-wait-for-delete-timeout",
	}
}

// intValue returns a value that accepts numbers from least on, and sets target.
func intValue(name, expected string, least int, target *int) kingpin.Value {
	return &usage.Value{
		Wrong: name + " is %q; expected " + expected,
		Parse: func(s string) bool {
			n, err := strconv.Atoi(s)
			*target = n

			return err == nil && n >= least
		},
	}
}

func selectorValue(name string, target *string) kingpin.Value {
	return &usage.Value{
		Wrong: name + " is %q; expected labels, such as app=train,team in (a, b)",
		Parse: func(s string) bool {
			_, err := labels.Parse(s)
			*target = s

			return err == nil
		},
	}
}

func durationValue(name, expected string, least time.Duration, target *time.Duration) kingpin.Value {
	return &usage.Value{
		Wrong: name + " is %q; expected a duration with its unit, " + expected,
		Parse: func(s string) bool {
			d, err := time.ParseDuration(s)
			*target = d

			return err == nil && d >= least
		},
	}
}
