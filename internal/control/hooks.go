package control

import (
	"context"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// runHooks runs the programs that the operator wants to be run after a change, except those that have succeeded for
// this operation before.
func (e *Engine) runHooks(ctx context.Context, op *operation, state api.OperationState) {
	if e.o.RunHook == nil {
		return
	}

	due := slices.DeleteFunc(slices.Clone(e.o.Hooks), func(h Hook) bool {
		r := e.hookResult(op, h)
		return r != nil && r.OK
	})
	if len(due) == 0 {
		return
	}

	e.hooking.Lock() // several operations may settle at once
	defer e.hooking.Unlock()

	env := e.hookEnvironment(ctx, op, state)
	for _, h := range due {
		e.recordHook(op, e.o.RunHook(ctx, h, env))
	}
}

// hookResult returns how a hook has ended for an operation, or nil if it was not run.
func (e *Engine) hookResult(op *operation, h Hook) *api.HookResult {
	e.mu.Lock()
	defer e.mu.Unlock()

	for _, r := range op.Operation.Hooks {
		if slices.Equal(r.Argv, h.Argv) {
			return &r
		}
	}

	return nil
}

// recordHook records how a hook has ended, in place of its previous run.
func (e *Engine) recordHook(op *operation, r api.HookResult) {
	e.mu.Lock()
	defer e.mu.Unlock()

	at := slices.IndexFunc(
		op.Operation.Hooks,
		func(old api.HookResult) bool { return slices.Equal(old.Argv, r.Argv) },
	)
	if at >= 0 {
		op.Operation.Hooks[at] = r
	} else {
		op.Operation.Hooks = append(op.Operation.Hooks, r)
	}

	e.addEvent(op, api.Event{Kind: api.EventHook, Hook: &r})
}

// awaitedHooks describes the hooks that have not succeeded for an operation. One that is not configured any more is not
// wanted any more.
func (e *Engine) awaitedHooks(op *operation) []string {
	var list []string

	for _, h := range e.o.Hooks {
		if r := e.hookResult(op, h); e.o.RunHook != nil && (r == nil || !r.OK) {
			list = append(list, "the hook "+strings.Join(h.Argv, " ")+" to succeed")
		}
	}

	return list
}

// hookEnvironment names for a hook what has changed: the MIG devices of the operation's GPUs before and after, by
// commas.
func (e *Engine) hookEnvironment(
	ctx context.Context,
	op *operation,
	state api.OperationState,
) []string {
	var gpus, before, now []string

	live, _, err := e.readLayouts(ctx, op.gpus()...)
	for _, id := range op.gpus() {
		gpus = append(gpus, string(id))

		g, missing := findGPU(live, nil, id)
		if err == nil && missing == nil && op.Operation.Verb != api.VerbMode {
			now = append(now, uuids(g.Instances)...)
		}
	}

	for _, p := range op.Parts {
		before = append(before, uuids(p.Before)...)
	}

	slices.Sort(before)
	slices.Sort(now)

	return []string{
		"MIG_CONTROL_OPERATION=" + op.Operation.ID,
		"MIG_CONTROL_VERB=" + string(op.Operation.Verb),
		"MIG_CONTROL_RESULT=" + string(state),
		"MIG_CONTROL_GPUS=" + strings.Join(gpus, ","),
		"MIG_CONTROL_OLD_UUIDS=" + strings.Join(before, ","),
		"MIG_CONTROL_NEW_UUIDS=" + strings.Join(now, ","),
	}
}
