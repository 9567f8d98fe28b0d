package nvmlsource

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Media engines: without MIG, the driver reports their utilization for the GPU. With MIG it does
// not (nvml.h), but GPM has a metric for each engine of a GPU instance. We compute these in calls
// of their own: a driver refuses a call as a whole if it does not know one of its metrics, and
// activity must not be lost with it.

// queryMedia queries the utilization of the media engines of a GPU without MIG, if that is enabled.
func (r *gpuRead) queryMedia(q *querier) gpu.Media {
	if !r.cues.Extras.Media || r.state.mode.enabled.Or(false) {
		return gpu.Media{}
	}

	return gpu.Media{
		Encoder: queryScaled(
			q,
			"nvmlDeviceGetEncoderUtilization",
			gpu.ReadingMedia,
			r.dev.GetEncoderUtilization,
			100,
		),
		Decoder: queryScaled(
			q,
			"nvmlDeviceGetDecoderUtilization",
			gpu.ReadingMedia,
			r.dev.GetDecoderUtilization,
			100,
		),
		JPEG: queryScaled(
			q,
			"nvmlDeviceGetJpgUtilization",
			gpu.ReadingMedia,
			r.dev.GetJpgUtilization,
			100,
		),
		OFA: queryScaled(
			q,
			"nvmlDeviceGetOfaUtilization",
			gpu.ReadingMedia,
			r.dev.GetOfaUtilization,
			100,
		),
	}
}

// mediaKind is a kind of media engine. GPM has one metric for each engine of the kind that a GPU
// can have.
type mediaKind struct {
	call        string           // the name of the call for this kind alone
	first, last nvml.GpmMetricId // of its metrics
	field       func(*gpu.Media) *gpu.Opt[float64]
	count       func(*gpu.Engines) int // of the engines that a GPU instance has
}

// allMedia names the call for the metrics of all kinds.
const allMedia = "nvmlGpmMetricsGet(media)"

// kindsOfMedia is how many kinds of media engines there are.
const kindsOfMedia = 4

func mediaKinds() [kindsOfMedia]mediaKind {
	return [...]mediaKind{
		{
			call:  "nvmlGpmMetricsGet(decoders)",
			first: nvml.GPM_METRIC_NVDEC_0_UTIL,
			last:  nvml.GPM_METRIC_NVDEC_7_UTIL,
			field: func(m *gpu.Media) *gpu.Opt[float64] { return &m.Decoder },
			count: func(e *gpu.Engines) int { return e.Decoder },
		},
		{
			call:  "nvmlGpmMetricsGet(JPEG engines)",
			first: nvml.GPM_METRIC_NVJPG_0_UTIL,
			last:  nvml.GPM_METRIC_NVJPG_7_UTIL,
			field: func(m *gpu.Media) *gpu.Opt[float64] { return &m.JPEG },
			count: func(e *gpu.Engines) int { return e.JPEG },
		},
		{
			call:  "nvmlGpmMetricsGet(OFA engines)",
			first: nvml.GPM_METRIC_NVOFA_0_UTIL,
			last:  nvml.GPM_METRIC_NVOFA_1_UTIL,
			field: func(m *gpu.Media) *gpu.Opt[float64] { return &m.OFA },
			count: func(e *gpu.Engines) int { return e.OFA },
		},
		{
			call:  "nvmlGpmMetricsGet(encoders)",
			first: nvml.GPM_METRIC_NVENC_0_UTIL,
			last:  nvml.GPM_METRIC_NVENC_3_UTIL,
			field: func(m *gpu.Media) *gpu.Opt[float64] { return &m.Encoder },
			count: func(e *gpu.Engines) int { return e.Encoder },
		},
	}
}

// computeMedia computes the metrics of the media engines that a GPU instance has, in one call, and
// returns how many values were invalid. If the driver refuses that call, it makes one for each kind
// until it knows which kinds the driver refuses; then it computes the others in one call again.
func (r *gpuRead) computeMedia(gi *gpu.GPUInstance, state *entityState) (invalid int) {
	w := &state.window
	w.media = gpu.Media{}

	if !r.cues.Extras.Media || w.count < 2 || len(w.errs) > 0 {
		return 0
	}

	q := r.newQuerier(state.answers)
	profile, _ := r.profileOf(gi.ProfileID)
	engines := profile.Engines
	var list [kindsOfMedia]mediaKind // so that kinds needs no allocation
	kinds := list[:0]

	for _, kind := range mediaKinds() {
		if kind.maxEngines(engines) > 0 && !q.unsupported[kind.call] {
			kinds = append(kinds, kind)
		}
	}

	if len(kinds) > 1 && !q.unsupported[allMedia] {
		invalid += r.computeKinds(&q, w, allMedia, kinds, engines)
	}

	if len(kinds) == 1 || q.unsupported[allMedia] {
		for i := range kinds {
			invalid += r.computeKinds(&q, w, kinds[i].call, kinds[i:i+1], engines)
			if q.unsupported[kinds[i].call] { // a call without this kind may succeed
				delete(q.unsupported, allMedia)
			}
		}
	}

	w.errs = append(w.errs, q.errs...)

	return invalid
}

// computeKinds computes the metrics of some kinds in one call, and returns how many values were
// invalid. It caches a kind whose metrics are all refused as unsupported.
func (r *gpuRead) computeKinds(q *querier, w *window, call string, kinds []mediaKind,
	engines gpu.Opt[gpu.Engines]) (invalid int) {
	if q.checkRefused(call, gpu.ReadingMedia) != nil {
		return 0
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
		// The samples are valid, since we computed activity from them: the driver does not know a
		// metric.
		ret = nvml.ERROR_NOT_SUPPORTED
	}

	if q.recordReturn(call, gpu.ReadingMedia, ret) != nil {
		return 0
	}

	for i := range kinds {
		kind := &kinds[i]
		own := metrics[:kind.last-kind.first+1]
		metrics = metrics[len(own):]
		mean, dropped := meanUtilization(own, kind.maxEngines(engines))
		*kind.field(&w.media) = mean
		invalid += dropped

		if !slices.ContainsFunc(own, func(m GPMMetric) bool {
			return m.Return != nvml.ERROR_NOT_SUPPORTED && m.Return != nvml.ERROR_INVALID_ARGUMENT
		}) {
			q.unsupported[kind.call] = true
		}
	}

	return invalid
}

// maxEngines returns how many engines of the kind an instance has, or how many a GPU can have if
// that is unknown.
func (k *mediaKind) maxEngines(engines gpu.Opt[gpu.Engines]) int {
	if e, known := engines.Get(); known {
		return k.count(&e)
	}

	return int(k.last-k.first) + 1
}

// meanUtilization returns the mean utilization of the engines that have a value, and how many
// values were invalid. It counts at most maxEngines, the engines that the instance has: a driver
// may also report 0 for engines that do not exist.
func meanUtilization(metrics []GPMMetric, maxEngines int) (mean gpu.Opt[float64], invalid int) {
	sum := 0.0
	count := 0

	for i := range metrics {
		value, valid := metrics[i].valueIn(percent)
		if !valid {
			invalid++
		}

		if ratio, ok := value.Get(); ok {
			sum += ratio
			count++
		}
	}

	if count == 0 || maxEngines == 0 {
		return gpu.None[float64](), invalid
	}

	return gpu.Some(sum / float64(min(count, maxEngines))), invalid
}
