package rival

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// limit bounds what a process may take for anything; nothing depends on how fast it is.
const limit = 2 * time.Minute

// request asks our process for something; the answer comes when it is over.
type request struct {
	Kind string   `json:"kind"`
	Spec api.Spec `json:"spec,omitzero"` // of apply
	ID   string   `json:"id,omitempty"`  // of rollback and accept
}

// The kinds of requests.
const (
	doLook     = "look" // at what the start has made of what it found
	doApply    = "apply"
	doRollback = "rollback" // or try the rollback of a degraded operation again
	doAccept   = "accept"
)

// answer is what came of a request.
type answer struct {
	Refused    *api.Problem    `json:"refused,omitempty"`
	Operation  string          `json:"operation,omitempty"` // that was started
	Operations *api.Operations `json:"operations,omitempty"`
	Error      string          `json:"error,omitempty"` // of the test's own
}

// session is our program on a driver, from its start to its end.
type session struct {
	*program
	hook    *hook
	ctx     context.Context
	stop    context.CancelFunc
	ended   chan error
	sources []*nvmlsource.Source
}

// startSession starts the program. The exporter's own readings do not pass the hook: they are of no
// consequence to operations.
func startSession(lib nvmlsource.Library, h *hook, folder, boot string) (*session, error) {
	logger := log.NewNopLogger()
	if os.Getenv("RIVAL_TEST_LOG") != "" {
		logger = log.NewLogfmtLogger(log.NewSyncWriter(os.Stderr))
	}

	options := nvmlsource.Options{Now: time.Now, Logger: logger}
	seen := nvmlsource.New(lib, options)
	running := &atomic.Bool{}
	changed := nvmlsource.New(hooked{lib, h.after(running)}, options)
	poller := poll.New(seen, poll.Options{
		Hostname: "rival", Grace: limit, Timeout: limit, StaleAfter: limit, Now: time.Now, Logger: logger,
	})
	s := &session{hook: h, ended: make(chan error, 2), sources: []*nvmlsource.Source{seen, changed}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	go func() { s.ended <- poller.Run(s.ctx) }()

	if err := poller.Poll(s.ctx, nil); err != nil {
		return nil, err
	}

	if err := readAll(changed); err != nil {
		return nil, err
	}

	running.Store(true)

	var err error
	if s.program, err = newProgram(folder, boot, observedActuator{changed.Actuator(), h}, poller, logger); err != nil {
		return nil, err
	}

	if err := s.run(s.ctx, s.ended); err != nil {
		return nil, err
	}

	for _, op := range s.engine.Operations().Operations {
		if err := s.wait(op.ID); err != nil {
			return nil, err
		}
	}

	return s, nil
}

// readAll reads every GPU once, as the exporter does with its one source: what a source knows of a
// GPU, control goes by.
func readAll(source *nvmlsource.Source) error {
	inventory, err := source.Discover()
	if err != nil {
		return err
	}

	for _, g := range inventory.GPUs {
		if _, err := source.Read(g.UUID); err != nil {
			return err
		}
	}

	return nil
}

// end stops the program as a signal to it would.
func (s *session) end() error {
	s.stop()

	err := errors.Join(<-s.ended, <-s.ended, s.release())
	for _, source := range s.sources {
		closing, cancel := context.WithTimeout(context.Background(), limit)
		err = errors.Join(err, source.Close(closing))
		cancel()
	}

	return err
}

// do does what is asked for, and waits for the end of it, whatever that is.
func (s *session) do(r request) answer {
	root := control.Actor{Name: "uid:0", Rights: control.Rights{Read: true, Plan: true, Apply: true, Mode: true,
		Force: true}}
	var op *api.Operation
	var err error

	switch r.Kind {
	case doLook:
	case doApply:
		var plan *api.Plan
		if plan, err = s.engine.Plan(s.ctx, root, api.PlanRequest{Spec: r.Spec}); err == nil {
			s.hook.decideAt(point{Kind: planned, Plan: plan})
			op, err = s.engine.Start(s.ctx, root, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
		}
	case doRollback:
		op, err = s.engine.Rollback(s.ctx, root, r.ID)
	case doAccept:
		op, err = accept(s.ctx, s.engine, root, r.ID)
	}

	var a answer
	if op != nil {
		a.Operation = op.ID
		err = s.wait(op.ID)
	}

	if err != nil && !errors.As(err, &a.Refused) {
		a.Error = fmt.Sprintf("%s: %v", r.Kind, err)
	}

	a.Operations = s.engine.Operations()

	return a
}

// wait waits for the end of an operation, or until it waits for an operator.
func (s *session) wait(id string) error {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()

	events, err := s.engine.Events(ctx, id, 0)
	if err != nil {
		return err
	}

	for range events {
	}

	return ctx.Err()
}

func (a observedActuator) Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.GPULayout, map[gpu.UUID]error, error) {
	list, failed, err := a.Actuator.Layouts(ctx, only...)

	var read []int
	for _, g := range list {
		read = append(read, g.Index)
	}

	slices.Sort(read)

	if len(read) > 0 && a.hook.decideAt(point{Kind: wholeRead, Read: read}) == die {
		return nil, nil, gpu.ErrLost
	}

	return list, failed, err
}
