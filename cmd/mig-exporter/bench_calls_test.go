package main

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// BenchmarkDriverCalls reports the calls of the driver's C library a second at an interval of a second, by class and by
// function, on the mean of five minutes.
func BenchmarkDriverCalls(b *testing.B) {
	for range b.N {
		x := benchNode(b, benchGPUs)
		for call, perSecond := range callsPerSecond(b, x, 300) {
			b.ReportMetric(perSecond, call+"/s")
		}
	}
}

// callsPerSecond polls once a second and returns how often each function and each class was called in one.
func callsPerSecond(tb testing.TB, x *exporter, seconds int) map[string]float64 {
	tb.Helper()

	before := simulatedNode(x).CallCounts()
	for range seconds {
		pollOnce(tb, x)
	}

	classes := gpu.ClassifiedCalls()
	rates := map[string]float64{}
	for function, calls := range simulatedNode(x).CallCounts() {
		rate := float64(calls-before[function]) / float64(seconds)
		if rate == 0 {
			continue
		}
		class, known := classes[function]
		if !known {
			class = gpu.CallUnknown
		}
		rates[function] += rate
		rates[string(class)] += rate
	}

	return rates
}

// maxExclusive is how many exclusive calls a second the node of the bench may cost its users, on the mean.
const maxExclusive = 6

// TestExclusiveCallsOfTheBench holds what polls of h100-56 keep the node's users waiting with.
func TestExclusiveCallsOfTheBench(t *testing.T) {
	rates := callsPerSecond(t, benchNode(t, benchGPUs), 300)
	t.Logf("calls a second: %v", rates)

	if got := rates[string(gpu.CallExclusive)]; got > maxExclusive || got == 0 {
		t.Errorf("%.1f exclusive calls a second, want at most %d, and some", got, maxExclusive)
	}
}
