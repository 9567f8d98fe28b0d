package main

// #include "abi.h"
import "C"

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func fieldCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetFieldValues": notNull(onHandle(fieldValues, aGPU, aMIGDevice), 2),
	}
}

// fieldValues answers nvmlDeviceGetFieldValues: the call succeeds if the GPU can be read, and each
// field has a return code of its own.
func fieldValues(l *library, h handle, a args) result {
	if int32(a.uint(1)) <= 0 {
		return invalidArgument
	}

	if h.kind == aMIGDevice {
		return notSupported
	}

	s, err := l.node.Read(h.gpu, gpu.ReadingDevice)
	if err != nil {
		return l.failed(err)
	}

	values := array[C.sim_nvmlFieldValue_t](a, 2, a.uint(1))
	for i := range values {
		v := &values[i]
		v.timestamp = C.longlong(s.Time.UnixMicro())
		v.latencyUsec = 0
		v.value = 0

		f, err := l.node.Field(uint32(v.fieldId))
		if err != nil {
			v.nvmlReturn = C.int(resultOf(err))
			continue
		}

		v.valueType = C.int(f.Kind)

		state, err := l.node.Read(h.gpu, f.Reading)
		if err != nil {
			v.nvmlReturn = C.int(l.failed(err))
			continue
		}

		number, err := f.Value(&state, uint32(v.scopeId))
		v.nvmlReturn = C.int(resultOf(err))

		if err == nil {
			v.value = C.sim_u64(number) // a union: on a little-endian machine this sets its 32-bit members, too
		}
	}

	return success
}
