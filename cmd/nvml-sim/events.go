package main

// #include "abi.h"
import "C"

import (
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func eventCalls() map[string]call {
	return map[string]call{
		"nvmlEventSetCreate":       askDriver(createSet, 0),
		"nvmlEventSetFree":         freeSet,
		"nvmlEventSetWait":         waitSet(putOldEvent),
		"nvmlEventSetWait_v2":      waitSet(putEvent),
		"nvmlDeviceRegisterEvents": onHandle(registerEvents, aGPU, aMIGDevice),
		"nvmlDeviceGetSupportedEventTypes": readValue(gpu.ReadingEvents,
			func(s *sim.GPUState) uint64 { return s.EventTypes }),
	}
}

// eventSet is a queue of events that a client has created.
type eventSet struct {
	queue *sim.Subscription
	freed sync.Once
}

// createSet creates an event set under the lowest free number.
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

// set returns the event set of a handle; nil if there is none.
func (l *library) set(raw uintptr) *eventSet {
	h, ok := handleOf(raw)
	if !ok || h.kind != anEventSet {
		return nil
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	return l.sets[h.gpu]
}

// freeSet frees an event set. Calls that wait for it end.
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

// registerEvents adds events of a GPU to a set: of all types in the second argument, or of none if
// one of them is not supported.
func registerEvents(l *library, h handle, a args) result {
	set := l.set(a.raw[2])

	switch {
	case set == nil:
		return invalidArgument
	case h.kind == aMIGDevice:
		return notSupported
	}

	return l.failed(set.queue.WatchTypes(h.gpu, uint64(a.raw[1])))
}

// waitSet answers with the next event of a set. It waits for one as long as the third argument says,
// in milliseconds.
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
	data := pointer[C.sim_nvmlEventData_t](a, 1)
	setHandle(&data.device, handle{kind: aGPU, gpu: e.GPU})
	data.eventType = C.sim_u64(e.Type())
	data.eventData = C.sim_u64(e.XID) // 0 for all other types
}

func putEvent(a args, e sim.Event) {
	putOldEvent(a, e)
	data := pointer[C.sim_nvmlEventData_t](a, 1)
	data.gpuInstanceId = C.sim_u32(idOrNone(e.Instance))
	data.computeInstanceId = C.sim_u32(idOrNone(e.Compute))
}
