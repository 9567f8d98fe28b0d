package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/cmd/internal/migctl"
	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/kube"
	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/retry"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// The commands that can be about many nodes, see ownsLine.
const (
	commandPlan     = "plan"
	commandApply    = "apply"
	commandRollback = "rollback"
	commandRuns     = "runs"
)

// exitPartial is migctl's exit code if some nodes have failed.
const exitPartial = 7

const maxFleetFile = 4 << 20 // bytes

// ownsLine reports whether a command line is about many nodes, so that runOwn runs it: it is the
// command runs, it names a run, or it is plan or apply with a file and without a node.
func (p *plugin) ownsLine(l *migctl.Line) (bool, error) {
	f := &p.runFlags
	byFile := (l.Command == commandPlan || l.Command == commandApply) &&
		l.File != "" && l.Node == "" && !l.AllNodes

	switch {
	case f.resume != "" && (l.File != "" || l.Node != "" || l.AllNodes):
		return true, migctl.UsageError("--resume goes on with all nodes of the run: give neither -f nor a node")
	case f.resume != "" && f.firstGiven() != "":
		return true, migctl.UsageError("--%s: a run keeps the flags that it was begun with. apply -f with other "+
			"flags begins another run, which skips the nodes that have their layout", f.firstGiven())
	case f.run != "" && l.AllNodes:
		return true, migctl.UsageError("--run without nodes is about all that the run has changed: leave --all out")
	case l.Command == commandRuns || f.resume != "" || f.run != "" || byFile:
		return true, nil
	case f.firstGiven() != "":
		return false, migctl.UsageError("--%s is for runs over many nodes: -f FILE, of the kind Fleet, and no node",
			f.firstGiven())
	}

	return false, nil
}

// runOwn runs a command line about many nodes.
func (p *plugin) runOwn(ctx context.Context, l *migctl.Line) (int, error) {
	f := &fleet{plugin: p, runFlags: &p.runFlags, line: l}

	if l.File != "" {
		var err error
		if f.wanted, err = f.readFile(); err != nil {
			return 0, classify(err)
		}
	}

	c, err := p.cluster()
	if err != nil {
		return 0, migctl.UnreachableCluster(err)
	}

	f.client = kube.New(c.set, c.namespace)
	code, err := f.runCommand(ctx)

	return code, classify(err)
}

// classify returns an error of the type for which migctl has the right exit code.
func classify(err error) error {
	var wrong *strictyaml.Error
	if errors.As(err, &wrong) {
		return migctl.UsageError("%v", err)
	}

	var failed *kube.APIError
	if errors.As(err, &failed) {
		return migctl.UnreachableCluster(err)
	}

	return err
}

// fleet is one command about many nodes.
type fleet struct {
	*runFlags
	plugin *plugin
	line   *migctl.Line
	wanted *spec.Fleet // from the file; nil without one
	client *kube.Cluster
}

// runCommand runs the command, and returns migctl's exit code unless there is an error.
func (f *fleet) runCommand(ctx context.Context) (int, error) {
	switch f.line.Command {
	case commandRuns:
		return 0, f.showRuns(ctx)
	case commandRollback:
		return f.rollBack(ctx)
	case commandPlan:
		return 0, f.plan(ctx)
	}

	if f.resume != "" {
		return f.resumeRun(ctx)
	}

	return f.apply(ctx)
}

// exporters returns the nodes' exporters, for requests that need the rights.
func (f *fleet) exporters(rights ...string) *exporters {
	if f.options.TakeOver {
		rights = append([]string{"take-over"}, rights...)
	}

	return &exporters{
		plugin:  f.plugin,
		rights:  rights,
		timeout: f.line.Timeout,
		reason:  f.options.Reason,
		remotes: map[string]*migctl.Remote{},
	}
}

// errRefusedNodes says that some nodes cannot have their layouts.
var errRefusedNodes = errors.New("some nodes cannot have their layouts as things are")

// preview is what a run would do.
type preview struct {
	targets []rollout.Target
	specs   []api.Spec
	nodes   []rollout.Preview // in the order of targets
}

// refusal returns the error if a node cannot have its layout, or if it is not known whether it can.
func (p *preview) refusal() error {
	at := slices.IndexFunc(p.nodes, func(n rollout.Preview) bool { return isUnreached(n.Err) })
	if at >= 0 {
		return migctl.UnreachableNode(p.nodes[at].Node, p.nodes[at].Err)
	}

	if slices.ContainsFunc(p.nodes, func(n rollout.Preview) bool { return n.Refused != "" }) {
		return errRefusedNodes
	}

	return nil
}

// isUnreached reports whether an error is of an exporter or an API server that could not be asked.
func isUnreached(err error) bool {
	var problem *api.Problem
	var failed *kube.APIError
	var certificate *tls.CertificateVerificationError

	switch {
	case err == nil, errors.As(err, &problem):
		return false
	case errors.As(err, &failed), errors.As(err, &certificate):
		return true
	}

	return !errors.Is(err, rollout.ErrRefused)
}

// hasNoSteps reports whether all nodes have their layouts already.
func (p *preview) hasNoSteps() bool {
	return !slices.ContainsFunc(p.nodes, func(n rollout.Preview) bool {
		return n.Plan == nil || len(n.Plan.Steps) > 0
	})
}

// readFile reads the file of a fleet.
func (f *fleet) readFile() (*spec.Fleet, error) {
	name := f.line.File
	in := f.line.In

	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, migctl.UsageError("%v", err)
		}
		defer file.Close()

		in = file
	}

	data, err := io.ReadAll(io.LimitReader(in, maxFleetFile+1))

	switch {
	case err != nil:
		return nil, migctl.UsageError("%s: %v", name, err)
	case len(data) > maxFleetFile:
		return nil, migctl.UsageError("%s is larger than %d bytes", name, maxFleetFile)
	case !spec.IsFleet(data):
		return nil, migctl.UsageError("%s: expected a file of the kind Fleet; if it is the spec of one node, name "+
			"the node", name)
	}

	return spec.DecodeFleet(name, data)
}

// preview finds out what a run would do.
func (f *fleet) preview(ctx context.Context) (*preview, error) {
	targets, specs, err := rollout.SelectNodes(ctx, f.client, f.wanted)
	if err != nil {
		return nil, err
	}

	f.completeOptions()

	e := f.exporters("plan")
	defer e.close()

	p := &preview{targets: targets, specs: specs}
	previewer := &rollout.Previewer{
		Exporter:  e,
		Evictions: f.client,
		Options:   f.options,
		Parallel:  f.line.Parallel,
	}
	p.nodes = previewer.Preview(ctx, targets, specs)

	return p, ctx.Err()
}

// completeOptions adds migctl's flags, and those of evictions, to the options of a new run.
func (f *fleet) completeOptions() {
	f.options.TakeOver = f.line.TakeOver
	f.options.Reason = f.line.Reason

	if f.evict {
		f.options.Eviction = &f.eviction
	}
}

// plan shows what a run would do.
func (f *fleet) plan(ctx context.Context) error {
	p, err := f.preview(ctx)
	if err != nil {
		return err
	}

	printed, err := f.line.Print(map[string]any{"nodes": p.nodes})
	if !printed {
		writePreview(f.line.Out, p.nodes)
	}

	return cmp.Or(err, p.refusal())
}

// apply creates a run and executes it.
func (f *fleet) apply(ctx context.Context) (int, error) {
	p, err := f.preview(ctx)
	if err != nil {
		return 0, err
	}

	writePreview(f.line.Out, p.nodes)

	if err := p.refusal(); err != nil {
		return 0, err
	}

	if p.hasNoSteps() {
		return 0, nil
	}

	run, err := rollout.NewRun(time.Now(), p.targets, p.specs, f.options)
	if err != nil {
		return 0, migctl.UsageError("%v", err)
	}

	if err := f.line.Ask(ctx, "Apply to these nodes?"); err != nil {
		return 0, err
	}

	store, err := f.client.CreateRun(ctx, wallClock{}, newHolder(), run)
	if err != nil {
		return 0, err
	}

	return f.execute(ctx, run, store)
}

// resumeRun goes on with a run.
func (f *fleet) resumeRun(ctx context.Context) (int, error) {
	return f.takeUp(ctx, f.resume, "Go on with it?", func(run *rollout.Run) error {
		if !run.Resume() {
			return errNothingLeft
		}

		return nil
	})
}

// rollBack undoes what a run has done on nodes.
func (f *fleet) rollBack(ctx context.Context) (int, error) {
	nodes := strings.FieldsFunc(f.line.Node, func(r rune) bool { return r == ',' })

	return f.takeUp(ctx, f.run, "Roll these nodes back?", func(run *rollout.Run) error {
		run.Options.Reason = f.line.Reason
		return run.RollBack(nodes)
	})
}

// errNothingLeft says that a run has nothing left to do.
var errNothingLeft = errors.New("nothing is left to do")

// takeUp changes an existing run, asks the operator, and goes on with the run. While it asks, it does
// not own the run, since the operator may answer the next morning.
func (f *fleet) takeUp(
	ctx context.Context, name, question string, change func(*rollout.Run) error,
) (int, error) {
	shown, err := f.client.ReadRun(ctx, name)
	if err != nil {
		return 0, err
	}

	before := slices.Clone(shown.Nodes)

	err = change(shown)
	if err == nil || errors.Is(err, errNothingLeft) {
		writeRun(f.line.Out, shown)
	}

	if errors.Is(err, errNothingLeft) {
		fmt.Fprintln(f.line.Out, "Nothing is left to do.")
		return 0, nil
	}

	if err != nil {
		return 0, err
	}

	if err := f.line.Ask(ctx, question); err != nil {
		return 0, err
	}

	if holder := f.client.Holder(ctx, name); holder != "" {
		fmt.Fprintf(f.line.Out, "Waiting until it is known whether %s still works on it.\n", clean(holder))
	}

	run, store, err := f.client.OpenRun(ctx, wallClock{}, newHolder(), name)
	if err != nil {
		return 0, err
	}

	if !reflect.DeepEqual(run.Nodes, before) {
		err = fmt.Errorf("another client has gone on with run %s meanwhile: look at it again", name)
	} else {
		err = change(run)
	}

	if err == nil { // the state names each deed before it is done
		err = store.Save(ctx, run)
	}

	if err != nil {
		store.Close(ctx)
		return 0, err
	}

	return f.execute(ctx, run, store)
}

// execute executes a run that this client owns, and then releases it.
func (f *fleet) execute(ctx context.Context, run *rollout.Run, store *kube.Store) (int, error) {
	defer store.Close(context.WithoutCancel(ctx))

	fmt.Fprintf(f.line.Out, "Run %s\n", run.Name)

	f.options = run.Options
	e := f.exporters("apply")
	defer e.close()

	ownedCtx, lose := context.WithCancelCause(ctx) // ends when this client loses the run
	defer lose(nil)

	go func() { lose(store.Keep(ownedCtx)) }()

	engine := &rollout.Engine{
		Cluster:  f.client,
		Exporter: e,
		Store:    store,
		Clock:    wallClock{},
		Report:   func(n rollout.Node) { writeNode(f.line.Out, &n) },
	}

	err := engine.Execute(ownedCtx, run)
	if err == nil {
		return 0, nil
	}

	fmt.Fprintf(f.line.Out, "To go on: %s apply --resume=%s\n", f.plugin.flags.prefix(), run.Name)

	var stopped *rollout.StoppedError
	if s := run.Summary(); errors.As(err, &stopped) && s.Done+s.Skipped > 0 {
		return exitPartial, err
	}

	return 0, err
}

// showRuns lists the runs, or the nodes of one.
func (f *fleet) showRuns(ctx context.Context) error {
	if f.run != "" {
		run, err := f.client.ReadRun(ctx, f.run)
		if err != nil {
			return err
		}

		if printed, err := f.line.Print(run); printed {
			return err
		}

		writeRun(f.line.Out, run)

		return nil
	}

	runs, err := f.client.ListRuns(ctx)

	printed, failed := f.line.Print(map[string]any{"runs": runs})
	if !printed && (err == nil || len(runs) > 0) {
		writeRuns(f.line.Out, runs)
	}

	return errors.Join(err, failed)
}

// newHolder returns a name for this client, which no other client has.
func newHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}

	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}

// wallClock is the rollout.Clock of this machine.
type wallClock struct{}

// Now implements rollout.Clock.
func (wallClock) Now() time.Time { return time.Now() }

// Sleep implements rollout.Clock.
func (wallClock) Sleep(ctx context.Context, d time.Duration) error {
	return retry.Sleep(ctx, d)
}

// runNames lists the runs for the shell's completion, or none if the API server does not answer
// within hintTimeout.
func (p *plugin) runNames() []string {
	ctx, cancel := context.WithTimeout(context.Background(), hintTimeout)
	defer cancel()

	c, err := p.cluster()
	if err != nil {
		return nil
	}

	// After an error, we have the runs that could be read.
	runs, _ := kube.New(c.set, c.namespace).ListRuns(ctx)

	names := make([]string, len(runs))
	for i, run := range runs {
		names[i] = run.Name
	}

	return names
}
