package main

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkPoll is a poll with everything that it brings about, the simulated driver's and the
// simulated kubelet's own work included. One of fifteen is of the slow tier.
func BenchmarkPoll(b *testing.B) {
	for _, gpus := range growth {
		b.Run(fmt.Sprintf("gpus=%d", gpus), func(b *testing.B) {
			x := benchNode(b, gpus)
			took := make([]time.Duration, 0, b.N)
			calls := x.source.DriverCalls()
			cpu := cpuTime(b)
			b.ReportAllocs()
			b.ResetTimer()

			for range b.N {
				began := time.Now()
				pollOnce(b, x)
				took = append(took, time.Since(began))
			}

			b.StopTimer()
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(b.N), "cpu-ns")
			b.ReportMetric(float64(x.source.DriverCalls()-calls)/float64(b.N), "calls")
			reportQuantiles(b, "", took)
		})
	}
}
