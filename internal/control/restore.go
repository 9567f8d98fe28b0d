package control

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// restoreOnce restores, once in a boot, the committed layouts. Where the driver does not answer yet, Run tries it again.
func (e *Engine) restoreOnce(ctx context.Context) {
	e.mu.Lock()
	due := e.boot != e.o.BootID && e.unusable == ""
	layouts := slices.Clone(e.committed)
	e.restoring = false
	e.mu.Unlock()
	if !due {
		return
	}
	if !e.o.Restore || !e.o.Apply || e.o.BootID == "" || len(layouts) == 0 {
		e.restored()
		return
	}
	if p := e.take(nil); p != nil { // an operation has to be dealt with first
		e.later()
		return
	}
	defer e.release()
	gpus, unreadable, err := e.read(ctx)
	if err != nil {
		level.Warn(e.o.Logger).Log("msg", "The layout before the reboot cannot be restored yet", "err", err)
		e.later()
		return
	}
	b := begun{Operation: e.header(api.VerbRestore, "system"), Boot: e.o.BootID}
	var steps []mig.Step
	for _, l := range layouts {
		g, err := findGPU(gpus, unreadable, l.GPU)
		reason := e.notRestored(ctx, g, l, err)
		if reason != "" {
			level.Warn(e.o.Logger).Log("msg", "The layout before the reboot is not restored", "gpu", l.GPU, "reason", reason)
			b.Operation.Warnings = append(b.Operation.Warnings, fmt.Sprintf("%s: %s", l.GPU, reason))
			continue
		}
		b.Before, b.After = append(b.Before, layout{GPU: l.GPU}), append(b.After, l)
		steps = append(steps, cut{live: g, want: l}.steps()...)
	}
	b.Operation.Steps = pendingSteps(steps)
	if len(steps) > 0 {
		op, p := e.enter(b, doSteps)
		if p != nil {
			return
		}
		e.apply(ctx, op)
		e.hand(op)
	}
	e.restored()
}

// notRestored says why a GPU is left as it is, or nothing.
func (e *Engine) notRestored(ctx context.Context, g mig.NodeGPU, l layout, err error) string {
	switch {
	case err != nil:
		return reasonText(err)
	case len(g.Instances) > 0:
		return "it has instances already"
	case len(l.Instances) > 0 && !g.MIG.Or(false):
		return "its MIG mode is off"
	}
	if _, p := e.owners(ctx, touched(cut{live: g, want: l}.steps()), false); p != nil {
		return p.Detail
	}
	return ""
}

// later has Run try it again.
func (e *Engine) later() {
	e.mu.Lock()
	e.restoring = true
	e.mu.Unlock()
}

// restored notes that this boot needs no restore any more.
func (e *Engine) restored() {
	if err := e.record(nil, entry{Kind: entryBoot, Boot: e.o.BootID}, func() { e.boot = e.o.BootID }); err != nil {
		level.Debug(e.o.Logger).Log("msg", "That this boot needs no restore any more is not in the journal", "err", err)
	}
}

// restoreLater is restoreOnce where it was put off.
func (e *Engine) restoreLater(ctx context.Context) {
	e.mu.Lock()
	due := e.restoring && e.current == nil
	e.mu.Unlock()
	if due {
		safe, cancel := lasting(ctx)
		defer cancel()
		e.restoreOnce(safe)
	}
}
