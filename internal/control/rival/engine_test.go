package rival

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/store"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// This file has everything that the tests know of how an engine is created and run.

// stateFolder is where an engine keeps what outlives it, in the folder of a node.
const stateFolder = "state"

// program is an engine over its state on disk.
type program struct {
	engine *control.Engine
	store  *store.Store
	ready  *readiness
}

func newProgram(folder, boot string, a control.Actuator, node *poll.Poller, logger log.Logger) (*program, error) {
	p := &program{store: store.New(folder), ready: &readiness{is: make(chan struct{})}}
	var err error
	p.engine, err = control.New(control.Options{
		Hostname: "rival", BootID: boot, Apply: true, Actuator: a, Poller: node, Store: p.store, Observer: p.ready,
		CallTimeout: limit, Now: time.Now, Logger: logger,
	})

	return p, err
}

// run runs the engine, and returns when it has finished what the last process left.
func (p *program) run(ctx context.Context, ended chan<- error) error {
	go func() { ended <- p.engine.Run(ctx) }()

	select {
	case <-p.ready.is:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(limit):
		return errors.New("the engine has not become ready")
	}
}

func (p *program) release() error { return p.store.Close() }

// readiness is closed when the engine has finished what the last process left.
type readiness struct {
	once sync.Once
	is   chan struct{}
}

func (*readiness) Operation(api.Verb, string, time.Duration) {}

func (r *readiness) State(state string) {
	if state != "running" {
		r.once.Do(func() { close(r.is) })
	}
}

// accept closes an operation that is degraded, with the current layout.
func accept(ctx context.Context, e *control.Engine, by control.Actor, id string) (*api.Operation, error) {
	return e.Accept(ctx, by, id)
}

// observedActuator passes the layouts that the engine reads to the hook.
type observedActuator struct {
	*nvmlsource.Actuator
	hook *hook
}

func (i hookedInstance) GetComputeInstancesOf(profile uint32,
	capacity int) ([]nvmlsource.ComputeInstance, nvml.Return) {
	p := i.at(listCIs)
	p.Slices = map[uint32]int{0: 1, 1: 2, 2: 3, 3: 4, 4: 7}[profile]

	list, ret := read(i.device.hook, p, func() ([]nvmlsource.ComputeInstance, nvml.Return) {
		return i.MutableInstance.GetComputeInstancesOf(profile, capacity)
	})
	for k := range list {
		info, _ := list[k].GetInfo()
		list[k] = hookedCompute{list[k], i, info.ID}
	}

	return list, ret
}
