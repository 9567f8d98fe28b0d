package history

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// MarkKind is what happened at a Mark.
type MarkKind string

// The kinds.
const (
	MarkLayout MarkKind = "layout-change"
	MarkXID    MarkKind = "xid"
)

// Mark is a moment at which something happened to a GPU.
type Mark struct {
	Time        time.Time               `json:"time"`
	Kind        MarkKind                `json:"kind"`
	Index       int                     `json:"index"` // of the GPU
	UUID        gpu.UUID                `json:"uuid"`
	GPUInstance gpu.Opt[gpu.InstanceID] `json:"gpuInstance,omitzero"` // absent if it concerned the whole GPU
	// Generation is that of the GPU instance: another one may have its id now.
	Generation uint64 `json:"generation,omitempty"`
	XID        uint64 `json:"xid,omitempty"`
	Name       string `json:"name,omitempty"`  // of the XID, in NVIDIA's catalog
	Count      uint64 `json:"count,omitempty"` // how often the XID occurred
}

// IsOf reports whether the mark is of a GPU instance, not of another one that had its id before.
func (m Mark) IsOf(id gpu.InstanceID, generation uint64) bool {
	return m.GPUInstance == gpu.Some(id) && m.Generation == generation
}

// isSame reports whether two marks are of the same event.
func (m Mark) isSame(other Mark) bool {
	return m.Time.Equal(other.Time) && m.UUID == other.UUID && m.GPUInstance == other.GPUInstance &&
		m.XID == other.XID
}

// addMarks adds marks for what has happened since the last Snapshot. The first Snapshot adds none:
// its counts are about earlier events.
func (h *History) addMarks(s *gpu.Snapshot) {
	if h.last == nil {
		return
	}

	for i := range s.GPUs {
		now := &s.GPUs[i]
		before := slices.IndexFunc(h.last.GPUs, func(g gpu.GPU) bool { return g.UUID == now.UUID })

		if before < 0 || now.UUID == "" {
			continue
		}

		h.addMarksOf(&h.last.GPUs[before], now, s.Time)
	}

	h.marks = slices.DeleteFunc(h.marks, func(m Mark) bool { return s.Time.Sub(m.Time) > Span })
	if excess := len(h.marks) - maxMarks; excess > 0 {
		h.marks = slices.Delete(h.marks, 0, excess)
	}
}

// addMarksOf adds marks for what has happened to a GPU between two Snapshots, the later of which is
// of at.
func (h *History) addMarksOf(before, now *gpu.GPU, at time.Time) {
	mark := Mark{Index: now.Index, UUID: now.UUID}

	if now.Totals.LayoutChanges.Value > before.Totals.LayoutChanges.Value {
		mark.Time = at
		mark.Kind = MarkLayout
		h.marks = append(h.marks, mark)
	}

	mark.Kind = MarkXID
	h.dropMoved(before, now)
	h.addXIDs(mark, before.Totals.GPUXIDs, now.Totals.GPUXIDs)

	for i := range now.Instances {
		instance := &now.Instances[i]
		mark.GPUInstance = gpu.Some(instance.ID)
		mark.Generation = instance.Generation
		h.addXIDs(mark, xidsOf(before, instance), instance.XIDErrors)
	}
}

// dropMoved drops the mark of an XID that counted for the whole GPU until a later report named its
// instance: it gets a mark of the instance.
func (h *History) dropMoved(before, now *gpu.GPU) {
	for _, was := range before.Totals.GPUXIDs {
		stays := slices.ContainsFunc(now.Totals.GPUXIDs,
			func(c gpu.XIDCount) bool { return c.XID == was.XID && c.Value >= was.Value })
		if stays {
			continue
		}

		h.marks = slices.DeleteFunc(h.marks, func(m Mark) bool {
			return m.UUID == now.UUID && m.XID == was.XID && !m.GPUInstance.Present() && m.Time.Equal(was.Last)
		})
	}
}

// xidsOf returns the XIDs that the same instance had before.
func xidsOf(before *gpu.GPU, instance *gpu.GPUInstance) []gpu.XIDCount {
	for i := range before.Instances {
		was := &before.Instances[i]
		if was.ID == instance.ID && was.Generation == instance.Generation {
			return was.XIDErrors
		}
	}

	return nil
}

// addXIDs adds a mark for each XID whose count has grown. mark has the device.
func (h *History) addXIDs(mark Mark, before, now []gpu.XIDCount) {
	for _, c := range now {
		count := c.Value

		for _, was := range before {
			if was.XID == c.XID {
				count -= was.Value
			}
		}

		if count <= 0 {
			continue
		}

		mark.Time = c.Last
		mark.XID = c.XID
		mark.Name = gpu.XIDName(c.XID)
		mark.Count = uint64(count)

		// While a GPU is released we don't see its instances. When it is back, their counts look
		// new, but their XIDs may have a mark already.
		if !slices.ContainsFunc(h.marks, mark.isSame) {
			h.marks = append(h.marks, mark)
		}
	}
}
