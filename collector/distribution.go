package collector

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The native histograms are kept here rather than in prometheus.Histogram, whose created timestamps come from its own
// clock: these must come from the Snapshot, so that a run on a simulated clock is the same to the byte.

// histogramReading is a reading of GPUs and GPU instances that has a histogram.
type histogramReading struct {
	gpuName, instanceName     string // names
	help, gpuMIG, instanceMIG string
	// schema is that of the native histogram: 2^schema buckets for every power of two.
	schema int32
	// zeroThreshold limits the number of buckets: values up to it are in the zero bucket.
	zeroThreshold float64
	ofGPU         func(*gpu.GPU) gpu.Opt[float64]
	ofInstance    func(*gpu.GPUInstance) gpu.Opt[float64]
}

// eightBuckets is the schema of eight buckets for every power of two, each at most 10 % wider than the one before.
const eightBuckets = 3

// histogramReadingCount is the number of readings that have a histogram.
const histogramReadingCount = 3

func histogramReadings() [histogramReadingCount]histogramReading {
	const help = " at each reading, as a native histogram: peaks between two scrapes are in it. Its upper quantile is " +
		"the bound of a bucket, up to 9 % above the highest reading. Not in text formats."
	const restarts = "; starts again with the instance."
	// A ratio from 0.001 to 1 has 80 buckets.
	const idle = 0.001

	return [histogramReadingCount]histogramReading{
		{
			gpuName:      "nvidia_gpu_memory_used_distribution_bytes",
			instanceName: "nvidia_mig_gpu_instance_memory_used_distribution_bytes",
			help:         "How much memory was in use" + help,
			gpuMIG:       "The whole GPU.",
			instanceMIG: "The GPU instance's own memory" +
				restarts,
			schema:        eightBuckets,
			zeroThreshold: 1 << 20, // memory of up to 1 TiB above it has 160 buckets
			ofGPU:         func(g *gpu.GPU) gpu.Opt[float64] { return scale(g.Readings.Memory.Used, 1) },
			ofInstance:    func(gi *gpu.GPUInstance) gpu.Opt[float64] { return scale(gi.Memory.Used, 1) },
		},
		{
			gpuName:       "nvidia_gpu_sm_activity_distribution",
			instanceName:  "nvidia_mig_gpu_instance_sm_activity_distribution",
			help:          "What the SM activity ratio was" + help,
			gpuMIG:        "Rolled up, as nvidia_gpu_sm_activity_ratio is.",
			instanceMIG:   "Relative to the GPU instance" + restarts,
			schema:        eightBuckets,
			zeroThreshold: idle,
			ofGPU:         func(g *gpu.GPU) gpu.Opt[float64] { return g.Activity.SM },
			ofInstance:    func(gi *gpu.GPUInstance) gpu.Opt[float64] { return gi.Activity.SM },
		},
		{
			gpuName:       "nvidia_gpu_dram_activity_distribution",
			instanceName:  "nvidia_mig_gpu_instance_dram_activity_distribution",
			help:          "What the DRAM activity ratio was" + help,
			gpuMIG:        "Rolled up, as nvidia_gpu_dram_activity_ratio is.",
			instanceMIG:   "Relative to the GPU instance" + restarts,
			schema:        eightBuckets,
			zeroThreshold: idle,
			ofGPU:         func(g *gpu.GPU) gpu.Opt[float64] { return g.Activity.DRAM },
			ofInstance:    func(gi *gpu.GPUInstance) gpu.Opt[float64] { return gi.Activity.DRAM },
		},
	}
}

func newDistributionGroup(c *catalog) collectFunc {
	readings := histogramReadings()
	var gpuFamilies, instances [histogramReadingCount]*family

	for i := range readings {
		r := &readings[i]
		gpuFamilies[i] = c.newHistogram(r.gpuName, r.help, r.gpuMIG)
		instances[i] = c.newHistogram(r.instanceName, r.help, r.instanceMIG)
	}

	store := c.histograms

	return func(w *metricWriter, v *view) {
		if w.text {
			return
		}

		store.mu.Lock()
		defer store.mu.Unlock()

		for i := range v.gpus {
			g := &v.gpus[i]
			d := store.gpus[g.UUID]

			for r := range readings {
				if readings[r].ofGPU(g.GPU).Present() {
					d.writeHistogram(w, gpuFamilies[r], g.labels, r, &readings[r])
				}
			}

			for j := range g.Instances {
				gi := &g.Instances[j]
				d := store.instances[g.Key(gi)]

				for r := range readings {
					if readings[r].ofInstance(gi).Present() {
						d.writeHistogram(w, instances[r], g.parts[j].labels, r, &readings[r])
					}
				}
			}
		}
	}
}

// histogramStore has the histograms of all devices of the last observed Snapshot.
type histogramStore struct {
	readings [histogramReadingCount]histogramReading

	mu        sync.Mutex
	gpus      map[gpu.UUID]*deviceHistograms
	instances map[gpu.InstanceKey]*deviceHistograms
}

func newHistogramStore() *histogramStore {
	return &histogramStore{
		readings: histogramReadings(), gpus: map[gpu.UUID]*deviceHistograms{},
		instances: map[gpu.InstanceKey]*deviceHistograms{},
	}
}

// observe adds the readings of every device that was read since the last Snapshot, and drops the devices that it does
// not have.
func (d *histogramStore) observe(s *gpu.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()

	gpus := make(map[gpu.UUID]*deviceHistograms, len(s.GPUs))
	instances := make(map[gpu.InstanceKey]*deviceHistograms, len(d.instances))

	for i := range s.GPUs {
		g := &s.GPUs[i]
		one := d.gpus[g.UUID].orNew(s.Time)
		gpus[g.UUID] = one

		if one.recordReadTime(g.LastRead) {
			for r := range d.readings {
				one.histograms[r].add(d.readings[r].ofGPU(g), &d.readings[r])
			}
		}

		for j := range g.Instances {
			gi := &g.Instances[j]
			key := g.Key(gi)
			one := d.instances[key].orNew(s.Time)
			instances[key] = one

			if one.recordReadTime(gi.LastRead) {
				for r := range d.readings {
					one.histograms[r].add(d.readings[r].ofInstance(gi), &d.readings[r])
				}
			}
		}
	}

	d.gpus = gpus
	d.instances = instances
}

// deviceHistograms are the histograms of one device.
type deviceHistograms struct {
	since      time.Time
	lastRead   time.Time
	histograms [histogramReadingCount]valueHistogram
}

// valueHistogram is the histogram of one reading.
type valueHistogram struct {
	count, zero uint64
	sum         float64
	buckets     map[int]int64 // nil until a value is above the zero threshold
}

// orNew returns d, or new histograms for nil.
func (d *deviceHistograms) orNew(now time.Time) *deviceHistograms {
	if d == nil {
		return &deviceHistograms{since: now}
	}

	return d
}

// recordReadTime records the time of a reading and reports whether it is new: if a device did not answer, a Snapshot
// has its last reading again.
func (d *deviceHistograms) recordReadTime(read time.Time) bool {
	if !read.After(d.lastRead) {
		return false
	}

	d.lastRead = read

	return true
}

// add counts one value.
func (h *valueHistogram) add(reading gpu.Opt[float64], as *histogramReading) {
	value, ok := reading.Get()
	if !ok || math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}

	h.count++

	h.sum += value
	if value <= as.zeroThreshold {
		h.zero++
		return
	}

	if h.buckets == nil {
		h.buckets = map[int]int64{}
	}

	h.buckets[bucketIndex(value, as.schema)]++
}

// bucketIndex returns the index of the bucket (2^((i-1)/n), 2^(i/n)] that contains the value; n is 2^schema.
func bucketIndex(value float64, schema int32) int {
	return int(math.Ceil(math.Log2(value) * float64(int(1)<<schema)))
}

// writeHistogram writes the histogram of one reading, if it has any value.
func (d *deviceHistograms) writeHistogram(
	w *metricWriter,
	f *family,
	l labels,
	reading int,
	as *histogramReading,
) {
	if d == nil || d.histograms[reading].count == 0 {
		return
	}

	h := &d.histograms[reading]
	m, err := prometheus.NewConstNativeHistogram(
		f.desc,
		h.count,
		h.sum,
		h.buckets,
		nil,
		h.zero,
		as.schema,
		as.zeroThreshold,
		d.since,
	)

	var full dto.Metric
	if err == nil {
		err = m.Write(&full)
	}

	if err != nil {
		w.addError(err)
		return
	}

	w.metrics = append(w.metrics, series{family: f, labels: l, histogram: full.Histogram})
}
