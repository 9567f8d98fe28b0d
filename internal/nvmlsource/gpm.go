package nvmlsource

import (
	"errors"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// GPM has the profiling counters of Hopper and later. A sample holds an entity's counters at one
// moment; metrics are computed over the window between two samples. Each reading samples every
// entity once, so a window goes from the previous reading to this one.
//
// Ids and handles are reused after a layout change, and a window between samples of two different
// instances has meaningless values. So a reading takes its samples before it scans the tree, by the
// tree of the previous reading. If the scan finds that tree unchanged, each sample is of the
// instance that it was taken for; otherwise all windows of the GPU start again. A reading that does
// not scan relies on the driver to report changes (mayKeepTree). Until a report arrives, or if it
// is missing, we notice a window over two instances only by values that make no sense; the next
// reading scans then.

// minWindow is the least time between two samples that nvml.h asks for.
const minWindow = 100 * time.Millisecond

// gpmState is what GPM needs of one GPU. Like the rest of gpuState it belongs to the Read under
// way. The windows of instances are in its tree.
type gpmState struct {
	support gpmSupport
	wanted  bool      // the last reading wanted GPM
	restart bool      // the GPU has changed since samples were taken: all windows start again
	lastAt  time.Time // when samples were taken last
	own     window    // of the GPU as a whole
}

// gpmSupport is whether a GPU has GPM. We ask once for each MIG mode.
type gpmSupport int

const (
	gpmUnknown gpmSupport = iota
	gpmSupported
	gpmUnsupported
)

// window holds two consecutive samples of one entity, and the metrics between them.
type window struct {
	samples  [2]GPMSample // the older, which the next one overwrites, and the newer
	count    int          // how many samples hold counters; if one does, it is the newer
	errs     keptErrors   // why it has no metrics
	activity gpu.Activity
	rates    gpu.LinkRates
	media    gpu.Media // of a GPU instance
}

// Units of GPM's metrics.
const (
	percent  = 0.01
	mebibyte = 1 << 20 // per second
)

// retireGPU returns the samples of a GPU that is no longer in use to the pool. If a Read of it is
// under way, that Read retires the GPU when it returns.
func (s *Source) retireGPU(g *gpuState) {
	g.advanceTo(phaseRetired)

	if !g.reading.TryLock() {
		return
	}

	defer g.reading.Unlock()

	s.emptyWindows(g)
}

// emptyWindows returns the samples of a GPU to the pool. The caller holds its reading lock.
func (s *Source) emptyWindows(g *gpuState) {
	s.samples.put(g.uuid, &g.gpm.own)
	s.samples.putAll(g.uuid, &g.tree)
}

// takeSamples samples all entities, before the tree is scanned, and reports whether it did. It does
// not if GPM is not wanted, or if the samples would be useless.
func (r *gpuRead) takeSamples() (sampled bool, errs []gpu.ReadError) {
	g := &r.state.gpm
	wasWanted := g.wanted

	g.wanted = r.wantsGPM()
	if wasWanted && !g.wanted {
		r.source.emptyWindows(r.state) // a later window must not span the time in between
		g.lastAt = time.Time{}
	}

	if !g.wanted || r.lost != nil {
		return false, nil
	}

	errs = r.readGPMSupport()
	since := r.source.opts.Now().Sub(g.lastAt)

	early := !g.lastAt.IsZero() && since >= 0 && since < minWindow
	if g.support != gpmSupported || g.restart || early {
		return false, errs // if it is only early, the metrics of the last window stay
	}

	r.sampleEntities()

	return true, errs
}

// wantsGPM reports whether the activity of the GPU is read by GPM.
func (r *gpuRead) wantsGPM() bool { return r.source.opts.GPM || r.cues.GPM }

// readGPMSupport asks whether the GPU has GPM, unless that is known.
func (r *gpuRead) readGPMSupport() []gpu.ReadError {
	const call = "nvmlGpmQueryDeviceSupport"

	g := &r.state.gpm
	if g.support != gpmUnknown && !r.retryAll {
		return nil
	}

	q := r.newQuerier(r.state.answers)
	has, err := query(&q, call, gpu.ReadingActivity, r.dev.GpmQueryDeviceSupport)

	switch {
	case err == nil && has:
		g.support = gpmSupported
	case err == nil, errors.Is(err, gpu.ErrNotSupported):
		g.support = gpmUnsupported
	default:
		g.support = gpmUnknown
	}

	return q.errs
}

// sampleEntities samples the GPU, and all instances of the tree if they are of its last scan.
func (r *gpuRead) sampleEntities() {
	g := r.state
	t := &r.state.tree
	// Not when the reading began: the calls since then may have taken long.
	defer func() { g.gpm.lastAt = r.source.opts.Now() }()

	const sample, migSample = "nvmlGpmSampleGet", "nvmlGpmMigSampleGet"
	r.sampleInto(&g.gpm.own, g.answers, sample, r.dev.GpmSampleGet)

	if !t.known {
		return
	}

	for i := range t.states {
		e := &t.states[i]

		// Without a compute instance nothing can run there, and the driver has no counters of it.
		if len(e.computeStates) == 0 && !t.hidden {
			e.window.reset(nil)
			continue
		}

		r.sampleInto(&e.window, e.answers, migSample, func(s GPMSample) nvml.Return {
			return r.dev.GpmMigSampleGet(int(t.instances[i].ID), s)
		})

		for j := range e.computeStates {
			c := &e.computeStates[j]
			r.sampleInto(&c.window, c.answers, sample, t.handleOf(c).GpmSampleGet)
		}
	}
}

// sampleInto takes one sample of an entity into its window. If that fails the window starts again.
func (r *gpuRead) sampleInto(
	w *window,
	cached answers,
	call string,
	take func(GPMSample) nvml.Return,
) {
	q := r.newQuerier(cached)
	if q.checkRefused(call, gpu.ReadingActivity) != nil {
		w.reset(q.errs)
		return
	}

	if w.samples[0] == nil {
		sample, err := r.source.spareSample(r.state.uuid)
		if err != nil {
			w.reset([]gpu.ReadError{{Reading: gpu.ReadingActivity, Err: err}})
			return
		}

		w.samples[0] = sample
	}

	if q.recordReturn(call, gpu.ReadingActivity, take(w.samples[0])) != nil {
		r.state.watch.rescan = r.state.watch.rescan || q.stale
		w.reset(q.errs)

		return
	}

	w.samples[0], w.samples[1] = w.samples[1], w.samples[0]
	w.count = min(w.count+1, 2)
	w.errs = nil
}

// reset drops the metrics of a window, and its counters.
func (w *window) reset(errs []gpu.ReadError) {
	w.count = 0
	w.errs = errs
	w.activity = gpu.Activity{}
	w.rates = gpu.LinkRates{}
	w.media = gpu.Media{}
}

// activityRead is what a reading found of the activity of a GPU as a whole.
type activityRead struct {
	source  gpu.ActivitySource
	ratios  gpu.Activity
	rates   gpu.LinkRates
	invalid int // how many values were invalid, also of instances (valueIn)
}

// readActivity computes the metrics of the windows whose samples the scan of the tree has
// confirmed, and adds those of the instances to the layout.
func (r *gpuRead) readActivity(sampled bool, layout *layoutRead) (activityRead, []gpu.ReadError) {
	g := &r.state.gpm
	if g.support != gpmSupported || !g.wanted {
		return activityRead{}, nil
	}

	activity := activityRead{source: gpu.ActivityGPM}
	if r.lost != nil {
		return activity, nil
	}

	if g.restart || layout.scanErr != nil || r.state.change.Load() != int32(unchanged) {
		r.restartWindows(layout.scanErr == nil)
	} else if sampled {
		activity.invalid = r.computeActivity()
	}

	g.restart = false
	r.addActivity(layout.instances)
	activity.ratios = g.own.activity
	activity.rates = g.own.rates

	return activity, g.own.errs.report()
}

// restartWindows starts all windows again. It takes their first samples from the current tree if
// valid says that its handles are; the next scan finds later changes.
func (r *gpuRead) restartWindows(valid bool) {
	g := &r.state.gpm
	g.own.reset(nil)

	for e := range r.state.tree.entities() {
		e.window.reset(nil)
	}

	g.lastAt = time.Time{}

	if valid {
		r.sampleEntities()
	}
}

// computeActivity computes the metrics of every window that has two samples, and returns how many
// values were invalid.
func (r *gpuRead) computeActivity() (invalid int) {
	invalid = r.computeWindow(&r.state.gpm.own, gpuMetrics)

	t := &r.state.tree
	for i := range t.states {
		e := &t.states[i]
		invalid += r.computeWindow(&e.window, instanceMetrics)
		invalid += r.computeMedia(&t.instances[i], e)
		invalid += r.computePCIe(e)

		for j := range e.computeStates {
			invalid += r.computeWindow(&e.computeStates[j].window, computeMetrics)
		}
	}

	return invalid
}

// How many of gpmMetrics an entity has: compute instances have no metric of the memory, and only
// the GPU has those of links.
const (
	computeMetrics  = 7
	instanceMetrics = 8
	gpuMetrics      = 12
)

// gpmMetrics returns the metrics that are computed, in the order of gpu.Activity.All and
// gpu.LinkRates.
func gpmMetrics() [gpuMetrics]GPMMetric {
	var list [gpuMetrics]GPMMetric
	for i, id := range [gpuMetrics]nvml.GpmMetricId{
		nvml.GPM_METRIC_GRAPHICS_UTIL,
		nvml.GPM_METRIC_SM_UTIL,
		nvml.GPM_METRIC_SM_OCCUPANCY,
		nvml.GPM_METRIC_ANY_TENSOR_UTIL,
		nvml.GPM_METRIC_FP64_UTIL,
		nvml.GPM_METRIC_FP32_UTIL,
		nvml.GPM_METRIC_FP16_UTIL,
		nvml.GPM_METRIC_DRAM_BW_UTIL,
		nvml.GPM_METRIC_PCIE_RX_PER_SEC,
		nvml.GPM_METRIC_PCIE_TX_PER_SEC,
		nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
		nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
	} {
		list[i].ID = uint32(id)
	}

	return list
}

// computeWindow computes the first count metrics of a window, and returns how many values were
// invalid. Each metric has a return code of its own.
func (r *gpuRead) computeWindow(w *window, count int) (invalid int) {
	w.activity = gpu.Activity{}
	w.rates = gpu.LinkRates{}

	if w.count < 2 || r.lost != nil {
		return 0
	}

	const call = "nvmlGpmMetricsGet"

	// A metric that the driver does not fill in must not have the value of another window.
	metrics := r.state.metrics[:count]
	for i := range metrics {
		metrics[i].Value = 0
		metrics[i].Return = nvml.ERROR_UNKNOWN
	}

	err := checkReturn(
		call,
		r.source.lib.GpmMetricsGet(w.samples[0], w.samples[1], metrics),
	)
	if err != nil {
		if losesDevice(err) {
			r.lost = err
		}

		w.errs = []gpu.ReadError{{Reading: gpu.ReadingActivity, Err: err}}
		r.state.watch.rescan = true // the samples may be of two entities

		return 0
	}

	ratios := w.activity.All()
	rates := [...]*gpu.Opt[float64]{
		&w.rates.PCIeReceive,
		&w.rates.PCIeTransmit,
		&w.rates.NVLinkReceive,
		&w.rates.NVLinkTransmit,
	}

	for i := range metrics {
		var valid bool
		if i < len(ratios) {
			*ratios[i], valid = metrics[i].valueIn(percent)
		} else {
			*rates[i-len(ratios)], valid = metrics[i].valueIn(mebibyte)
		}

		if !valid {
			invalid++
			r.state.watch.rescan = true
		}
	}

	return invalid
}

// valueIn returns a metric in multiples of a unit, absent if the driver has none. It is invalid if
// it is negative or not a number.
func (m *GPMMetric) valueIn(unit float64) (value gpu.Opt[float64], valid bool) {
	if m.Return != nvml.SUCCESS {
		return gpu.None[float64](), true
	}

	if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) || m.Value < 0 {
		return gpu.None[float64](), false
	}

	return gpu.Some(m.Value * unit), true
}

// addActivity adds the metrics of the windows to instances, which are in the order of the tree.
func (r *gpuRead) addActivity(instances []gpu.GPUInstance) {
	for i := range instances {
		gi := &instances[i]
		e := &r.state.tree.states[i]
		gi.Activity = e.window.activity
		gi.Media = e.window.media
		gi.Rates = e.window.rates
		gi.Errors = append(gi.Errors, e.window.errs.report()...)

		for j := range gi.ComputeInstances {
			ci := &gi.ComputeInstances[j]
			w := &e.computeStates[j].window
			ci.Activity = w.activity
			ci.Errors = append(ci.Errors, w.errs.report()...)
		}
	}
}
