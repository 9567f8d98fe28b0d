package simnvml

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func (d *gpuHandle) GetSupportedEventTypes() (uint64, nvml.Return) {
	return readFact(d, gpu.ReadingEvents, func(s *sim.GPUState) uint64 { return s.EventTypes })
}

// RegisterEvents registers all of the types, or none if one is not supported.
func (d *gpuHandle) RegisterEvents(types uint64, set nvmlsource.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok || s.lib.node != d.node {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	return returnOf(s.queue.WatchTypes(d.index, types))
}

// eventSet is an event set of NVML: a queue of events.
type eventSet struct {
	lib   *library
	queue *sim.Subscription
	freed sync.Once
}

// Wait returns TIMEOUT if nothing happened. When the set is freed or the node closed, it returns
// UNINITIALIZED at once.
func (s *eventSet) Wait(timeoutMillis uint32) (nvmlsource.Event, nvml.Return) {
	e, err := s.queue.Next(time.Duration(timeoutMillis) * time.Millisecond)
	if err != nil {
		return nvmlsource.Event{}, returnOf(err)
	}

	return nvmlsource.Event{
		Device:            s.lib.devices[e.GPU],
		Type:              e.Type(),
		Data:              e.XID, // 0 for other events
		GPUInstanceID:     idOrNone(e.Instance),
		ComputeInstanceID: idOrNone(e.Compute),
	}, nvml.SUCCESS
}

func (s *eventSet) Free() nvml.Return {
	s.freed.Do(s.queue.Close)
	return nvml.SUCCESS
}
