package control

import (
	"context"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Engine plans and executes changes of a node's GPUs. Its errors are *api.Problem where whoever asks should see them. It is
// safe for concurrent use.
type Engine struct {
	o  Options
	mu sync.Mutex
}

// New makes an engine over its neighbours. Recover comes next, then Run.
func New(o Options) (*Engine, error) { return &Engine{o: o}, nil }

// Recover reads the journal and finishes what a crash has left, by commit or roll-back. It is called once, before anything
// else. That a roll-back fails, or that the journal is unreadable, is a state of the engine and no error.
func (e *Engine) Recover(ctx context.Context) error { return nil }

// Run executes what is accepted until ctx ends. An operation that is running then is brought to its end first.
func (e *Engine) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Plan says what would have to be done for a spec. It changes nothing.
func (e *Engine) Plan(ctx context.Context, by Actor, r api.PlanRequest) (*api.Plan, error) {
	return nil, nil
}

// PlanByID finds a plan made by this process.
func (e *Engine) PlanByID(id string) (*api.Plan, error) { return nil, nil }

// Layouts lists the named layouts that the node knows.
func (e *Engine) Layouts(ctx context.Context) (*api.Layouts, error) { return nil, nil }

// Start accepts a plan for execution, if its hash is the one given and still holds. When it returns, the operation is in
// the journal.
func (e *Engine) Start(ctx context.Context, by Actor, r api.OperationRequest) (*api.Operation, error) {
	return nil, nil
}

// Rollback leads back to the layout before an operation that has succeeded, as an operation of its own; or tries again to
// roll back one that is degraded or stuck.
func (e *Engine) Rollback(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	return nil, nil
}

// SetMode asks for a MIG mode of a GPU without instances. It never resets the GPU.
func (e *Engine) SetMode(ctx context.Context, by Actor, id gpu.UUID, r api.ModeRequest) (*api.Operation, error) {
	return nil, nil
}

// Operation finds an operation.
func (e *Engine) Operation(id string) (*api.Operation, error) { return nil, nil }

// Operations lists those that are kept, the latest first.
func (e *Engine) Operations() *api.Operations { return &api.Operations{APIVersion: api.Version} }

// Events delivers the news of an operation with a Seq above after, those that were first. The channel is closed at the
// operation's end or with ctx. A reader that is slow delays nobody.
func (e *Engine) Events(ctx context.Context, id string, after int) (<-chan api.Event, error) {
	return nil, nil
}

// State is "idle", "running", "degraded", "stuck" or "read-only".
func (e *Engine) State() string { return "idle" }
