package advise

import (
	"math"
	"time"
)

// Bucket 0 of a histogram holds the ratios up to smallestRatio. Each further bucket goes up to
// bucketGrowth times the bound of the one before, so quantiles above smallestRatio are at most 9 % too
// large. The last bucket also holds everything above.
const (
	bucketCount   = 56
	smallestRatio = 0.01
	bucketGrowth  = 1.0873 // smallestRatio * bucketGrowth^(bucketCount-1) = 1
)

// halfLife is the age at which an observation counts half. If it were a day, the kernels of the last
// hours would outweigh those of the morning, and of a load that comes each Sunday next to nothing would
// be left on Saturday.
const halfLife = 7 * 24 * time.Hour

// histogram counts ratios by weight. Its zero value is empty.
type histogram struct {
	Weights [bucketCount]float32
	// Max is the largest ratio that was added, faded ones included: no quantile is above it.
	Max float32
}

// bucketOf returns the bucket of a ratio. A ratio that is the bound of a bucket belongs to it, however
// the logarithm is rounded.
func bucketOf(ratio float64) int {
	if !(ratio > smallestRatio) { // NaN, too
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
	return sumOf(h.Weights[:])
}

// sumOf returns the sum of some weights.
func sumOf(weights []float32) float64 {
	var sum float64
	for _, w := range weights {
		sum += float64(w)
	}

	return sum
}

// firstReaching returns the first bucket at which the weights, added up from bucket 0 on, reach a
// sum; the last bucket if none does.
func firstReaching(weights []float32, least float64) int {
	var sum float64

	for bucket, w := range weights {
		sum += float64(w)
		if sum >= least {
			return bucket
		}
	}

	return len(weights) - 1
}

// bucketOfQuantile returns the bucket of the value that a share q of the weight does not exceed. The
// weights are rounded when they are scaled: what is missing by a millionth counts as there.
func bucketOfQuantile(weights []float32, q float64) int {
	return firstReaching(weights, q*sumOf(weights)*(1-1e-6))
}

// quantile returns the ratio that a share q of the weight does not exceed, rounded up to the bound
// of its bucket; 0 if it is empty.
func (h *histogram) quantile(q float64) float64 {
	if h.total() == 0 {
		return 0
	}

	return min(bucketBound(bucketOfQuantile(h.Weights[:], q)), float64(h.Max))
}

// mean returns the mean of the ratios, each taken as the middle of its bucket.
func (h *histogram) mean() float64 {
	var sum, weight float64

	for i, w := range h.Weights {
		if w == 0 {
			continue
		}

		middle := 0.0
		if i > 0 {
			middle = (bucketBound(i) + bucketBound(i-1)) / 2
		}

		sum += float64(w) * min(middle, float64(h.Max))
		weight += float64(w)
	}

	if weight == 0 {
		return 0
	}

	return sum / weight
}

// tenths returns the shares of the weight in ten equal ranges of 0-1.
func (h *histogram) tenths() [10]float64 {
	var shares [10]float64

	total := h.total()
	if total == 0 {
		return shares
	}

	for i, w := range h.Weights {
		if w == 0 {
			continue
		}

		// The bound of a bucket belongs to the range that it ends, however it is rounded.
		at := min(bucketBound(i), float64(h.Max))
		shares[min(9, max(0, int(math.Ceil(at*10-1e-9))-1))] += float64(w) / total
	}

	for i := range shares {
		shares[i] = round3(shares[i])
	}

	return shares
}
