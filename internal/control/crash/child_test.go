package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/store"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// The roles of a child process.
const (
	roleOperate = "operate" // recover, then do the operation of the file "operation.json"
	roleRecover = "recover" // recover alone
)

// task is what a child is to do: one of a spec and a mode.
type task struct {
	Spec api.Spec  `json:"spec"`
	Mode *modeTask `json:"mode,omitempty"`
}

type modeTask struct {
	GPU     int  `json:"gpu"` // by index
	Enabled bool `json:"enabled"`
}

// report is what a child says at its end.
type report struct {
	Points     []string        `json:"points"` // all that it has passed
	Changes    int             `json:"changes"`
	State      string          `json:"state"`
	Operations []api.Operation `json:"operations"`
}

// killer counts the points of a process, and kills it at one.
type killer struct {
	at     int
	mu     sync.Mutex
	points []string
}

func (k *killer) pass(point string) {
	k.mu.Lock()
	defer k.mu.Unlock()

	k.points = append(k.points, point)
	if len(k.points) == k.at {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)

		select {} // the signal is on its way
	}
}

// killedStore and killedActuator have a point before and one after everything that lasts.
type killedStore struct {
	*store.Store
	killer *killer
}

func (s killedStore) SaveOperation(document []byte) error {
	point := "save of an operation that is " + stateOf(document)
	s.killer.pass("before the " + point)
	defer s.killer.pass("after the " + point)

	return s.Store.SaveOperation(document)
}

// stateOf is the state of the operation in a document.
func stateOf(document []byte) string {
	var record struct{ Operation struct{ State string } }
	if json.Unmarshal(document, &record) != nil {
		return "unreadable"
	}

	return record.Operation.State
}

func (s killedStore) SaveHistory(document []byte) error {
	s.killer.pass("before the save of the history")
	defer s.killer.pass("after the save of the history")

	return s.Store.SaveHistory(document)
}

type killedActuator struct {
	control.Actuator
	killer  *killer
	changes *int
}

func (a killedActuator) PerformStep(ctx context.Context, s mig.Step, expected []mig.Instance) (mig.Outcome, error) {
	a.killer.pass("before " + string(s.Op))
	defer a.killer.pass("after " + string(s.Op))
	*a.changes++

	return a.Actuator.PerformStep(ctx, s, expected)
}

func (a killedActuator) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (mig.ModeChange, error) {
	a.killer.pass("before mode")
	defer a.killer.pass("after mode")
	*a.changes++

	return a.Actuator.SetMIGMode(ctx, id, on)
}

// readiness is closed when an engine is ready for operations.
type readiness chan struct{}

func (r readiness) Operation(api.Verb, string, time.Duration) {}

func (r readiness) State(state string) {
	if state == "running" {
		return
	}

	select {
	case <-r:
	default:
		close(r)
	}
}

// play is a process of partition control on the simulated driver, from its start to the end of its
// role.
func play(role string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	dir := os.Getenv(dirVariable)

	at, err := strconv.Atoi(os.Getenv(pointVariable))
	if err != nil {
		return err
	}

	kill := &killer{at: at}
	logger := log.NewLogfmtLogger(log.NewSyncWriter(os.Stderr))
	source := nvmlsource.New(nvmlsource.Open(filepath.Join(dir, "libnvidia-ml.so.1")),
		nvmlsource.Options{Now: time.Now, Logger: logger})
	poller := poll.New(source, poll.Options{
		Hostname: "crash", Grace: callTimeout, Timeout: callTimeout, StaleAfter: callTimeout, Now: time.Now, Logger: logger,
	})
	folder := store.New(filepath.Join(dir, "state"))
	ready := make(readiness)
	var r report

	engine, err := control.New(control.Options{
		Hostname: "crash", BootID: os.Getenv(bootVariable), Apply: true,
		Actuator: killedActuator{source.Actuator(), kill, &r.Changes}, Poller: poller, Store: killedStore{folder, kill},
		Observer:    ready,
		CallTimeout: callTimeout, Now: time.Now, Logger: logger,
	})
	if err != nil {
		return err
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- poller.Run(ctx) }()

	if err := poller.Poll(ctx, nil); err != nil {
		return err
	}

	go func() { ended <- engine.Run(ctx) }()
	<-ready

	if role == roleOperate {
		if err := operate(ctx, engine, poller.Current(), filepath.Join(dir, "operation.json")); err != nil {
			return err
		}
	}

	for _, op := range engine.Operations().Operations {
		if err := waitFor(ctx, engine, op.ID); err != nil {
			return err
		}
	}

	r.State, r.Operations = engine.State(), engine.Operations().Operations
	stop()
	// The source is not closed: that waits for the driver's events, and the process ends.
	if err := errors.Join(<-ended, <-ended, folder.Close()); err != nil {
		return err
	}

	r.Points = kill.points

	return json.NewEncoder(os.Stdout).Encode(r)
}

// operate does what the file says and waits for its end, however that is.
func operate(ctx context.Context, engine *control.Engine, snapshot *gpu.Snapshot, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}

	var todo task
	if err := json.Unmarshal(data, &todo); err != nil {
		return err
	}

	root := control.Actor{Name: "uid:0", Rights: control.Rights{Read: true, Plan: true, Apply: true, Mode: true,
		Force: true, TakeOver: true}}

	var op *api.Operation
	if todo.Mode != nil {
		op, err = engine.SetMode(ctx, root, snapshot.GPUs[todo.Mode.GPU].UUID, api.ModeRequest{Enabled: todo.Mode.Enabled})
	} else {
		var plan *api.Plan
		if plan, err = engine.Plan(ctx, root, api.PlanRequest{Spec: todo.Spec}); err != nil {
			return fmt.Errorf("plan: %w", err)
		}

		op, err = engine.Start(ctx, root, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
	}

	if err != nil {
		return fmt.Errorf("start: %w", err)
	}

	return waitFor(ctx, engine, op.ID)
}

// waitFor waits for the end of an operation.
func waitFor(ctx context.Context, engine *control.Engine, id string) error {
	events, err := engine.Events(ctx, id, 0)
	if err != nil {
		return err
	}

	for range events {
	}

	return ctx.Err()
}
