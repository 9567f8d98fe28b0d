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
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// grace is how long an operation may go on after shutdown was requested: well below the stop
// timeout of a service manager. The next start finishes the rest, as after a crash.
const grace = 7 * time.Second

// lastSave is how much longer than grace we can still save outcomes.
const lastSave = time.Second

// withGrace returns a context that ends a grace period after ctx.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	graceCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = retry.Sleep(graceCtx, grace)
		cancel()
	})

	return graceCtx, func() { stop(); cancel() }
}

// deferToRestart leaves an operation to the next start if ctx has ended, and reports whether it
// did. The state folder has all that the next start needs.
func (e *Engine) deferToRestart(ctx context.Context, op *operation) bool {
	if ctx.Err() == nil {
		return false
	}

	level.Warn(e.o.Logger).Log(
		"msg", "left an operation to the next start",
		"operation", op.id,
	)
	op.addNote("the exporter stops; its next start finishes this operation")

	return true
}

// executeOperation executes the current operation until it ends, waits for the kubelet, or waits
// for an operator. A grace period after ctx ends, it leaves the rest to the next start.
func (e *Engine) executeOperation(ctx context.Context, op *operation) {
	graceCtx, cancel := withGrace(ctx)
	defer cancel()

	switch op.copy().task {
	case doSteps:
		e.applySteps(graceCtx, op)
	case doRollback:
		e.rollBack(graceCtx, op)
	case doResume:
		e.resumeOperation(graceCtx, op)
	case doMode:
		e.changeMode(graceCtx, op)
	}

	e.clearCurrent(ctx, op)
}

// clearCurrent makes room for the next operation. If all steps of op are done, a goroutine waits
// until the kubelet offers its devices.
func (e *Engine) clearCurrent(ctx context.Context, op *operation) {
	settling := op.status() == api.Settling

	e.endChanges(op)
	e.recordRestore(op)
	op.change(func(o *entry) { o.inSlots = false }) // the next operation overwrites the slots

	// Save op in the history instead. If that fails, the engine becomes read-only: the slots keep
	// op, and no other operation overwrites them.
	_ = e.saveHistory()

	e.state.update(func(b *book) {
		b.current = nil
		if b.cleared != nil {
			close(b.cleared)
			b.cleared = nil
		}

		if !settling {
			op.in(b).endEvents()
		}
	})

	if settling {
		e.following.Go(func() { e.awaitFollowers(ctx, op) })
	}

	e.reportState()
}

// applySteps performs the steps and verifies the outcome, or rolls back.
func (e *Engine) applySteps(ctx context.Context, op *operation) {
	op.setState(api.Running, "running")

	for _, id := range op.gpus {
		op.setGPU(id, api.Running, nil, nil)
	}

	err := e.markSlotsUsed()
	if err == nil {
		err = e.cordonNode(ctx, op)
	}

	o := op.copy()
	for n := 0; n < len(o.Operation.Steps) && err == nil; n++ {
		err = e.doStep(ctx, op, o.Operation.Steps[n].Step, stepRef{index: n}, o.Force)
	}

	if err == nil {
		err = e.verify(ctx, op)
	}

	if err == nil {
		err = e.commit(op)
	}

	if err != nil {
		e.startRollback(ctx, op, err)
	}
}

// commit is the point after which an operation is not rolled back any more.
func (e *Engine) commit(op *operation) error {
	before := op.status()
	op.setState(api.Settling, "all steps are done")

	for _, id := range op.gpus {
		op.setGPU(id, api.Settling, nil, nil)
	}

	err := e.saveOperation(op)
	if err != nil {
		op.setState(before, "the outcome could not be saved")
	}

	return err
}

// doStep performs one step. It saves the step before it calls the driver, and the outcome
// afterwards. Then op.gpuChange(s.GPU) has the instances that we expect on the GPU, whether or not
// the step failed.
func (e *Engine) doStep(
	ctx context.Context,
	op *operation,
	s mig.Step,
	at stepRef,
	force []string,
) error {
	if err := e.beginChanges(op, s.GPU); err != nil {
		op.setStep(at, api.StepFailed, nil, err)
		return &stepError{step: s, err: err}
	}

	// We write down what we are about to do before we call the driver: after a crash the next start
	// knows which step was under way.
	op.setPending(s.GPU, &s)
	op.setStep(at, api.StepRunning, nil, nil)

	if err := e.saveOperation(op); err != nil {
		op.setPending(s.GPU, nil)
		op.setStep(at, api.StepFailed, nil, err)

		return err
	}

	state := api.StepDone

	done, err := e.performStep(ctx, op, s, force, at.rollback)
	if err != nil {
		state = api.StepFailed
		err = &stepError{step: s, err: err}
	}

	op.setStep(at, state, done, err)

	// If both fail, the operator needs the step's error.
	return cmp.Or(err, e.saveOperation(op))
}

const (
	maxStepTries    = 4
	firstRetryDelay = 250 * time.Millisecond // before the second try; it doubles
)

// performStep performs a step, and repeats it if it may succeed a moment later: a GPU instance can
// be in use for a moment after its compute instances were destroyed, and steps of a rollback are
// worth another try after any error. Each try checks again that nothing holds what the step
// destroys.
func (e *Engine) performStep(ctx context.Context, op *operation, s mig.Step, force []string,
	rollback bool) (*mig.Done, error) {
	for n := 1; ; n++ {
		done, err := e.performOnce(ctx, op, s, force, rollback)

		if err == nil || n == maxStepTries || ctx.Err() != nil {
			return done, err
		}

		// We try again only while the GPU is certainly as it was.
		mayHelp := rollback || s.Destroys() && errors.Is(err, gpu.ErrInUse)
		outcomeUnknown := op.gpuChange(s.GPU).Pending != nil

		if !mayHelp || outcomeUnknown || isForeign(err) || isBusy(err) {
			return done, err
		}

		_ = retry.Sleep(ctx, firstRetryDelay<<(n-1))
		op.setPending(s.GPU, &s)
	}
}

// performOnce checks that nothing holds what the step destroys, and performs the step.
func (e *Engine) performOnce(ctx context.Context, op *operation, s mig.Step, force []string,
	rollback bool) (*mig.Done, error) {
	c := op.gpuChange(s.GPU)

	if s.Destroys() {
		if err := e.checkHolders(ctx, &c, s, force, rollback); err != nil {
			op.setPending(s.GPU, nil)
			return nil, err
		}
	}

	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	out, err := e.o.Actuator.PerformStep(callCtx, s, c.Expected)
	fillPlacements(out.Instances)

	done, err := c.recordOutcome(s, out, err)
	op.setChange(c)

	return done, err
}

// recordOutcome records the outcome of a step: out is the GPU as it was read after the call, err
// the call's error. It replaces c.Expected only if the step leads to the instances that were read.
func (c *gpuChange) recordOutcome(s mig.Step, out mig.Outcome, err error) (*mig.Done, error) {
	after, verified := s.Verify(c.Expected, out.Instances)
	unchanged := mig.SameInstances(out.Instances, c.Expected)

	saidSuccess := err == nil || errors.Is(err, mig.ErrNotAsAsked)
	saidCreated := saidSuccess && !s.Destroys()

	switch {
	case errors.Is(err, mig.ErrLayoutChanged):
		c.Pending = nil
		return nil, newForeignError(c.GPU, out)
	case errors.Is(err, mig.ErrNotTried):
		c.Pending = nil
		return nil, err
	case !out.Read: // the step stays pending: the driver may have performed it
		return nil, cmp.Or(err, gpu.ErrDriver)
	case unchanged && !saidCreated: // after saidCreated, another client has destroyed the instance
		c.Pending = nil

		return nil, cmp.Or(
			err,
			fmt.Errorf("the driver reported success, and nothing has changed: %w", gpu.ErrDriver),
		)
	case verified && !isRefused(err):
		c.Pending = nil
		c.Changed = true
		c.Expected = after

		if err != nil {
			return nil, err
		}

		return &out.Done, nil
	default:
		c.Pending = nil
		c.Changed = c.Changed || !isRefused(err)

		return nil, newForeignError(c.GPU, out)
	}
}

// isRefused reports whether the driver has certainly not performed a step, by the step's error. If
// the GPU looks as if it had, another client has changed it.
func isRefused(err error) bool {
	if errors.Is(err, mig.ErrNotAsAsked) {
		return false
	}

	return errors.Is(err, gpu.ErrInsufficientResources) || errors.Is(err, gpu.ErrInUse) ||
		errors.Is(err, gpu.ErrNotFound)
}

// foreignError says that another client has changed a GPU in the middle of an operation.
type foreignError struct {
	gpu     gpu.UUID
	current []mig.Instance // nil: they could not be read
}

func newForeignError(id gpu.UUID, out mig.Outcome) *foreignError {
	f := &foreignError{gpu: id}
	if out.Read {
		f.current = knownInstances(out.Instances)
	}

	return f
}

// knownInstances copies instances that were read. The copy is never nil: nil stands for unknown
// instances.
func knownInstances(list []mig.Instance) []mig.Instance {
	return append([]mig.Instance{}, list...)
}

func (f *foreignError) Error() string {
	return fmt.Sprintf("another client has changed %s: it is left as it is", f.gpu)
}

func isForeign(err error) bool {
	var f *foreignError
	return errors.As(err, &f)
}

func isBusy(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Type == api.Busy
}

// checkHolders returns an error if anything holds what the step is about to destroy. See
// checkBeforeDestroy about what counts of the last poll, and about rollback.
func (e *Engine) checkHolders(
	ctx context.Context,
	c *gpuChange,
	s mig.Step,
	force []string,
	rollback bool,
) error {
	g := c.live()
	if s.IndexIn(g.Instances) < 0 {
		return fmt.Errorf("GPU instance does not exist: %w", gpu.ErrNotFound)
	}

	u := e.collectHolders(ctx, []mig.GPULayout{g})
	e.pollAndAdd(ctx, u, g, checkBeforeDestroy(s.Op, rollback))

	blocking := u.listBlockers(g, s, force)
	if len(blocking) == 0 {
		return nil
	}

	problem := problemf(
		api.Busy,
		"%s came into use: %s",
		blocking[0].Instance,
		holdsText(blocking[0].Holders),
	)
	problem.Blocking = blocking

	return withHint(problem)
}

// gpu returns a GPU's layout, or why it was not read.
func (u *usage) gpu(id gpu.UUID) (mig.GPULayout, error) {
	return findGPU(u.gpus, u.unreadable, id)
}

// findGPU returns the layout of a GPU, or why it is missing: unreadable has the errors of GPUs that
// could not be read.
func findGPU(
	gpus []mig.GPULayout,
	unreadable map[gpu.UUID]error,
	id gpu.UUID,
) (mig.GPULayout, error) {
	if at := slices.IndexFunc(gpus, func(g mig.GPULayout) bool { return g.UUID == id }); at >= 0 {
		return gpus[at], nil
	}

	if err := unreadable[id]; err != nil {
		return mig.GPULayout{}, fmt.Errorf("%s cannot be read: %w", id, err)
	}

	return mig.GPULayout{}, fmt.Errorf("%s is gone: %w", id, gpu.ErrLost)
}

// verify reads all GPUs of the operation once more, and returns an error unless each is as the
// operation has left it and has the planned layout. After it has returned nil, the operation
// changes nothing.
func (e *Engine) verify(ctx context.Context, op *operation) error {
	seen := e.marks() // a change from now on, also while we read, is not the operation's

	gpus, unreadable, err := e.readLayouts(ctx, op.gpus...)
	if err != nil {
		return &unreadError{err}
	}

	for _, c := range op.copy().Changes {
		g, err := findGPU(gpus, unreadable, c.GPU)
		switch {
		case err != nil:
			return &unreadError{err}
		case !mig.SameInstances(g.Instances, c.Expected):
			return &foreignError{gpu: c.GPU, current: knownInstances(g.Instances)}
		}

		if left := mig.StepsTo(&g, c.After); len(left) > 0 {
			return fmt.Errorf(
				"the layout read back is not the planned one: %s is still to be done: %w",
				stepText(left[0]),
				gpu.ErrDriver,
			)
		}
	}

	e.endChanges(op)
	op.change(func(o *entry) { o.setViews(seen) })

	return nil
}

// stepError says which step failed.
type stepError struct {
	step mig.Step
	err  error
}

func (s *stepError) Error() string { return stepText(s.step) + ": " + s.err.Error() }

func (s *stepError) Unwrap() error { return s.err }
