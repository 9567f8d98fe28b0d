package main

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// sample holds the counters of one entity. Clients have an address in C's memory for it, which is never read: one that
// was freed, or that no client can have got from here, is refused instead of followed.
type sample struct {
	counters sim.Counters
	filled   bool
}

// gpmCalls are GPU performance monitoring, which GPUs before Hopper do not have.
func gpmCalls() map[string]call {
	return map[string]call{
		"nvmlGpmQueryDeviceSupport": notNull(device(gpu.ReadingActivity, gpmSupport,
			func(s *sim.State, _ *sim.Device, a args) result { return gpmSupport(s, a) }), 1),
		"nvmlGpmSampleAlloc":             notNull(allocSample, 0),
		"nvmlGpmSampleFree":              freeSample,
		"nvmlGpmSampleGet":               notNull(sampleDevice, 1),
		"nvmlGpmMigSampleGet":            notNull(sampleInstance, 2),
		"nvmlGpmMetricsGet":              notNull(gpmMetrics, 0),
		"nvmlGpmQueryIfStreamingEnabled": notNull(queryStreaming, 1),
		"nvmlGpmSetStreamingEnabled":     setStreaming,
	}
}

func gpmSupport(s *sim.State, a args) result {
	support := at[C.sim_nvmlGpmSupport_t](a, 1)
	if support.version != C.SIM_NVML_GPM_SUPPORT_VERSION { // no size in it, unlike others
		return structMismatch
	}
	support.isSupportedDevice = C.sim_u32(flag(s.Architecture != sim.Ampere))
	return success
}

func allocSample(l *library, a args) result {
	err := l.node.Driver()
	if err != nil {
		return l.failed(err)
	}
	address := uintptr(C.calloc(1, 1))
	if address == 0 {
		return insufficientResources
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.samples[address] = sample{}
	*at[uintptr](a, 0) = address
	return success
}

func freeSample(l *library, a args) result {
	l.mu.Lock()
	_, known := l.samples[a.raw[0]]
	delete(l.samples, a.raw[0])
	l.mu.Unlock()
	if !known {
		return invalidArgument
	}
	C.free(unsafe.Pointer(at[byte](a, 0)))
	return success
}

// fill takes counters of a GPU into the sample at an address.
func (l *library) fill(address uintptr, index int, read func() (sim.Counters, error)) result {
	counters, err := read()
	switch {
	case err != nil:
		return l.failed(err)
	case !l.node.HasGPM(index):
		return notSupported
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.samples[address]; !known {
		return invalidArgument
	}
	l.samples[address] = sample{counters: counters, filled: true}
	return success
}

func sampleDevice(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind > aMIGDevice || h.gpu >= l.node.Count() {
		return invalidArgument
	}
	return l.fill(a.raw[1], h.gpu, func() (sim.Counters, error) {
		if h.kind == aMIGDevice {
			return l.node.ComputeCounters(h.gpu, h.instance, h.compute)
		}
		return l.node.BoardCounters(h.gpu)
	})
}

func sampleInstance(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind != aGPU || h.gpu >= l.node.Count() {
		return invalidArgument
	}
	return l.fill(a.raw[2], h.gpu, func() (sim.Counters, error) {
		return l.node.InstanceCounters(h.gpu, gpu.InstanceID(a.uint(1)))
	})
}

// gpmMetrics computes each metric of the window between two samples of one entity, with a return code of its own. It gives no names.
// That samples of two entities are refused is unverified.
func gpmMetrics(l *library, a args) result {
	get := at[C.sim_nvmlGpmMetricsGet_t](a, 0)
	if get.version != C.SIM_NVML_GPM_METRICS_GET_VERSION {
		return structMismatch
	}
	l.mu.Lock()
	before, after := l.samples[*(*uintptr)(unsafe.Pointer(&get.sample1))], l.samples[*(*uintptr)(unsafe.Pointer(&get.sample2))]
	l.mu.Unlock()
	if get.numMetrics > C.SIM_NVML_GPM_METRIC_MAX || !before.filled || !after.filled || before.counters.Of != after.counters.Of {
		return invalidArgument
	}
	err := l.node.Driver()
	if err != nil {
		return l.failed(err)
	}
	for i := range get.metrics[:get.numMetrics] {
		m := &get.metrics[i]
		value, has := sim.GPM(before.counters, after.counters, uint32(m.metricId))
		m.value, m.nvmlReturn = C.double(value), C.int(success)
		if !has {
			m.value, m.nvmlReturn = 0, C.int(notSupported)
		}
	}
	return success
}

// onStreaming answers about the streaming mode of a GPU that has GPM. Sampling is the same with it and without.
func onStreaming(l *library, a args, do func(index int)) result {
	h, ok := handleOf(a.raw[0])
	switch {
	case !ok || h.kind != aGPU || h.gpu >= l.node.Count():
		return invalidArgument
	case !l.node.HasGPM(h.gpu):
		return notSupported
	}
	if _, err := l.node.Read(h.gpu, gpu.ReadingActivity); err != nil {
		return l.failed(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	do(h.gpu)
	return success
}

func queryStreaming(l *library, a args) result {
	return onStreaming(l, a, func(index int) { *at[uint32](a, 1) = flag(l.streaming[index]) })
}

func setStreaming(l *library, a args) result {
	if a.uint(1) > C.SIM_NVML_FEATURE_ENABLED {
		return invalidArgument
	}
	return onStreaming(l, a, func(index int) { l.streaming[index] = a.uint(1) == C.SIM_NVML_FEATURE_ENABLED })
}
