package nvmlsource

import (
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpmSample is go-nvml's, of a library that has GPM.
type gpmSample struct {
	lib    *library
	sample nvml.GpmSample
}

func (s gpmSample) Free() nvml.Return {
	if !s.lib.has("nvmlGpmSampleFree") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return s.sample.Free()
}

func (l *library) GpmSampleAlloc() (GPMSample, nvml.Return) {
	sample, ret := call(l, "nvmlGpmSampleAlloc", l.nvml.GpmSampleAlloc)
	return gpmSample{lib: l, sample: sample}, ret
}

// gpmRequests are go-nvml's structs for GpmMetricsGet, 13 KiB each: as many as there are calls at once.
type gpmRequests struct {
	mu    sync.Mutex
	spare []*nvml.GpmMetricsGetType
}

func (g *gpmRequests) get() *nvml.GpmMetricsGetType {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.spare)
	if n == 0 {
		return &nvml.GpmMetricsGetType{}
	}
	request := g.spare[n-1]
	g.spare = g.spare[:n-1]
	return request
}

func (g *gpmRequests) put(request *nvml.GpmMetricsGetType) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spare = append(g.spare, request)
}

// GpmMetricsGet goes through go-nvml's own struct, which that copies twice.
func (l *library) GpmMetricsGet(before, after GPMSample, metrics []GPMMetric) nvml.Return {
	if !l.has("nvmlGpmMetricsGet") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	first, ok := before.(gpmSample)
	second, ok2 := after.(gpmSample)
	get := l.gpm.get()
	defer l.gpm.put(get)
	if !ok || !ok2 || len(metrics) > len(get.Metrics) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	get.NumMetrics, get.Sample1, get.Sample2 = uint32(len(metrics)), first.sample, second.sample
	for i := range metrics {
		get.Metrics[i].MetricId = metrics[i].ID
	}
	ret := l.nvml.GpmMetricsGet(get)
	for i := range metrics {
		metrics[i].Value, metrics[i].Return = get.Metrics[i].Value, nvml.Return(get.Metrics[i].NvmlReturn)
	}
	return ret
}

func (e entity) GpmSampleGet(s GPMSample) nvml.Return {
	sample, ok := s.(gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if !e.lib.has("nvmlGpmSampleGet") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return e.dev.GpmSampleGet(sample.sample)
}

func (d device) GpmMigSampleGet(gpuInstance int, s GPMSample) nvml.Return {
	sample, ok := s.(gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if !d.lib.has("nvmlGpmMigSampleGet") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.dev.GpmMigSampleGet(gpuInstance, sample.sample)
}

func (d device) GpmQueryDeviceSupport() (bool, nvml.Return) {
	support, ret := call(d.lib, "nvmlGpmQueryDeviceSupport", d.dev.GpmQueryDeviceSupport)
	return support.IsSupportedDevice != 0, ret
}

func (d device) GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return call(d.lib, "nvmlDeviceGetProcessUtilization", func() ([]nvml.ProcessUtilizationSample, nvml.Return) {
		samples, ret := d.dev.GetProcessUtilization(lastSeen)
		if ret == nvml.ERROR_INSUFFICIENT_SIZE && samples != nil {
			ret = nvml.SUCCESS // go-nvml's word for "there are none"
		}
		return samples, ret
	})
}
