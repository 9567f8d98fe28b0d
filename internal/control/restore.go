package control

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// restoreOnce restores, once in a boot, the committed layouts. If the driver does not answer yet, Run tries it again.
func (e *Engine) restoreOnce(ctx context.Context) {
	e.mu.Lock()
	due := e.restoredBoot != e.o.BootID && e.unusable == "" && e.current == nil
	layouts := slices.Clone(e.layouts)
	e.restoring = false
	e.mu.Unlock()
	if !due {
		return
	}
	if !e.o.Restore || !e.o.Apply || e.o.BootID == "" || len(layouts) == 0 {
		e.setRestored()
		return
	}
	safe, cancel := withGrace(ctx)
	defer cancel()
	gpus, unreadable, err := e.readLayouts(safe)
	if err != nil {
		level.Warn(e.o.Logger).Log("msg", "cannot restore the layout from before the reboot yet", "err", err)
		e.mu.Lock()
		e.restoring = true
		e.mu.Unlock()
		return
	}
	var steps []mig.Step
	var warnings []string
	var restored []layout
	for _, l := range layouts {
		g, err := findGPU(gpus, unreadable, l.GPU)
		if reason := e.notRestored(safe, g, l, err); reason != "" {
			level.Warn(e.o.Logger).Log("msg", "did not restore the layout from before the reboot",
				"gpu", l.GPU, "reason", reason)
			warnings = append(warnings, fmt.Sprintf("%s: %s", l.GPU, reason))
			continue
		}
		restored = append(restored, l)
		steps = append(steps, stepsBetween(l.GPU, g.Instances, l.Instances)...)
	}
	if len(steps) > 0 {
		r := e.newRecord(safe, api.VerbRestore, "system", steps)
		r.Operation.Warnings = warnings
		for _, l := range restored {
			g, _ := findGPU(gpus, nil, l.GPU)
			r.addGPU(g, l.Instances)
		}
		op, p := e.enqueue(r, doSteps)
		if p != nil {
			return
		}
		e.applySteps(safe, op)
		e.clearCurrent(ctx, op)
	}
	e.setRestored()
}

// notRestored returns why a GPU is not restored, or "" if it was.
func (e *Engine) notRestored(ctx context.Context, g mig.GPULayout, l layout, err error) string {
	switch {
	case err != nil:
		return reasonText(err)
	case len(g.Instances) > 0:
		return "it has instances already"
	case len(l.Instances) > 0 && !g.MIG.Or(false):
		return "its MIG mode is off"
	}
	if p := e.blockedGPU(l.GPU); p != nil {
		return p.Detail
	}
	if _, p := e.checkOwners(ctx, gpusOfSteps(stepsBetween(l.GPU, g.Instances, l.Instances)), false); p != nil {
		return p.Detail
	}
	return ""
}

func (e *Engine) blockedGPU(id gpu.UUID) *api.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	if op, state := e.blockingOperation(id); op != nil {
		return blockedProblem(op, id, state)
	}
	return nil
}

// setRestored records that this boot needs no restore any more.
func (e *Engine) setRestored() {
	e.mu.Lock()
	e.restoredBoot = e.o.BootID
	e.mu.Unlock()
	_ = e.saveHistory() // if it cannot be saved, the engine is read-only
}

// restoreLater calls restoreOnce if the restore was postponed.
func (e *Engine) restoreLater(ctx context.Context) {
	e.mu.Lock()
	due := e.restoring
	e.mu.Unlock()
	if !due || e.claimReservation(nil) != nil {
		return
	}
	defer e.releaseReservation()
	e.restoreOnce(ctx)
}
