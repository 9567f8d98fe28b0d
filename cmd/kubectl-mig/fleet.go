package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/term"
	"k8s.io/client-go/kubernetes"

	"github.com/mig-exporter/mig-exporter/cmd/internal/migctl"
	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/kube"
	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// The commands about many nodes.
const (
	fleetPlan     = "plan"
	fleetApply    = "apply"
	fleetRollback = "rollback"
	fleetRuns     = "runs"
)

// The exit codes, as migctl has them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitPartial     = 7
	exitInterrupted = 130
)

const maxFleetFile = 4 << 20 // bytes

// isFleetCommand reports whether a command line is about many nodes: runs, apply --resume, rollback
// --run, or plan and apply with the file of a fleet.
func isFleetCommand(args []string) bool {
	commands := []string{fleetPlan, fleetApply, fleetRollback, fleetRuns}

	at := slices.IndexFunc(args, func(a string) bool { return slices.Contains(commands, a) })
	if at < 0 {
		return false
	}

	has := func(flag string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return a == flag || strings.HasPrefix(a, flag+"=") })
	}

	switch args[at] {
	case fleetRuns:
		return true
	case fleetRollback:
		return has("--run")
	case fleetApply:
		if has("--resume") {
			return true
		}
	}

	data, err := os.ReadFile(fileArgument(args))

	return err == nil && spec.IsFleet(data)
}

// fileArgument returns the value of -f.
func fileArgument(args []string) string {
	for i, a := range args {
		for _, flag := range []string{"-f", "--file"} {
			if a == flag && i+1 < len(args) {
				return args[i+1]
			}
		}

		if value, ok := strings.CutPrefix(a, "--file="); ok {
			return value
		}
	}

	return ""
}

// fleet is one command about many nodes.
type fleet struct {
	plugin   *plugin
	in       io.Reader
	out      io.Writer
	terminal bool // of in

	file, resume, run string
	nodes             []string // of rollback
	parallel          int
	requestTimeout    time.Duration
	yes, evict        bool
	options           rollout.Options
	eviction          rollout.Eviction
}

// runFleet runs a command about many nodes and returns the exit code.
func runFleet(args []string) int {
	f := &fleet{
		plugin:   newPlugin(),
		in:       os.Stdin,
		out:      os.Stdout,
		terminal: term.IsTerminal(int(os.Stdin.Fd())),
	}

	command, err := f.newApp().Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", programName, err)
		return exitUsage
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	context.AfterFunc(ctx, stop)

	code, err := f.do(ctx, command)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", programName, err)
	}

	return code
}

func (f *fleet) newApp() *kingpin.Application {
	app := kingpin.New(programName, "Repartition the nodes of a fleet, one after another. "+
		"docs/kubectl-mig-runs.md says how.")
	app.HelpFlag.Short('h')
	f.plugin.flags.declare(app)
	app.Flag("parallel", "How many nodes are asked for plans at the same time.").Default("8").IntVar(&f.parallel)
	app.Flag("timeout", "Time within which a request must be answered.").Default("30s").
		DurationVar(&f.requestTimeout)

	plan := app.Command(fleetPlan, "Show what apply would do on all nodes.")
	plan.Flag("file", "The fleet: a layout for each node or selector.").Short('f').Required().StringVar(&f.file)
	plan.Flag("take-over", "Plan changes of GPUs that another owner manages.").BoolVar(&f.options.TakeOver)
	f.addDrainFlags(plan)

	apply := app.Command(fleetApply, "Show what would be done, ask, and repartition one node after another.")
	apply.Flag("file", "The fleet: a layout for each node or selector.").Short('f').StringVar(&f.file)
	apply.Flag("resume", "Go on with this run.").StringVar(&f.resume)
	apply.Flag("max-unavailable", "How many nodes are repartitioned at a time.").Default("1").
		IntVar(&f.options.MaxUnavailable)
	apply.Flag("take-over", "Change GPUs that another owner manages.").BoolVar(&f.options.TakeOver)
	apply.Flag("node-timeout", "How long a node is waited for in vain: for its exporter, for processes of "+
		"evicted pods to end, for its allocatable to have the new devices.").Default("5m").
		DurationVar(&f.options.Timeout)
	f.addDrainFlags(apply)
	apply.Flag("yes", "Do not ask.").Short('y').BoolVar(&f.yes)

	rollback := app.Command(fleetRollback, "Give nodes of a run the layout again that they had before it.")
	rollback.Flag("run", "The run.").Required().StringVar(&f.run)
	rollback.Flag("yes", "Do not ask.").Short('y').BoolVar(&f.yes)
	rollback.Arg("node", "The nodes; by default all that the run has changed.").StringsVar(&f.nodes)

	runs := app.Command(fleetRuns, "List the runs, the latest first; or the nodes of one.")
	runs.Arg("run", "The run.").StringVar(&f.run)

	return app
}

// addDrainFlags declares kubectl drain's flags.
func (f *fleet) addDrainFlags(c *kingpin.CmdClause) {
	c.Flag("evict", "Evict the pods that hold the devices concerned, by kubectl drain's rules. Without it, "+
		"a node with such pods fails.").BoolVar(&f.evict)
	c.Flag("force", "Evict pods too that declare no controller.").BoolVar(&f.eviction.Force)
	c.Flag("ignore-daemonsets", "Ignore pods of DaemonSets.").BoolVar(&f.eviction.IgnoreDaemonSets)
	c.Flag("delete-emptydir-data", "Evict pods too that use emptyDir.").BoolVar(&f.eviction.DeleteEmptyDirData)
	c.Flag("disable-eviction", "Delete pods instead, past PodDisruptionBudgets.").
		BoolVar(&f.eviction.DisableEviction)
	c.Flag("grace-period", "Seconds that a pod is given to end; -1: its own.").Default("-1").
		IntVar(&f.eviction.GracePeriodSeconds)
	c.Flag("eviction-timeout", "How long evictions from a node are tried (drain's --timeout); 0: for ever.").
		Default("10m").DurationVar(&f.eviction.Timeout)
	c.Flag("pod-selector", "Labels of the pods that may be evicted.").StringVar(&f.eviction.PodSelector)
	c.Flag("skip-wait-for-delete-timeout", "Seconds after which a pod that is being deleted is not waited for.").
		IntVar(&f.eviction.SkipWaitForDeleteAfter)
}

// do runs the command.
func (f *fleet) do(ctx context.Context, command string) (int, error) {
	c, err := f.plugin.cluster()
	if err != nil {
		return exitFailed, err
	}

	set, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return exitFailed, fmt.Errorf("read the kubeconfig: %w", err)
	}

	if f.evict {
		f.options.Eviction = &f.eviction
	}

	client := kube.New(set, c.namespace)

	switch command {
	case fleetRuns:
		return f.showRuns(ctx, client)
	case fleetRollback:
		return f.rollBack(ctx, client)
	case fleetPlan:
		_, _, err := f.preview(ctx, client)
		return codeOf(err), err
	}

	if f.resume != "" {
		return f.resumeRun(ctx, client)
	}

	return f.apply(ctx, client)
}

// codeOf returns the exit code of an error.
func codeOf(err error) int {
	var wrong *strictyaml.Error

	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &wrong):
		return exitUsage
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}

	return exitFailed
}

func (f *fleet) exporters(rights ...string) *exporters {
	if f.options.TakeOver {
		rights = append([]string{"take-over"}, rights...)
	}

	return &exporters{
		plugin:  f.plugin,
		rights:  rights,
		timeout: f.requestTimeout,
		remotes: map[string]*migctl.Remote{},
	}
}

// errRefusedNodes says that some nodes cannot have their layouts.
var errRefusedNodes = errors.New("some nodes cannot have their layouts as things are")

// preview shows what a run would do.
func (f *fleet) preview(ctx context.Context, client *kube.Cluster) ([]rollout.Target, []api.Spec, error) {
	data, err := os.ReadFile(f.file)
	if err != nil {
		return nil, nil, err
	}

	if len(data) > maxFleetFile {
		return nil, nil, fmt.Errorf("%s is larger than %d bytes", f.file, maxFleetFile)
	}

	wanted, err := spec.DecodeFleet(f.file, data)
	if err != nil {
		return nil, nil, err
	}

	targets, specs, err := rollout.SelectNodes(ctx, client, wanted)
	if err != nil {
		return nil, nil, err
	}

	e := f.exporters("plan")
	defer e.close()

	list := rollout.PreviewRun(ctx, e, targets, specs, f.options, f.parallel)
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}

	if refused := writePreview(f.out, list); refused > 0 {
		err = errRefusedNodes
	}

	return targets, specs, err
}

// apply makes a run and executes it.
func (f *fleet) apply(ctx context.Context, client *kube.Cluster) (int, error) {
	if f.file == "" {
		return exitUsage, errors.New("expected -f FILE or --resume RUN")
	}

	targets, specs, err := f.preview(ctx, client)
	if err != nil {
		return codeOf(err), err
	}

	run, err := rollout.NewRun(time.Now(), targets, specs, f.options)
	if err != nil {
		return exitUsage, err
	}

	if err := f.ask("Apply to these nodes?"); err != nil {
		return exitFailed, err
	}

	store, err := client.CreateRun(ctx, wallClock{}, newHolder(), run)
	if err != nil {
		return codeOf(err), err
	}

	return f.execute(ctx, client, run, store)
}

// resumeRun goes on with a run.
func (f *fleet) resumeRun(ctx context.Context, client *kube.Cluster) (int, error) {
	run, store, err := client.OpenRun(ctx, wallClock{}, newHolder(), f.resume)
	if err != nil {
		return codeOf(err), err
	}

	writeRun(f.out, run)

	if err := f.ask("Go on with it?"); err != nil {
		store.Close(ctx)
		return exitFailed, err
	}

	run.Resume()

	return f.execute(ctx, client, run, store)
}

// rollBack undoes what a run has done on nodes.
func (f *fleet) rollBack(ctx context.Context, client *kube.Cluster) (int, error) {
	run, store, err := client.OpenRun(ctx, wallClock{}, newHolder(), f.run)
	if err != nil {
		return codeOf(err), err
	}

	err = run.RollBack(f.nodes)
	if err == nil {
		writeRun(f.out, run)
		err = f.ask("Roll these nodes back?")
	}

	if err != nil {
		store.Close(ctx)
		return exitFailed, err
	}

	return f.execute(ctx, client, run, store)
}

// execute goes on with a run that this client owns, and releases it.
func (f *fleet) execute(
	ctx context.Context, client *kube.Cluster, run *rollout.Run, store *kube.Store,
) (int, error) {
	defer store.Close(context.WithoutCancel(ctx))

	fmt.Fprintf(f.out, "Run %s\n", run.Name)

	f.options.TakeOver = run.Options.TakeOver
	e := f.exporters("apply")
	defer e.close()

	kept, lose := context.WithCancelCause(ctx)
	defer lose(nil)

	go func() { lose(store.Keep(kept)) }()

	engine := &rollout.Engine{
		Cluster:  client,
		Exporter: e,
		Store:    store,
		Clock:    wallClock{},
		Report:   func(n rollout.Node) { writeNode(f.out, &n) },
	}

	err := engine.Execute(kept, run)

	var stopped *rollout.StoppedError

	switch {
	case err == nil:
		return exitOK, nil
	case errors.As(err, &stopped) && run.Summary().Done > 0:
		return exitPartial, fmt.Errorf("%w\nTo go on: %s apply --resume %s", err, f.plugin.flags.prefix(), run.Name)
	}

	return codeOf(err), fmt.Errorf("%w\nTo go on: %s apply --resume %s", err, f.plugin.flags.prefix(), run.Name)
}

// showRuns lists the runs, or the nodes of one.
func (f *fleet) showRuns(ctx context.Context, client *kube.Cluster) (int, error) {
	if f.run != "" {
		run, err := client.ReadRun(ctx, f.run)
		if err != nil {
			return codeOf(err), err
		}

		writeRun(f.out, run)

		return exitOK, nil
	}

	runs, err := client.ListRuns(ctx)
	if err == nil || len(runs) > 0 {
		writeRuns(f.out, runs)
	}

	return codeOf(err), err
}

// ask asks the operator, and returns nil if the answer is yes.
func (f *fleet) ask(question string) error {
	if f.yes {
		return nil
	}

	if !f.terminal {
		return errors.New("standard input is not a terminal: look at what would be done, then give --yes")
	}

	fmt.Fprintf(f.out, "%s [y/N] ", question)

	text, err := bufio.NewReader(f.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}

	switch strings.ToLower(strings.TrimSpace(text)) {
	case "y", "yes":
		return nil
	}

	return errors.New("nothing was done")
}

// newHolder names this client: no two have the same name.
func newHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}

	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}

// wallClock is the time. It goes on while the machine is asleep.
type wallClock struct{}

// Now implements rollout.Clock.
func (wallClock) Now() time.Time { return time.Now().Round(0) }

// Sleep implements rollout.Clock.
func (wallClock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
