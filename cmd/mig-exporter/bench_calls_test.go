package main

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// BenchmarkDriverCalls reports the calls of the driver's C library a second at an interval of a
// second, by class and by function, on the mean of five minutes.
func BenchmarkDriverCalls(b *testing.B) {
	for range b.N {
		x := benchNode(b, benchGPUs)
		for call, perSecond := range callsPerSecond(b, x, 300) {
			b.ReportMetric(perSecond, call+"/s")
		}
	}
}

// callsPerSecond polls once a second and returns how often each function and each class was called
// in one.
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

// What the node of the bench may cost its users on the mean: exclusive calls a second, and half of
// the calls of which nothing shows that they are not, which were 489 while each poll read
// everything.
const (
	maxExclusive = 6
	maxUnknown   = 489.0 / 2
)

// TestCallsOfTheBench holds what polls of h100-56 at 1 Hz keep the node's users waiting with, or
// may.
func TestCallsOfTheBench(t *testing.T) {
	t.Parallel()

	rates := callsPerSecond(t, benchNode(t, benchGPUs), 300)
	t.Logf("calls a second: %v", rates)

	for class, most := range map[gpu.CallClass]float64{gpu.CallExclusive: maxExclusive, gpu.CallUnknown: maxUnknown} {
		if got := rates[string(class)]; got > most || got == 0 {
			t.Errorf("%.1f %s calls a second, want at most %.1f, and some", got, class, most)
		}
	}
}
