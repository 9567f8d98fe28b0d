package nvmlsource

import (
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpmSample is go-nvml's sample.
type gpmSample struct {
	nvml.GpmSample
}

func (l *library) GpmSampleAlloc() (GPMSample, nvml.Return) {
	sample, ret := l.Interface.GpmSampleAlloc()
	return gpmSample{sample}, ret
}

// gpmRequests keeps go-nvml's structs for GpmMetricsGet, 13 KiB each, for later calls: as many as
// there were calls at once.
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

// GpmMetricsGet uses go-nvml's own struct, which go-nvml copies twice.
func (l *library) GpmMetricsGet(before, after GPMSample, metrics []GPMMetric) nvml.Return {
	first, ok := before.(gpmSample)
	second, ok2 := after.(gpmSample)
	get := l.gpm.get()
	defer l.gpm.put(get)

	if !ok || !ok2 || len(metrics) > len(get.Metrics) {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	get.NumMetrics = uint32(len(metrics))
	get.Sample1 = first.GpmSample
	get.Sample2 = second.GpmSample

	for i := range metrics {
		get.Metrics[i].MetricId = metrics[i].ID
	}

	ret := l.Interface.GpmMetricsGet(get)
	for i := range metrics {
		metrics[i].Value = get.Metrics[i].Value
		metrics[i].Return = nvml.Return(get.Metrics[i].NvmlReturn)
	}

	return ret
}

func (e entity) GpmSampleGet(s GPMSample) nvml.Return {
	sample, ok := s.(gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	return e.Device.GpmSampleGet(sample.GpmSample)
}

func (d device) GpmMigSampleGet(gpuInstance int, s GPMSample) nvml.Return {
	sample, ok := s.(gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	return d.Device.GpmMigSampleGet(gpuInstance, sample.GpmSample)
}

func (d device) GpmQueryDeviceSupport() (bool, nvml.Return) {
	support, ret := d.Device.GpmQueryDeviceSupport()
	return support.IsSupportedDevice != 0, ret
}

func (d device) GetProcessUtilization(
	lastSeen uint64,
) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	samples, ret := d.Device.GetProcessUtilization(lastSeen)
	if ret == nvml.ERROR_INSUFFICIENT_SIZE && samples != nil {
		ret = nvml.SUCCESS // go-nvml's answer if there are none
	}

	return samples, ret
}
