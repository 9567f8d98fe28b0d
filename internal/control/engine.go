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

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// The states of an engine.
const (
	idle     = "idle"
	running  = "running"
	degraded = "degraded"
	stuck    = "stuck"
	readOnly = "read-only"
)

// Engine plans and executes changes of a node's GPUs. Its errors are *api.Problem if the caller's client should see
// them. It is safe for concurrent use.
type Engine struct {
	o        Options
	named    atomic.Pointer[map[string][]api.LayoutRule] // the named layouts that are in force
	plans    plans
	active   activity
	views    *views
	queue    chan *operation // one is accepted at a time
	began    time.Time       // when this process began
	settling sync.WaitGroup  // the operations that wait for the kubelet, or are unsettled

	restarting chan struct{} // has an element while the device plugin is being restarted

	hooking    sync.Mutex // hooks of one operation run at a time; no other lock is taken before
	saving     sync.Mutex // what is written to the state folder: taken before announcing and mu
	cordoning  sync.Mutex // the node is cordoned and uncordoned: taken before saving
	announcing sync.Mutex // serializes reports to the observer: taken before mu

	mu            sync.Mutex
	current       *operation    // accepted or being executed
	cleared       chan struct{} // closed when current becomes nil; nil while nothing waits for that
	reserved      bool          // a request is being checked, and may become the current operation
	operations    []*operation
	layouts       []layout      // of GPUs that operations have changed, for a restore
	restoredBoot  string        // the boot whose restore was begun; unrestored has what is left of it
	unrestored    []*unrestored // GPUs that are to be restored in this boot
	loaded        bool          // the state folder was read
	started       chan struct{} // closed when the first attempt to finish what the last process left is over
	recovering    bool          // what the last process left is being finished
	unusable      string        // why the engine is read-only
	damaged       bool          // the state folder's documents are, and the operator has to accept that
	slotsUsed     bool          // the slots of the state folder have had an operation
	reportedState string        // the state that the observer knows
	unsettled     int           // the number of unsettled operations that was reported last
}

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

	e := &Engine{o: o, views: newViews(o.Now), queue: make(chan *operation, 1), began: o.Now(),
		started: make(chan struct{}), restarting: make(chan struct{}, 1), recovering: true}
	e.SetLayouts(o.Layouts)
	o.Actuator.WatchLayouts(e.views)

	return e, nil
}

// SetLayouts replaces the named layouts for the plans that follow. The caller does not modify them afterwards.
func (e *Engine) SetLayouts(layouts map[string][]api.LayoutRule) { e.named.Store(&layouts) }

// housekeeping is how often observeActivity reads the last Snapshot, and Run looks for operations to retry.
const housekeeping = time.Second

// Run finishes what the last process has left, and then executes what is accepted until ctx ends. An operation that is
// running then is brought to its end first, for as long as the grace period lasts, without waiting for the kubelet.
func (e *Engine) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	defer e.settling.Wait()
	watching.Go(func() { e.observeActivity(ctx) })
	e.recoverOperations(ctx)
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()

	for n := 0; ; n++ {
		if n%30 == 29 {
			e.repairStore()
			e.retryUncordon(ctx)
		}

		if n%5 == 4 {
			e.recoverOperations(ctx)
		}

		if n%60 == 59 {
			e.keepAlive()
		}

		if n%10 == 9 {
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
func (e *Engine) State() string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.state()
}

func (e *Engine) state() string {
	if e.current != nil || e.recovering {
		return running
	}

	if e.unusable != "" {
		return readOnly
	}

	found := map[api.OperationState]bool{}
	for _, op := range e.operations {
		found[op.Operation.State] = true
	}

	switch {
	case found[api.Stuck]:
		return stuck
	case found[api.Degraded]:
		return degraded
	case found[api.Settling]:
		return running
	default:
		return idle
	}
}

// Reason says why the engine is read-only; it is empty if it is not.
func (e *Engine) Reason() string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.unusable
}

// reportState reports a change of the state to the observer, and one of the number of unsettled operations.
func (e *Engine) reportState() {
	e.announcing.Lock()
	defer e.announcing.Unlock()

	e.mu.Lock()
	now := e.state()
	unsettled := e.countUnsettled()
	unrestored := e.listUnrestored()
	isNews := now != e.reportedState
	changed := unsettled != e.unsettled
	e.reportedState = now
	e.unsettled = unsettled
	e.mu.Unlock()

	if isNews && e.o.Observer != nil {
		e.o.Observer.State(now)
	}

	if changed && e.o.Unsettled != nil {
		e.o.Unsettled(unsettled)
	}

	if e.o.Unrestored != nil {
		e.o.Unrestored(unrestored)
	}
}

// setUnusable makes the engine read-only because of its state folder, until repairStore succeeds.
func (e *Engine) setUnusable(err error) {
	e.mu.Lock()
	reason := "the state folder cannot be used: " + stateText(err)

	repeated := e.unusable == reason ||
		e.unusable != "" && errors.Is(err, os.ErrClosed) // why it is closed was said
	if !repeated {
		e.unusable = reason
	}

	e.mu.Unlock()

	if !repeated {
		level.Error(e.o.Logger).Log(
			"msg", "partition control is read-only: cannot use its state folder",
			"err", err,
		)
	}

	e.reportState()
}
