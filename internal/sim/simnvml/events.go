package simnvml

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// eventTypes are what simulated GPUs report. They accept registration for more than ever happens to
// them.
const eventTypes = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange |
	nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError |
	nvml.EventTypePState | nvml.EventTypeClock

// eventKind is a type of events that happen, and the simulation's name of it.
type eventKind struct {
	bit  uint64
	kind gpu.EventKind
}

func eventKinds() []eventKind {
	return []eventKind{
		{nvml.EventTypeXidCriticalError, gpu.EventXID},
		{nvml.EventMigConfigChange, gpu.EventMIGChange},
		{nvml.EventTypeGpuUnavailableError, gpu.EventUnavailable},
		{nvml.EventTypeGpuRecoveryAction, gpu.EventRecoveryAction},
	}
}

// eventTypes returns the types that can be registered for.
func (d *device) eventTypes() uint64 {
	if d.node.ReportsHealth() {
		return eventTypes | nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction
	}

	return eventTypes
}

func (d *device) GetSupportedEventTypes() (uint64, nvml.Return) {
	return fact(d, gpu.ReadingEvents, func(*sim.GPUState) uint64 { return d.eventTypes() })
}

// RegisterEvents registers all of the types, or none if one is not supported.
func (d *device) RegisterEvents(types uint64, set nvmlsource.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok || s.lib.node != d.node {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	if types&^d.eventTypes() != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}

	for _, known := range eventKinds() {
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

// Wait returns TIMEOUT when nothing happened, and promptly UNINITIALIZED when the set is freed or
// the node closed.
func (s *eventSet) Wait(timeoutMillis uint32) (nvmlsource.Event, nvml.Return) {
	e, err := s.queue.Next(time.Duration(timeoutMillis) * time.Millisecond)
	if err != nil {
		return nvmlsource.Event{}, returnOf(err)
	}

	event := nvmlsource.Event{
		Device:            s.lib.devices[e.GPU],
		GPUInstanceID:     idOrNone(e.Instance),
		ComputeInstanceID: idOrNone(e.Compute),
	}
	for _, known := range eventKinds() {
		if known.kind == e.Kind {
			event.Type = known.bit
			event.Data = e.XID // which only XIDs have
		}
	}

	return event, nvml.SUCCESS
}

func (s *eventSet) Free() nvml.Return {
	s.freed.Do(s.queue.Close)
	return nvml.SUCCESS
}
