package advise

import "math"

// A minute's mean hides requests of several kinds: those with wide kernels are stretched most, and
// at low load each poll shows one of them alone. So the stretch of each poll is counted, by the busy
// time that it has.

// stretchHistogram counts busy seconds by how far a slice would stretch them: bucket i those with
// 1 - 1/stretch from i to i+1 of stretchBuckets parts.
type stretchHistogram [stretchBuckets]float32

const stretchBuckets = 64

func (h *stretchHistogram) add(stretch, seconds float64) {
	if seconds == 0 {
		return
	}

	h[min(int((1-1/stretch)*stretchBuckets), stretchBuckets-1)] += float32(seconds)
}

// quantile returns the stretch that a share q of the busy seconds does not pass, rounded down to a
// bound of a bucket: a slice that has half of the device stretches all by 2 at most, and no more is
// said. It is 1 if there are none.
func (h *stretchHistogram) quantile(q float64) float64 {
	var all, sum float64
	for _, seconds := range h {
		all += float64(seconds)
	}

	for bucket, seconds := range h {
		if sum += float64(seconds); sum > 0 && sum >= q*all*(1-1e-6) {
			return 1 / (1 - float64(bucket)/stretchBuckets)
		}
	}

	return 1
}

// slowest returns how many times as far as on average a slice would have stretched the slowest
// twentieth of the busy time of an hour, in parts of slowUnit; 0 if it is not known.
func (h queueHour) slowest() uint8 {
	if h.Load == 0 {
		return 0
	}

	return uint8(min(h.Slow*h.Busy/h.Load*slowUnit, math.MaxUint8))
}

// slowUnit is what workload.BeforeSlow has parts of: up to eight times as far.
const slowUnit = 32

// isLate reports whether requests take too long in a slice that has stretched kernels on average so
// far in the last hour: at p95, by the kernels that are stretched most, as they were on the whole
// GPU, or since they come in spells for which the slice has no time.
func (d *device) isLate(mean float64, r requests, l limits) bool {
	slowest := mean * float64(d.workload.BeforeSlow) / slowUnit

	return max(d.slowedBy(mean, r), slowest) > l.stretch || d.hour.latest().Met > mostMet
}

// mostMet is the load of the busiest spells of a slice that stretches kernels above which it may
// have had no time for their work.
const mostMet = 0.9
