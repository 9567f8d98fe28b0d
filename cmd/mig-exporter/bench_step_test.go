package main

import (
	"fmt"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// BenchmarkStep is a step of partition control on one GPU, until a Snapshot shows it. The figure
// that counts is the driver calls of the dearest step.
func BenchmarkStep(b *testing.B) {
	for _, gpus := range []int{1, benchGPUs, 16} {
		b.Run(fmt.Sprintf("gpus=%d", gpus), func(b *testing.B) {
			n := newStepNode(b, denseModel, denseLayout, gpus)
			most := uint64(0)
			b.ResetTimer()

			for range b.N {
				n.eachStep(func(_ mig.StepOp, calls uint64) { most = max(most, calls) })
			}

			b.StopTimer()
			b.ReportMetric(float64(most), "calls")
		})
	}
}
