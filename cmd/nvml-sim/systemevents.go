package main

// #include "abi.h"
import "C"

import (
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// systemEventBranch is the first driver branch with system events (unverified).
const systemEventBranch = 580

const systemEventTypes = C.SIM_nvmlSystemEventTypeGpuDriverUnbind | C.SIM_nvmlSystemEventTypeGpuDriverBind

// systemEventCalls answer about GPUs that are unbound from the kernel driver, or bound to it.
func systemEventCalls() map[string]call {
	since := func(do call) call { return beforeBranch(systemEventBranch, missingFunction, notNull(do, 0)) }
	return map[string]call{
		"nvmlSystemEventSetCreate": since(createSystemSet),
		"nvmlSystemEventSetFree":   since(freeSystemSet),
		"nvmlSystemRegisterEvents": since(registerSystemEvents),
		"nvmlSystemEventSetWait":   since(waitSystemSet),
	}
}

// systemEventSet is a queue of system events that a client has created.
type systemEventSet struct {
	mu    sync.Mutex
	types uint64         // the event types that are registered, as bits
	watch *sim.BindWatch // nil until a type is registered
	queue []C.sim_nvmlSystemEventData_v1_t
}

// createSystemSet creates a set under the lowest free number.
func createSystemSet(l *library, a args) result {
	request := pointer[C.sim_nvmlSystemEventSetCreateRequest_v1_t](a, 0)
	if request.version != C.SIM_nvmlSystemEventSetCreateRequest_v1 {
		return structMismatch
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	for number := range maxGPUs {
		if l.systemSets[number] == nil {
			l.systemSets[number] = &systemEventSet{}
			setHandle(&request.set, handle{kind: aSystemEventSet, gpu: number})

			return success
		}
	}

	return insufficientResources
}

// systemSet returns the set of a handle, with its number; nil if there is none.
func (l *library) systemSet(raw unsafe.Pointer) (*systemEventSet, int) {
	h, ok := handleOf(uintptr(raw))
	if !ok || h.kind != aSystemEventSet {
		return nil, 0
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	return l.systemSets[h.gpu], h.gpu
}

func freeSystemSet(l *library, a args) result {
	request := pointer[C.sim_nvmlSystemEventSetFreeRequest_v1_t](a, 0)
	if request.version != C.SIM_nvmlSystemEventSetFreeRequest_v1 {
		return structMismatch
	}

	set, number := l.systemSet(request.set)
	if set == nil {
		return invalidArgument
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.systemSets, number)

	return success
}

func registerSystemEvents(l *library, a args) result {
	request := pointer[C.sim_nvmlSystemRegisterEventRequest_v1_t](a, 0)
	if request.version != C.SIM_nvmlSystemRegisterEventRequest_v1 {
		return structMismatch
	}

	set, _ := l.systemSet(request.set)
	if set == nil || request.eventTypes == 0 || request.eventTypes&^systemEventTypes != 0 {
		return invalidArgument
	}

	set.mu.Lock()
	defer set.mu.Unlock()

	set.types |= uint64(request.eventTypes)
	if set.watch == nil {
		set.watch = l.node.WatchBinding()
	}

	return success
}

// waitSystemSet answers with the events of a set, for which it waits if there are none.
func waitSystemSet(l *library, a args) result {
	request := pointer[C.sim_nvmlSystemEventSetWaitRequest_v1_t](a, 0)
	if request.version != C.SIM_nvmlSystemEventSetWaitRequest_v1 {
		return structMismatch
	}

	set, _ := l.systemSet(request.set)
	if set == nil || request.data == nil || request.dataSize == 0 {
		return invalidArgument
	}

	const pollInterval = 10 * time.Millisecond
	until := time.Now().Add(time.Duration(request.timeoutms) * time.Millisecond)

	for {
		found := set.take(l.node, int(request.dataSize))
		request.numEvent = C.sim_u32(len(found))

		if len(found) > 0 {
			copy(unsafe.Slice(request.data, len(found)), found)
			return success
		}

		left := time.Until(until)
		if left <= 0 {
			return timedOut
		}

		time.Sleep(min(pollInterval, left))
	}
}

// take returns at most limit events that were not returned yet, the oldest first.
func (s *systemEventSet) take(node *sim.Node, limit int) []C.sim_nvmlSystemEventData_v1_t {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.watch == nil {
		return nil
	}

	for _, e := range s.watch.Events(node.Count()) {
		kind := uint64(C.SIM_nvmlSystemEventTypeGpuDriverUnbind)
		if e.Bound {
			kind = C.SIM_nvmlSystemEventTypeGpuDriverBind
		}

		if s.types&kind != 0 {
			s.queue = append(s.queue, C.sim_nvmlSystemEventData_v1_t{
				eventType: C.sim_u64(kind), gpuId: C.sim_u32(node.PCIID(e.Index)),
			})
		}
	}

	count := min(limit, len(s.queue))
	taken := slices.Clone(s.queue[:count])
	s.queue = s.queue[count:]

	return taken
}
