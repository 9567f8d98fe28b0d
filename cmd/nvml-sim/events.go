package main

// #include "abi.h"
import "C"

import (
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// eventTypes are what simulated GPUs report. They accept registration for more than ever happens to them.
const eventTypes = C.SIM_nvmlEventTypeXidCriticalError | C.SIM_nvmlEventMigConfigChange |
	C.SIM_nvmlEventTypeSingleBitEccError | C.SIM_nvmlEventTypeDoubleBitEccError | C.SIM_nvmlEventTypePState | C.SIM_nvmlEventTypeClock

func eventCalls() map[string]call {
	return map[string]call{
		"nvmlEventSetCreate":               notNull(createSet, 0),
		"nvmlEventSetFree":                 freeSet,
		"nvmlEventSetWait":                 notNull(waitSet(putOldEvent), 1),
		"nvmlEventSetWait_v2":              notNull(waitSet(putEvent), 1),
		"nvmlDeviceRegisterEvents":         registerEvents,
		"nvmlDeviceGetSupportedEventTypes": number(gpu.ReadingEvents, func(*sim.State) uint64 { return eventTypes }),
	}
}

// eventSet is a queue of one client's own.
type eventSet struct {
	queue *sim.Subscription
	freed sync.Once
}

// createSet makes a set under the lowest free number.
func createSet(l *library, a args) result {
	err := l.node.Driver()
	if err != nil {
		return l.failed(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for number := range maxGPUs {
		if l.sets[number] == nil {
			l.sets[number] = &eventSet{queue: l.node.Subscribe()}
			putRaw(a, 0, handle{kind: anEventSet, gpu: number})
			return success
		}
	}
	return insufficientResources
}

// set finds the set of a handle; nil where there is none, or none any more.
func (l *library) set(raw uintptr) *eventSet {
	h, ok := handleOf(raw)
	if !ok || h.kind != anEventSet {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sets[h.gpu]
}

// freeSet ends the calls that wait for the set.
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

// registerEvents registers all of the types, or none where one is not supported.
func registerEvents(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	set, types := l.set(a.raw[2]), uint64(a.raw[1])
	switch {
	case !ok || h.kind > aMIGDevice || h.gpu >= l.node.Count() || set == nil:
		return invalidArgument
	case h.kind == aMIGDevice || types&^eventTypes != 0:
		return notSupported
	}
	for _, known := range []struct {
		bit  uint64
		kind gpu.EventKind
	}{{C.SIM_nvmlEventTypeXidCriticalError, gpu.EventXID}, {C.SIM_nvmlEventMigConfigChange, gpu.EventMIGChange}} {
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

// waitSet waits for at most as many milliseconds as the third argument says.
func waitSet(put func(a args, e sim.Event)) call {
	return func(l *library, a args) result {
		set := l.set(a.raw[0])
		if set == nil {
			return invalidArgument
		}
		e, err := set.queue.Next(time.Duration(a.uint(2)) * time.Millisecond)
		if err != nil {
			return l.failed(err)
		}
		put(a, e)
		return success
	}
}

// putOldEvent fills what the struct had before its second version.
func putOldEvent(a args, e sim.Event) {
	data := at[C.sim_nvmlEventData_t](a, 1)
	putHandle(&data.device, handle{kind: aGPU, gpu: e.GPU})
	data.eventType, data.eventData = C.SIM_nvmlEventMigConfigChange, 0
	if e.Kind == gpu.EventXID {
		data.eventType, data.eventData = C.SIM_nvmlEventTypeXidCriticalError, C.sim_u64(e.XID)
	}
}

func putEvent(a args, e sim.Event) {
	putOldEvent(a, e)
	data := at[C.sim_nvmlEventData_t](a, 1)
	data.gpuInstanceId, data.computeInstanceId = C.sim_u32(idOrNone(e.Instance)), C.sim_u32(idOrNone(e.Compute))
}
