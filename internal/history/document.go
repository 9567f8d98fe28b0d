package history

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Document is the document of /api/v1/node/history. All of its series have the same points: the
// last point is at Until, and each point is StepSeconds older than the next.
type Document struct {
	APIVersion string `json:"apiVersion"`
	// Since is when the exporter began to keep this history.
	Since       time.Time `json:"since,omitzero"`
	Until       time.Time `json:"until,omitzero"`
	StepSeconds float64   `json:"stepSeconds"`
	Devices     []Device  `json:"devices"`
	Marks       []Mark    `json:"marks"`
}

// Device has the series of a GPU, of a GPU instance, or of a compute instance of a split GPU
// instance. If the device is gone, a newer device may have its ids: the generation tells them
// apart.
type Device struct {
	Index           int                     `json:"index"` // of the GPU
	UUID            gpu.UUID                `json:"uuid"`  // of the GPU
	GPUInstance     gpu.Opt[gpu.InstanceID] `json:"gpuInstance,omitzero"`
	ComputeInstance gpu.Opt[gpu.ComputeID]  `json:"computeInstance,omitzero"`
	Generation      uint64                  `json:"generation,omitempty"`
	Profile         string                  `json:"profile,omitempty"`
	Placement       gpu.Opt[gpu.Placement]  `json:"placement,omitzero"`
	// Gone is set if the device does not exist any more. It is never set while the GPU is released:
	// we do not see what it has then.
	Gone            bool   `json:"gone,omitempty"`
	MemoryUsedBytes Series `json:"memoryUsedBytes,omitempty"`
	SMActivityRatio Series `json:"smActivityRatio,omitempty"`
	// PowerWatts is an estimate for all but whole GPUs.
	PowerWatts Series `json:"powerWatts,omitempty"`
}

// Series are the values of one quantity, the oldest first. NaN stands for an absent value. If all
// values are absent, the Series is nil.
type Series []float32

// MarshalJSON writes absent values as null, and the others with as few digits as a drawing needs.
func (s Series) MarshalJSON() ([]byte, error) {
	text := append(make([]byte, 0, 8*len(s)+2), '[')

	for i, v := range s {
		if i > 0 {
			text = append(text, ',')
		}

		text = appendValue(text, float64(v))
	}

	return append(text, ']'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Series) UnmarshalJSON(text []byte) error {
	var values []*float32
	if err := json.Unmarshal(text, &values); err != nil {
		return err
	}

	*s = make(Series, len(values))

	for i, v := range values {
		if v == nil {
			(*s)[i] = float32(math.NaN())
		} else {
			(*s)[i] = *v
		}
	}

	return nil
}

// appendValue appends a value with at most three decimals, and with none from 1000 on.
func appendValue(text []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(text, "null"...)
	case v >= 1000:
		return strconv.AppendInt(text, int64(v), 10)
	default:
		return strconv.AppendFloat(text, math.Round(v*1000)/1000, 'f', -1, 64)
	}
}

// Document returns the present history. Its devices, including those that are gone, are in the
// order of compareDevices.
func (h *History) Document() *Document {
	h.mu.Lock()
	defer h.mu.Unlock()

	doc := &Document{
		APIVersion:  "mig-exporter/v1",
		StepSeconds: Step.Seconds(),
		Since:       h.since,
		Marks:       append([]Mark{}, h.marks...),
		Devices:     make([]Device, 0, len(h.tracks)),
	}
	if h.since.IsZero() {
		return doc
	}

	doc.Until = time.Unix(0, h.newest*int64(Step)).UTC()
	oldest := max(h.newest-int64(points)+1, h.since.UnixNano()/int64(Step))

	for id, t := range h.tracks {
		device := t.device(id, oldest, h.newest)
		device.Gone = t.lastPoint < h.newest && !h.isReleased(id.GPU())
		doc.Devices = append(doc.Devices, device)
	}

	slices.SortFunc(doc.Devices, compareDevices)

	return doc
}

// Marks returns the present marks, the oldest first.
func (h *History) Marks() []Mark {
	h.mu.Lock()
	defer h.mu.Unlock()

	return slices.Clone(h.marks)
}

// isReleased reports whether this process has let go of a GPU.
func (h *History) isReleased(id gpu.UUID) bool {
	return slices.ContainsFunc(h.last.GPUs, func(g gpu.GPU) bool { return g.UUID == id && g.Released.Present() })
}

func (t *track) device(id gpu.DeviceID, oldest, newest int64) Device {
	return Device{
		Index:           t.name.index,
		UUID:            id.GPU(),
		GPUInstance:     id.Instance(),
		ComputeInstance: id.Compute(),
		Generation:      id.Generation(),
		Profile:         t.name.profile,
		Placement:       t.name.placement,
		MemoryUsedBytes: t.series(memoryUsed, oldest, newest),
		SMActivityRatio: t.series(smActivity, oldest, newest),
		PowerWatts:      t.series(power, oldest, newest),
	}
}

// series returns the values of the points from oldest to newest; nil if all are absent.
func (t *track) series(q quantity, oldest, newest int64) Series {
	series := make(Series, 0, newest-oldest+1)
	anyPresent := false

	for n := oldest; n <= newest; n++ {
		v := t.values[q][n%int64(points)]
		series = append(series, v)
		anyPresent = anyPresent || !math.IsNaN(float64(v))
	}

	if !anyPresent {
		return nil
	}

	return series
}

// compareDevices orders devices by GPU, then by the ids of their instances, then by age. A GPU
// comes before its GPU instances, and a GPU instance before its compute instances.
func compareDevices(a, b Device) int {
	return cmp.Or(
		cmp.Compare(a.Index, b.Index),
		cmp.Compare(a.UUID, b.UUID),
		compareOpt(a.GPUInstance, b.GPUInstance),
		compareOpt(a.ComputeInstance, b.ComputeInstance),
		cmp.Compare(a.Generation, b.Generation),
	)
}

// compareOpt orders an absent value before all others.
func compareOpt[T cmp.Ordered](a, b gpu.Opt[T]) int {
	va, hasA := a.Get()
	vb, hasB := b.Get()

	switch {
	case hasA == hasB:
		return cmp.Compare(va, vb)
	case hasA:
		return 1
	default:
		return -1
	}
}
