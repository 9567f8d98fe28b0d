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

// Cluster makes a run's requests to the API server. Each of its methods can be called again after a
// crash, with the same result.
type Cluster interface {
	// Cordon cordons a node for a run. It returns false, and changes nothing, if another client has
	// cordoned it.
	Cordon(ctx context.Context, node, run string) (own bool, err error)
	// Uncordon lifts the run's cordon. It leaves a cordon that another client has made since.
	Uncordon(ctx context.Context, node, run string) error
	// Evict evicts the pods, as far as they are on the node, and blocks until they are gone.
	Evict(ctx context.Context, node string, pods []Pod, options Eviction) error
	// Offered returns the numbers of devices, by resource, that the node offers to pods.
	Offered(ctx context.Context, node string) (map[string]int, error)
	// Missing compares the devices that the node has, counted by resource, with those that it
	// offers to pods. It returns a text for each difference: a device that is not offered, or one
	// that is gone and still offered. It returns none if they agree. From before, what the node
	// offered before the change (nil if unknown), it sees whether the node offers devices by profile,
	// as nvidia.com/gpu or by DRA; if it cannot tell, it returns all devices.
	Missing(ctx context.Context, node string, devices map[string]int, before *Offer) ([]string, error)
}

// Exporter makes requests to the nodes' exporters. If an exporter refuses, the error is an
// *api.Problem.
type Exporter interface {
	Plan(ctx context.Context, node string, request api.PlanRequest) (*api.Plan, error)
	Start(ctx context.Context, node string, r api.OperationRequest, key string) (*api.Operation, error)
	Rollback(ctx context.Context, node, operation, key string) (*api.Operation, error)
	Operation(ctx context.Context, node, id string) (*api.Operation, error)
	Operations(ctx context.Context, node string) (*api.Operations, error)
	Inventory(ctx context.Context, node string) (*Inventory, error)
}

// Inventory is what a node has.
type Inventory struct {
	// Devices counts the MIG devices by the resource as which a device plugin offers them.
	Devices map[string]int
	// Indexes has the indexes of the GPUs by UUID, as far as they are known.
	Indexes map[string]int
}

// Store keeps the state of the run, which one client owns at a time.
type Store interface {
	// Save saves the state. It returns ErrLost if another client has saved it since, or may own the
	// run by now.
	Save(ctx context.Context, run *Run) error
	// Held returns ErrLost unless this client certainly owns the run.
	Held() error
}

// Clock is a clock that tests can replace.
type Clock interface {
	Now() time.Time
	// Sleep returns an error if ctx ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

// ErrLost says that another client owns the run, or may own it. This client must not change anything
// further.
var ErrLost = errors.New("this client does not own the run any more")

// ErrRefused is in the chain of errors that no further attempt can cure, such as a missing right or
// a node that does not exist. Refused adds it to an error.
var ErrRefused = errors.New("refused")

type refused struct{ error }

func (r refused) Unwrap() error        { return r.error }
func (r refused) Is(target error) bool { return target == ErrRefused }

// Refused returns an error with the text of err, for which errors.Is finds ErrRefused and whatever
// it finds for err.
func Refused(err error) error { return refused{err} }

// StoppedError says that a run has ended before all of its nodes have their layout.
type StoppedError struct {
	Failed []string // nodes that failed, each with the reason: "gpu-01: no answer"
	Left   int      // number of nodes that were not begun
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
	// Report is called with a node that has a new phase, failure or number of rounds, once that is
	// saved. Calls do not overlap. It may be nil.
	Report func(Node)
}

const (
	pollEvery     = 2 * time.Second // while we wait for a node
	maxRounds     = 5               // a node fails after so many, see Node.Rounds
	errorInterval = 5 * time.Second // between two attempts at a request
)

// execution is one execution of a run.
type execution struct {
	*Engine
	abort context.CancelCauseFunc

	mu       sync.Mutex // guards the fields below, and makes saves follow each other
	run      *Run
	assigned map[int]bool // the indexes of nodes that nextNode has returned
	failing  bool         // a node has failed, so we begin no further one
}

// Execute executes a run until all of its nodes are done, or ctx ends. Once a node has failed, it
// begins no further one, but finishes those in progress. The error is a *StoppedError if nodes have
// failed, ErrLost, or the context's.
func (e *Engine) Execute(ctx context.Context, run *Run) error {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)

	x := &execution{Engine: e, abort: abort, run: run, assigned: map[int]bool{}}

	// A node may have failed before, in an earlier execution of the run.
	for i := range run.Nodes {
		n := &run.Nodes[i]
		x.failing = x.failing || run.concerns(n) && (n.Phase == Failed || n.Failure != "")
	}

	var workers sync.WaitGroup
	for range run.Options.MaxUnavailable {
		workers.Go(func() { x.finishNodes(ctx) })
	}

	workers.Wait()

	if err := context.Cause(ctx); err != nil {
		return err
	}

	return x.outcome()
}

// outcome returns a *StoppedError if nodes have failed, else nil.
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

// finishNodes finishes one node after another, until there is none left.
func (x *execution) finishNodes(ctx context.Context) {
	for ctx.Err() == nil {
		i, ok := x.nextNode()
		if !ok {
			return
		}

		if err := x.finishNode(ctx, i); err != nil {
			x.abort(err)
		}
	}
}

// nextNode returns the index of the next node to work on. Nodes that an earlier execution has begun
// come first: we finish them even if others have failed.
func (x *execution) nextNode() (int, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()

	next := -1

	for i := range x.run.Nodes {
		n := &x.run.Nodes[i]

		if !x.run.concerns(n) || n.Phase.Final() || x.assigned[i] {
			continue
		}

		if n.Phase != Waiting { // an earlier execution has begun it
			x.assigned[i] = true
			return i, true
		}

		if next < 0 && !x.failing {
			next = i
		}
	}

	if next < 0 {
		return 0, false
	}

	x.assigned[next] = true

	return next, true
}

// finishNode takes a node through its phases to the end. It returns an error only if the whole
// execution has to end: the state could not be saved, the run is lost, or ctx has ended.
func (x *execution) finishNode(ctx context.Context, i int) error {
	x.mu.Lock()
	n := x.run.Nodes[i]
	x.mu.Unlock()

	n.since = x.Clock.Now()

	if n.Phase == Evicting {
		// An earlier execution has saved which pods to evict. That may be long ago, and a StatefulSet's
		// new pod has the name of the old one: we ask the exporter again who holds the devices. If
		// this was the last round, it is begun once more.
		n.Phase = Planning
		n.Pods = nil
		n.Rounds = min(n.Rounds, maxRounds-1)
	}

	for !n.Phase.Final() {
		phase := n.Phase

		// The saved state names the phase. If we lose the run now, the next owner does the phase's
		// work.
		if err := x.Store.Held(); err != nil {
			return err
		}

		err := x.doPhase(ctx, &n)
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

// asLost returns err if it says that the run is lost, else nil.
func asLost(err error) error {
	if errors.Is(err, ErrLost) {
		return err
	}

	return nil
}

// save saves the run with the new state of a node, and reports it if there is something new to see.
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

// retry makes a call, and makes it again while its error is temporary, at most for the run's timeout
// after the first call.
func (x *execution) retry(ctx context.Context, call func() error) error {
	var until time.Time

	for {
		err := call()
		now := x.Clock.Now()

		// The timeout counts from the end of the first call, since evictions take long.
		if until.IsZero() {
			until = now.Add(x.run.Options.Timeout)
		}

		if err == nil || !isTemporary(err) || !now.Before(until) {
			return err
		}

		if err := x.Clock.Sleep(ctx, errorInterval); err != nil {
			return err
		}
	}
}

// isTemporary reports whether another attempt may succeed. Of an exporter's problems only these are
// temporary; of all other errors, such as a lost connection, all but a refusal, a lost run and the
// end of a context.
func isTemporary(err error) bool {
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
