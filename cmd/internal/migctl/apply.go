package migctl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

const (
	followRetry    = time.Second // how long we wait before we ask a server again that may be restarting
	followAttempts = 60          // how many attempts in a row may bring no event
)

// operationError says that an operation did not succeed. migctl has already shown its outcome.
type operationError struct {
	code  int
	state api.OperationState
}

func (e *operationError) Error() string { return "the operation is " + string(e.state) }

// newKey returns a random Idempotency-Key.
func newKey() string { return rand.Text() }

// applyPlan shows a plan, asks the operator, and starts it.
func (s *session) applyPlan(ctx context.Context) error {
	plan, err := s.planToApply(ctx)
	if err != nil {
		return err
	}

	writePlan(s.page, plan)

	if len(plan.Steps) == 0 {
		return s.printOutcome(plan)
	}

	s.page.line()

	// We cannot ask the question without a terminal: the operator can approve this plan as shown.
	if !s.opts.Yes && !s.inTerminal {
		s.page.line(text("To do this:").in(cyan))
		s.page.line(text("  migctl apply --yes --plan %s --hash \\", plan.ID))
		s.page.line(text("    %s", plan.Hash))
	}

	if err := s.askOperator(ctx, "Apply?"); err != nil {
		return err
	}

	request := api.OperationRequest{Plan: plan.ID, Hash: plan.Hash}
	if s.opts.Hash != "" {
		request.Hash = s.opts.Hash
	}

	request.StatedReason = s.opts.Reason

	return s.startOperation(ctx, http.MethodPost, "/operations", request)
}

// planToApply fetches the plan that the command line names, or makes one.
func (s *session) planToApply(ctx context.Context) (*api.Plan, error) {
	var plan api.Plan
	if s.opts.Plan != "" {
		return &plan, s.client.fetch(ctx, "/plans/"+url.PathEscape(s.opts.Plan), &plan)
	}

	request, err := s.planRequest(ctx)
	if err != nil {
		return nil, err
	}

	return &plan, s.client.sendDocument(ctx, http.MethodPost, "/plans", request, "", &plan)
}

// rollBackOperation asks the operator and rolls an operation back.
func (s *session) rollBackOperation(ctx context.Context) error {
	var op api.Operation
	if err := s.client.fetch(ctx, operationPath(s.opts.Operation), &op); err != nil {
		return err
	}

	writeOperation(s.page, &op)
	s.page.line()

	isRetry := op.State == api.Degraded || op.State == api.Stuck
	switch {
	case isRetry:
		s.page.paragraph(
			"! ",
			yellow,
			"The rollback is tried again on the GPUs that are blocked. A GPU that another client has "+
				"changed since is left alone.",
		)
	case op.State.Committed():
		s.page.paragraph(
			"! ",
			yellow,
			"Instances that this operation has created are destroyed again; one that is in use by "+
				"now is not, and then nothing is changed.",
		)
	}

	if isRetry || op.State.Committed() { // otherwise the server says why it cannot be rolled back
		if err := s.askOperator(ctx, fmt.Sprintf("Roll back operation %s?", op.ID)); err != nil {
			return err
		}
	}

	request := rollbackRequest(s.opts.Reason)

	err := s.startOperation(ctx, http.MethodPost, operationPath(op.ID)+"/rollback", request)
	// After these the GPUs have the previous layout, as the operator wanted.
	if ended := (*operationError)(nil); isRetry && errors.As(err, &ended) &&
		(ended.state == api.RolledBack || ended.state == api.Failed) {
		return nil
	}

	return err
}

// startOperation starts an operation and follows it to its end.
func (s *session) startOperation(ctx context.Context, method, path string, request any) error {
	var op api.Operation
	if err := s.client.sendDocument(ctx, method, path, request, newKey(), &op); err != nil {
		return err
	}

	s.page.line(text("Operation ").in(dim), text("%s", op.ID).in(bold))

	return s.followOperation(ctx, &op)
}

// followOperation shows the events of an operation as they arrive, and then its outcome.
func (s *session) followOperation(ctx context.Context, op *api.Operation) error {
	f := follower{session: s, id: op.ID, shown: progress{page: s.page, op: op}}

	for {
		if err := s.page.flush(); err != nil {
			return err
		}

		err := f.showEvents(ctx)
		if ended := s.fetchEnded(ctx, op.ID, err); ended != nil {
			writeOutcome(s.page, ended)

			if err := s.printOutcome(ended); err != nil {
				return err
			}

			return outcomeError(ended)
		}

		if ctx.Err() != nil {
			f.writeInterrupted()
			return ctx.Err()
		}

		if !f.triesAgain(err) {
			s.writeLost(op.ID)
			return err
		}

		_ = retry.Sleep(ctx, s.retry)
	}
}

// follower shows the events of one operation, from one stream after another: a stream ends early if
// the server restarts, or drops a slow reader.
type follower struct {
	session  *session
	id       string // of the operation
	shown    progress
	seen     int  // the number of the last event that we have shown
	failures int  // how many streams have ended early since then
	lost     bool // the last stream ended because the server did not answer
}

// showEvents shows the events after f.seen until the stream ends. It returns the error with which the
// stream ended; nil if the server ended it.
func (f *follower) showEvents(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	seen, err := f.session.client.streamEvents(ctx, f.id, f.seen, func(e api.Event) {
		f.failures = 0
		f.lost = false

		// The operation can be stuck for long. We end the stream, and fetchEnded finds out whether the
		// operation still is.
		if e.State == api.Stuck {
			stop()
		}

		f.shown.showEvent(&e)
		f.session.page.flush() // the page keeps the error, and the operation goes on
	})
	f.seen = seen
	f.shown.closeLine()

	return err
}

// triesAgain reports whether to open another stream after one that ended with err.
func (f *follower) triesAgain(err error) bool {
	f.failures++
	if !mayComeBack(err) || f.failures > followAttempts {
		return false
	}

	// After the first failure only the stream may be lost.
	f.lost = errors.As(err, new(*unreachable))
	if f.lost && f.failures == 2 {
		f.session.page.paragraph("", yellow, connectionLost+" Trying to follow it again for a minute.")
	}

	return true
}

// writeInterrupted says that the operation goes on after the operator has stopped migctl.
func (f *follower) writeInterrupted() {
	if f.lost {
		f.session.writeLost(f.id)
		return
	}

	f.session.writeContinues(f.id, "Interrupted.")
}

// mayComeBack reports whether to ask again after an error, or after the end of a stream: the server
// may be restarting, or may have dropped a slow reader.
func mayComeBack(err error) bool {
	var p *api.Problem

	return err == nil || errors.Is(err, context.Canceled) || errors.As(err, new(*unreachable)) ||
		errors.As(err, &p) && (p.Type == api.RateLimited || p.Type == api.Unavailable)
}

// fetchEnded returns the operation if it has stopped; otherwise nil. streamErr is the error with which
// the stream of its events ended.
func (s *session) fetchEnded(ctx context.Context, id string, streamErr error) *api.Operation {
	if ctx.Err() != nil || !mayComeBack(streamErr) {
		return nil
	}

	var op api.Operation

	isOver := s.client.fetch(ctx, operationPath(id), &op) == nil && hasStopped(op.State)
	if !isOver {
		return nil
	}

	return &op
}

// connectionLost is the message about an operation whose server does not answer any more.
const connectionLost = "The connection to mig-exporter is lost. If mig-exporter still runs, the " +
	"operation goes on; if it has ended, its next start finishes the operation or rolls it back."

func (s *session) writeLost(id string) {
	s.page.paragraph("", yellow, connectionLost+" To follow it:")
	s.page.line(text("  migctl operations --follow %s", id))
}

func (s *session) writeContinues(id, why string) {
	s.page.paragraph("", yellow, why+" The operation goes on without migctl. To follow it:")
	s.page.line(text("  migctl operations --follow %s", id))
}
