package nvmlsource

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// delivery is whether the driver delivers the events of a GPU to this process. Registering for them
// succeeds for everybody. While a GPU has instances, the driver delivers its events, changes of the
// layout included, to clients with root's rights or the MIG monitor capability alone, and is silent
// to the others (open-gpu-kernel-modules 595.45.04, src/nvidia/src/kernel/gpu/gpu_rmapi.c,
// _gpuFilterSubDeviceEventInfo). For them, no event does not mean that nothing happened.
type delivery int

const (
	deliveryUnknown delivery = iota // nothing has shown it yet; it counts as notDelivered
	delivered
	notDelivered
)

// concludeDelivery returns whether the events of the GPU are delivered, from a reading of it;
// listed is set if that has listed the GPU instances. No call of NVML says which rights we have, so
// we conclude them from what needs the same: under MIG the memory of the whole GPU is for those
// with the monitor capability (nvml.h, nvmlDeviceGetMemoryInfo), and its instances are for those
// with root's rights or the configuration capability. The latter alone gives no events: we believe
// in root's rights if the kernel says that we have them, too. Without any instance everybody gets
// events, but those who have no rights do not know whether there are instances.
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

// setDelivery sets whether a GPU's events are delivered, and tells the watcher if that changes
// whether we learn of changes of its layout.
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

// readEvents registers the GPU's events if that is due, and records in g which of them we learn of,
// and an error if its XIDs are not received.
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

// checkDelivery returns an error if the events that the GPU is registered for are not delivered: a
// denial like those of calls.
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
