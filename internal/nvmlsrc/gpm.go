package nvmlsrc

import (
	"math"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// GPM, the profiling counters of Hopper and later. A sample holds an entity's counters of one moment; the metrics are
// those of the window between two samples. In each round every entity is sampled once, and its window goes from the round
// before to this one.
//
// Ids and handles are reused after a re-cut, and a window between samples of two instances makes numbers of no meaning. So
// the samples of a round are taken before its scan of the tree, by the tree of the round before, and the scan vouches for
// them: where it finds the tree as it was, no instance was another one at the time of the sample. Else all windows of the
// GPU begin anew.

// minWindow is the least time between two samples that nvml.h asks for.
const minWindow = 100 * time.Millisecond

// gpmState is what a board knows of GPM. It belongs to the Read under way, as the board does.
type gpmState struct {
	wanted           bool // in this round
	asked, supported bool
	own              window
	instances        map[instanceRef]*window
	// recut: the tree was found changed in this round, or could not be seen.
	recut   bool
	sampled bool      // samples were taken in this round
	lastAt  time.Time // when samples were taken last
	garbled int       // values of this round that were no numbers
}

// instanceRef names a GPU instance (compute wholeInstance) or a compute instance within a layout.
type instanceRef struct {
	instance gpu.InstanceID
	compute  int64
}

const wholeInstance = -1

// window is the two last samples of one entity, and what came of them.
type window struct {
	samples  [2]GPMSample
	count    int             // how many hold counters: the newest is in samples[1]
	errs     []gpu.ReadError // why it says nothing
	activity gpu.Activity
	rates    gpu.LinkRates
	media    gpu.Media // of a GPU instance
}

// samplePool keeps the samples that nobody uses. They belong to no GPU until they are filled.
type samplePool struct {
	mu    sync.Mutex
	spare []GPMSample
	all   []GPMSample
}

// take gives a sample, a new one where none is spare.
func (s *Source) takeSample() (GPMSample, error) {
	p := &s.samples
	p.mu.Lock()
	if n := len(p.spare); n > 0 {
		sample := p.spare[n-1]
		p.spare = p.spare[:n-1]
		p.mu.Unlock()
		return sample, nil
	}
	p.mu.Unlock()
	sample, ret := s.lib.GpmSampleAlloc()
	if err := s.check("nvmlGpmSampleAlloc", ret); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.all = append(p.all, sample)
	p.mu.Unlock()
	return sample, nil
}

// giveBack makes the samples of a window spare.
func (p *samplePool) giveBack(w *window) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, sample := range w.samples {
		if sample != nil {
			p.spare = append(p.spare, sample)
		}
		w.samples[i] = nil
	}
	*w = window{}
}

// free frees every sample, when no call is under way.
func (s *Source) freeSamples() {
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()
	for _, sample := range s.samples.all {
		s.check("nvmlGpmSampleFree", sample.Free()) //nolint:errcheck // the library is shut down next
	}
	s.samples.all, s.samples.spare = nil, nil
}

// retire makes the samples of a board spare that is in use no longer. Where a call for it hangs, the Read does so that the
// call belongs to, when it returns.
func (s *Source) retire(b *board) {
	b.retired.Store(true)
	if !b.reading.TryLock() {
		return
	}
	defer b.reading.Unlock()
	s.emptyWindows(b)
}

// emptyWindows makes the samples of a board spare. The caller holds its reading.
func (s *Source) emptyWindows(b *board) {
	s.samples.giveBack(&b.gpm.own)
	for ref, w := range b.gpm.instances {
		s.samples.giveBack(w)
		delete(b.gpm.instances, ref)
	}
}

// sample takes the samples of a round, before its tree is scanned.
func (r *round) sample() {
	g := &r.board.gpm
	g.sampled, g.garbled = false, 0
	was := g.wanted
	g.wanted = r.source.wantsGPM(r.board.uuid)
	if was && !g.wanted {
		r.source.emptyWindows(r.board) // a later window must not reach over the time in between
		g.lastAt = time.Time{}
	}
	if !g.wanted || r.fatal != nil || !r.gpmSupported() {
		return
	}
	since := r.source.opts.Now().Sub(g.lastAt)
	if !g.lastAt.IsZero() && since >= 0 && since < minWindow {
		return // what the last window said holds
	}
	if !g.recut {
		r.sampleAll()
	}
}

// wantsGPM reports whether a GPU is to be asked for activity.
func (s *Source) wantsGPM(id gpu.UUID) bool {
	return s.opts.GPM || s.opts.GPMFor != nil && s.opts.GPMFor(id)
}

// gpmSupported asks once for each MIG mode whether the GPU has GPM.
func (r *round) gpmSupported() bool {
	const question = "nvmlGpmQueryDeviceSupport"
	g := &r.board.gpm
	if g.asked && !r.hopes {
		return g.supported
	}
	supported, ok := ask(&r.asker, question, gpu.ReadingActivity, r.dev.GpmQueryDeviceSupport)
	g.asked = ok || r.unsupported[question]
	g.supported = ok && supported
	return g.supported
}

// sampleAll samples the board and everything of the tree that is known.
func (r *round) sampleAll() {
	b := r.board
	b.gpm.sampled = true
	defer func() { b.gpm.lastAt = r.source.opts.Now() }() // calls may have taken long since the round began
	a := r.ofEntity(r.answers)
	r.sampleInto(&b.gpm.own, &a, r.dev, wholeGPU)
	for i := range b.tree.nodes {
		n := &b.tree.nodes[i]
		a := r.ofEntity(n.answers)
		r.sampleInto(r.windowOf(instanceRef{n.ID, wholeInstance}), &a, r.dev, int(n.ID))
		for j := range n.computes {
			c := &n.computes[j]
			a := r.ofEntity(c.answers)
			r.sampleInto(r.windowOf(instanceRef{n.ID, int64(c.ID)}), &a, b.tree.scan.devices[c.device].handle, wholeGPU)
		}
	}
}

// wholeGPU is no GPU instance.
const wholeGPU = -1

// windowOf is the window of an instance.
func (r *round) windowOf(ref instanceRef) *window {
	g := &r.board.gpm
	w := g.instances[ref]
	if w == nil {
		if g.instances == nil {
			g.instances = map[instanceRef]*window{}
		}
		w = &window{}
		g.instances[ref] = w
	}
	return w
}

// sampleInto takes one sample into a window: of an entity, or of a GPU instance of it. Where that fails the window begins
// anew.
func (r *round) sampleInto(w *window, a *asker, of Entity, instance int) {
	question := "nvmlGpmSampleGet"
	if instance != wholeGPU {
		question = "nvmlGpmMigSampleGet"
	}
	if !a.may(question, gpu.ReadingActivity) {
		w.forget(a.errs)
		return
	}
	if w.samples[0] == nil {
		sample, err := r.source.takeSample()
		if err != nil {
			w.forget([]gpu.ReadError{{Reading: gpu.ReadingActivity, Err: err}})
			return
		}
		w.samples[0] = sample
	}
	var ret nvml.Return
	if instance != wholeGPU {
		ret = r.dev.GpmMigSampleGet(instance, w.samples[0])
	} else {
		ret = of.GpmSampleGet(w.samples[0])
	}
	if !a.took(question, gpu.ReadingActivity, ret) {
		r.fatal = a.fatal
		w.forget(a.errs)
		return
	}
	w.samples[0], w.samples[1] = w.samples[1], w.samples[0]
	w.count, w.errs = min(w.count+1, 2), nil
}

// forget drops what a window says, and its counters.
func (w *window) forget(errs []gpu.ReadError) {
	w.count, w.errs, w.activity, w.rates, w.media = 0, errs, gpu.Activity{}, gpu.LinkRates{}, gpu.Media{}
}

// readActivity makes the metrics of the windows whose samples the scan of the tree has vouched for.
func (r *round) readActivity() {
	g := &r.board.gpm
	if !g.supported || !g.wanted {
		return
	}
	r.out.ActivitySource = gpu.ActivityGPM
	if r.fatal != nil {
		return
	}
	if g.recut || r.scanErr != nil || r.board.recut.Load() {
		r.reseed()
	} else if g.sampled {
		r.measure()
	}
	g.recut = false
	r.fillActivity()
}

// reseed begins all windows anew by the tree as it is now. What happens to it from here on, the next scan finds.
func (r *round) reseed() {
	g := &r.board.gpm
	g.own.forget(nil)
	for ref, w := range g.instances {
		r.source.samples.giveBack(w)
		delete(g.instances, ref)
	}
	g.lastAt = time.Time{}
	if r.scanErr == nil {
		r.sampleAll()
	}
}

// measure asks for the metrics of every window that has two samples.
func (r *round) measure() {
	r.measureWindow(&r.board.gpm.own, boardMetrics)
	for i := range r.board.tree.nodes {
		n := &r.board.tree.nodes[i]
		whole := r.windowOf(instanceRef{n.ID, wholeInstance})
		r.measureWindow(whole, instanceMetrics)
		r.measureMedia(whole, n)
		for j := range n.computes {
			r.measureWindow(r.windowOf(instanceRef{n.ID, int64(n.computes[j].ID)}), computeMetrics)
		}
	}
}

// How many of the metrics an entity has: those of the GPU alone and of the memory come last.
const (
	computeMetrics  = 7
	instanceMetrics = 8
	boardMetrics    = 12
)

// gpmMetrics lists the metrics that are asked for.
func gpmMetrics() [boardMetrics]GPMMetric {
	var list [boardMetrics]GPMMetric
	for i, id := range [boardMetrics]nvml.GpmMetricId{
		nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY, nvml.GPM_METRIC_ANY_TENSOR_UTIL,
		nvml.GPM_METRIC_FP64_UTIL, nvml.GPM_METRIC_FP32_UTIL, nvml.GPM_METRIC_FP16_UTIL,
		nvml.GPM_METRIC_DRAM_BW_UTIL,
		nvml.GPM_METRIC_PCIE_RX_PER_SEC, nvml.GPM_METRIC_PCIE_TX_PER_SEC,
		nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
	} {
		list[i].ID = uint32(id)
	}
	return list
}

// measureWindow asks for the first of the metrics. Each has a return code of its own.
func (r *round) measureWindow(w *window, count int) {
	w.activity, w.rates = gpu.Activity{}, gpu.LinkRates{}
	if w.count < 2 || r.fatal != nil {
		return
	}
	const question = "nvmlGpmMetricsGet"
	metrics := r.board.metrics[:count]
	for i := range metrics {
		metrics[i].Value, metrics[i].Return = 0, nvml.ERROR_UNKNOWN
	}
	if err := r.source.check(question, r.source.lib.GpmMetricsGet(w.samples[0], w.samples[1], metrics)); err != nil {
		if losesDevice(err) {
			r.fatal = err
		}
		w.errs = []gpu.ReadError{{Reading: gpu.ReadingActivity, Err: err}}
		return
	}
	const mebi = 1 << 20
	ratios := w.activity.All()
	rates := [...]*gpu.Opt[float64]{&w.rates.PCIeReceive, &w.rates.PCIeTransmit, &w.rates.NVLinkReceive, &w.rates.NVLinkTransmit}
	for i := range metrics {
		if i < len(ratios) {
			r.take(ratios[i], &metrics[i], 0.01)
		} else {
			r.take(rates[i-len(ratios)], &metrics[i], mebi)
		}
	}
}

// take takes one metric. One that is no number, or less than nothing, is dropped and counted.
func (r *round) take(to *gpu.Opt[float64], m *GPMMetric, unit float64) {
	switch {
	case m.Return != nvml.SUCCESS:
	case math.IsNaN(m.Value) || math.IsInf(m.Value, 0) || m.Value < 0:
		r.board.gpm.garbled++
	default:
		*to = gpu.Some(m.Value * unit)
	}
}

// fillActivity lays what the windows say to the result.
func (r *round) fillActivity() {
	g := &r.board.gpm
	r.out.Activity, r.out.Rates, r.out.GarbledActivity = g.own.activity, g.own.rates, g.garbled
	r.errs = r.windowErrors(r.errs, &g.own)
	for i := range r.out.Instances {
		gi := &r.out.Instances[i]
		if w := g.instances[instanceRef{gi.ID, wholeInstance}]; w != nil {
			gi.Activity, gi.Media = w.activity, w.media
			gi.Errors = r.windowErrors(gi.Errors, w)
		}
		for j := range gi.Computes {
			ci := &gi.Computes[j]
			if w := g.instances[instanceRef{gi.ID, int64(ci.ID)}]; w != nil {
				ci.Activity = w.activity
				ci.Errors = r.windowErrors(ci.Errors, w)
			}
		}
	}
}

// windowErrors appends why a window says nothing. What was not tried again in this round has been counted.
func (r *round) windowErrors(list []gpu.ReadError, w *window) []gpu.ReadError {
	for _, e := range w.errs {
		e.Remembered = e.Remembered || !r.board.gpm.sampled
		list = append(list, e)
	}
	return list
}
