package main

// #include "abi.h"
import "C"

import (
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// eventTypes are the events that can be registered for: more than those that simulated GPUs report.
// Drivers from 565 on have those of availableTypes, too.
const eventTypes = C.SIM_nvmlEventTypeXidCriticalError | C.SIM_nvmlEventMigConfigChange |
	C.SIM_nvmlEventTypeSingleBitEccError | C.SIM_nvmlEventTypeDoubleBitEccError |
	C.SIM_nvmlEventTypePState | C.SIM_nvmlEventTypeClock

const availableTypes = C.SIM_nvmlEventTypeGpuUnavailableError | C.SIM_nvmlEventTypeGpuRecoveryAction

// supportedTypes returns the events that can be registered for.
func supportedTypes(reportsHealth bool) uint64 {
	if reportsHealth {
		return eventTypes | availableTypes
	}

	return eventTypes
}

// eventKind is a type of events that happen, and the simulation's name of it.
type eventKind struct {
	bit  uint64
	kind gpu.EventKind
}

func eventKinds() []eventKind {
	return []eventKind{
		{C.SIM_nvmlEventTypeXidCriticalError, gpu.EventXID},
		{C.SIM_nvmlEventMigConfigChange, gpu.EventMIGChange},
		{C.SIM_nvmlEventTypeGpuUnavailableError, gpu.EventUnavailable},
		{C.SIM_nvmlEventTypeGpuRecoveryAction, gpu.EventRecoveryAction},
	}
}

func eventCalls() map[string]call {
	return map[string]call{
		"nvmlEventSetCreate":       askDriver(createSet, 0),
		"nvmlEventSetFree":         freeSet,
		"nvmlEventSetWait":         waitSet(putOldEvent),
		"nvmlEventSetWait_v2":      waitSet(putEvent),
		"nvmlDeviceRegisterEvents": onHandle(registerEvents, aGPU, aMIGDevice),
		"nvmlDeviceGetSupportedEventTypes": readValue(gpu.ReadingEvents,
			func(s *sim.GPUState) uint64 { return supportedTypes(s.ReportsHealth) }),
	}
}

// eventSet is the queue of one client.
type eventSet struct {
	queue *sim.Subscription
	freed sync.Once
}

// createSet makes a set under the lowest free number.
func createSet(l *library, a args) result {
	l.mu.Lock()
	defer l.mu.Unlock()

	for number := range maxGPUs {
		if l.sets[number] == nil {
			l.sets[number] = &eventSet{queue: l.node.Subscribe()}
			return putHandle(a, 0, handle{kind: anEventSet, gpu: number})
		}
	}

	return insufficientResources
}

// set returns the set of a handle; nil if there is none.
func (l *library) set(raw uintptr) *eventSet {
	h, ok := handleOf(raw)
	if !ok || h.kind != anEventSet {
		return nil
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	return l.sets[h.gpu]
}

// freeSet ends the calls that wait for the set, too.
func freeSet(l *library, a args) result {
	set := l.set(a.raw[0])
	if set == nil {
		return invalidArgument
	}

	h, _ := handleOf(a.raw[0])
	l.mu.Lock()
	delete(l.sets, h.gpu)
	l.mu.Unlock()
	set.free()

	return success
}

func (s *eventSet) free() { s.freed.Do(s.queue.Close) }

// registerEvents registers a GPU for all of the types, or for none if one is not supported.
func registerEvents(l *library, h handle, a args) result {
	set := l.set(a.raw[2])
	types := uint64(a.raw[1])

	switch {
	case set == nil:
		return invalidArgument
	case h.kind == aMIGDevice || types&^supportedTypes(l.node.ReportsHealth()) != 0:
		return notSupported
	}

	for _, known := range eventKinds() {
		if types&known.bit == 0 {
			continue
		}

		err := set.queue.Watch(h.gpu, known.kind)
		if err != nil {
			return l.failed(err)
		}
	}

	return success
}

// waitSet answers with the next event, for which it waits at most as many milliseconds as the third
// argument says.
func waitSet(answer func(a args, e sim.Event)) call {
	return notNull(func(l *library, a args) result {
		set := l.set(a.raw[0])
		if set == nil {
			return invalidArgument
		}

		e, err := set.queue.Next(time.Duration(a.uint(2)) * time.Millisecond)
		if err != nil {
			return l.failed(err)
		}

		answer(a, e)

		return success
	}, 1)
}

// putOldEvent writes what the struct had before its second version.
func putOldEvent(a args, e sim.Event) {
	data := at[C.sim_nvmlEventData_t](a, 1)
	setHandle(&data.device, handle{kind: aGPU, gpu: e.GPU})

	for _, known := range eventKinds() {
		if known.kind == e.Kind {
			data.eventType = C.sim_u64(known.bit)
			data.eventData = C.sim_u64(e.XID) // which only XIDs have
		}
	}
}

func putEvent(a args, e sim.Event) {
	putOldEvent(a, e)
	data := at[C.sim_nvmlEventData_t](a, 1)
	data.gpuInstanceId = C.sim_u32(idOrNone(e.Instance))
	data.computeInstanceId = C.sim_u32(idOrNone(e.Compute))
}
