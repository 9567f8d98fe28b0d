package migctl

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// hasStopped reports whether an operation in this state does nothing more by itself: the state is
// final, or the operation waits for an operator or for a driver call.
func hasStopped(state api.OperationState) bool {
	return state.Final() || state == api.Degraded || state == api.Stuck
}

// outcomeError returns the error of an operation that has stopped, with migctl's exit code; nil if
// it has succeeded.
func outcomeError(op *api.Operation) error {
	switch op.State {
	case api.Succeeded:
		return nil
	case api.Degraded, api.Stuck:
		return &operationError{exitDegraded, op.State}
	case api.Interrupted, api.Accepted:
		return &operationError{exitNeither, op.State}
	case api.Unsettled:
		return &operationError{exitUnsettled, op.State}
	}

	return &operationError{exitFailed, op.State}
}

// writeOutcome shows how an operation ended and what to do next.
func writeOutcome(p *page, op *api.Operation) {
	p.line()

	after := ""
	if !op.Ended.IsZero() {
		after = fmt.Sprintf(" after %s", op.Ended.Sub(op.Started).Round(100*time.Millisecond))
	}

	p.line(stateSpan(op.State), text("%s", after))
	writeError(p, op)
	writeGPUs(p, op)

	if op.State.Committed() {
		writeCreated(p, op)
	}

	for _, w := range op.WaitsFor {
		p.paragraph("  waits for ", yellow, w)
	}

	for _, was := range slices.Sorted(maps.Keys(op.Renamed)) {
		p.line(text("  ~ %s is now", was))
		p.line(text("    %s", op.Renamed[was]))
	}

	writeMode(p, op.Mode)

	for i := range op.Hooks {
		writeHook(p, "  ", &op.Hooks[i])
	}

	for _, w := range op.Warnings {
		p.paragraph("! ", yellow, w)
	}

	writeAdvice(p, op)
}

// writeError shows why an operation failed or what it waits for, and the instances in its way.
func writeError(p *page, op *api.Operation) {
	if op.Error == nil {
		return
	}

	p.paragraph("  ", red, op.Error.Error())

	writeBlockers(p, op.Error.Blocking)
}

// writeGPUs shows the state of each GPU. It shows nothing if the only GPU has the operation's own state,
// and that state tells its layout.
func writeGPUs(p *page, op *api.Operation) {
	if len(op.GPUs) == 1 && op.GPUs[0].State == op.State && !mayHaveOtherLayout(op.State) {
		return
	}

	for i := range op.GPUs {
		g := &op.GPUs[i]
		p.line(text("  %s  ", g.GPU), stateSpan(g.State))

		if g.Error != "" && (op.Error == nil || !strings.Contains(op.Error.Detail, g.Error)) {
			p.paragraph("    ", red, g.Error)
		}

		if !mayHaveOtherLayout(g.State) {
			continue
		}

		if op.Verb != api.VerbRecovery { // we do not know what a recovered operation has done
			writeChanges(p, op, g.GPU)
		}

		writeInstances(p, g)
	}
}

// mayHaveOtherLayout reports whether a GPU in this state may have neither the previous nor the
// planned layout.
func mayHaveOtherLayout(state api.OperationState) bool {
	return slices.Contains(
		[]api.OperationState{api.Interrupted, api.Accepted, api.Degraded, api.Stuck},
		state,
	)
}

// writeChanges lists what an operation has done on a GPU, its rollback included.
func writeChanges(p *page, op *api.Operation, id gpu.UUID) {
	var done []string

	// A step that was undone was done before: the rollback below undid it.
	for i := range op.Steps {
		st := &op.Steps[i]
		if st.GPU == id && (st.State == api.StepDone || st.State == api.StepUndone) {
			done = append(done, stepPlace(&st.Step))
		}
	}

	for i := range op.Rollback {
		if st := &op.Rollback[i]; st.GPU == id && st.State == api.StepDone {
			done = append(done, "rollback: "+stepPlace(&st.Step))
		}
	}

	if len(done) == 0 {
		p.line(text("    This operation has changed nothing there."))
		return
	}

	p.line(text("    Done by this operation:"))

	for _, d := range done {
		p.line(text("      %s", d))
	}
}

// writeInstances lists the instances that a GPU had when it was last read.
func writeInstances(p *page, g *api.OperationGPU) {
	switch {
	case len(g.Current) > 0:
		p.line(text("    Instances there:"))
	case g.Current != nil:
		p.line(text("    Instances there: none"))
	default: // the GPU could not be read
		p.line(text("    Instances there: see migctl get"))
	}

	for i := range g.Current {
		in := &g.Current[i]
		t := fmt.Sprintf("      %s at %s", in.Profile, in.Placement)

		if id, ok := in.ID.Get(); ok {
			t += fmt.Sprintf(", GPU instance %d", id)
		}

		p.line(text("%s", t))

		for j := range in.Compute {
			c := &in.Compute[j]
			p.line(text("        slices %s  %s", c.Placement, orUnknown(string(c.UUID))))
		}
	}
}

// writeCreated lists the MIG devices that an operation has created.
func writeCreated(p *page, op *api.Operation) {
	for i := range op.Steps {
		st := &op.Steps[i]
		if st.Done == nil || st.Done.UUID == "" || st.State != api.StepDone || st.Destroys() {
			continue
		}

		part := ""
		if c, ok := st.Compute.Get(); ok {
			part = ", slices " + c.String()
		}

		p.line(
			span{"  + " + string(st.Done.UUID), green},
			text("  %s at %s%s", st.Profile, st.Placement, part),
		)
	}
}

func writeHook(p *page, lead string, h *api.HookResult) {
	name := strings.Join(h.Argv, " ")
	if h.OK {
		p.paragraph(lead+"hook done: ", green, fmt.Sprintf("%s (%.1f s)", name, h.Seconds))
		return
	}

	p.paragraph(
		lead+"hook failed: ",
		red,
		fmt.Sprintf("%s (exit code %d, %.1f s) %s", name, h.ExitCode, h.Seconds, h.Error),
	)
}

// writeAdvice says how to undo an operation, or what to do next.
func writeAdvice(p *page, op *api.Operation) {
	switch op.State {
	case api.Succeeded:
		writeUndo(p, op)

		if slices.ContainsFunc(op.Hooks, func(h api.HookResult) bool { return !h.OK }) {
			writeHint(
				p,
				"the change itself is done. Do by hand what the failed hook should have done.",
			)
		}
	case api.Unsettled:
		writeUnsettled(p, op)
	case api.RolledBack:
		p.line(text("The layout is as it was before."))

		if len(op.Renamed) > 0 {
			p.line(text("MIG devices have new UUIDs, see above."))
		}

		writeHint(p, "fix the cause, then plan again.")
	case api.Failed:
		if !slices.ContainsFunc(op.Steps, func(st api.OperationStep) bool {
			return st.State == api.StepDone
		}) {
			p.line(text("Nothing was changed."))
		}

		if op.Error != nil {
			failed := *op.Error
			failed.Operation = cmp.Or(failed.Operation, op.ID)
			writeHint(p, problemHint(&failed, &options{}))
			writeCommands(p, &failed, &options{})
		}
	case api.Interrupted:
		writeInterrupted(p, op)
	case api.Accepted:
		p.line(text("The current layout is accepted. No GPU is blocked by this operation."))
		writeHint(p, "plan the layout that you want.")
	case api.Degraded, api.Stuck:
		writeBlockedGPUs(p, op)
	}
}

// writeInterrupted says why an operation has left a GPU as it is: another client has changed the GPU,
// or may have changed it while mig-exporter did not run.
func writeInterrupted(p *page, op *api.Operation) {
	problem := api.Problem{Type: api.LayoutChanged}
	why := "Another client changed a GPU while this operation ran. From then on this operation " +
		"changed nothing there, not even to roll back. No GPU is blocked."

	if op.Error != nil && op.Error.Type == api.NotResumed {
		problem.Type = api.NotResumed
		why = "mig-exporter stopped while this operation ran, and did not resume it: what " +
			"stands on the interrupted GPUs may be another client's. It changed nothing there " +
			"since, not even to roll back. No GPU is blocked."
	}

	p.paragraph("", plain, why)
	writeHint(p, problemHint(&problem, &options{}))
}

func writeUndo(p *page, op *api.Operation) {
	if op.Verb == api.VerbApply || op.Verb == api.VerbRollback {
		p.command("To undo", "migctl rollback", op.ID)
	}
}

// writeUnsettled says what to do about an operation that waits for the kubelet to offer the new devices,
// or for hooks that have failed.
func writeUnsettled(p *page, op *api.Operation) {
	p.paragraph(
		"",
		plain,
		"The change is done, and stays. The operation becomes succeeded by itself once nothing is waited "+
			"for.",
	)

	if op.Cordoned {
		p.paragraph("! ", yellow, "The node is kept cordoned until then.")
	} else {
		p.paragraph("! ", yellow, "Until then the kubelet may give pods devices that do not exist.")
	}

	writeHint(
		p,
		"restart the device plugin's pod on this node if the kubelet is waited for. Hooks that have failed are "+
			"run again. --control.device-plugin lets mig-exporter restart the plugin itself.",
	)
	p.command("To look again", "migctl operations", op.ID)
	p.command("If nothing is left to be done", "migctl settled", op.ID)
	writeUndo(p, op)
}

// writeBlockedGPUs names the GPUs that an operation blocks, and says how to unblock them.
func writeBlockedGPUs(p *page, op *api.Operation) {
	var blocked []string

	for i := range op.GPUs {
		if g := &op.GPUs[i]; g.State == api.Degraded || g.State == api.Stuck {
			blocked = append(blocked, string(g.GPU))
		}
	}

	for _, id := range blocked {
		p.line(text("Blocked: %s", id).in(yellow))
	}

	if op.Verb == api.VerbRecovery {
		p.line(text("Nothing is changed on any GPU until the layout is accepted."))
		writeHint(
			p,
			"the record of an operation cannot be read, so it cannot be rolled back. Compare migctl get with the "+
				"layout that you expect, then accept it.",
		)
		p.command("To accept the current layout", "migctl accept", op.ID)

		return
	}

	if len(blocked) > 0 {
		p.line(text("All other GPUs can be changed."))
	}

	problem := api.Problem{Type: api.StuckNode, Operation: op.ID}
	if op.State == api.Degraded {
		problem.Type = api.DegradedNode
	}

	writeHint(p, problemHint(&problem, &options{}))
	writeCommands(p, &problem, &options{})
}

func stateSpan(state api.OperationState) span { return span{string(state), stateColor(state)} }

func stateColor(state api.OperationState) color {
	switch state {
	case api.Succeeded:
		return green
	case api.Failed, api.Interrupted, api.Degraded, api.Stuck:
		return red
	}

	return yellow
}
