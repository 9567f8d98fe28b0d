package advise

import "math"

// A minute's mean hides requests of several kinds: a slice stretches those with wide kernels most,
// and at low load each poll shows one of them alone. So we count how far the slice would stretch each
// poll, weighted by the poll's busy time.

// stretchHistogram counts busy seconds by how far a slice would stretch them. Bucket i holds those for
// which 1 - 1/stretch is between i and i+1 parts of stretchBuckets: that maps 1 to infinity to 0-1.
type stretchHistogram [stretchBuckets]float32

const stretchBuckets = 64

func (h *stretchHistogram) add(stretch, seconds float64) {
	if seconds == 0 {
		return
	}

	h[min(int((1-1/stretch)*stretchBuckets), stretchBuckets-1)] += float32(seconds)
}

// quantile returns the stretch that a share q of the busy seconds does not pass; 1 if there are none.
// It is rounded down to the bound of a bucket: half of a device stretches nothing by more than 2, and
// rounded up we would say that it does.
func (h *stretchHistogram) quantile(q float64) float64 {
	if sumOf(h[:]) == 0 {
		return 1
	}

	return 1 / (1 - float64(bucketOfQuantile(h[:], q))/stretchBuckets)
}

// slowest returns how much further than the average a slice would have stretched the slowest
// twentieth of the busy time of an hour, as a multiple in parts of slowUnit; 0 if unknown.
func (h queueHour) slowest() uint8 {
	if h.Load == 0 {
		return 0
	}

	return uint8(min(h.Slow*h.Busy/h.Load*slowUnit, math.MaxUint8))
}

// slowUnit is the unit of workload.BeforeSlow. One byte holds up to eight times the average.
const slowUnit = 32

// isLate reports whether requests take too long in a slice whose kernels were stretched by mean in
// the last hour: at p95 of latency, by the slowest kernels as the whole GPU had them, or because they
// come in spells that leave the slice no time.
func (d *device) isLate(mean float64, r requests, l limits) bool {
	slowest := mean * float64(d.workload.BeforeSlow) / slowUnit

	return max(d.p95Ratio(mean, r), slowest) > l.stretch || d.hour.latest().Met > mostMet
}

// mostMet is the load of the busiest spells above which a slice that stretches kernels may have had
// no time for their work.
const mostMet = 0.9
