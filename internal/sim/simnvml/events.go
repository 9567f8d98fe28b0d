package simnvml

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// eventTypes are what simulated GPUs report. They accept registration for more than ever happens to them.
const eventTypes = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange |
	nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError | nvml.EventTypePState | nvml.EventTypeClock

func (d *device) GetSupportedEventTypes() (uint64, nvml.Return) {
	return fact(d, gpu.ReadingEvents, func(*sim.GPUState) uint64 { return eventTypes })
}

// RegisterEvents registers all of the types, or none if one is not supported.
func (d *device) RegisterEvents(types uint64, set nvmlsource.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok || s.lib.node != d.node {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if types&^eventTypes != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	for _, known := range []struct {
		bit  uint64
		kind gpu.EventKind
	}{{nvml.EventTypeXidCriticalError, gpu.EventXID}, {nvml.EventMigConfigChange, gpu.EventMIGChange}} {
		if types&known.bit == 0 {
			continue
		}
		if err := s.queue.Watch(d.index, known.kind); err != nil {
			return returnOf(err)
		}
	}
	return nvml.SUCCESS
}

// eventSet is a queue of its own.
type eventSet struct {
	lib   *library
	queue *sim.Subscription
	freed sync.Once
}

// Wait returns TIMEOUT when nothing happened, and promptly UNINITIALIZED when the set is freed or the node closed.
func (s *eventSet) Wait(timeoutMillis uint32) (nvmlsource.Event, nvml.Return) {
	e, err := s.queue.Next(time.Duration(timeoutMillis) * time.Millisecond)
	if err != nil {
		return nvmlsource.Event{}, returnOf(err)
	}
	event := nvmlsource.Event{
		Device:            s.lib.devices[e.GPU],
		Type:              nvml.EventMigConfigChange,
		GPUInstanceID:     idOrNone(e.Instance),
		ComputeInstanceID: idOrNone(e.Compute),
	}
	if e.Kind == gpu.EventXID {
		event.Type, event.Data = nvml.EventTypeXidCriticalError, e.XID
	}
	return event, nvml.SUCCESS
}

func (s *eventSet) Free() nvml.Return {
	s.freed.Do(s.queue.Close)
	return nvml.SUCCESS
}
