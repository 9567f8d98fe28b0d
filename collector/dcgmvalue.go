package collector

import (
	"iter"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dcgmValue gets the value of a field from a Snapshot. Its type says which devices have one.
type dcgmValue interface {
	// write writes the value of a GPU and its instances.
	write(w *dcgmWriter, g *dcgmDevices)
}

// The types of values.
type (
	// wholeGPU is a value of the whole GPU.
	wholeGPU func(*gpu.GPU) gpu.Opt[float64]
	// ofMemory and ofMedia are values of each GPU instance, or of the whole GPU if it has none.
	ofMemory func(*gpu.Memory) gpu.Opt[float64]
	ofMedia  func(*gpu.Media) gpu.Opt[float64]
	// ofActivity is a value of each GPU instance and, if that is split, of its compute instances,
	// or of the whole GPU if it has no instances.
	ofActivity func(*gpu.Activity) gpu.Opt[float64]
	// ownCounter is a counter of the whole GPU that only dcgm-exporter has. It has labels besides
	// those of its device.
	ownCounter func(*dcgmCounters, *gpu.GPU, emitFunc)
	// xidCounter is a counter of the whole GPU and of each GPU instance.
	xidCounter func(*xidCounts, emitFunc)
	// labelText is the text of a label of all series. It has no series of its own.
	labelText func(*gpu.Snapshot, *gpu.GPU) string
)

// emitFunc writes a value of a device with additional labels, as alternating names and values.
type emitFunc func(value float64, pairs ...string)

// dcgmWriter writes the series of one row after the other.
type dcgmWriter struct {
	metrics    *metricWriter
	counters   *dcgmCounters
	repeatsGPU bool // RepeatGPUFields of the Options
	row        *dcgmRow
}

// add writes a value of a device if it is present.
func (w *dcgmWriter) add(d *dcgmDevice, value gpu.Opt[float64]) {
	addOpt(w.metrics, w.row.family, d.labels, value)
}

// repeated yields the GPU instances for which a value of the whole GPU is repeated: none unless
// RepeatGPUFields is set.
func (w *dcgmWriter) repeated(g *dcgmDevices) iter.Seq[*dcgmDevice] {
	return func(yield func(*dcgmDevice) bool) {
		if !w.repeatsGPU || w.row.gpuOnly {
			return
		}

		for p := range g.parts {
			if part := &g.parts[p]; part.instance != nil && !yield(part) {
				return
			}
		}
	}
}

func (read wholeGPU) write(w *dcgmWriter, g *dcgmDevices) {
	value := read(g.GPU)
	w.add(&g.whole, value)

	for part := range w.repeated(g) {
		w.add(part, value)
	}
}

func (read ofMemory) write(w *dcgmWriter, g *dcgmDevices) {
	for p := range g.parts {
		if part := &g.parts[p]; part.memory != nil {
			w.add(part, read(part.memory))
		}
	}
}

func (read ofMedia) write(w *dcgmWriter, g *dcgmDevices) {
	for p := range g.parts {
		if part := &g.parts[p]; part.media != nil {
			w.add(part, read(part.media))
		}
	}
}

func (read ofActivity) write(w *dcgmWriter, g *dcgmDevices) {
	for p := range g.parts {
		if part := &g.parts[p]; part.activity != nil {
			w.add(part, read(part.activity))
		}
	}
}

func (count ownCounter) write(w *dcgmWriter, g *dcgmDevices) {
	count(w.counters, g.GPU, func(value float64, pairs ...string) {
		w.metrics.add(w.row.family, g.whole.labels.extend(pairs...), value)

		for part := range w.repeated(g) {
			w.metrics.add(w.row.family, part.labels.extend(pairs...), value)
		}
	})
}

// write writes the counts of XIDs. An XID of a GPU instance counts there and not on its GPU, as in
// DCGM. A GPU that was never read has none, since its XIDs are not received.
func (count xidCounter) write(w *dcgmWriter, g *dcgmDevices) {
	if g.Totals.XIDs.Since.IsZero() {
		return
	}

	history := w.counters.history(g.UUID)
	emitTo := func(labels labels) emitFunc {
		return func(value float64, pairs ...string) {
			w.metrics.add(w.row.family, labels.extend(pairs...), value)
		}
	}
	count(
		&xidCounts{
			isGPU:  true,
			list:   g.Totals.GPUXIDs,
			recent: history.recentXIDs(),
			window: w.counters.xidWindow,
		},
		emitTo(g.whole.labels),
	)

	for p := range g.parts {
		part := &g.parts[p]

		// An instance has counts from its first XID on. Before, only its last XID is served, as 0.
		if gi := part.instance; gi != nil && (len(gi.XIDErrors) > 0 || w.row.source == fromNVML) {
			recent := history.instances[gpu.IDOfInstance(g.UUID, gi)].recentXIDs()
			count(
				&xidCounts{list: gi.XIDErrors, recent: recent, window: w.counters.xidWindow},
				emitTo(part.labels),
			)
		}
	}
}

// write writes nothing: gpuLabels has the text among the labels.
func (labelText) write(*dcgmWriter, *dcgmDevices) {}
