package control

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// restoreOnce begins the restore of this boot, and tries all GPUs that are due. Recovery calls it
// before we accept requests; afterwards restoreLater repeats what failed.
func (e *Engine) restoreOnce(ctx context.Context) {
	e.beginRestore()

	due := e.dueRestores()
	if len(due) == 0 {
		return
	}

	// We ask once for all GPUs, so that an API server that does not answer delays the start by one
	// request only.
	owners := e.askOwners(ctx)

	for _, id := range due {
		// If we could not save the last restore in the history, the next one would overwrite the
		// slots that have it. restoreLater goes on.
		if ctx.Err() != nil || e.Reason() != "" {
			return
		}

		e.restoreGPU(ctx, id, owners)
	}
}

// restoreLater tries the GPUs that are due again, one at a time, so that requests have their turn in
// between. It also begins the restore of this boot, if the state folder could not be used at the
// start.
func (e *Engine) restoreLater(ctx context.Context) {
	notBegun := read(e.state, func(b *book) bool {
		return b.isRestoreDue(e.o.BootID) && !b.recovering
	})
	if notBegun {
		e.beginRestore()
	}

	due := e.dueRestores()
	if len(due) == 0 {
		return
	}

	// We ask before we take the reservation: no request must be refused while the API server hangs.
	owners := e.askOwners(ctx)

	for _, id := range due {
		if ctx.Err() != nil || e.claimReservation(nil) != nil {
			return
		}

		e.restoreGPU(ctx, id, owners)
		e.releaseReservation()
	}
}

// restoreGPU gives one GPU its committed layout again; if that fails, other GPUs are not affected.
// The caller holds the reservation, or is the recovery.
func (e *Engine) restoreGPU(ctx context.Context, id gpu.UUID, owners ownership) {
	graceCtx, cancel := withGrace(ctx)
	defer cancel()

	r, reason, p := e.newRestore(graceCtx, id, restoreOptions{by: "system", owners: &owners})
	if p != nil {
		e.postponeRestore(id, reason, p.Detail, "")
		return
	}

	if len(r.Changes) == 0 { // it has the layout
		e.state.update(func(b *book) { b.dropUnrestored(id) })
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
		e.reportState()

		return
	}

	e.dropAttempt(id)

	op, p := e.addOperation(*r, doSteps)
	if p != nil {
		e.postponeRestore(id, api.RestoreFailed, p.Detail, "")
		return
	}

	e.applySteps(graceCtx, op)
	e.clearCurrent(ctx, op)
}

// restoreOptions say for whom newRestore restores a GPU, and how.
type restoreOptions struct {
	by       string
	takeOver bool
	asked    bool       // an operator asked: the GPU may have some instances of the layout already
	owners   *ownership // the cluster's answer; nil: newRestore asks the cluster
}

// newRestore returns the operation that restores the layout of a GPU, or why we can't restore it. If
// the GPU has the layout already, the operation has no changes. A restore never destroys anything:
// newRestore refuses a GPU with another client's instances.
func (e *Engine) newRestore(
	ctx context.Context,
	id gpu.UUID,
	opts restoreOptions,
) (*record, api.RestoreReason,
	*api.Problem) {
	l, p := e.layoutToRestore(id)
	if p != nil {
		return nil, api.RestoreFailed, p
	}

	if p := e.checkBlocked(id); p != nil {
		return nil, api.RestoreBlocked, p
	}

	g, p := e.readForRestore(ctx, id)
	if p != nil {
		return nil, api.NotReadable, p
	}

	steps := mig.StepsTo(&g, l.Instances)

	hasForeign := slices.ContainsFunc(steps, mig.Step.Destroys)
	if !opts.asked && len(steps) > 0 && len(g.Instances) > 0 {
		hasForeign = true // also if the layout has them: this boot's operations did not create them
	}

	switch {
	case hasForeign:
		return nil, api.NotEmpty, problemf(
			api.LayoutChanged,
			"GPU %d (%s) has instances that this boot's operations "+
				"have not made, and that a restore does not destroy: %s",
			g.Index,
			id,
			placesText(g.Instances),
		)
	case len(l.Instances) > 0 && !g.MIG.Or(false):
		return nil, api.NotInMode, problemf(
			api.ModeDiffers,
			"MIG mode of GPU %d (%s) is off",
			g.Index,
			id,
		)
	}

	if opts.owners == nil {
		_, p = e.checkOwners(ctx, gpusOfSteps(steps), opts.takeOver)
	} else {
		_, p = opts.owners.check(gpusOfSteps(steps), opts.takeOver)
	}

	if p != nil {
		return nil, api.NotOwner, p
	}

	r := e.newRecord(ctx, api.VerbRestore, opts.by, steps)
	r.TakeOver = opts.takeOver
	r.addGPU(g, l.Instances)

	return &r, "", nil
}

// layoutToRestore returns the committed layout of a GPU.
func (e *Engine) layoutToRestore(id gpu.UUID) (layout, *api.Problem) {
	wanted := read(e.state, func(b *book) *layout { return b.findLayout(id) })
	if wanted == nil {
		return layout{}, problemf(
			api.NotFound,
			"no operation has made a layout of %s that could be restored",
			id,
		)
	}

	return *wanted, nil
}

// findLayout returns a copy of the committed layout of a GPU, nil if there is none.
func (b *book) findLayout(id gpu.UUID) *layout {
	for _, l := range b.layouts {
		if l.GPU == id {
			return &l
		}
	}

	return nil
}

// readForRestore reads a GPU as it is now.
func (e *Engine) readForRestore(ctx context.Context, id gpu.UUID) (mig.GPULayout, *api.Problem) {
	if e.hasHungCall(id) {
		return mig.GPULayout{}, problemf(
			api.StuckNode,
			"an earlier driver call for %s has not returned",
			id,
		)
	}

	g, err := e.readGPU(ctx, id)

	switch {
	case err == nil:
		return g, nil
	case isTimeout(err):
		return g, problemf(api.StuckNode, "the driver has not answered for %s in time", id)
	default:
		return g, problemf(
			api.Unavailable,
			"%s cannot be read, or is not there: %s",
			id,
			reasonText(err),
		)
	}
}

// placesText lists instances with their placements: "3g.20gb@4:4, 1g.5gb@0:1".
func placesText(list []mig.Instance) string {
	var names []string
	for _, i := range list {
		names = append(names, fmt.Sprintf("%s@%s", i.Profile, i.Placement))
	}

	return strings.Join(names, ", ")
}

// Restore begins an operation that gives a GPU its committed layout again. It destroys nothing.
// Operators can ask for it at any time, also without --control.restore.
func (e *Engine) Restore(
	ctx context.Context,
	by Actor,
	id gpu.UUID,
	r api.RestoreRequest,
) (*api.Operation, error) {
	if p := e.checkMayApply(by); p != nil {
		return nil, p
	}

	if p := by.checkRights(false, r.TakeOver); p != nil {
		return nil, p
	}

	if p := e.reserve(ctx, nil, id); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	started, _, p := e.newRestore(
		ctx,
		id,
		restoreOptions{by: by.Name, takeOver: r.TakeOver, asked: true},
	)
	if p != nil {
		return nil, p
	}

	return e.acceptOperation(*started, doSteps)
}

// ForgetLayout forgets the committed layout of a GPU, so that we don't restore it: the GPU was
// taken out of the node, or shall keep its current layout. It changes no GPU.
func (e *Engine) ForgetLayout(
	ctx context.Context,
	by Actor,
	id gpu.UUID,
) (*api.ForgottenLayout, error) {
	if p := e.checkMayApply(by); p != nil {
		return nil, p
	}

	if p := e.reserve(ctx, nil); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	l, p := e.layoutToRestore(id)
	if p != nil {
		return nil, p
	}

	e.state.update(func(b *book) {
		b.layouts = slices.DeleteFunc(b.layouts, func(l layout) bool { return l.GPU == id })
		b.dropUnrestored(id)
	})
	level.Info(e.o.Logger).Log("msg", "forgot the layout of a GPU", "gpu", id, "by", by.Name)

	err := e.saveHistory()
	e.reportState()

	if err != nil {
		return nil, failureProblem(err)
	}

	return &api.ForgottenLayout{
		APIVersion: api.Version,
		GPU:        id,
		Forgotten:  describeWanted(l.Instances),
	}, nil
}
