package advise

import (
	"math"
	"time"
)

// The buckets of a histogram hold ratios: bucket 0 those up to smallestRatio, each further one
// those up to bucketGrowth times the bound of the one before, the last one everything above.
const (
	bucketCount   = 56
	smallestRatio = 0.01
	bucketGrowth  = 1.0873 // smallestRatio * bucketGrowth^(bucketCount-1) = 1
)

// halfLife is the age at which an observation counts half. If it were a day, the kernels of the
// last hours would outweigh the kernels of the morning, and we would forget a phase of one day in
// the week before it comes again.
const halfLife = 7 * 24 * time.Hour

// histogram counts ratios by weight. Its zero value is empty.
type histogram struct {
	Weights [bucketCount]float32
	// Max is the largest ratio that was added, faded ones included: no quantile is above it.
	Max float32
}

// bucketOf returns the bucket of a ratio.
func bucketOf(ratio float64) int {
	if !(ratio > smallestRatio) {
		return 0
	}

	return min(
		int(math.Ceil(math.Log(ratio/smallestRatio)/math.Log(bucketGrowth)-1e-9)),
		bucketCount-1,
	)
}

// bucketBound returns the largest ratio of a bucket.
func bucketBound(bucket int) float64 {
	return smallestRatio * math.Pow(bucketGrowth, float64(bucket))
}

// add counts a ratio.
func (h *histogram) add(ratio, weight float64) {
	h.Weights[bucketOf(ratio)] += float32(weight)
	h.Max = max(h.Max, float32(ratio))
}

// scale multiplies all weights.
func (h *histogram) scale(by float64) {
	for i := range h.Weights {
		h.Weights[i] *= float32(by)
	}
}

// total returns the sum of the weights.
func (h *histogram) total() float64 {
	var sum float64
	for _, w := range h.Weights {
		sum += float64(w)
	}

	return sum
}

// quantile returns the ratio that a share q of the weight does not exceed, rounded up to the bound
// of its bucket; 0 if it is empty.
func (h *histogram) quantile(q float64) float64 {
	total := h.total()
	if total == 0 {
		return 0
	}

	var sum float64
	for i, w := range h.Weights {
		sum += float64(w)
		if sum >= q*total*(1-1e-6) {
			return min(bucketBound(i), float64(h.Max))
		}
	}

	return float64(h.Max)
}
