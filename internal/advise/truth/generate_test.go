package truth

import (
	"math"
	"math/rand/v2"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// model is a GPU that can be partitioned into slices.
type model struct {
	mig.Model
	modelFacts
	engines kernels.Engines
}

// modelFacts are what a data sheet says of a model, and its power without work.
type modelFacts struct {
	sms                   int // of the GPU without MIG mode
	gib                   float64
	pcieGen               int
	idleWatts, limitWatts float64
}

// models are those that can be simulated.
func models() []model {
	var list []model

	for _, m := range []struct {
		name string
		modelFacts
	}{
		{"A30-24GB", modelFacts{56, 24, 4, 28, 165}}, {"A100-40GB", modelFacts{108, 40, 4, 52, 400}},
		{"A100-80GB", modelFacts{108, 80, 4, 60, 400}}, {"H100-80GB", modelFacts{132, 79.6, 5, 70, 700}},
		{"H100-94GB", modelFacts{132, 93.6, 5, 60, 400}}, {"H200-141GB", modelFacts{132, 140.4, 5, 75, 700}},
		{"RTX PRO 6000 Blackwell 96GB", modelFacts{188, 95.6, 5, 35, 600}},
	} {
		if found, ok := mig.FindModel(m.name); ok {
			list = append(list, model{found, m.modelFacts, mostEngines(found.Profiles)})
		}
	}

	return list
}

// hasGPM reports whether the driver itself profiles GPU instances (GPM), as from Hopper on. Nothing
// else says how busy their media engines are.
func (m *model) hasGPM() bool { return m.Architecture != "Ampere" }

// mostEngines returns the engines of a GPU: as many as the profile with the most has.
func mostEngines(profiles []gpu.Profile) kernels.Engines {
	var most kernels.Engines

	for i := range profiles {
		for kind, n := range enginesOf(&profiles[i]) {
			most[kind] = max(most[kind], n)
		}
	}

	return most
}

func enginesOf(p *gpu.Profile) kernels.Engines {
	e := p.Engines.Or(gpu.Engines{})
	return kernels.Engines{float64(e.Encoder), float64(e.Decoder), float64(e.JPEG), float64(e.OFA)}
}

// kinds are what a node's GPUs do, with how often. A part of video is transcoding or rare-decoding,
// a part of the servers answers, and a part of the short-lived jobs are loops.
func kinds() []struct {
	name   string
	weight int
} {
	return []struct {
		name   string
		weight int
	}{
		{"narrow-busy", 10}, {"rare-wide", 10}, {"image-fleet", 12}, {"daily", 11}, {"weekly", 7}, {"bursty", 7},
		{"phases", 6}, {"growing-load", 4}, {"leaking", 5}, {"growing-memory", 3}, {"preallocating", 7}, {"video", 5},
		{"late-video", 2}, {"transcoding", 0}, {"rare-decoding", 0}, {"pcie-bound", 3},
		{"multi-gpu", 2}, {"shared", 2}, {"short-lived", 6}, {"voice", 3}, {"training", 5}, {"new-version", 2},
		{"balanced", 4}, {"mixture", 6}, {"server", 5},
		{"answering-server", 0}, {"loop", 0},
	}
}

// newWorkload draws a workload for a GPU.
func newWorkload(r *rand.Rand, m *model) *workload {
	all := 0
	for _, k := range kinds() {
		all += k.weight
	}

	pick := r.IntN(all)
	name := ""

	for _, k := range kinds() {
		if pick -= k.weight; pick < 0 {
			name = k.name
			break
		}
	}

	w := &workload{kind: name, seed: r.Uint64(), noise: 0.3 * r.Float64(), pods: 1}
	w.pcie, w.loss = 0.1*r.Float64(), 0.2*r.Float64()
	w.mix = mixNames()[r.IntN(4)]
	w.stateAt = func(int) int { return 0 }
	w.needGiB = steady(m.gib * (0.03 + 0.35*r.Float64()*r.Float64()))
	w.addState(r, m, between(r, 0.02, 0.5))
	w.shape(r, m)
	w.shapeJob()
	w.addInference()
	w.addStart(m)
	w.addServing()

	return w
}

func between(r *rand.Rand, low, high float64) float64 { return low + (high-low)*r.Float64() }

// logNormal draws a value, as the use of GPUs is over instances: most are low, few are high.
func logNormal(r *rand.Rand, median, sigma float64) float64 {
	return median * math.Exp(sigma*r.NormFloat64())
}

// addState adds kernels with a mean width that is a share of the GPU's SMs.
func (w *workload) addState(r *rand.Rand, m *model, width float64) {
	sms := float64(m.sms)
	w.states = append(w.states, newPhases(r, w.mix, max(1, width*sms), sms, between(r, 0.1, 1.2)))
}

// shape gives a workload the load and the memory of its kind.
func (w *workload) shape(r *rand.Rand, m *model) {
	// The means of a large cluster: 10.5 % of the time on average, three quarters of the instances
	// below a tenth.
	level := min(0.95, logNormal(r, 0.05, 1.2))

	w.busy = daily(level/2, level*1.5)
	switch w.kind {
	case "narrow-busy":
		w.states = nil
		w.addState(r, m, between(r, 0.01, 0.15))
		w.busy = steady(between(r, 0.7, 1))
		w.noise = 0.05
	case "rare-wide":
		w.states = nil
		w.addState(r, m, between(r, 0.5, 1))
		w.busy = steady(between(r, 0.005, 0.08))
	case "image-fleet":
		// A fleet of 143 pods over 23 h: p99 of busy time 16, 37 and 94 % at the 10th, 50th and
		// 90th percentile of pods, median 0, mean 6.5 %; largest memory 21, 37 and 45 GiB.
		w.busy = w.requests(between(r, 0.1, 0.45), min(1, logNormal(r, 0.4, 0.7)))
		w.needGiB = steady(min(m.gib*0.6, max(4, 37+8*r.NormFloat64())))
	case "daily":
		w.busy = daily(level, min(0.95, level*between(r, 2, 6)))
	case "weekly":
		w.shapeWeekly(r, m, level)
	case "bursty":
		w.busy = w.bursts(level/2, between(r, 0.2, 1), between(r, 0.02, 0.5), 2+r.IntN(25))
	case "phases":
		w.shapePhases(r, m)
	case "growing-load":
		w.busy = growing(between(r, 0.05, 0.4), between(r, 0.02, 0.12))
	case "training":
		w.states = nil
		w.addState(r, m, between(r, 0.6, 1))
		w.busy = steady(between(r, 0.85, 1))
		w.noise = 0.05
		w.needGiB = steady(m.gib * between(r, 0.3, 0.9))
	default:
		w.shapeOther(r, m)
	}
}

// shapeWeekly has one day, or five, with more load; on that day the kernels can be others.
func (w *workload) shapeWeekly(r *rand.Rand, m *model, level float64) {
	from := r.IntN(7)

	days := 1
	if r.IntN(2) == 0 {
		days = 5
	}

	w.busy = weekly(level, min(0.95, level*between(r, 2, 8)), from, days)
	if r.IntN(2) == 0 {
		w.addState(r, m, between(r, 0.1, 1))
		w.stateAt = func(minute int) int { return int(weekly(0, 1, from, days)(minute)) }
		base := w.needGiB(0)
		w.needGiB = weekly(base, base*between(r, 1, 1.6), from, days)
	}
}

// shapePhases works with other kernels, and another load, for some hours of each day.
func (w *workload) shapePhases(r *rand.Rand, m *model) {
	w.addState(r, m, between(r, 0.2, 1))
	start := r.IntN(20 * 60)
	length := 10 + r.IntN(300)
	w.stateAt = func(minute int) int {
		if at := minute % dayMinutes; at >= start && at < start+length {
			return 1
		}

		return 0
	}
	quiet := between(r, 0.01, 0.6)
	loud := between(r, 0.05, 1)
	w.busy = func(minute int) float64 { return [2]float64{quiet, loud}[w.stateAt(minute)] }
}

// shapeVideo gives a workload that uses media engines a number of each kind, up to all of the
// GPU's: many use less than one decoder. A part of them decodes with the load of the day, another
// for some minutes of the day alone.
func (w *workload) shapeVideo(m *model, kinds [4]bool) {
	r := rand.New(rand.NewPCG(w.seed, 0)) // of its own: the node's other workloads are the same whatever is drawn

	for kind, used := range kinds {
		if used {
			w.media[kind] = m.engines[kind] * math.Pow(between(r, 0.1, 1), 2)
		}
	}

	if w.kind != "video" {
		return
	}

	switch r.IntN(4) {
	case 0:
		w.kind, w.mediaAt = "transcoding", daily(between(r, 0, 0.5), 1)
	case 1:
		begins := r.IntN(23 * 60)
		length := 3 + r.IntN(12)
		w.kind = "rare-decoding"
		w.mediaAt = func(minute int) float64 {
			return boolToFloat(minute%dayMinutes >= begins && minute%dayMinutes < begins+length)
		}
	}
}

// shapeJob makes jobs of what ends by itself. A part of the short ones are loops, whose steps on the host
// nothing hides, more of them in some pods than in others. The others prepare data while their kernels run,
// and half of them say so.
func (w *workload) shapeJob() {
	r := rand.New(rand.NewPCG(w.seed, 0x10b)) // of its own, as in shapeVideo
	w.job = w.kind == "short-lived" || w.kind == "training"

	if w.kind != "short-lived" || r.IntN(2) == 0 {
		w.overlaps = w.job && r.IntN(2) == 0
		return
	}

	w.kind = "loop"
	w.loop = true
	w.noise = 0

	level := w.busy(0)
	w.busy = func(minute int) float64 {
		_, pod := w.runs(minute)
		return min(0.95, level*(0.4+1.2*w.random(pod, 6)))
	}
}

// shapeServer reserves a fraction of its device's memory once its weights are loaded, for weights
// and cache: as much in a slice, which therefore has to be larger than what is needed of it.
func (w *workload) shapeServer(r *rand.Rand, m *model) {
	w.fraction, w.loading = between(r, 0.4, 0.9), 5+r.IntN(56)
	w.taken = w.fraction * m.gib
	weights := between(r, 0.2, 0.85) * w.taken
	cache := between(r, 0.02, 0.15) * w.taken
	w.needGiB = steady(weights + cache)
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}

	return 0
}

// shapeOther has the kinds that differ by more than their load.
func (w *workload) shapeOther(r *rand.Rand, m *model) {
	switch w.kind {
	case "leaking":
		base := w.needGiB(0)

		restart := 0
		if r.IntN(2) == 0 {
			restart = 2 + r.IntN(9)
		}

		w.needGiB = leaking(base, base*between(r, 0.005, 0.1), r.IntN(observedMinutes-2*dayMinutes), restart)
	case "growing-memory":
		base := w.needGiB(0)
		perDay := between(r, 0.01, 0.08)
		w.needGiB = func(minute int) float64 { return base * math.Exp(perDay*float64(minute)/dayMinutes) }
	case "preallocating":
		w.taken = m.gib * between(r, 0.75, 0.95)
	case "video":
		kinds := [4]bool{r.IntN(2) == 0, true, r.IntN(3) == 0, r.IntN(8) == 0}
		w.busy = steady(between(r, 0.05, 0.5))
		hours := 1 + r.IntN(24)
		w.mediaAt = func(minute int) float64 { return boolToFloat(minute/60%24 < hours) }
		w.shapeVideo(m, kinds)
	case "late-video": // from some time after the eighth day on, up to an hour before the advice is taken
		kinds := [4]bool{false, true, r.IntN(3) == 0, false}
		w.busy = steady(between(r, 0.05, 0.5))
		w.states = nil
		w.addState(r, m, between(r, 0.01, 0.1))
		w.needGiB = steady(m.gib * between(r, 0.03, 0.1))
		begins := 8*dayMinutes + r.IntN(observedMinutes-8*dayMinutes-60)
		w.mediaAt = func(minute int) float64 { return boolToFloat(minute >= begins) }
		w.shapeVideo(m, kinds)
	case "pcie-bound":
		w.pcie, w.busy = between(r, 0.2, 0.8), steady(between(r, 0.1, 0.4))
	case "multi-gpu":
		w.pods, w.nvlink, w.busy = 2+r.IntN(3), 5e9, steady(between(r, 0.2, 0.9))
	case "shared":
		w.shared, w.busy = true, steady(between(r, 0.2, 0.8))
	case "short-lived":
		w.lifetime, w.pause, w.busy = 5+r.IntN(300), r.IntN(120), steady(between(r, 0.05, 0.9))
	case "voice":
		// Three GPUs of 80 GB: a language model of 73 GiB at 91 %, speech recognition of 9.6 GiB at
		// 12 %, synthesis of 13.4 GiB at 17 %.
		one := [3][3]float64{{73. / 80, 0.91, 0.8}, {9.6 / 80, 0.12, 0.3}, {13.4 / 80, 0.17, 0.3}}[r.IntN(3)]
		w.needGiB, w.busy, w.states = steady(one[0]*m.gib), steady(one[1]), nil
		w.addState(r, m, one[2])
	case "mixture": // of requests, the rare ones of which are long and wide
		w.mix = mixTwoPoint
		w.states = nil
		w.addState(r, m, between(r, 0.02, 0.4))
	case "balanced": // replicas behind a load balancer; node adds the others
		w.copies = 2 + r.IntN(3)
		w.pcie = 0
	case "server":
		w.shapeServer(r, m)
	case "new-version":
		w.addState(r, m, between(r, 0.3, 1))
		w.changes = observedMinutes + r.IntN(appliedMinutes-dayMinutes)
	}
}
