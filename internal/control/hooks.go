package control

import (
	"context"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// runHooks runs the programs that the operator wants to be run after a change, except those that
// have succeeded for this operation before.
func (e *Engine) runHooks(ctx context.Context, op *operation, state api.OperationState) {
	if e.o.RunHook == nil {
		return
	}

	due := e.failedHooks(op)
	if len(due) == 0 || e.hooking.take(ctx) != nil {
		return
	}

	defer e.hooking.release()

	env := e.hookEnvironment(ctx, op, state)
	for _, h := range due {
		op.recordHook(e.o.RunHook(ctx, h, env))
	}
}

// failedHooks returns the configured hooks that have not succeeded for an operation.
func (e *Engine) failedHooks(op *operation) []Hook {
	if e.o.RunHook == nil {
		return nil
	}

	results := op.copy().Operation.Hooks

	return slices.DeleteFunc(slices.Clone(e.o.Hooks), func(h Hook) bool {
		return slices.ContainsFunc(results, func(r api.HookResult) bool {
			return r.OK && slices.Equal(r.Argv, h.Argv)
		})
	})
}

// awaitedHooks describes the hooks that have not succeeded for an operation.
func (e *Engine) awaitedHooks(op *operation) []string {
	var list []string
	for _, h := range e.failedHooks(op) {
		list = append(list, "the hook "+strings.Join(h.Argv, " ")+" to succeed")
	}

	return list
}

// recordHook records how a hook has ended, in place of its previous run.
func (op *operation) recordHook(r api.HookResult) {
	op.change(func(o *entry) {
		at := slices.IndexFunc(
			o.Operation.Hooks,
			func(old api.HookResult) bool { return slices.Equal(old.Argv, r.Argv) },
		)
		if at >= 0 {
			o.Operation.Hooks[at] = r
		} else {
			o.Operation.Hooks = append(o.Operation.Hooks, r)
		}

		o.addEvent(api.Event{Kind: api.EventHook, Hook: &r})
	})
}

// hookEnvironment says in environment variables what has changed: the MIG devices of the operation's
// GPUs before and after it, separated by commas.
func (e *Engine) hookEnvironment(
	ctx context.Context,
	op *operation,
	state api.OperationState,
) []string {
	var gpus, before, now []string

	live, _, err := e.readLayouts(ctx, op.gpus...)
	for _, id := range op.gpus {
		gpus = append(gpus, string(id))

		g, missing := findGPU(live, nil, id)
		if err == nil && missing == nil && op.verb != api.VerbMode {
			now = append(now, uuids(g.Instances)...)
		}
	}

	for _, c := range op.copy().Changes {
		before = append(before, uuids(c.Before)...)
	}

	slices.Sort(before)
	slices.Sort(now)

	return []string{
		"MIG_CONTROL_OPERATION=" + op.id,
		"MIG_CONTROL_VERB=" + string(op.verb),
		"MIG_CONTROL_RESULT=" + string(state),
		"MIG_CONTROL_GPUS=" + strings.Join(gpus, ","),
		"MIG_CONTROL_OLD_UUIDS=" + strings.Join(before, ","),
		"MIG_CONTROL_NEW_UUIDS=" + strings.Join(now, ","),
	}
}
