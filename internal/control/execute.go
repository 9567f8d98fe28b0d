package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// grace is how long what is under way may go on once the program is to end: well within the time that a service manager
// gives it. What has not come to an end by then is left to the next start, as after a crash.
const grace = 7 * time.Second

// lasting is a context that ends grace after ctx.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	safe, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		wait(safe, grace)
		cancel()
	})
	return safe, func() { stop(); cancel() }
}

// leave leaves an operation to the next start where there is no time left: the journal has all that it needs.
func (e *Engine) leave(ctx context.Context, op *operation) bool {
	if ctx.Err() == nil {
		return false
	}
	level.Warn(e.o.Logger).Log("msg", "An operation is left to the next start", "operation", op.doc.ID)
	e.update(op, "note", "the exporter stops; its next start finishes this", nil)
	return true
}

// execute brings the current operation to an end, or to where it waits for an operator. A ctx that ends makes it hurry.
func (e *Engine) execute(ctx context.Context, op *operation) {
	defer e.rest(op)
	safe, cancel := lasting(ctx)
	defer cancel()
	switch op.task {
	case doSteps:
		e.apply(safe, op)
	case doUndo:
		e.undo(safe, op, nil)
	case doMode:
		e.mode(safe, op)
	case doSettle:
	}
	if op.verified {
		e.settle(ctx, safe, op)
	}
}

// rest makes room for the next operation.
func (e *Engine) rest(op *operation) {
	e.mu.Lock()
	op.live = false
	e.current = nil
	close(op.news)
	op.news = make(chan struct{})
	crowd := e.appended > crowded && e.unusable == ""
	e.mu.Unlock()
	if crowd {
		if err := e.compact(); err != nil {
			level.Warn(e.o.Logger).Log("msg", "The journal of partition control could not be shortened", "err", err)
		}
	}
	e.announce()
}

// apply does the steps and verifies what came of them, or rolls back.
func (e *Engine) apply(ctx context.Context, op *operation) {
	e.update(op, "state", "running", func(d *api.Operation) { d.State = api.Running })
	err := e.cordon(ctx, op)
	for n := 0; n < len(op.doc.Steps) && err == nil; n++ {
		if err = e.do(ctx, op, n); err != nil {
			err = &stepError{step: op.doc.Steps[n].Step, err: err}
		}
	}
	if err == nil {
		err = e.verify(ctx, op.begun.After)
	}
	if err == nil {
		err = e.commit(op)
	}
	if err != nil {
		e.undo(ctx, op, err)
	}
}

// commit is the point after which an operation is not rolled back any more.
func (e *Engine) commit(op *operation) error {
	if err := e.append(op, entry{Kind: entryPhase, Phase: api.Settling}); err != nil {
		return err
	}
	op.verified, op.phase = true, api.Settling
	return nil
}

// do does one step of an operation: it is journaled before and after.
func (e *Engine) do(ctx context.Context, op *operation, n int) error {
	s := op.doc.Steps[n].Step
	if err := e.append(op, entry{Kind: entryIntent, Step: &s, Number: n}); err != nil {
		return err
	}
	op.intend(s)
	e.updateStep(op, n, "running", "begun", nil)
	done, err := e.persist(ctx, s, op.begun.Force, false)
	outcome := entry{Kind: entryOutcome, Number: n, Done: &done}
	if err != nil {
		outcome.Done, outcome.Error = nil, err.Error()
		if outcome.Taken = creates(s) && errors.Is(err, gpu.ErrInsufficientResources); outcome.Taken {
			delete(op.made, placeOf(s))
		}
		e.updateStep(op, n, "failed", failureText(err), func(o *api.OperationStep) { o.Error = failureText(err) })
	} else {
		e.updateStep(op, n, "done", "done", func(o *api.OperationStep) { o.Done = &done })
	}
	if written := e.append(op, outcome); written != nil && !hung(err) {
		return written
	}
	return err
}

// intend notes that a step was begun: what it makes is the operation's, what it destroys the operation's to restore.
func (op *operation) intend(s mig.Step) {
	if creates(s) {
		op.made[placeOf(s)] = true
	} else {
		op.gone[placeOf(s)] = true
	}
}

const (
	tries = 4
	pause = 250 * time.Millisecond // before the second try; it doubles
)

// persist does a step. A GPU instance can be in use for a moment after its compute instances are gone: a destruction is tried
// again, and each try checks anew whether it is busy. A creation is not, since it may have been done.
// own says that the operation itself has made what is to be destroyed.
func (e *Engine) persist(ctx context.Context, s mig.Step, force []string, own bool) (mig.Done, error) {
	for n := 1; ; n++ {
		done, err := e.once(ctx, s, force, own)
		if err == nil || creates(s) || !errors.Is(err, gpu.ErrInUse) || n == tries {
			return done, err
		}
		wait(ctx, pause<<(n-1))
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (e *Engine) once(ctx context.Context, s mig.Step, force []string, own bool) (mig.Done, error) {
	if !creates(s) {
		if err := e.recheck(ctx, s, force, own); err != nil {
			return mig.Done{}, err
		}
	}
	call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	return e.o.Actuator.Do(call, s)
}

// recheck makes sure, right before a destruction, that what stands there is what the step means, and that nobody holds it.
// What the last poll says of activity counts for compute instances that stood before the operation: what the operation has
// made the poll may not have seen yet, and nothing is active where no compute instance is any more.
func (e *Engine) recheck(ctx context.Context, s mig.Step, force []string, own bool) error {
	c, err := e.look(ctx, s.GPU)
	if err != nil {
		return err
	}
	g, err := c.gpu(s.GPU)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(g.Instances, func(i mig.NodeInstance) bool { return i.Placement == s.Placement && i.ProfileID == s.ProfileID })
	if at < 0 || g.Instances[at].ID != s.Instance.Or(g.Instances[at].ID) {
		return fmt.Errorf("GPU instance is not there any more, somebody else is at work: %w", gpu.ErrNotFound)
	}
	i := g.Instances[at]
	if s.Op == mig.DestroyInstance && len(i.Computes) > 0 {
		return fmt.Errorf("GPU instance has compute instances that somebody else made: %w", gpu.ErrInUse)
	}
	if s.Op == mig.DestroyCompute && !slices.ContainsFunc(i.Computes, func(ci mig.NodeCompute) bool {
		return ci.ID == s.ComputeID.Or(ci.ID) && ci.UUID == s.UUID && ci.Placement == s.Compute
	}) {
		return fmt.Errorf("compute instance is not there any more, somebody else is at work: %w", gpu.ErrNotFound)
	}
	e.askLastPoll(ctx, c, g, s.Op == mig.DestroyCompute && !own)
	if blocking := c.blockedBy(g, i, s, force); blocking != nil {
		return blocking
	}
	return nil
}

// blockedBy is a problem where someone holds what a step would destroy.
func (c *census) blockedBy(g mig.NodeGPU, i mig.NodeInstance, s mig.Step, force []string) error {
	holds := c.busy(g, i, s, force)
	if len(holds) == 0 {
		return nil
	}
	name := cmp.Or(string(s.UUID), instanceName(g, i))
	p := problemf(api.Busy, "%s came into use: %s", name, holdsText(holds))
	p.Blocking = []api.Blocker{{GPU: g.UUID, Instance: name, Profile: i.Profile, Placement: i.Placement, Holders: holds}}
	return p
}

// gpu finds a GPU that could be read.
func (c *census) gpu(id gpu.UUID) (mig.NodeGPU, error) {
	return findGPU(c.gpus, c.unreadable, id)
}

func findGPU(gpus []mig.NodeGPU, unreadable map[gpu.UUID]error, id gpu.UUID) (mig.NodeGPU, error) {
	if at := slices.IndexFunc(gpus, func(g mig.NodeGPU) bool { return g.UUID == id }); at >= 0 {
		return gpus[at], nil
	}
	if err := unreadable[id]; err != nil {
		return mig.NodeGPU{}, fmt.Errorf("%s cannot be read: %w", id, err)
	}
	return mig.NodeGPU{}, fmt.Errorf("%s is gone: %w", id, gpu.ErrLost)
}

// verify reads the node back and compares.
func (e *Engine) verify(ctx context.Context, after []layout) error {
	gpus, unreadable, err := e.read(ctx, gpusOf(after)...)
	if err != nil {
		return err
	}
	for _, l := range after {
		g, err := findGPU(gpus, unreadable, l.GPU)
		if err != nil {
			return err
		}
		if left := (cut{live: g, want: l}).steps(); len(left) > 0 {
			return fmt.Errorf("the layout read back is another one: %s is missing: %w", stepText(left[0]), gpu.ErrDriver)
		}
	}
	return nil
}

// failureText says why a step failed, in words that an answer may have.
func failureText(err error) string {
	var p *api.Problem
	if errors.As(err, &p) {
		return p.Error()
	}
	return reasonText(err)
}

// stepError says which step failed.
type stepError struct {
	step mig.Step
	err  error
}

func (s *stepError) Error() string { return stepText(s.step) + ": " + s.err.Error() }

func (s *stepError) Unwrap() error { return s.err }

// failure is the problem of an operation that failed.
func failure(err error) *api.Problem {
	p := *failureOf(err)
	var s *stepError
	if errors.As(err, &s) {
		p.Detail = stepText(s.step) + ": " + p.Detail
	}
	return &p
}

func failureOf(err error) *api.Problem {
	var p *api.Problem
	var j errJournal
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, errInterrupted):
		return problemf(api.DriverFailed, "%s", err)
	case errors.As(err, &j):
		return problemf(api.ReadOnly, "the journal could not be written, so nothing more was done")
	case hung(err):
		return problemf(api.StuckNode, "a driver call has not returned in time")
	case errors.Is(err, gpu.ErrInsufficientResources):
		return problemf(api.DriverFailed, "a placement that was free is taken: somebody else is at work on this GPU")
	case errors.Is(err, gpu.ErrNotFound):
		return problemf(api.DriverFailed, "an instance of the plan is not there any more: somebody else is at work on this GPU")
	default:
		return problemf(api.DriverFailed, "%s", reasonText(err))
	}
}
