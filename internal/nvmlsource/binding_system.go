package nvmlsource

import (
	"runtime"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// maxSystemEvents is how many system events one call returns at most; the next call returns the
// others.
const maxSystemEvents = 64

func (l *library) SystemEventSetWait() ([]nvml.SystemEventData_v1, nvml.Return) {
	if l.system == nil {
		if ret := l.openSystemEvents(); ret != nvml.SUCCESS {
			return nil, ret
		}
	}

	var events [maxSystemEvents]nvml.SystemEventData_v1
	request := nvml.SystemEventSetWaitRequest{ // without Timeoutms: it does not wait
		Set:      *l.system,
		Data:     &events[0],
		DataSize: maxSystemEvents,
	}
	request.Version = nvml.STRUCT_VERSION(request, 1)

	// The request points to Go memory, which cgo allows only if it is pinned.
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&events[0])

	ret := l.Interface.SystemEventSetWait(&request)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_TIMEOUT {
		l.freeSystemEvents() // the next call creates a new set
	}

	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return events[:min(request.NumEvent, maxSystemEvents)], nvml.SUCCESS
}

// openSystemEvents creates the set of system events and registers it for those that we want.
func (l *library) openSystemEvents() nvml.Return {
	if !l.hasAll("nvmlSystemEventSetCreate", "nvmlSystemRegisterEvents", "nvmlSystemEventSetWait",
		"nvmlSystemEventSetFree") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}

	create := nvml.SystemEventSetCreateRequest{}
	create.Version = nvml.STRUCT_VERSION(create, 1)

	if ret := l.Interface.SystemEventSetCreate(&create); ret != nvml.SUCCESS {
		return ret
	}

	l.system = &create.Set
	register := nvml.SystemRegisterEventRequest{EventTypes: systemEventKinds, Set: create.Set}
	register.Version = nvml.STRUCT_VERSION(register, 1)

	ret := l.Interface.SystemRegisterEvents(&register)
	if ret != nvml.SUCCESS {
		l.freeSystemEvents()
	}

	return ret
}

// freeSystemEvents frees the set. We do not use it any more, even if that fails.
func (l *library) freeSystemEvents() {
	if l.system == nil {
		return
	}

	free := nvml.SystemEventSetFreeRequest{Set: *l.system}
	free.Version = nvml.STRUCT_VERSION(free, 1)
	_ = l.Interface.SystemEventSetFree(&free)
	l.system = nil
}
