package collector

import (
	"bytes"
	"github.com/prometheus/common/expfmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const instanceDistribution = "nvidia_mig_gpu_instance_memory_used_distribution_bytes"

// usedSnapshot is the Snapshot of one MIG GPU at a number of seconds after epoch, with so much
// memory used by its instance.
func usedSnapshot(seconds int, used uint64, holders ...gpu.Holder) *gpu.Snapshot {
	g := migGPU()
	s := newNode(g)
	s.Time = testEpoch().Add(time.Duration(seconds) * time.Second)
	gi := &s.GPUs[0].Instances[0]
	gi.LastRead, gi.Memory.Used, gi.Holders = s.Time, gpu.Some(used), holders

	return s
}

func histogramOf(t *testing.T, c *Collector, s *gpu.Snapshot) *dto.Histogram {
	t.Helper()

	families, err := c.Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	return theHistogram(t, families, instanceDistribution)
}

func theHistogram(t *testing.T, families []*dto.MetricFamily, name string) *dto.Histogram {
	t.Helper()

	list := metricsOf(families, name)
	if len(list) != 1 {
		t.Fatalf("%d series of %s, want 1", len(list), name)
	}

	return list[0].GetHistogram()
}

// Activity is counted as the library counts it too, in each of its histograms what belongs there;
// no value is one that is not a number.
func TestActivityDistributions(t *testing.T) {
	values := map[string][]float64{
		"nvidia_gpu_sm_activity_distribution":                {0, 0.5, 0.001, 0.9},
		"nvidia_gpu_dram_activity_distribution":              {0.0011, 0.3, 0, 0.0005},
		"nvidia_mig_gpu_instance_sm_activity_distribution":   {1, 1.0211, 0.999, 0.125},
		"nvidia_mig_gpu_instance_dram_activity_distribution": {0.25, 0.0625, 0.77, 0.01},
	}
	c := mustNew(t, fixedOptions("distribution"))
	var last *gpu.Snapshot
	observe := func(i int, of func(name string) gpu.Opt[float64]) {
		last = usedSnapshot(i, 1<<30)
		g := &last.GPUs[0]
		g.LastRead = last.Time
		g.Activity = gpu.Activity{SM: of("nvidia_gpu_sm_activity_distribution"),
			DRAM: of("nvidia_gpu_dram_activity_distribution")}
		g.Instances[0].Activity = gpu.Activity{
			SM:   of("nvidia_mig_gpu_instance_sm_activity_distribution"),
			DRAM: of("nvidia_mig_gpu_instance_dram_activity_distribution"),
		}
		c.Observe(last)
	}
	observe(0, func(string) gpu.Opt[float64] { return gpu.None[float64]() })
	observe(1, func(string) gpu.Opt[float64] { return gpu.Some(math.NaN()) })

	for i := range 4 {
		observe(2+i, func(name string) gpu.Opt[float64] { return gpu.Some(values[name][i]) })
	}

	families, err := c.Gather(last)
	if err != nil {
		t.Fatal(err)
	}

	for name, list := range values {
		oracle := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "x", Help: "x", NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: 0.001,
		})
		for _, v := range list {
			oracle.Observe(v)
		}

		var want dto.Metric
		if err := oracle.Write(&want); err != nil {
			t.Fatal(err)
		}

		got := theHistogram(t, families, name)

		got.CreatedTimestamp = nil

		want.Histogram.CreatedTimestamp = nil
		if !proto.Equal(got, want.Histogram) {
			t.Errorf("%s: got\n%v\nwant\n%v", name, got, want.Histogram)
		}
	}

	observe(7, func(string) gpu.Opt[float64] { return gpu.None[float64]() })

	families, err = c.Gather(last)
	if err != nil {
		t.Fatal(err)
	}

	for name := range values {
		if got := metricsOf(families, name); len(got) != 0 {
			t.Errorf("%s is served while the reading is absent: %v", name, got)
		}
	}
}

// The histogram of the library is the oracle: the same values must give the same buckets.
func TestDistributionIsWhatTheLibraryCounts(t *testing.T) {
	values := []uint64{0, 1, 1 << 20, 1<<20 + 1, 3 << 20, 5 << 30, 5<<30 + 1, 39 << 30, 80 << 30, 1 << 34, 1 << 38,
		190 << 30}
	oracle := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "x", Help: "x", NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: 1 << 20,
	})
	c := mustNew(t, fixedOptions("distribution"))
	var last *gpu.Snapshot

	for i, v := range values {
		oracle.Observe(float64(v))
		last = usedSnapshot(i, v)
		c.Observe(last)
	}

	var want dto.Metric
	if err := oracle.Write(&want); err != nil {
		t.Fatal(err)
	}

	got := histogramOf(t, c, last)
	if created := got.GetCreatedTimestamp().AsTime(); !created.Equal(testEpoch()) {
		t.Errorf("created %v, want that of the first Snapshot", created)
	}

	got.CreatedTimestamp = nil

	want.Histogram.CreatedTimestamp = nil
	if !proto.Equal(got, want.Histogram) {
		t.Errorf("got\n%v\nwant\n%v", got, want.Histogram)
	}
}

func TestBucketBounds(t *testing.T) {
	const perDouble = 1 << eightBuckets
	for i := -80; i < 400; i++ {
		bound := math.Exp2(float64(i) / perDouble)
		if got := bucketIndex(bound, eightBuckets); i%perDouble == 0 && got != i {
			t.Errorf("the upper bound of bucket %d falls into bucket %d", i, got)
		}

		if got := bucketIndex(bound*1.0001, eightBuckets); got != i+1 {
			t.Errorf("just above the upper bound of bucket %d: bucket %d", i, got)
		}
	}
}

func TestDistributionCountsEveryReadingOnce(t *testing.T) {
	c := mustNew(t, fixedOptions("distribution"))
	s := usedSnapshot(0, 5<<30)
	c.Observe(s)
	hung := usedSnapshot(1, 5<<30) // the Snapshot is new, the reading is not
	hung.GPUs[0].Instances[0].LastRead = s.Time
	c.Observe(hung)

	if got := histogramOf(t, c, hung).GetSampleCount(); got != 1 {
		t.Errorf("%d readings counted, want 1", got)
	}

	stale := usedSnapshot(2, 0)
	stale.GPUs[0].Instances[0].Memory = gpu.Memory{}
	c.Observe(stale)
	expectText(t, renderText(t, c, stale), "")
	back := usedSnapshot(3, 6<<30)
	c.Observe(back)

	if got := histogramOf(t, c, back).GetSampleCount(); got != 2 {
		t.Errorf("%d readings counted, want 2", got)
	}
}

// TestDistributionBeginsAnew: with its device, and with nothing else.
func TestDistributionBeginsAnew(t *testing.T) {
	for _, test := range []struct {
		name  string
		next  func(*gpu.Snapshot)
		count uint64
		since int
	}{
		{"with a new instance of the same id", func(s *gpu.Snapshot) { s.GPUs[0].Instances[0].Generation = 2 }, 1, 1},
		{"not with a new holder", func(s *gpu.Snapshot) { s.GPUs[0].Instances[0].Holders[0].Pod = "next" }, 2, 0},
		{"not with a new job", func(s *gpu.Snapshot) { s.GPUs[0].Instances[0].Jobs = []string{"43"} }, 2, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			opts := fixedOptions("distribution")
			opts.PodLabels = PodLabelsSeries
			opts.Jobs = true
			c := mustNew(t, opts)
			c.Observe(usedSnapshot(0, 5<<30, exclusiveHolder("first")))
			next := usedSnapshot(1, 6<<30, exclusiveHolder("first"))
			test.next(next)
			c.Observe(next)

			h := histogramOf(t, c, next)
			if h.GetSampleCount() != test.count {
				t.Errorf("%d readings counted, want %d", h.GetSampleCount(), test.count)
			}

			if since := int(h.GetCreatedTimestamp().AsTime().Sub(testEpoch()).Seconds()); since != test.since {
				t.Errorf("began at %d s, want %d", since, test.since)
			}
		})
	}
}

func TestDistributionForgetsWhatIsGone(t *testing.T) {
	c := mustNew(t, fixedOptions("distribution"))
	c.Observe(richNode(4, 7))
	small := usedSnapshot(1, 5<<30)
	c.Observe(small)

	if kept := len(c.histograms.devices); kept != 2 {
		t.Errorf("%d devices are kept, want the GPU and its instance", kept)
	}

	c.Observe(newNode())
	expectText(t, renderText(t, c, small), "")
}

// TestDistributionNotInText: a sum and a count without buckets say nothing of how values are
// distributed.
func TestDistributionNotInText(t *testing.T) {
	c := mustNew(t, fixedOptions("distribution"))
	s := usedSnapshot(0, 5<<30, exclusiveHolder("first"))
	c.Observe(s)

	for _, format := range expfmt.DefaultOpenMetricsAcceptedFormats() {
		var out bytes.Buffer

		ok, err := c.Render(&out, s, format, nil)
		if err != nil {
			t.Errorf("%s: %v", format, err)
		}

		if has := strings.Contains(out.String(), "distribution_bytes"); ok && has == isText(format) {
			t.Errorf("%s: has distributions: %v, want %v:\n%s", format, has, !has, out.String())
		}
	}
}
