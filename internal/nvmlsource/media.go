package nvmlsource

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Media engines: the driver reports their utilization for a GPU without MIG. With MIG it does not
// (nvml.h), but GPM has a metric for each engine of a GPU instance. These are read in a call of
// their own: a driver that does not know one of them refuses all of a call, and activity must not
// be lost with it.

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

// mediaKind is a kind of media engine with its metrics of GPM, one for each engine that a GPU can
// have.
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
		{
			"nvmlGpmMetricsGet(decoders)",
			nvml.GPM_METRIC_NVDEC_0_UTIL,
			nvml.GPM_METRIC_NVDEC_7_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.Decoder },
			func(e *gpu.Engines) int { return e.Decoder },
		},
		{
			"nvmlGpmMetricsGet(JPEG engines)",
			nvml.GPM_METRIC_NVJPG_0_UTIL,
			nvml.GPM_METRIC_NVJPG_7_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.JPEG },
			func(e *gpu.Engines) int { return e.JPEG },
		},
		{
			"nvmlGpmMetricsGet(OFA engines)",
			nvml.GPM_METRIC_NVOFA_0_UTIL,
			nvml.GPM_METRIC_NVOFA_1_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.OFA },
			func(e *gpu.Engines) int { return e.OFA },
		},
		{
			"nvmlGpmMetricsGet(encoders)",
			nvml.GPM_METRIC_NVENC_0_UTIL,
			nvml.GPM_METRIC_NVENC_3_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.Encoder },
			func(e *gpu.Engines) int { return e.Encoder },
		},
	}
}

// computeMedia computes the metrics of the media engines that a GPU instance has, by one call, and
// counts those that are no numbers. If the driver refuses that, it makes a call for each kind,
// until it is known which kinds are refused; the others are computed by one call again then.
func (r *gpuRead) computeMedia(gi *gpu.GPUInstance, state *entityState) (invalid int) {
	w := &state.window
	w.media = gpu.Media{}

	if !r.cues.Extras.Media || w.count < 2 || len(w.errs) > 0 {
		return 0
	}

	q := r.newQuerier(state.answers)
	profile, _ := r.profileOf(gi.ProfileID)
	engines := profile.Engines
	var list [kindsOfMedia]mediaKind
	kinds := list[:0]

	for _, kind := range mediaKinds() {
		if kind.most(engines) > 0 && !q.unsupported[kind.call] {
			kinds = append(kinds, kind)
		}
	}

	if len(kinds) > 1 && !q.unsupported[allMedia] {
		invalid += r.computeKinds(&q, w, allMedia, kinds, engines)
	}

	if len(kinds) == 1 || q.unsupported[allMedia] {
		for i := range kinds {
			invalid += r.computeKinds(&q, w, kinds[i].call, kinds[i:i+1], engines)
			if q.unsupported[kinds[i].call] {
				delete(q.unsupported, allMedia)
			}
		}
	}

	w.errs = append(w.errs, q.errs...)

	return invalid
}

// computeKinds computes the metrics of some kinds by one call, and counts those that are no
// numbers. A kind whose metrics are all refused is cached as unsupported.
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
		of := metrics[:kind.last-kind.first+1]
		metrics = metrics[len(of):]
		mean, dropped := meanUtilization(of, kind.most(engines))
		*kind.field(&w.media) = mean
		invalid += dropped

		if !slices.ContainsFunc(of, func(m GPMMetric) bool {
			return m.Return != nvml.ERROR_NOT_SUPPORTED && m.Return != nvml.ERROR_INVALID_ARGUMENT
		}) {
			q.unsupported[kind.call] = true
		}
	}

	return invalid
}

// most returns how many engines of the kind a device has, or their maximum if unknown.
func (k *mediaKind) most(engines gpu.Opt[gpu.Engines]) int {
	if e, known := engines.Get(); known {
		return k.count(&e)
	}

	return int(k.last-k.first) + 1
}

// meanUtilization returns the mean over the engines of a kind that have a value, of which the
// instance has at most so many: a driver may report 0 for engines that do not exist, too. It counts
// the values that are no numbers.
func meanUtilization(metrics []GPMMetric, most int) (mean gpu.Opt[float64], invalid int) {
	sum := 0.0
	count := 0

	for i := range metrics {
		value, valid := metrics[i].valueIn(0.01)
		if !valid {
			invalid++
		}

		if ratio, ok := value.Get(); ok {
			sum += ratio
			count++
		}
	}

	if count == 0 || most == 0 {
		return gpu.None[float64](), invalid
	}

	return gpu.Some(sum / float64(min(count, most))), invalid
}
