package truth

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

const (
	dayMinutes  = 24 * 60
	weekMinutes = 7 * dayMinutes
	// A workload is observed on its whole GPU, then runs on in its slice.
	observedMinutes = 2 * weekMinutes
	appliedMinutes  = weekMinutes
)

// workload is what one GPU does over time. All of it is a pure function of the minute, so that the
// slice and the whole GPU see the same work at the same moment.
type workload struct {
	kind, mix string
	seed      uint64
	// states are mixes of kernels; stateAt says which one runs.
	states  [][]kernels.Phase
	stateAt func(minute int) int
	busy    func(minute int) float64 // on a GPU large enough; noise comes on top
	noise   float64
	needGiB func(minute int) float64
	// taken is the memory that the framework takes in advance, in GiB; 0 if it takes what it needs.
	// If it is a fraction of whatever device it has, it takes it once it has been loading for some
	// minutes.
	taken, fraction float64
	loading         int
	// media are the encoders, decoders, JPEG and OFA engines that it keeps busy at full speed;
	// mediaAt is the share of them in a minute.
	media   kernels.Engines
	mediaAt func(minute int) float64
	pcie    float64 // share of the link at full load
	nvlink  float64 // bytes per second
	// lifetime of a pod in minutes and the pause after it; 0 for a pod that stays.
	lifetime, pause int
	job             bool // its pods end by themselves
	overlaps        bool // an annotation says that a job prepares its steps while the GPU works
	// loop: it does one step after the other, each on the host first. A step that takes longer on the GPU
	// delays all others.
	loop   bool
	pods   int // GPUs of its pod; more than 1: it is on the following GPUs, too
	shared bool
	// loss lengthens all kernels in a slice: the share of L2 and clocks. Nothing shows it
	// beforehand.
	loss float64
	// held are the holders of its pod with a number, the last that was asked for.
	held       []gpu.Holder
	heldNumber int
	// changes is the minute of a new version that has other kernels, load and memory; 0 if there is
	// none. Nothing foretells it.
	changes int
	start   starting
	serves  *serving   // nil if it answers no requests
	says    *inference // nil if it does not say what it does with the memory that it reserves
	// replica is the number of the workload among the copies of its owner, which have the same
	// load, each with its own noise and requests.
	replica, copies int
}

// random returns a number of 0-1 for a moment, the same at each call.
func (w *workload) random(minute int, purpose uint64) float64 {
	x := w.seed + uint64(minute)*0x9e3779b97f4a7c15 + (purpose+uint64(w.replica)<<8)*0xd1b54a32d192ed03
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb

	return float64((x^x>>31)>>11) / (1 << 53)
}

// runs reports whether a pod of the workload is there, and the number of the pod.
func (w *workload) runs(minute int) (bool, int) {
	if w.lifetime == 0 {
		if minute < w.start.began {
			return false, 0
		}

		if w.start.every > 0 {
			return true, (minute - w.start.began) / w.start.every
		}

		return true, 0
	}

	cycle := w.lifetime + w.pause

	return minute%cycle < w.lifetime, minute / cycle
}

// stateOf returns which of its kernels the workload runs in a minute.
func (w *workload) stateOf(minute int) int {
	if w.changed(minute) {
		return len(w.states) - 1
	}

	return w.stateAt(minute)
}

// changed reports whether the workload has its new version.
func (w *workload) changed(minute int) bool { return w.changes > 0 && minute >= w.changes }

// demand returns what the workload wants to do in a minute.
func (w *workload) demand(minute int) kernels.Demand {
	busy := w.busy(minute) * (1 + w.noise*(2*w.random(minute, 1)-1))
	most := 1.

	if w.changed(minute) {
		busy *= 1.5
	}

	if w.open() {
		most = maxOffered
	}

	d := kernels.Demand{Phases: w.states[w.stateOf(minute)], Busy: min(max(busy, 0), most), Media: w.uses(minute)}
	if w.loop {
		d.Requests = kernels.Requests{Concurrency: 1, GPU: stepTime(d.Busy), Host: stepTime(1 - d.Busy)}
	}

	return d
}

// stepTime returns what a share of a step's time is, if all of it is a second.
func stepTime(share float64) time.Duration { return time.Duration(share * float64(time.Second)) }

// need returns the memory that it must have on its whole GPU, in GiB.
func (w *workload) need(minute int) float64 { return w.needAfter(minute, w.startedAt(minute)) }

// settledNeed returns the memory that it must have once its pod has started, in GiB.
func (w *workload) settledNeed(minute int) float64 {
	need := w.needGiB(minute)
	if w.changed(minute) {
		need *= 1.3
	}

	return need
}

// takes returns the memory that it takes of a whole GPU, in GiB.
func (w *workload) takes(minute int) float64 {
	since := minute - w.startedAt(minute)
	if w.says != nil {
		return w.says.memoryAfter(since, w.loading, w.taken)
	}

	if since < w.loading {
		return max(contextGiB, w.need(minute)*float64(since+1)/float64(w.loading))
	}

	return max(w.need(minute), w.taken)
}

// uses returns how many media engines it keeps busy at full speed.
func (w *workload) uses(minute int) kernels.Engines {
	used := w.media
	for kind := range used {
		if used[kind] > 0 {
			used[kind] *= w.mediaAt(minute)
		}
	}

	return used
}

// Mixes of kernel widths, by name.
const (
	mixAlike       = "alike"
	mixTwoPoint    = "two-point"
	mixExponential = "exponential"
	mixLogNormal   = "log-normal"
)

// mixNames lists the mixes.
func mixNames() []string { return []string{mixAlike, mixTwoPoint, mixExponential, mixLogNormal} }

// mixPhases is how many kinds of kernels stand for a continuous mix.
const mixPhases = 8

// newPhases returns kernels of a mean width near one, on a GPU of so many SMs. Their bandwidth goes
// with their width, times intensity, and varies by kernel.
func newPhases(r *rand.Rand, mix string, mean, sms, intensity float64) []kernels.Phase {
	var phases []kernels.Phase

	switch mix {
	case mixTwoPoint:
		wide := mean + (sms-mean)*r.Float64()
		narrow := 1 + (mean-1)*r.Float64()
		share := (mean - narrow) / max(wide-narrow, 1e-9)
		phases = []kernels.Phase{{Share: share, Width: wide}, {Share: 1 - share, Width: narrow}}
	case mixExponential:
		for i := range mixPhases {
			q := (float64(i) + 0.5) / mixPhases
			phases = append(phases, kernels.Phase{Share: 1. / mixPhases, Width: -mean * math.Log(1-q)})
		}
	case mixLogNormal:
		sigma := 0.4 + 0.8*r.Float64()
		median := mean * math.Exp(-sigma*sigma/2)

		for i := range mixPhases {
			q := (float64(i) + 0.5) / mixPhases
			width := median * math.Exp(sigma*math.Sqrt2*math.Erfinv(2*q-1))
			phases = append(phases, kernels.Phase{Share: 1. / mixPhases, Width: width})
		}
	default:
		phases = []kernels.Phase{{Share: 1, Width: mean}}
	}

	for i := range phases {
		p := &phases[i]
		p.Width = min(max(p.Width, 1), sms)
		p.Bandwidth = min(kernels.Reachable, p.Width/sms*intensity*(0.5+r.Float64()))
	}

	return phases
}

// Loads over time.

func steady(level float64) func(int) float64 { return func(int) float64 { return level } }

// daily swings between two levels, highest in the afternoon.
func daily(from, to float64) func(int) float64 {
	return func(minute int) float64 {
		return from + (to-from)*(1-math.Cos(2*math.Pi*float64(minute%dayMinutes-180)/dayMinutes))/2
	}
}

// weekly has its high level on one day of the week, or on all but two.
func weekly(low, high float64, from, days int) func(int) float64 {
	return func(minute int) float64 {
		if (minute/dayMinutes+7-from)%7 < days {
			return high
		}

		return low
	}
}

// growing adds a share of the first level each day.
func growing(level, perDay float64) func(int) float64 {
	return func(minute int) float64 { return min(1, level*(1+perDay*float64(minute)/dayMinutes)) }
}

// bursts are of so many minutes, at most one in an hour, of varying level over a base.
func (w *workload) bursts(base, top, perHour float64, length int) func(int) float64 {
	return func(minute int) float64 {
		hour := minute / 60
		if minute%60 < length && w.random(hour, 2) < perHour {
			return base + (top-base)*(0.5+0.5*w.random(hour, 3))
		}

		return base
	}
}

// requests is on for a share of the minutes, each at a level of its own: most are low, few reach
// the top.
func (w *workload) requests(share, top float64) func(int) float64 {
	return func(minute int) float64 {
		if w.random(minute, 4) >= share {
			return 0
		}

		return top * math.Pow(w.random(minute, 5), 3)
	}
}

// leaking grows from a minute on, and begins again after some days when the pod is restarted.
func leaking(base, perDay float64, from, restartDays int) func(int) float64 {
	return func(minute int) float64 {
		since := max(0, minute-from)
		if restartDays > 0 {
			since %= restartDays * dayMinutes
		}

		return base + perDay*float64(since)/dayMinutes
	}
}
