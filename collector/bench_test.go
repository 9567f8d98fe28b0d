package collector

import "testing"

// BenchmarkGather is the first scrape of a Snapshot without its encoding: nine GPUs, eight of them in seven instances.
func BenchmarkGather(b *testing.B) {
	for _, mode := range []PodLabelMode{PodLabelsSeries, PodLabelsInfo} {
		b.Run(string(mode), func(b *testing.B) {
			c := mustNew(b, Options{PodLabels: mode, PodLabelNames: []string{"app.kubernetes.io/name"}})
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
