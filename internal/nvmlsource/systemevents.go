package nvmlsource

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The kernel unbinds a GPU from the driver once no process has it open. NVML sends an event when
// the kernel waits for that, so that clients can release the GPU, and one when a GPU is bound.

// systemEventKinds are the system events that we ask for.
const systemEventKinds = nvml.SystemEventTypeGpuDriverUnbind | nvml.SystemEventTypeGpuDriverBind

// systemEventsEvery is how often we ask again after a failure.
const systemEventsEvery = time.Minute

// followBinding requests that GPUs which are being unbound are released. It does not wait for
// events. If the library has no such events, or we cannot tell which GPUs this process has open,
// operators have to release them.
func (s *Source) followBinding() {
	if !s.initialised || s.opts.Opening.OpenMinors == nil {
		return
	}

	since := s.opts.Now().Sub(s.session.noEventsAt)
	if since >= 0 && since < systemEventsEvery { // the clock may have been set back
		return
	}

	events, ret := s.lib.SystemEventSetWait()
	if ret == nvml.ERROR_TIMEOUT {
		return
	}

	if err := checkReturn("nvmlSystemEventSetWait", ret); err != nil {
		s.session.noEventsAt = s.opts.Now()
		if !errors.Is(err, gpu.ErrNotSupported) {
			level.Debug(s.opts.Logger).Log(
				"msg", "cannot tell whether a GPU is being unbound",
				"err", err,
			)
		}

		return
	}

	for _, e := range events {
		s.noteBinding(e)
	}
}

// noteBinding notes that a GPU is being unbound, or was bound.
func (s *Source) noteBinding(e nvml.SystemEventData_v1) {
	id := s.findByPCI(e.GpuId)
	if id == "" {
		level.Info(s.opts.Logger).Log(
			"msg", "a GPU that was never read is being unbound, or was bound",
			"id", fmt.Sprintf("%#x", e.GpuId),
			"event", e.EventType,
		)

		return
	}

	switch {
	case e.EventType&nvml.SystemEventTypeGpuDriverUnbind != 0:
		level.Info(s.opts.Logger).Log("msg", "a GPU is being unbound; letting go of it", "gpu", id)
		s.Release(id, gpu.ReleasedByDriver)
	case e.EventType&nvml.SystemEventTypeGpuDriverBind != 0:
		s.noteBound(id)
	}
}

// noteBound notes that a GPU was bound. Requests of the driver to release it are void. If it is
// released, we open it again: at once if we cannot list the bound GPUs, else when it is listed.
func (s *Source) noteBound(id gpu.UUID) {
	bound, _ := s.listBound() // nil if that is unknown

	s.mu.Lock()
	defer s.mu.Unlock()

	s.session.requests = slices.DeleteFunc(s.session.requests, func(r *releaseRequest) bool {
		return r.id == id && !r.isFromOperator()
	})

	r := s.session.released[id]
	switch {
	case r == nil:
	case bound == nil:
		delete(s.session.released, id)
	default:
		r.Unbound = true // it was, even if no poll has seen that: followKernel opens it once it is listed
	}
}

// findByPCI returns the GPU with a PCI id as the driver makes them (OGKM, gpuGenerate32BitId):
// domain, bus and device, from the high bits to the low ones. It is empty if no such GPU was read.
func (s *Source) findByPCI(pciID uint32) gpu.UUID {
	s.mu.Lock()
	defer s.mu.Unlock()

	for id, facts := range s.session.known {
		var domain, bus, device uint32
		if n, _ := fmt.Sscanf(facts.PCIBusID, "%x:%x:%x", &domain, &bus, &device); n == 3 &&
			domain<<16|bus<<8|device == pciID {
			return id
		}
	}

	return ""
}
