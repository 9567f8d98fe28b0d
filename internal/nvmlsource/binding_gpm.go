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

// gpmRequests reuses go-nvml's structs for GpmMetricsGet, which take 13 KiB each. It keeps as many
// as there were concurrent calls.
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

func (l *library) GpmMetricsGet(before, after GPMSample, metrics []GPMMetric) nvml.Return {
	first, ok := before.(gpmSample)
	second, ok2 := after.(gpmSample)
	request := l.gpm.get()
	defer l.gpm.put(request)

	if !ok || !ok2 || len(metrics) > len(request.Metrics) {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	request.NumMetrics = uint32(len(metrics))
	request.Sample1 = first.GpmSample
	request.Sample2 = second.GpmSample

	for i := range metrics {
		request.Metrics[i].MetricId = metrics[i].ID
	}

	ret := l.Interface.GpmMetricsGet(request)
	for i := range metrics {
		metrics[i].Value = request.Metrics[i].Value
		metrics[i].Return = nvml.Return(request.Metrics[i].NvmlReturn)
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
		ret = nvml.SUCCESS // go-nvml returns this if there are no samples
	}

	return samples, ret
}
