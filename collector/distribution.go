package collector

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// We keep the native histograms ourselves: prometheus.Histogram takes created timestamps from its
// own clock. Ours come from the Snapshot, so that two runs on a simulated clock are the same to the
// byte.

// histogramReading is a reading of GPUs and GPU instances that has a histogram.
type histogramReading struct {
	gpuName, instanceName string
	help                  string
	gpuMIG, instanceMIG   string // what the metric means in MIG mode, see catalog.newDesc
	// schema of the native histogram: it has 2^schema buckets for every power of two.
	schema int32
	// zeroThreshold limits the number of buckets: values up to it are in the zero bucket.
	zeroThreshold float64
	value         func(gpu.Visit) gpu.Opt[float64]
}

// eightBuckets is the schema of eight buckets for every power of two, each 9 % wider than the one
// before.
const eightBuckets = 3

// histogramReadingCount is the number of readings that have a histogram.
const histogramReadingCount = 3

func histogramReadings() [histogramReadingCount]histogramReading {
	const help = " at each reading, as a native histogram: peaks between two " +
		"scrapes are in it. Its 1-quantile (the peak) is a bucket's upper bound, up to 9 % " +
		"above the highest reading. Not in text formats."
	const restarts = "; starts again with the instance."
	const idle = 0.001 // from there to 1 a ratio has 80 buckets

	return [histogramReadingCount]histogramReading{
		{
			gpuName:       "nvidia_gpu_memory_used_distribution_bytes",
			instanceName:  "nvidia_mig_gpu_instance_memory_used_distribution_bytes",
			help:          "How much memory was in use" + help,
			gpuMIG:        "The whole GPU.",
			instanceMIG:   "The GPU instance's own memory" + restarts,
			schema:        eightBuckets,
			zeroThreshold: 1 << 20, // memory of up to 1 TiB above it has 160 buckets
			value:         usedMemory,
		},
		{
			gpuName:       "nvidia_gpu_sm_activity_distribution",
			instanceName:  "nvidia_mig_gpu_instance_sm_activity_distribution",
			help:          "What the SM activity ratio was" + help,
			gpuMIG:        "Rolled up, as nvidia_gpu_sm_activity_ratio is.",
			instanceMIG:   "Relative to the GPU instance" + restarts,
			schema:        eightBuckets,
			zeroThreshold: idle,
			value:         func(d gpu.Visit) gpu.Opt[float64] { return d.Activity.SM },
		},
		{
			gpuName:       "nvidia_gpu_dram_activity_distribution",
			instanceName:  "nvidia_mig_gpu_instance_dram_activity_distribution",
			help:          "What the DRAM activity ratio was" + help,
			gpuMIG:        "Rolled up, as nvidia_gpu_dram_activity_ratio is.",
			instanceMIG:   "Relative to the GPU instance" + restarts,
			schema:        eightBuckets,
			zeroThreshold: idle,
			value:         func(d gpu.Visit) gpu.Opt[float64] { return d.Activity.DRAM },
		},
	}
}

// usedMemory returns the used memory of a GPU or a GPU instance.
func usedMemory(d gpu.Visit) gpu.Opt[float64] {
	if d.Instance != nil {
		return scale(d.Instance.Memory.Used, 1)
	}

	return scale(d.GPU.Readings.Memory.Used, 1)
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

		for k := range v.devices {
			d := &v.devices[k]
			if d.Compute != nil {
				continue
			}

			families := &gpuFamilies
			if d.Instance != nil {
				families = &instances
			}

			h := store.devices[d.ID()]
			if h == nil {
				continue
			}

			for i := range readings {
				if readings[i].value(d.Visit).Present() {
					h.writeHistogram(w, families[i], d.labels, i, &readings[i])
				}
			}
		}
	}
}

// histogramStore has the histograms of all GPUs and GPU instances in the last observed Snapshot.
type histogramStore struct {
	readings [histogramReadingCount]histogramReading

	mu       sync.Mutex
	observed uint64 // how many Snapshots it has observed
	devices  map[gpu.DeviceID]*deviceHistograms
}

func newHistogramStore() *histogramStore {
	return &histogramStore{
		readings: histogramReadings(),
		devices:  map[gpu.DeviceID]*deviceHistograms{},
	}
}

// observe adds the readings of every device that was read since the last Snapshot, and drops the
// devices that s lacks.
func (h *histogramStore) observe(s *gpu.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.observed++

	for d := range s.Devices() {
		if d.Compute != nil {
			continue
		}

		one := h.devices[d.ID()]
		if one == nil {
			one = &deviceHistograms{since: s.Time}
			h.devices[d.ID()] = one
		}

		one.observed = h.observed

		read := d.GPU.LastRead
		if d.Instance != nil {
			read = d.Instance.LastRead
		}

		if one.recordReadTime(read) {
			for r := range h.readings {
				one.histograms[r].add(h.readings[r].value(d), &h.readings[r])
			}
		}
	}

	maps.DeleteFunc(h.devices, func(_ gpu.DeviceID, one *deviceHistograms) bool {
		return one.observed != h.observed
	})
}

// deviceHistograms are the histograms of one device.
type deviceHistograms struct {
	since      time.Time // of the Snapshot that first had the device
	lastRead   time.Time
	observed   uint64 // the store's, at the last Snapshot that had the device
	histograms [histogramReadingCount]valueHistogram
}

// valueHistogram is the histogram of one reading.
type valueHistogram struct {
	count, zero uint64
	sum         float64
	buckets     map[int]int64 // nil until a value is above the zero threshold
}

// recordReadTime records the time of a reading and reports whether it is new: if a device did not
// answer, a Snapshot has its last reading again.
func (d *deviceHistograms) recordReadTime(read time.Time) bool {
	if !read.After(d.lastRead) {
		return false
	}

	d.lastRead = read

	return true
}

// add counts one value.
func (h *valueHistogram) add(reading gpu.Opt[float64], r *histogramReading) {
	value, ok := reading.Get()
	if !ok || math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}

	h.count++
	h.sum += value

	if value <= r.zeroThreshold {
		h.zero++
		return
	}

	if h.buckets == nil {
		h.buckets = map[int]int64{}
	}

	h.buckets[bucketIndex(value, r.schema)]++
}

// bucketIndex returns the index of the bucket (2^((i-1)/n), 2^(i/n)] that contains the value; n is
// 2^schema.
func bucketIndex(value float64, schema int32) int {
	return int(math.Ceil(math.Log2(value) * float64(int(1)<<schema)))
}

// writeHistogram writes the histogram of r, the reading with index i, if it has any value.
func (d *deviceHistograms) writeHistogram(
	w *metricWriter,
	f *family,
	l labels,
	i int,
	r *histogramReading,
) {
	h := &d.histograms[i]
	if h.count == 0 {
		return
	}

	m, err := prometheus.NewConstNativeHistogram(
		f.desc,
		h.count,
		h.sum,
		h.buckets,
		nil,
		h.zero,
		r.schema,
		r.zeroThreshold,
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
