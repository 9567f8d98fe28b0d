package nvmlsource

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// delivery is whether the driver delivers the events of a GPU to this process. Registering for them
// succeeds for every client. But while a GPU has instances, the driver delivers its events, changes
// of the layout included, only to clients with root's rights or the MIG monitor capability
// (open-gpu-kernel-modules 595.45.04, src/nvidia/src/kernel/gpu/gpu_rmapi.c,
// _gpuFilterSubDeviceEventInfo). For other clients, no event does not mean that nothing happened.
type delivery int

const (
	deliveryUnknown delivery = iota // no reading has shown it yet; counts as notDelivered
	delivered
	notDelivered
)

// concludeDelivery returns whether the driver delivers the GPU's events to us, as far as a reading
// shows it. listed is set if the reading could list the GPU instances.
//
// No call of NVML says which rights we have, so we conclude them from calls that need the same
// ones. Under MIG, reading the memory of the whole GPU needs the monitor capability (nvml.h,
// nvmlDeviceGetMemoryInfo), which gives us events, too. Listing the GPU instances needs root's
// rights or the configuration capability; since the latter gives no events, we also ask whether the
// kernel says that we have root's rights (Options.Admin). Every client gets events while there is
// no instance, but without rights we cannot know that there is none.
func (r *gpuRead) concludeDelivery(g *gpu.GPU, modeErrs []gpu.ReadError, listed bool) delivery {
	enabled, hasMode := g.MIG.Enabled.Get()
	if hasMode && !enabled || !hasMode && len(modeErrs) == 0 {
		return delivered // MIG is off, or the GPU has none
	}

	if !hasMode {
		return deliveryUnknown
	}

	rights := &r.state.eventRights
	switch {
	case g.Readings.Memory.Total.Present(), listed && r.source.opts.Admin:
		*rights = delivered
	case isDenied(g.Errors, gpu.ReadingMemory):
		*rights = notDelivered
	}

	return *rights
}

// isDenied reports whether a reading of the whole GPU was refused for lack of privilege.
func isDenied(errs []gpu.ReadError, reading gpu.Reading) bool {
	return slices.ContainsFunc(errs, func(e gpu.ReadError) bool {
		return e.Reading == reading && errors.Is(e.Err, gpu.ErrNoPermission)
	})
}

// setDelivery sets whether a GPU's events are delivered. The watcher learns if we receive changes
// of the GPU's layout from now on, or no longer.
func (q *eventQueue) setDelivery(g *gpuState, d delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()

	r := q.registrationOf(g.handle)
	before := r.reportsChanges()
	r.delivery = d

	if now := r.reportsChanges(); q.watcher != nil && q.set != nil && now != before {
		q.watcher.Watching(r.uuid, now)
	}
}

// readEvents registers the GPU's events if that is due. It records in g which of them we receive,
// with an error if XIDs are not among them.
func (r *gpuRead) readEvents(g *gpu.GPU, d delivery) {
	queue := &r.source.queue
	queue.setDelivery(r.state, d)

	if r.state.advanceTo(phaseRead) || r.slow {
		queue.register([]*gpuState{r.state})
	}

	xids := queue.xidsOf(r.state)
	switch {
	case xids.failure.Err == nil:
		g.Errors = append(g.Errors, r.checkDelivery(d)...)
	case !errors.Is(xids.failure.Err, gpu.ErrNotSupported):
		g.Errors = append(g.Errors, xids.failure)
	}

	g.NoXIDs = d != delivered || !xids.received
	g.ReportsUnavailable = d == delivered && xids.kinds&nvml.EventTypeGpuUnavailableError != 0
	g.ReportsRecovery = d == delivered && xids.kinds&nvml.EventTypeGpuRecoveryAction != 0
}

// checkDelivery returns an error if we are registered for the GPU's events but the driver does not
// deliver them. The error counts as a denial, like that of a call.
func (r *gpuRead) checkDelivery(d delivery) []gpu.ReadError {
	q := r.newQuerier(r.state.answers)

	switch d {
	case notDelivered:
		q.recordError(gpu.ReadingEvents, fmt.Errorf(
			"events of a GPU in MIG mode: %w: the driver does not deliver them",
			gpu.ErrNoPermission,
		))
	case delivered:
		if q.refused[gpu.ReadingEvents] {
			q.markRegained(gpu.ReadingEvents)
		}
	}

	return q.errs
}
