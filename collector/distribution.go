package collector

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The native histograms are kept here rather than by prometheus.Histogram, whose created timestamps come from a clock
// of its own: these must come from the Snapshot, or a run on a simulated clock could not be repeated to the byte.
const (
	// bucketSchema makes eight buckets for every power of two, each at most 10 % wider than the one before.
	bucketSchema     = 3
	bucketsPerDouble = 1 << bucketSchema
	// zeroThreshold in bytes bounds the number of buckets: memory of up to 1 TiB above it has 160 of them. Up to here
	// a device is as good as empty.
	zeroThreshold = 1 << 20
)

func newDistribution(c *catalog) collectFunc {
	const help = "How much memory was in use at each reading, as a native histogram: peaks between two scrapes are in it. " +
		"Text formats show its sum and count only."
	board := c.histogram("nvidia_gpu_memory_used_distribution_bytes", help, "The whole board.")
	instance := c.histogram("nvidia_mig_gpu_instance_memory_used_distribution_bytes", help,
		"The GPU instance's own memory; begins anew with the instance and, where pods are on the series, with its holder.")
	store := c.memory
	return func(k *sink, v *view) {
		store.mu.Lock()
		defer store.mu.Unlock()
		for i := range v.gpus {
			g := &v.gpus[i]
			if g.Readings.Memory.Used.Present() {
				store.gpus[g.UUID].write(k, board, g.labels, store.holder(g.Holders))
			}
		}
		v.eachInstance(func(g *gpuView, gi *instanceView) {
			if gi.Memory.Used.Present() {
				store.instances[g.Key(gi.GPUInstance)].write(k, instance, gi.labels, store.holder(gi.Holders))
			}
		})
	}
}

// distributions are the histograms of all devices of the last Snapshot that was observed.
type distributions struct {
	pods podLabels

	mu        sync.Mutex
	gpus      map[gpu.UUID]*distribution
	instances map[gpu.InstanceKey]*distribution
}

func newDistributions(pods podLabels) *distributions {
	return &distributions{
		pods: pods, gpus: map[gpu.UUID]*distribution{}, instances: map[gpu.InstanceKey]*distribution{},
	}
}

// holder names the holder that the device's series carry: another one means other series and a new histogram.
func (d *distributions) holder(holders []gpu.Holder) string {
	return strings.Join(d.pods.onSeries(holders), "\xff")
}

// observe takes the memory of every device that was read since the last Snapshot; what is gone is forgotten.
func (d *distributions) observe(s *gpu.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gpus := make(map[gpu.UUID]*distribution, len(s.GPUs))
	instances := make(map[gpu.InstanceKey]*distribution, len(d.instances))
	for i := range s.GPUs {
		g := &s.GPUs[i]
		gpus[g.UUID] = d.gpus[g.UUID].next(d.holder(g.Holders), s.Time)
		gpus[g.UUID].take(g.Readings.Memory.Used, g.LastRead)
		for j := range g.Instances {
			gi := &g.Instances[j]
			key := g.Key(gi)
			instances[key] = d.instances[key].next(d.holder(gi.Holders), s.Time)
			instances[key].take(gi.Memory.Used, gi.LastRead)
		}
	}
	d.gpus, d.instances = gpus, instances
}

// distribution is the histogram of one device under one holder.
type distribution struct {
	holder   string
	since    time.Time
	lastRead time.Time
	count    uint64
	zero     uint64
	sum      float64
	buckets  map[int]int64
}

// next returns the distribution itself, or a new one where there is none for this holder.
func (d *distribution) next(holder string, now time.Time) *distribution {
	if d != nil && d.holder == holder {
		return d
	}
	fresh := &distribution{holder: holder, since: now, buckets: map[int]int64{}}
	if d != nil {
		fresh.lastRead = d.lastRead
	}
	return fresh
}

// take counts a reading, unless it is the one that was counted last: a Snapshot is published also when a device did not
// answer, with its last reading.
func (d *distribution) take(used gpu.Opt[uint64], read time.Time) {
	bytes, ok := used.Get()
	if !ok || !read.After(d.lastRead) {
		return
	}
	d.lastRead = read
	d.count++
	d.sum += float64(bytes)
	if bytes <= zeroThreshold {
		d.zero++
		return
	}
	d.buckets[bucketOf(float64(bytes))]++
}

// bucketOf is the index of the bucket (2^((i-1)/8), 2^(i/8)] that holds the value.
func bucketOf(value float64) int { return int(math.Ceil(math.Log2(value) * bucketsPerDouble)) }

// write writes the histogram where there is one for the holder that the labels name.
func (d *distribution) write(k *sink, desc *prometheus.Desc, l labels, holder string) {
	if d == nil || d.holder != holder || d.count == 0 {
		return
	}
	m, err := prometheus.NewConstNativeHistogram(desc, d.count, d.sum, d.buckets, nil, d.zero, bucketSchema, zeroThreshold, d.since)
	if err != nil {
		k.fail(err)
		return
	}
	k.metrics = append(k.metrics, labelled{Metric: m, labels: l})
}

// labelled is a metric made without labels that is given those of its device.
type labelled struct {
	prometheus.Metric
	labels labels
}

// Write implements prometheus.Metric.
func (m labelled) Write(out *dto.Metric) error {
	if err := m.Metric.Write(out); err != nil {
		return err
	}
	out.Label = m.labels
	return nil
}
