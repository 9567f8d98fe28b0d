package collector

import (
	"testing"
	"time"
)

// BenchmarkGather is the first scrape of a Snapshot without its encoding, with every collector on:
// nine GPUs, eight of them in seven instances.
func BenchmarkGather(b *testing.B) {
	for _, mode := range []PodLabelMode{PodLabelsSeries, PodLabelsInfo} {
		b.Run(string(mode), func(b *testing.B) {
			opts := allOptions()
			opts.PodLabels = mode
			opts.PodLabelNames = []string{"app.kubernetes.io/name"}
			c := mustNew(b, opts)
			s := richNode(9, 7)
			c.Observe(s)
			b.ReportAllocs()
			series := 0

			for b.Loop() {
				families, err := c.Gather(s)
				if err != nil {
					b.Fatal(err)
				}

				series = 0
				for _, f := range families {
					series += len(f.GetMetric())
				}
			}

			b.ReportMetric(float64(series), "series")
		})
	}
}

// BenchmarkObserve is what every poll costs the distributions.
func BenchmarkObserve(b *testing.B) {
	c := mustNew(b, Options{})
	s := richNode(9, 7)
	b.ReportAllocs()

	for b.Loop() {
		s.Time = s.Time.Add(time.Second)
		for i := range s.GPUs {
			s.GPUs[i].LastRead = s.Time
			for j := range s.GPUs[i].Instances {
				s.GPUs[i].Instances[j].LastRead = s.Time
			}
		}

		c.Observe(s)
	}
}
