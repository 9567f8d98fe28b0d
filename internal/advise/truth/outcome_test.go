package truth

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

const (
	maxStretch    = 2
	minThroughput = 0.95
	// ownBytes is what a slice keeps for itself, and the context of a process takes.
	ownBytes = 100 << 20
)

// distribution counts stretch by busy time, in buckets of half a percent.
type distribution struct {
	weights [1200]float64
	total   float64
	// last and bucket are those of the value that was added last: stretch changes with the kernels
	// only.
	last   float64
	bucket int
}

func (d *distribution) add(stretch, weight float64) {
	if stretch != d.last {
		d.last = stretch

		d.bucket = 0
		if stretch > 1 {
			d.bucket = min(int(math.Log(stretch)*(1/logStep)), len(d.weights)-1)
		}
	}

	d.weights[d.bucket] += weight
	d.total += weight
}

// quantile returns the lower bound of the bucket in which a share q of the busy time is reached.
func (d *distribution) quantile(q float64) float64 {
	sum := 0.
	for i, w := range d.weights {
		if sum += w; sum >= q*d.total && sum > 0 {
			return math.Exp(logStep * float64(i))
		}
	}

	return 1
}

// outcome is what a size of slice does to a workload over a time.
type outcome struct {
	stretch       distribution // busy-weighted, of one minute
	work, allWork float64      // done in the slice, and on the whole GPU
	// engineWork is what the media engines of the slice do of the work.
	engineWork float64
	hour       struct{ work, allWork, stretched float64 }
	worstHour  float64 // throughput of the worst hour
	// the first minute of the first hour that lost more than a twentieth, or passed its stretch; -1
	// if there is none
	firstLoss int
	cache     shortage // of cache, for those that have one
	hourLoss  int      // the first minute of the open hour with a loss
	anyLoss   int      // the first minute with a loss
}

func newOutcome() *outcome {
	return &outcome{worstHour: 1, firstLoss: -1, hourLoss: -1, anyLoss: -1, cache: shortage{began: -1}}
}

// logStep is the width of a bucket.
const logStep = 0.005

// add counts a minute.
func (o *outcome) add(d kernels.Demand, on kernels.Device, whole kernels.Result, minute int) {
	if d.Busy > 0 {
		r := kernels.Run(d, on)
		all := whole.Throughput * d.Busy
		done := r.Throughput * d.Busy
		o.stretch.add(r.Stretch, d.Busy)
		o.work = o.work + done
		o.allWork = o.allWork + all
		o.engineWork += all * enginesDo(d.Media, on.Engines)

		o.hour.work = o.hour.work + done
		o.hour.allWork = o.hour.allWork + all

		o.hour.stretched = o.hour.stretched + all*r.Stretch
		if o.hourLoss < 0 && (done < minThroughput*all || r.Stretch > maxStretch) {
			o.hourLoss = minute
			if o.anyLoss < 0 {
				o.anyLoss = minute
			}
		}
	}

	if minute%60 != 59 {
		return
	}

	if h := &o.hour; h.allWork > 0.1 { // six seconds of the hour
		o.worstHour = min(o.worstHour, h.work/h.allWork)
		if o.firstLoss < 0 && (h.work < minThroughput*h.allWork || h.stretched > maxStretch*h.allWork) {
			o.firstLoss = o.hourLoss
		}
	}

	o.hour = struct{ work, allWork, stretched float64 }{}
	o.hourLoss = -1
}

// enginesDo returns how much of its work a workload does that uses so many media engines at full
// speed, with those that there are.
func enginesDo(used, have kernels.Engines) float64 {
	done := 1.

	for kind, n := range used {
		if n > have[kind] {
			done = min(done, have[kind]/n)
		}
	}

	return done
}

// began returns the minute from which a regret could be noticed: of being slow, or of a shortage of
// cache, whichever comes first.
func (o *outcome) began(stretch float64) int {
	lost := o.firstLoss
	if lost < 0 {
		lost = o.anyLoss
	}

	if !o.cache.regret() || o.cache.began < 0 {
		return lost
	}

	if !o.slow(stretch) || lost < 0 {
		return o.cache.began
	}

	return min(lost, o.cache.began)
}

// needs are what a workload must have of any slice.
type needs struct {
	gib   float64
	media [4]bool // any engine of the kind
}

func (n *needs) add(gib float64, media kernels.Engines) {
	n.gib = max(n.gib, gib)
	for kind, used := range media {
		n.media[kind] = n.media[kind] || used > 0
	}
}

// outOfMemory reports whether a workload dies in a profile.
func (n *needs) outOfMemory(p *gpu.Profile) bool { return n.gib*gib+ownBytes > float64(p.MemoryBytes) }

// foretold returns the memory in GiB that what was observed asks for: the largest use with what
// lies between two readings, which nothing shows, and what it grows to in the week after, which the
// days before show.
func (n *needs) foretold(next *needs) float64 {
	return max(n.gib*(1+betweenReadings), n.gib+leastBetween, next.gib+ownBytes/gib)
}

// What is asked for beside the largest use of memory that was seen: a share of it, and at least so
// many GiB.
const betweenReadings, leastBetween = 0.15, 0.5

func lacks(p *gpu.Profile, used [4]bool) bool {
	for kind, n := range enginesOf(p) {
		if used[kind] && n == 0 {
			return true
		}
	}

	return false
}

func (o *outcome) throughput() float64 {
	if o.allWork == 0 {
		return 1
	}

	return o.work / o.allWork
}

// regret reports whether the workload lost more than a twentieth of its throughput, or passed a
// stretch.
func (o *outcome) regret(stretch float64) bool {
	return o.slow(stretch) || o.cache.regret()
}

// slow is regret without a shortage of cache.
func (o *outcome) slow(stretch float64) bool {
	return o.throughput() < minThroughput || o.stretch.quantile(0.95) > stretch
}

// foreseen is what an adviser with a perfect memory would say of a size: every minute that was
// observed, and the expected stretch of its means.
type foreseen struct {
	stretch       distribution
	work, allWork float64
	cache         shortage
}

// add counts a minute of a demand, with the stretch that its means let expect, in a size with so
// many engines.
func (f *foreseen) add(d kernels.Demand, stretch float64, have kernels.Engines) {
	f.stretch.add(stretch, d.Busy)
	done := min(1/max(1, d.Busy*stretch), enginesDo(d.Media, have))
	f.work = f.work + d.Busy*done
	f.allWork = f.allWork + d.Busy
}

// does reports whether a size would have done in the time that was observed, with no reserve.
func (f *foreseen) does(stretch float64) bool {
	return f.work >= minThroughput*f.allWork && f.stretch.quantile(0.95) <= stretch && !f.cache.regret()
}
