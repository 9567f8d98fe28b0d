package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

const (
	followRetry    = time.Second // between attempts to reach a server that went away: it may be restarting
	followAttempts = 60          // in a row without news
)

// operationError is an operation that did not succeed; its end has been shown.
type operationError struct {
	code  int
	state api.OperationState
}

func (e *operationError) Error() string { return "the operation is " + string(e.state) }

// newKey makes an Idempotency-Key.
func newKey() string { return rand.Text() }

// apply changes the layout, after asking.
func (s *session) apply(ctx context.Context) error {
	plan, err := s.planToApply(ctx)
	if err != nil {
		return err
	}
	writePlan(s.page, plan)
	if len(plan.Steps) == 0 {
		return nil
	}
	s.page.line()
	if !s.opts.Yes && !s.inTerminal { // nobody can be asked: what was shown can be approved as it is
		s.page.line(text("To do this:").in(cyan))
		s.page.line(text("  migctl apply --yes --plan %s --hash \\", plan.ID))
		s.page.line(text("    %s", plan.Hash))
	}
	if err := s.ask(ctx, "Apply?"); err != nil {
		return err
	}
	request := api.OperationRequest{Plan: plan.ID, Hash: plan.Hash}
	if s.opts.Hash != "" {
		request.Hash = s.opts.Hash
	}
	return s.start(ctx, http.MethodPost, "/operations", request)
}

func (s *session) planToApply(ctx context.Context) (*api.Plan, error) {
	var plan api.Plan
	if s.opts.Plan != "" {
		return &plan, s.client.fetch(ctx, "/plans/"+pathEscape(s.opts.Plan), &plan)
	}
	request, err := s.request()
	if err != nil {
		return nil, err
	}
	return &plan, s.client.send(ctx, http.MethodPost, "/plans", request, "", &plan)
}

// rollback undoes an operation, after asking.
func (s *session) rollback(ctx context.Context) error {
	var op api.Operation
	if err := s.client.fetch(ctx, operationPath(s.opts.Operation), &op); err != nil {
		return err
	}
	writeOperation(s.page, &op)
	s.page.line()
	if s.opts.Abandon {
		return s.abandon(ctx, &op)
	}
	s.page.para("! ", yellow, "Instances that this operation has created are destroyed again; one that is in use by now is not, and then nothing is changed.")
	question := "Lead back to the layout before it?"
	if op.State == api.Degraded || op.State == api.Stuck {
		question = "Try again to roll it back?"
	}
	if err := s.ask(ctx, question); err != nil {
		return err
	}
	again := op.State == api.Degraded || op.State == api.Stuck
	err := s.start(ctx, http.MethodPost, operationPath(op.ID)+"/rollback", nil)
	if ended := (*operationError)(nil); again && errors.As(err, &ended) && (ended.state == api.RolledBack || ended.state == api.Failed) {
		return nil // it is what was asked for: nothing of the operation is left
	}
	return err
}

// abandon closes an operation that could not be rolled back, after asking.
func (s *session) abandon(ctx context.Context, op *api.Operation) error {
	s.page.para("! ", yellow, "The node is left as it is now: neither as before the operation nor as planned. Look at it with migctl get, and plan the layout that you want.")
	if err := s.ask(ctx, "Abandon it?"); err != nil {
		return err
	}
	var closed api.Operation
	if err := s.client.send(ctx, http.MethodPost, operationPath(op.ID)+"/abandon", nil, newKey(), &closed); err != nil {
		return err
	}
	s.page.line(text("Operation ").in(dim), text("%s", op.ID).in(bold), text(" is closed."))
	s.page.line(text("The layout is as migctl get shows it."))
	return nil
}

// start starts an operation and follows it to its end.
func (s *session) start(ctx context.Context, method, path string, request any) error {
	var op api.Operation
	if err := s.client.send(ctx, method, path, request, newKey(), &op); err != nil {
		return err
	}
	s.page.line(text("Operation ").in(dim), text("%s", op.ID).in(bold))
	return s.follow(ctx, &op)
}

// follow shows an operation's news as they come, and its end.
func (s *session) follow(ctx context.Context, op *api.Operation) error {
	seen, failures := 0, 0
	shown := progress{page: s.page, op: op, open: -1}
	var leave context.CancelFunc
	show := func(e api.Event) {
		failures = 0
		if e.State == api.Stuck { // it may be so for long: the operator is told now, if it still is
			leave()
		}
		shown.event(&e)
		s.page.flush() // the page keeps the error, and the operation goes on anyway
	}
	for {
		if err := s.page.flush(); err != nil {
			return err
		}
		var streaming context.Context
		streaming, leave = context.WithCancel(ctx)
		last, err := s.client.events(streaming, op.ID, seen, show)
		leave()
		seen = last
		shown.close()
		switch ended := s.ended(ctx, op.ID, err); {
		case ended != nil:
			writeEnd(s.page, ended)
			return endError(ended)
		case ctx.Err() != nil:
			s.sayGoesOn(op.ID, "Interrupted.")
			return ctx.Err()
		case mayComeBack(err):
		default:
			return err
		}
		if failures++; failures > followAttempts {
			s.sayGoesOn(op.ID, "The server is gone.")
			return err
		}
		select {
		case <-time.After(s.retry):
		case <-ctx.Done():
		}
	}
}

// mayComeBack tells whether it is worth asking again after an error, or after the end of a stream: the server may be
// restarting, or have let go of a slow reader.
func mayComeBack(err error) bool {
	var p *api.Problem
	return err == nil || errors.Is(err, context.Canceled) || errors.As(err, new(*unreachable)) ||
		errors.As(err, &p) && (p.Type == api.RateLimited || p.Type == api.Unavailable)
}

// ended finds an operation where it has come to its end; else nil.
func (s *session) ended(ctx context.Context, id string, streamErr error) *api.Operation {
	var op api.Operation
	if ctx.Err() != nil || !mayComeBack(streamErr) || s.client.fetch(ctx, operationPath(id), &op) != nil || !atEnd(op.State) {
		return nil
	}
	return &op
}

func (s *session) sayGoesOn(id, why string) {
	s.page.para("", yellow, why+" The operation goes on without migctl. To follow it:")
	s.page.line(text("  migctl operations --follow %s", id))
}

// atEnd tells whether an operation does nothing further by itself.
func atEnd(state api.OperationState) bool {
	switch state {
	case api.Succeeded, api.RolledBack, api.Failed, api.Degraded, api.Stuck:
		return true
	}
	return false
}

func endError(op *api.Operation) error {
	switch op.State {
	case api.Succeeded:
		return nil
	case api.Degraded, api.Stuck:
		return &operationError{exitDegraded, op.State}
	}
	return &operationError{exitFailed, op.State}
}

// writeEnd shows what came of an operation and what to do next.
func writeEnd(p *page, op *api.Operation) {
	p.line()
	after := ""
	if !op.Ended.IsZero() {
		after = fmt.Sprintf(" after %s", op.Ended.Sub(op.Started).Round(100*time.Millisecond))
	}
	p.line(stateSpan(op.State), text("%s", after))
	if op.Error != nil {
		p.para("  ", red, op.Error.Error())
		for i := range op.Error.Blocking {
			b := &op.Error.Blocking[i]
			p.para("  in the way: ", yellow, fmt.Sprintf("%s, %s at %s", b.Instance, b.Profile, b.Placement))
			writeHolds(p, "    ", b.Holders)
		}
	}
	if op.State == api.Succeeded {
		writeNew(p, op)
	}
	for _, was := range slices.Sorted(maps.Keys(op.Renamed)) {
		p.line(text("  ~ %s is now", was))
		p.line(text("    %s", op.Renamed[was]))
	}
	writeMode(p, op.Mode)
	for _, h := range op.Hooks {
		writeHook(p, &h)
	}
	for _, w := range op.Warnings {
		p.para("! ", yellow, w)
	}
	writeNext(p, op)
}

// writeNew lists the MIG devices that an operation has created.
func writeNew(p *page, op *api.Operation) {
	for i := range op.Steps {
		st := &op.Steps[i]
		if st.Done != nil && st.Done.UUID != "" && st.State == "done" && strings.HasPrefix(string(st.Op), "create") {
			slices := ""
			if c, ok := st.Compute.Get(); ok {
				slices = ", slices " + c.String()
			}
			p.line(span{"  + " + string(st.Done.UUID), green}, text("  %s at %s%s", st.Profile, st.Placement, slices))
		}
	}
}

func writeHook(p *page, h *api.HookResult) {
	name := strings.Join(h.Argv, " ")
	if h.OK {
		p.para("  hook done: ", green, fmt.Sprintf("%s (%.1f s)", name, h.Seconds))
		return
	}
	p.para("  hook failed: ", red, fmt.Sprintf("%s (exit code %d, %.1f s) %s", name, h.ExitCode, h.Seconds, h.Error))
}

// writeNext says how to undo, or how to go on.
func writeNext(p *page, op *api.Operation) {
	switch op.State {
	case api.Succeeded:
		if op.Verb == api.VerbApply || op.Verb == api.VerbRollback {
			p.line(text("To undo: ").in(cyan), text("migctl rollback %s", op.ID))
		}
		if slices.ContainsFunc(op.Hooks, func(h api.HookResult) bool { return !h.OK }) {
			hint(p, "the change itself is done. Do by hand what the failed hook should have done.")
		}
	case api.RolledBack:
		p.line(text("The layout is as it was before."))
		if len(op.Renamed) > 0 {
			p.line(text("MIG devices have new UUIDs, see above."))
		}
		hint(p, "mend the cause, then plan again.")
	case api.Failed:
		if !slices.ContainsFunc(op.Steps, func(st api.OperationStep) bool { return st.State == "done" }) {
			p.line(text("Nothing was changed."))
		}
		if op.Error != nil {
			failed := *op.Error
			failed.Operation = cmp.Or(failed.Operation, op.ID)
			hint(p, problemHint(&failed, &options{}))
		}
	case api.Degraded:
		hint(p, fmt.Sprintf("the node is neither as before nor as planned. migctl operations %s shows the step that failed; mend its cause, then: migctl rollback %s", op.ID, op.ID))
	case api.Stuck:
		hint(p, problemHint(&api.Problem{Type: api.StuckNode, Operation: op.ID}, &options{}))
	}
}

func stateSpan(state api.OperationState) span {
	c := yellow
	switch state {
	case api.Succeeded:
		c = green
	case api.Failed, api.Degraded, api.Stuck:
		c = red
	}
	return span{string(state), c}
}
