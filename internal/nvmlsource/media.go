package nvmlsource

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Media engines: the driver reports their utilization for a GPU without MIG. With MIG it does not (nvml.h), but GPM
// has a metric for each engine of a GPU instance. These are read in a call of their own: a driver that does not know
// one of them refuses all of a call, and activity must not be lost with it.

// readMedia reads the utilization of the media engines of a GPU without MIG, if that is enabled.
func (r *gpuRead) readMedia() gpu.Media {
	if !r.media && !r.source.opts.WholeGPUMedia || r.state.mode.enabled.Or(false) {
		return gpu.Media{}
	}
	return gpu.Media{
		Encoder: queryScaled(&r.querier, "nvmlDeviceGetEncoderUtilization", gpu.ReadingMedia,
			r.dev.GetEncoderUtilization, 100),
		Decoder: queryScaled(&r.querier, "nvmlDeviceGetDecoderUtilization", gpu.ReadingMedia,
			r.dev.GetDecoderUtilization, 100),
		JPEG: queryScaled(&r.querier, "nvmlDeviceGetJpgUtilization", gpu.ReadingMedia, r.dev.GetJpgUtilization, 100),
		OFA:  queryScaled(&r.querier, "nvmlDeviceGetOfaUtilization", gpu.ReadingMedia, r.dev.GetOfaUtilization, 100),
	}
}

// mediaKind is a kind of media engine with its metrics of GPM, one for each engine that a GPU can have.
type mediaKind struct {
	call        string // the call for its metrics alone
	first, last nvml.GpmMetricId
	field       func(*gpu.Media) *gpu.Opt[float64]
	count       func(*gpu.Engines) int
}

// allMedia is the call for the metrics of all kinds.
const allMedia = "nvmlGpmMetricsGet(media)"

// kindsOfMedia is how many kinds of media engines there are.
const kindsOfMedia = 4

func mediaKinds() [kindsOfMedia]mediaKind {
	return [...]mediaKind{
		{"nvmlGpmMetricsGet(decoders)", nvml.GPM_METRIC_NVDEC_0_UTIL, nvml.GPM_METRIC_NVDEC_7_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.Decoder }, func(e *gpu.Engines) int { return e.Decoder }},
		{"nvmlGpmMetricsGet(JPEG engines)", nvml.GPM_METRIC_NVJPG_0_UTIL, nvml.GPM_METRIC_NVJPG_7_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.JPEG }, func(e *gpu.Engines) int { return e.JPEG }},
		{"nvmlGpmMetricsGet(OFA engines)", nvml.GPM_METRIC_NVOFA_0_UTIL, nvml.GPM_METRIC_NVOFA_1_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.OFA }, func(e *gpu.Engines) int { return e.OFA }},
		{"nvmlGpmMetricsGet(encoders)", nvml.GPM_METRIC_NVENC_0_UTIL, nvml.GPM_METRIC_NVENC_3_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.Encoder }, func(e *gpu.Engines) int { return e.Encoder }},
	}
}

// readInstanceMedia reads the metrics of the media engines that a GPU instance has, in one call. If the driver
// refuses that, it reads each kind by a call of its own, until it is known which kinds are refused; the others are
// read by one call again then.
func (r *gpuRead) readInstanceMedia(gi *gpu.GPUInstance, state *entityState) {
	w := &state.window
	w.media = gpu.Media{}
	if !r.media || w.count < 2 || len(w.errs) > 0 {
		return
	}
	a := r.entityQuerier(state.answers)
	profile, _ := r.profileOf(gi.ProfileID)
	engines := profile.Engines
	var list [kindsOfMedia]mediaKind
	kinds := list[:0]
	for _, kind := range mediaKinds() {
		if kind.most(engines) > 0 && !a.unsupported[kind.call] {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > 1 && !a.unsupported[allMedia] {
		r.queryMedia(w, &a, allMedia, kinds, engines)
	}
	if len(kinds) == 1 || a.unsupported[allMedia] {
		for i := range kinds {
			r.queryMedia(w, &a, kinds[i].call, kinds[i:i+1], engines)
			if a.unsupported[kinds[i].call] {
				delete(a.unsupported, allMedia)
			}
		}
	}
	r.fatal = a.fatal
	w.errs = append(w.errs, a.errs...)
}

// queryMedia reads the metrics of some kinds in one call. A kind whose metrics are all refused is cached as
// unsupported.
func (r *gpuRead) queryMedia(w *window, a *querier, call string, kinds []mediaKind, engines gpu.Opt[gpu.Engines]) {
	if !a.mayQuery(call, gpu.ReadingMedia) {
		return
	}
	metrics := r.state.mediaMetrics[:0]
	for i := range kinds {
		for id := kinds[i].first; id <= kinds[i].last; id++ {
			metrics = append(metrics, GPMMetric{ID: uint32(id), Return: nvml.ERROR_UNKNOWN})
		}
	}
	r.state.mediaMetrics = metrics
	ret := r.source.lib.GpmMetricsGet(w.samples[0], w.samples[1], metrics)
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		// the samples are valid, since activity was computed of them: a metric is unknown to the driver
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	if !a.accept(call, gpu.ReadingMedia, ret) {
		return
	}
	for i := range kinds {
		kind := &kinds[i]
		of := metrics[:kind.last-kind.first+1]
		metrics = metrics[len(of):]
		*kind.field(&w.media) = r.meanUtilization(of, kind.most(engines))
		if !slices.ContainsFunc(of, func(m GPMMetric) bool {
			return m.Return != nvml.ERROR_NOT_SUPPORTED && m.Return != nvml.ERROR_INVALID_ARGUMENT
		}) {
			a.unsupported[kind.call] = true
		}
	}
}

// most returns how many engines of the kind a device has, or their maximum if that is not known.
func (k *mediaKind) most(engines gpu.Opt[gpu.Engines]) int {
	if e, known := engines.Get(); known {
		return k.count(&e)
	}
	return int(k.last-k.first) + 1
}

// meanUtilization returns the mean over the engines of a kind that have a value, of which the instance has at most so
// many: a driver may report 0 for engines that do not exist, too.
func (r *gpuRead) meanUtilization(metrics []GPMMetric, most int) gpu.Opt[float64] {
	sum, count := 0.0, 0
	for i := range metrics {
		var one gpu.Opt[float64]
		r.setMetric(&one, &metrics[i], 0.01)
		if ratio, ok := one.Get(); ok {
			sum += ratio
			count++
		}
	}
	if count == 0 || most == 0 {
		return gpu.None[float64]()
	}
	return gpu.Some(sum / float64(min(count, most)))
}
