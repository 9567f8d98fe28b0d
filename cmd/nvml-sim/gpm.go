package main

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// sample holds the counters of one GPU or instance. A client names it by an address in C's memory,
// at which nothing is stored: an unknown address, such as a freed one, can be refused.
type sample struct {
	counters sim.Counters
	filled   bool // the client has taken the sample
}

// gpmCalls answer about GPU performance monitoring (GPM), which GPUs before Hopper do not support.
func gpmCalls() map[string]call {
	return map[string]call{
		"nvmlGpmQueryDeviceSupport": readDevice(
			gpu.ReadingActivity,
			gpmSupport,
			gpuAnswer(gpmSupport).ofMIGDevice,
			1,
		),
		"nvmlGpmSampleAlloc":             askDriver(allocSample, 0),
		"nvmlGpmSampleFree":              freeSample,
		"nvmlGpmSampleGet":               notNull(onHandle(sampleDevice, aGPU, aMIGDevice), 1),
		"nvmlGpmMigSampleGet":            notNull(onHandle(sampleInstance, aGPU), 2),
		"nvmlGpmMetricsGet":              notNull(gpmMetrics, 0),
		"nvmlGpmQueryIfStreamingEnabled": notNull(onHandle(queryStreaming, aGPU), 1),
		"nvmlGpmSetStreamingEnabled":     onHandle(setStreaming, aGPU),
	}
}

func gpmSupport(s *sim.GPUState, a args) result {
	support := pointer[C.sim_nvmlGpmSupport_t](a, 1)
	if support.version != C.SIM_NVML_GPM_SUPPORT_VERSION { // unlike others, it doesn't have the size in it
		return structMismatch
	}

	support.isSupportedDevice = C.sim_u32(flag(s.Architecture != sim.Ampere))

	return success
}

func allocSample(l *library, a args) result {
	address := uintptr(C.calloc(1, 1))
	if address == 0 {
		return insufficientResources
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.samples[address] = sample{}

	return put(a, 0, address)
}

func freeSample(l *library, a args) result {
	l.mu.Lock()
	_, known := l.samples[a.raw[0]]
	delete(l.samples, a.raw[0])
	l.mu.Unlock()

	if !known {
		return invalidArgument
	}

	C.free(unsafe.Pointer(pointer[byte](a, 0)))

	return success
}

// fillSample stores the counters that read returns, of the GPU with an index, in the sample of an
// address.
func (l *library) fillSample(address uintptr, index int, read func() (sim.Counters, error)) result {
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

func sampleDevice(l *library, h handle, a args) result {
	return l.fillSample(a.raw[1], h.gpu, func() (sim.Counters, error) {
		if h.kind == aMIGDevice {
			return l.node.ComputeCounters(h.gpu, h.instance, h.compute)
		}

		return l.node.MonitorGPU(h.gpu)
	})
}

func sampleInstance(l *library, h handle, a args) result {
	return l.fillSample(a.raw[2], h.gpu, func() (sim.Counters, error) {
		return l.node.InstanceCounters(h.gpu, gpu.InstanceID(a.uint(1)))
	})
}

// gpmMetrics answers with metrics of the time between two samples. Each metric has its own return
// code, and no name. Samples of different GPUs or instances are refused, which is unverified.
func gpmMetrics(l *library, a args) result {
	get := pointer[C.sim_nvmlGpmMetricsGet_t](a, 0)
	if get.version != C.SIM_NVML_GPM_METRICS_GET_VERSION {
		return structMismatch
	}

	l.mu.Lock()
	before := l.samples[*(*uintptr)(unsafe.Pointer(&get.sample1))]
	after := l.samples[*(*uintptr)(unsafe.Pointer(&get.sample2))]
	l.mu.Unlock()

	if get.numMetrics > C.SIM_NVML_GPM_METRIC_MAX || !before.filled || !after.filled ||
		before.counters.Of != after.counters.Of {
		return invalidArgument
	}

	err := l.node.Driver()
	if err != nil {
		return l.failed(err)
	}

	for i := range get.metrics[:get.numMetrics] {
		m := &get.metrics[i]
		value, has := sim.GPM(before.counters, after.counters, uint32(m.metricId))
		m.value = C.double(value)
		m.nvmlReturn = C.int(success)

		if !has {
			m.value = 0
			m.nvmlReturn = C.int(notSupported)
		}
	}

	return success
}

// withStreaming calls do, which reads or sets the streaming mode, if the GPU has GPM. do runs under
// l.mu. The mode has no effect on samples.
func (l *library) withStreaming(h handle, do func()) result {
	if !l.node.HasGPM(h.gpu) {
		return notSupported
	}

	if _, err := l.node.Read(h.gpu, gpu.ReadingActivity); err != nil {
		return l.failed(err)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	do()

	return success
}

func queryStreaming(l *library, h handle, a args) result {
	return l.withStreaming(h, func() { put(a, 1, flag(l.streaming[h.gpu])) })
}

func setStreaming(l *library, h handle, a args) result {
	if a.uint(1) > C.SIM_NVML_FEATURE_ENABLED {
		return invalidArgument
	}

	return l.withStreaming(
		h,
		func() { l.streaming[h.gpu] = a.uint(1) == C.SIM_NVML_FEATURE_ENABLED },
	)
}
