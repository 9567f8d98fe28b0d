package poll

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// xidLogInterval is the least time between two log lines about one XID of one GPU, and maxXIDPods bounds the pods in
// a line.
const (
	xidLogInterval = time.Minute
	maxXIDPods     = 8
)

// recordXID counts an XID of a GPU and logs it with the pods that held the device in the last Snapshot.
func (p *Poller) recordXID(t *trackedGPU, e gpu.Event) {
	t.countXID(e)
	if !t.shouldLogXID(e.XID, p.opts.Now()) {
		return
	}
	fields := []any{"msg", "XID error", "gpu", e.GPU, "index", t.last.Index, "xid", e.XID}
	if name := gpu.XIDName(e.XID); name != "" {
		fields = append(fields, "name", name)
	}
	if id, ok := e.Instance.Get(); ok {
		fields = append(fields, "gpu_instance", id)
	}
	if id, ok := e.Compute.Get(); ok {
		fields = append(fields, "compute_instance", id)
	}
	if pods := podsOnDevice(p.current.Load(), e); pods != "" {
		fields = append(fields, "pod", pods)
	}
	level.Warn(p.opts.Logger).Log(fields...)
}

// shouldLogXID reports whether an XID is to be logged now, and records the time if it is.
func (t *trackedGPU) shouldLogXID(xid uint64, now time.Time) bool {
	if last, ok := t.lastXIDLog[xid]; ok && !now.Before(last) && now.Sub(last) < xidLogInterval {
		return false
	}
	if t.lastXIDLog == nil {
		t.lastXIDLog = map[uint64]time.Time{}
	}
	t.lastXIDLog[xid] = now
	return true
}

// podsOnDevice returns the pods that hold the device of an event, as "namespace/pod" joined by commas. An event that
// names no instance concerns all of the GPU.
func podsOnDevice(s *gpu.Snapshot, e gpu.Event) string {
	if s == nil {
		return ""
	}
	i := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == e.GPU })
	if i < 0 {
		return ""
	}
	var pods []string
	add := func(holders []gpu.Holder) {
		for _, h := range holders {
			if pod := h.Namespace + "/" + h.Pod; !slices.Contains(pods, pod) {
				pods = append(pods, pod)
			}
		}
	}
	add(s.GPUs[i].Holders)
	for _, gi := range s.GPUs[i].Instances {
		if id, ok := e.Instance.Get(); ok && id != gi.ID {
			continue
		}
		add(gi.Holders)
		for _, ci := range gi.ComputeInstances {
			if id, ok := e.Compute.Get(); !ok || id == ci.ID {
				add(ci.Holders)
			}
		}
	}
	if more := len(pods) - maxXIDPods; more > 0 {
		pods = append(pods[:maxXIDPods], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(pods, ", ")
}

// countXID counts an XID for the GPU, and for the GPU instance that it names or else among those of the GPU alone.
func (t *trackedGPU) countXID(e gpu.Event) {
	t.totals.XIDs.Value++
	t.totals.XIDErrors = incrementXID(t.totals.XIDErrors, e)
	if id, ok := e.Instance.Get(); ok {
		if gi := findInstance(t.layout.instances, id); gi != nil {
			gi.XIDErrors = incrementXID(gi.XIDErrors, e)
			return
		}
	}
	t.totals.GPUXIDs = incrementXID(t.totals.GPUXIDs, e)
}

// incrementXID increments the count of an XID in a list that is ordered by XID.
func incrementXID(list []gpu.XIDCount, e gpu.Event) []gpu.XIDCount {
	i, found := slices.BinarySearchFunc(list, e.XID, func(c gpu.XIDCount, xid uint64) int {
		return cmp.Compare(c.XID, xid)
	})
	if !found {
		list = slices.Insert(list, i, gpu.XIDCount{XID: e.XID, Counter: gpu.Counter{Since: e.Time}})
	}
	list[i].Value++
	list[i].Last = e.Time
	return list
}
