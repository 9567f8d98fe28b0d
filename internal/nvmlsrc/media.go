package nvmlsrc

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Media engines: of a GPU without MIG the driver tells their utilization. With MIG it does not (nvml.h); there GPM has a metric for
// each engine, from which those of each GPU instance are read, in a call of its own: a driver that does not know one of these
// metrics must not take the activity with it.

// readMedia reads the utilization of a GPU without MIG, where it is wanted.
func (r *round) readMedia() gpu.Media {
	if !r.media || r.board.mode.enabled.Or(false) {
		return gpu.Media{}
	}
	return gpu.Media{
		Encoder: r.readEngine("nvmlDeviceGetEncoderUtilization", r.dev.GetEncoderUtilization),
		Decoder: r.readEngine("nvmlDeviceGetDecoderUtilization", r.dev.GetDecoderUtilization),
		JPEG:    r.readEngine("nvmlDeviceGetJpgUtilization", r.dev.GetJpgUtilization),
		OFA:     r.readEngine("nvmlDeviceGetOfaUtilization", r.dev.GetOfaUtilization),
	}
}

func (r *round) readEngine(question string, f func() (uint32, nvml.Return)) gpu.Opt[float64] {
	percent, ok := ask(&r.asker, question, gpu.ReadingMedia, f)
	if !ok {
		return gpu.None[float64]()
	}
	return gpu.Some(float64(percent) / 100)
}

// mediaKind is a kind of media engine with its metrics of GPM, one for each engine that there can be.
type mediaKind struct {
	first, last nvml.GpmMetricId
	of          func(*gpu.Media) *gpu.Opt[float64]
	count       func(*gpu.Engines) int
}

func mediaKinds() [4]mediaKind {
	return [...]mediaKind{
		{nvml.GPM_METRIC_NVDEC_0_UTIL, nvml.GPM_METRIC_NVDEC_7_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.Decoder }, func(e *gpu.Engines) int { return e.Decoder }},
		{nvml.GPM_METRIC_NVJPG_0_UTIL, nvml.GPM_METRIC_NVJPG_7_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.JPEG }, func(e *gpu.Engines) int { return e.JPEG }},
		{nvml.GPM_METRIC_NVOFA_0_UTIL, nvml.GPM_METRIC_NVOFA_1_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.OFA }, func(e *gpu.Engines) int { return e.OFA }},
		{nvml.GPM_METRIC_NVENC_0_UTIL, nvml.GPM_METRIC_NVENC_3_UTIL,
			func(m *gpu.Media) *gpu.Opt[float64] { return &m.Encoder }, func(e *gpu.Engines) int { return e.Encoder }},
	}
}

// measureMedia asks for the metrics of the media engines that a GPU instance has.
func (r *round) measureMedia(w *window, n *instanceNode) {
	const question = "nvmlGpmMetricsGet(media)"
	w.media = gpu.Media{}
	if !r.media || w.count < 2 || len(w.errs) > 0 {
		return
	}
	engines := r.profileEngines(n.ProfileID)
	metrics := r.chooseMedia(engines)
	a := r.ofEntity(n.answers)
	if len(metrics) == 0 || !a.may(question, gpu.ReadingActivity) ||
		!a.took(question, gpu.ReadingActivity, r.source.lib.GpmMetricsGet(w.samples[0], w.samples[1], metrics)) {
		r.fatal = a.fatal
		w.errs = append(w.errs, a.errs...)
		return
	}
	if !slices.ContainsFunc(metrics, func(m GPMMetric) bool { return m.Return == nvml.SUCCESS }) {
		n.answers.unsupported[question] = true
		return
	}
	for _, kind := range mediaKinds() {
		*kind.of(&w.media) = r.meanOf(metrics, kind, kind.most(engines))
	}
}

// chooseMedia lists the metrics of the kinds of engines that a device has, all of them where that is not known.
func (r *round) chooseMedia(engines gpu.Opt[gpu.Engines]) []GPMMetric {
	metrics := r.board.mediaMetrics[:0]
	for _, kind := range mediaKinds() {
		if kind.most(engines) == 0 {
			continue
		}
		for id := kind.first; id <= kind.last; id++ {
			metrics = append(metrics, GPMMetric{ID: uint32(id), Return: nvml.ERROR_UNKNOWN})
		}
	}
	r.board.mediaMetrics = metrics
	return metrics
}

// most is how many engines of the kind a device has, at most where that is not known.
func (k *mediaKind) most(engines gpu.Opt[gpu.Engines]) int {
	if e, known := engines.Get(); known {
		return k.count(&e)
	}
	return int(k.last-k.first) + 1
}

// meanOf is the mean over the engines of a kind that tell, of which the device has at most so many: a driver may tell 0 of engines
// that it does not have, too.
func (r *round) meanOf(metrics []GPMMetric, kind mediaKind, most int) gpu.Opt[float64] {
	sum, told := 0.0, 0
	for i := range metrics {
		if id := nvml.GpmMetricId(metrics[i].ID); id < kind.first || id > kind.last {
			continue
		}
		var one gpu.Opt[float64]
		r.take(&one, &metrics[i], 0.01)
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
func (r *round) profileEngines(id gpu.Opt[uint32]) gpu.Opt[gpu.Engines] {
	for i := range r.board.static.profiles {
		if p := &r.board.static.profiles[i]; gpu.Some(p.ID) == id {
			return p.Engines
		}
	}
	return gpu.None[gpu.Engines]()
}
