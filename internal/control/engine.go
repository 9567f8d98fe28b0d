package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-kit/log"

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

// Engine plans and executes changes of a node's GPUs. Its errors are *api.Problem where whoever asks should see them. It is
// safe for concurrent use.
type Engine struct {
	o      Options
	plans  plans
	active activity
	queue  chan *operation // one is accepted at a time

	journaling sync.Mutex // appending, and what is to be known for a compaction: taken before telling and mu
	telling    sync.Mutex // the observer, of one state after the other: taken before mu

	mu         sync.Mutex
	appended   int        // records in the journal
	current    *operation // accepted or being executed
	reserved   bool       // a request is being checked, and may become the current operation
	operations []*operation
	committed  []layout // of GPUs that operations have cut, for a restore
	boot       string   // of which the journal knows that its restore is over
	cordoned   string   // the operation that has cordoned the node, where it still is
	unusable   string   // why the engine is read-only
	corrupt    bool     // the journal cannot be mended by this program
	restoring  bool     // a restore is due
	shown      string   // state that the observer knows
}

// New makes an engine over its neighbours. Recover comes next, then Run.
func New(o Options) (*Engine, error) {
	if o.Actuator == nil || o.Node == nil || o.Journal == nil {
		return nil, errors.New("control: an actuator, a node and a journal are required")
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
	return &Engine{o: o, queue: make(chan *operation, 1)}, nil
}

// housekeeping is how often Run looks at the last Snapshot, and whether a journal that could not be written can be now.
const housekeeping = time.Second

// Run executes what is accepted until ctx ends. An operation that is running then is brought to its end first, without
// waiting for the kubelet any more.
func (e *Engine) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { e.watch(ctx) })
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for n := 0; ; n++ {
		e.unstick(ctx)
		if n%30 == 29 {
			e.mend()
			e.reopen(ctx)
		}
		if n%10 == 9 {
			e.restoreLater(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case op := <-e.queue:
			e.execute(ctx, op)
		case <-tick.C:
		}
	}
}

// watch notes which instances are active, also while an operation is being executed.
func (e *Engine) watch(ctx context.Context) {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for ctx.Err() == nil {
		e.active.observe(e.o.Node.Current())
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
	switch {
	case e.current != nil:
		return running
	case e.unusable != "":
		return readOnly
	}
	if op := e.waiting(); op != nil {
		if op.doc.State == api.Stuck {
			return stuck
		}
		return degraded
	}
	return idle
}

// waiting is the operation whose roll-back has to be tried again.
func (e *Engine) waiting() *operation {
	for _, op := range e.operations {
		if op.doc.State == api.Degraded || op.doc.State == api.Stuck {
			return op
		}
	}
	return nil
}

// announce tells the observer of a change of state.
func (e *Engine) announce() {
	e.telling.Lock()
	defer e.telling.Unlock()
	e.mu.Lock()
	now := e.state()
	told := now == e.shown
	e.shown = now
	e.mu.Unlock()
	if !told && e.o.Observer != nil {
		e.o.Observer.State(now)
	}
}

// reserve keeps the place of the one operation for a request that is being checked. again is the operation whose roll-back
// is to be retried; without it the node must be in order.
func (e *Engine) reserve(again *operation) *api.Problem {
	if e.mend(); again != nil {
		return e.take(again)
	}
	return e.take(nil)
}

func (e *Engine) take(again *operation) *api.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.current != nil:
		p := problemf(api.InProgress, "operation %s (%s) is %s", e.current.doc.ID, e.current.doc.Verb, e.current.doc.State)
		p.Operation = e.current.doc.ID
		return p
	case e.reserved:
		return problemf(api.InProgress, "another request is being checked; try again")
	case e.unusable != "":
		return problemf(api.ReadOnly, "%s", e.unusable)
	}
	if op := e.waiting(); op != nil && op != again {
		kind, text := api.DegradedNode, "operation %s could not be rolled back: ask for its roll-back again first"
		if op.doc.State == api.Stuck {
			kind, text = api.StuckNode, "a driver call of operation %s has not returned: ask for its roll-back once the driver answers"
		}
		p := problemf(kind, text, op.doc.ID)
		p.Operation = op.doc.ID
		return p
	}
	e.reserved = true
	return nil
}

func (e *Engine) release() {
	e.mu.Lock()
	e.reserved = false
	e.mu.Unlock()
}
