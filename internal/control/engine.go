package control

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// The states of an engine.
const (
	idle     = "idle"
	running  = "running"
	degraded = "degraded"
	stuck    = "stuck"
	readOnly = "read-only"
)

// Engine plans and executes changes of a node's GPUs. Its errors are *api.Problem if the caller's
// client should see them. It is safe for concurrent use.
type Engine struct {
	o         Options
	named     atomic.Pointer[namedLayouts] // the latest
	plans     plans
	active    activity
	views     *views
	state     *state
	queue     chan *operation // accepted, to be executed by Run; at most one
	reports   chan func()     // calls of observers that are due
	began     time.Time       // when this process began
	started   chan struct{}   // closed when the first attempt to finish what the last process left is over
	stopped   chan struct{}   // closed when Run has to return: lastSave after its grace period
	following sync.WaitGroup  // goroutines of settling and unsettled operations

	// Calls that can hang are made by one goroutine at a time; the others wait no longer than their
	// contexts. Lock order: cordoning before saving.
	hooking    turn
	restarting turn // the device plugin
	cordoning  turn
	saving     turn
	storeHangs atomic.Bool // the store call that has the turn saving was abandoned
}

// turn is held by one goroutine at a time, from take to release.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) release() { <-t }

func (t turn) isTaken() bool { return len(t) > 0 }

// New returns an Engine, which does nothing until Run is called.
func New(o Options) (*Engine, error) {
	if o.Actuator == nil || o.Poller == nil || o.Store == nil {
		return nil, errors.New("control: an actuator, a poller and a store are required")
	}

	if o.CallTimeout <= 0 {
		return nil, errors.New("control: a call timeout is required")
	}

	if o.Now == nil {
		o.Now = time.Now
	}

	if o.Logger == nil {
		o.Logger = log.NewNopLogger()
	}

	e := &Engine{
		o:          o,
		views:      newViews(o.Now),
		state:      &state{book: book{recovering: true}},
		queue:      make(chan *operation, 1),
		reports:    make(chan func(), maxReports),
		began:      o.Now(),
		started:    make(chan struct{}),
		stopped:    make(chan struct{}),
		hooking:    newTurn(),
		restarting: newTurn(),
		cordoning:  newTurn(),
		saving:     newTurn(),
	}
	e.SetLayouts(o.Layouts)
	o.Actuator.WatchLayouts(e.views)

	return e, nil
}

// housekeeping is how often observeActivity reads the last Snapshot, and Run looks for operations
// to retry.
const housekeeping = time.Second

// Run does some work only in every nth pass of its loop. A pass takes as long as housekeeping, or
// ends earlier if an operation is accepted.
const (
	passesPerRecovery  = 5
	passesPerRestore   = 10
	passesPerRepair    = 30
	passesPerKeepAlive = 60
)

// Run finishes what the last process has left, and then executes what is accepted until ctx ends.
// It first brings the operation that is running then to its end, for as long as the grace period
// lasts, without waiting for the kubelet.
func (e *Engine) Run(ctx context.Context) error {
	graceCtx, cancel := withGrace(ctx)
	defer cancel()

	// When the grace period is over, lastSave remains for outcomes. Then calls that hang are given
	// up.
	runCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(graceCtx, func() {
		_ = retry.Sleep(runCtx, lastSave)
		close(e.stopped)
	})()

	defer e.startReporting()()

	var observing sync.WaitGroup
	defer observing.Wait()
	defer e.following.Wait()
	observing.Go(func() { e.observeActivity(ctx) })
	e.recoverOperations(ctx)
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()

	for pass := 1; ; pass++ {
		if pass%passesPerRepair == 0 {
			e.repairStore()
			e.retryUncordon(ctx)
		}

		if pass%passesPerRecovery == 0 {
			e.recoverOperations(ctx)
		}

		if pass%passesPerKeepAlive == 0 {
			e.keepAlive()
		}

		if pass%passesPerRestore == 0 {
			e.restoreLater(ctx)
		}

		e.watchUnsettled(ctx)
		e.retryDegraded(ctx)

		select {
		case <-ctx.Done():
			e.keepAlive()
			return nil
		case op := <-e.queue:
			e.executeOperation(ctx, op)
		case <-tick.C:
		}
	}
}

// observeActivity records which instances are active, also while an operation is being executed.
func (e *Engine) observeActivity(ctx context.Context) {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()

	for ctx.Err() == nil {
		s := e.o.Poller.Current()
		e.active.observe(s)
		e.views.observe(s)

		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// State is "idle", "running", "degraded", "stuck" or "read-only".
func (e *Engine) State() string { return read(e.state, (*book).status) }

// Reason says why the engine is read-only; it is empty if it is not.
func (e *Engine) Reason() string {
	return read(e.state, func(b *book) string { return b.readOnlyReason })
}

// setUnusable makes the engine read-only because of its state folder, until repairStore succeeds.
func (e *Engine) setUnusable(err error) {
	reason := "the state folder cannot be used: " + stateText(err)
	news := false

	e.state.update(func(b *book) {
		// os.ErrClosed follows from the error that made us close the folder: b.readOnlyReason has that.
		news = b.readOnlyReason != reason &&
			(b.readOnlyReason == "" || !errors.Is(err, os.ErrClosed))
		if news {
			b.readOnlyReason = reason
		}
	})

	if news {
		level.Error(e.o.Logger).Log(
			"msg", "partition control is read-only: cannot use its state folder",
			"err", err,
		)
	}

	e.reportState()
}
