package nvmlsource

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Media engines: of a GPU without MIG the driver tells their utilization. With MIG it does not (nvml.h); there GPM has a metric for
// each engine, from which those of each GPU instance are read, in a call of its own: a driver that does not know one of these
// metrics must not take the activity with it.

// readMedia reads the utilization of the media engines of a GPU without MIG, if that is enabled.
func (r *gpuRead) readMedia() gpu.Media {
	if !r.media || r.state.mode.enabled.Or(false) {
		return gpu.Media{}
	}
	return gpu.Media{
		Encoder: r.readEngine("nvmlDeviceGetEncoderUtilization", r.dev.GetEncoderUtilization),
		Decoder: r.readEngine("nvmlDeviceGetDecoderUtilization", r.dev.GetDecoderUtilization),
		JPEG:    r.readEngine("nvmlDeviceGetJpgUtilization", r.dev.GetJpgUtilization),
		OFA:     r.readEngine("nvmlDeviceGetOfaUtilization", r.dev.GetOfaUtilization),
	}
}

func (r *gpuRead) readEngine(question string, f func() (uint32, nvml.Return)) gpu.Opt[float64] {
	percent, ok := query(&r.querier, question, gpu.ReadingMedia, f)
	if !ok {
		return gpu.None[float64]()
	}
	return gpu.Some(float64(percent) / 100)
}

// mediaKind is a kind of media engine with its metrics of GPM, one for each engine that there can be.
type mediaKind struct {
	question    string // the call for its metrics alone
	first, last nvml.GpmMetricId
	of          func(*gpu.Media) *gpu.Opt[float64]
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

// readInstanceMedia reads the metrics of the media engines that a GPU instance has, in one call. If the driver refuses that, it reads
// each kind by a call of its own, until it is known which kinds are refused; the others are read by one call again then.
func (r *gpuRead) readInstanceMedia(n *instanceNode) {
	w := &n.window
	w.media = gpu.Media{}
	if !r.media || w.count < 2 || len(w.errs) > 0 {
		return
	}
	a := r.entityQuerier(n.answers)
	engines := r.profileEngines(n.ProfileID)
	var list [kindsOfMedia]mediaKind
	kinds := list[:0]
	for _, kind := range mediaKinds() {
		if kind.most(engines) > 0 && !a.unsupported[kind.question] {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > 1 && !a.unsupported[allMedia] {
		r.queryMedia(w, &a, allMedia, kinds, engines)
	}
	if len(kinds) == 1 || a.unsupported[allMedia] {
		for i := range kinds {
			r.queryMedia(w, &a, kinds[i].question, kinds[i:i+1], engines)
			if a.unsupported[kinds[i].question] {
				delete(a.unsupported, allMedia)
			}
		}
	}
	r.fatal = a.fatal
	w.errs = append(w.errs, a.errs...)
}

// queryMedia asks for the metrics of some kinds in one call. A kind whose metrics are all refused is not asked for again for as long
// as what is not supported.
func (r *gpuRead) queryMedia(w *window, a *querier, question string, kinds []mediaKind, engines gpu.Opt[gpu.Engines]) {
	if !a.mayQuery(question, gpu.ReadingMedia) {
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
		ret = nvml.ERROR_NOT_SUPPORTED // activity was made of the same samples: it is a metric that the driver does not know
	}
	if !a.accept(question, gpu.ReadingMedia, ret) {
		return
	}
	for i := range kinds {
		kind := &kinds[i]
		of := metrics[:kind.last-kind.first+1]
		metrics = metrics[len(of):]
		*kind.of(&w.media) = r.meanUtilization(of, kind.most(engines))
		if !slices.ContainsFunc(of, func(m GPMMetric) bool { return !refusesMetric(m.Return) }) {
			a.unsupported[kind.question] = true
		}
	}
}

// refusesMetric reports whether a metric's return code says that the driver does not have it.
func refusesMetric(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT
}

// most returns how many engines of the kind a device has, or their maximum if that is not known.
func (k *mediaKind) most(engines gpu.Opt[gpu.Engines]) int {
	if e, known := engines.Get(); known {
		return k.count(&e)
	}
	return int(k.last-k.first) + 1
}

// meanUtilization returns the mean over the engines of a kind that tell, of which the device has at most so many: a driver may tell 0 of
// engines that it does not have, too.
func (r *gpuRead) meanUtilization(metrics []GPMMetric, most int) gpu.Opt[float64] {
	sum, told := 0.0, 0
	for i := range metrics {
		var one gpu.Opt[float64]
		r.setMetric(&one, &metrics[i], 0.01)
		if ratio, ok := one.Get(); ok {
			sum += ratio
			told++
		}
	}
	if told == 0 || most == 0 {
		return gpu.None[float64]()
	}
	return gpu.Some(sum / float64(min(told, most)))
}

// profileEngines are the engines that instances of a profile have.
func (r *gpuRead) profileEngines(id gpu.Opt[uint32]) gpu.Opt[gpu.Engines] {
	for i := range r.state.static.profiles {
		if p := &r.state.static.profiles[i]; gpu.Some(p.ID) == id {
			return p.Engines
		}
	}
	return gpu.None[gpu.Engines]()
}
