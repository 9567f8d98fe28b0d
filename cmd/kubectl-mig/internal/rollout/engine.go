package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// Cluster is what a run does by the API server. Each of its changes can be repeated.
type Cluster interface {
	// Cordon cordons a node for a run. It reports false, and changes nothing, if another client has
	// cordoned it.
	Cordon(ctx context.Context, node, run string) (own bool, err error)
	// Uncordon lifts the cordon that the run has made. It leaves one that another client has made
	// since.
	Uncordon(ctx context.Context, node, run string) error
	// Evict evicts those of the pods that are on the node, and returns when they are gone.
	Evict(ctx context.Context, node string, pods []Pod, options Eviction) error
	// Offered returns the numbers of devices, by resource, that the node offers to pods.
	Offered(ctx context.Context, node string) (map[string]int, error)
	// Missing returns those of the devices, counts by resource, that the node does not offer to
	// pods, and what it still offers besides. What it had before the change, or nil, says how it
	// offers devices.
	Missing(ctx context.Context, node string, devices map[string]int, before *Offer) ([]string, error)
}

// Exporter is the exporters of the nodes. Its errors are *api.Problem if an exporter refuses.
type Exporter interface {
	Plan(ctx context.Context, node string, request api.PlanRequest) (*api.Plan, error)
	Start(ctx context.Context, node string, r api.OperationRequest, key string) (*api.Operation, error)
	Rollback(ctx context.Context, node, operation, key string) (*api.Operation, error)
	Operation(ctx context.Context, node, id string) (*api.Operation, error)
	Operations(ctx context.Context, node string) (*api.Operations, error)
	// Devices counts the MIG devices of the node by the resources that they are offered as.
	Devices(ctx context.Context, node string) (map[string]int, error)
}

// Store keeps the state of the run, which one client owns at a time.
type Store interface {
	// Save saves the state. It returns ErrLost if another client has saved it since, or may own it
	// by now.
	Save(ctx context.Context, run *Run) error
	// Held returns ErrLost unless this client owns the run.
	Held() error
}

// Clock is the time.
type Clock interface {
	Now() time.Time
	// Sleep returns an error if ctx ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

// ErrLost says that another client owns the run, or may own it: this one does nothing further.
var ErrLost = errors.New("this client does not own the run any more")

// ErrRefused is what an error is (errors.Is) that no second attempt can cure, such as a right that
// is missing or a node that does not exist. Refused makes an error one.
var ErrRefused = errors.New("refused")

type refused struct{ error }

func (r refused) Unwrap() error        { return r.error }
func (r refused) Is(target error) bool { return target == ErrRefused }

// Refused returns the error, with its text, as one that no second attempt can cure.
func Refused(err error) error { return refused{err} }

// StoppedError says that a run has ended before all of its nodes have their layout.
type StoppedError struct {
	Failed []string // each with its reason
	Left   int      // nodes that were not begun
}

func (e *StoppedError) Error() string {
	text := "failed: " + strings.Join(e.Failed, "; ")
	if e.Left > 0 {
		text += fmt.Sprintf("; %d more nodes were not begun", e.Left)
	}

	return text
}

// Engine executes runs.
type Engine struct {
	Cluster  Cluster
	Exporter Exporter
	Store    Store
	Clock    Clock
	// Report is called after each change of a node, for one at a time, but not for each attempt to
	// start an operation.
	Report func(Node)
}

const (
	pollEvery     = 2 * time.Second
	maxRounds     = 5 // of evictions, while new pods come
	errorInterval = 5 * time.Second
)

// execution is one execution of a run.
type execution struct {
	*Engine
	abort context.CancelCauseFunc

	mu      sync.Mutex // guards what follows, and orders what is saved
	run     *Run
	taken   map[int]bool // nodes that a worker has, or has had
	failing bool         // no further node is begun
}

// Execute goes on with a run until its nodes are done, one has failed, or ctx ends. Nodes in
// progress are finished after a failure of another one. The error is a *StoppedError if nodes have
// failed, ErrLost, or the context's.
func (e *Engine) Execute(ctx context.Context, run *Run) error {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)

	x := &execution{Engine: e, abort: abort, run: run, taken: map[int]bool{}}

	for i := range run.Nodes {
		n := &run.Nodes[i]
		x.failing = x.failing || run.concerns(n) && (n.Phase == Failed || n.Failure != "")
	}

	var workers sync.WaitGroup
	for range run.Options.MaxUnavailable {
		workers.Go(func() { x.work(ctx) })
	}

	workers.Wait()

	if err := context.Cause(ctx); err != nil {
		return err
	}

	return x.outcome()
}

// outcome returns the error of a run that has come to its end.
func (x *execution) outcome() error {
	stopped := &StoppedError{}

	for i := range x.run.Nodes {
		n := &x.run.Nodes[i]

		switch {
		case x.run.isLeftOut(n):
			stopped.Failed = append(stopped.Failed, n.Name+": it is left out of the rollback and stays cordoned: "+
				n.Failure)
		case !x.run.concerns(n):
		case n.Phase == Failed:
			stopped.Failed = append(stopped.Failed, n.Name+": "+n.Failure)
		case !n.Phase.Final():
			stopped.Left++
		}
	}

	if len(stopped.Failed) == 0 {
		return nil
	}

	return stopped
}

// work takes one node after another to its end.
func (x *execution) work(ctx context.Context) {
	for ctx.Err() == nil {
		i, ok := x.take()
		if !ok {
			return
		}

		if err := x.finish(ctx, i); err != nil {
			x.abort(err)
		}
	}
}

// take returns the index of the next node to work on: first those that an earlier execution has
// begun, which are finished even if others have failed.
func (x *execution) take() (int, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()

	next := -1

	for i := range x.run.Nodes {
		n := &x.run.Nodes[i]

		switch {
		case !x.run.concerns(n) || n.Phase.Final() || x.taken[i]:
		case n.Phase != Waiting:
			x.taken[i] = true
			return i, true
		case next < 0 && !x.failing:
			next = i
		}
	}

	if next < 0 {
		return 0, false
	}

	x.taken[next] = true

	return next, true
}

// finish takes a node to its end. The error is of the whole execution: the state could not be
// saved, the run is lost, or ctx has ended.
func (x *execution) finish(ctx context.Context, i int) error {
	x.mu.Lock()
	n := x.run.Nodes[i]
	x.mu.Unlock()

	n.since = x.Clock.Now()

	if n.Phase == Evicting {
		// The list may be old: since it was saved, other pods of these names may have come, which hold
		// none of the devices. The exporter is asked again.
		n.Phase = Planning
		n.Pods = nil
		n.Rounds = min(n.Rounds, maxRounds-1)
	}

	for !n.Phase.Final() {
		phase := n.Phase

		// The state that is saved names the deed, for the next owner of the run as well.
		if err := x.Store.Held(); err != nil {
			return err
		}

		err := x.do(ctx, &n)
		if stop := cmp.Or(context.Cause(ctx), asLost(err)); stop != nil {
			return stop
		}

		if err != nil {
			n.fail(err)
		}

		if n.Phase != phase {
			n.since = x.Clock.Now()
		}

		if err := x.save(ctx, i, n); err != nil {
			return err
		}
	}

	return nil
}

// asLost returns the error if the run is lost.
func asLost(err error) error {
	if errors.Is(err, ErrLost) {
		return err
	}

	return nil
}

// save saves what has become of a node.
func (x *execution) save(ctx context.Context, i int, n Node) error {
	x.mu.Lock()
	defer x.mu.Unlock()

	was := x.run.Nodes[i]
	n.Changed = x.Clock.Now().UTC()
	x.run.Nodes[i] = n
	x.failing = x.failing || n.Failure != ""

	err := x.retry(ctx, func() error { return x.Store.Save(ctx, x.run) })
	if err != nil {
		return fmt.Errorf("save the run: %w", err)
	}

	isNew := n.Phase != was.Phase || n.Rounds != was.Rounds || n.Failure != was.Failure
	if x.Report != nil && isNew {
		x.Report(n)
	}

	return nil
}

// retry calls until there is no error, none that another attempt can cure, or it has failed for too
// long.
func (x *execution) retry(ctx context.Context, call func() error) error {
	var until time.Time

	for {
		err := call()
		now := x.Clock.Now()

		if until.IsZero() { // the first call may have taken long, and evictions do
			until = now.Add(x.run.Options.Timeout)
		}

		if err == nil || !temporary(err) || !now.Before(until) {
			return err
		}

		if err := x.Clock.Sleep(ctx, errorInterval); err != nil {
			return err
		}
	}
}

// temporary reports whether another attempt may cure an error: the exporter or the API server does
// not answer, or cannot now.
func temporary(err error) bool {
	var p *api.Problem
	if errors.As(err, &p) {
		switch p.Type {
		case api.RateLimited, api.Unavailable, api.InProgress, api.Internal:
			return true
		}

		return false
	}

	return !errors.Is(err, ErrLost) && !errors.Is(err, ErrRefused) &&
		!errors.Is(err, context.Canceled)
}
