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

// xidLogInterval is the least time between two log lines about one XID of one GPU, and maxXIDPods bounds the pods in a line.
const (
	xidLogInterval = time.Minute
	maxXIDPods     = 8
)

// takeXID counts an XID of a GPU and logs it with the pods that held the device in the last Snapshot.
func (p *Poller) takeXID(t *tracked, e gpu.Event) {
	t.xid(e)
	if !t.xidIsDue(e.XID, p.opts.Now()) {
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
	if pods := podsOf(p.current.Load(), e); pods != "" {
		fields = append(fields, "pod", pods)
	}
	level.Warn(p.opts.Logger).Log(fields...)
}

// xidIsDue reports whether an XID is to be logged now, and takes note if it is.
func (t *tracked) xidIsDue(xid uint64, now time.Time) bool {
	if last, ok := t.xidLogged[xid]; ok && !now.Before(last) && now.Sub(last) < xidLogInterval {
		return false
	}
	if t.xidLogged == nil {
		t.xidLogged = map[uint64]time.Time{}
	}
	t.xidLogged[xid] = now
	return true
}

// podsOf returns the pods that hold the device of an event, as "namespace/pod" joined by commas. An event that names no
// instance concerns all of the GPU.
func podsOf(s *gpu.Snapshot, e gpu.Event) string {
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

// xid counts an XID for the GPU and for the GPU instance that it names, or else among those of the GPU alone.
func (t *tracked) xid(e gpu.Event) {
	t.totals.XIDs.Value++
	t.totals.XIDErrors = countXID(t.totals.XIDErrors, e)
	if id, ok := e.Instance.Get(); ok {
		if it := t.instances[id]; it != nil {
			it.xids = countXID(it.xids, e)
			return
		}
	}
	t.totals.GPUXIDs = countXID(t.totals.GPUXIDs, e)
}

// countXID counts in a list ordered by XID.
func countXID(list []gpu.XIDCount, e gpu.Event) []gpu.XIDCount {
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
