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

const (
	// eventLogInterval is the least time between two log lines about events of a GPU with the same
	// eventKey.
	eventLogInterval = time.Minute
	// maxXIDPods bounds the pods that a line names.
	maxXIDPods = 8
)

// eventKey tells the events of a GPU apart for eventLogInterval.
type eventKey struct {
	kind gpu.EventKind
	xid  uint64
}

// recordXID counts an XID of a GPU, unless we have counted it from another report, and logs it with
// the pods that held the device in the last Snapshot.
func (p *Poller) recordXID(t *trackedGPU, e gpu.Event) {
	if gpu.XIDByNumber(e.XID).Scope == gpu.XIDOfGPU || t.namesNoInstance(&e) {
		e.Instance = gpu.None[gpu.InstanceID]()
		e.Compute = gpu.None[gpu.ComputeID]()
	}

	now := p.opts.Now()
	t.countXID(e, now)

	if !t.shouldLog(&e, now) {
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

// namesNoInstance reports whether an event with the ids 0 and 0 names no instance: the GPU has no
// GPU instance 0, and the driver sends these ids for errors without an instance, too (see
// gpu.XIDOfGPU).
func (t *trackedGPU) namesNoInstance(e *gpu.Event) bool {
	return e.Instance == gpu.Some(gpu.InstanceID(0)) && findInstance(t.layout.instances, 0) == nil
}

// shouldLog reports whether we log an event now, and records the time if we do.
func (t *trackedGPU) shouldLog(e *gpu.Event, now time.Time) bool {
	key := eventKey{kind: e.Kind, xid: e.XID}
	if last, ok := t.lastEventLog[key]; ok && !now.Before(last) &&
		now.Sub(last) < eventLogInterval {
		return false
	}

	if t.lastEventLog == nil {
		t.lastEventLog = map[eventKey]time.Time{}
	}

	t.lastEventLog[key] = now

	return true
}

// podsOnDevice returns the pods that held the device of an event, as "namespace/pod" joined by
// commas. An event that names no instance concerns all of the GPU. The event can be hours old, if
// it is from the kernel's log: a pod that got the device later does not count, and neither does an
// instance that was created later with the same id.
func podsOnDevice(s *gpu.Snapshot, e gpu.Event) string {
	if s == nil {
		return ""
	}

	i := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == e.GPU })
	if i < 0 {
		return ""
	}

	var pods []string

	for d := range s.GPUs[i].Devices() {
		if gi := d.Instance; gi != nil && (e.Instance.Or(gi.ID) != gi.ID || gi.Since.After(e.Time)) {
			continue
		}

		if ci := d.Compute; ci != nil && e.Compute.Or(ci.ID) != ci.ID {
			continue
		}

		for _, h := range d.Holders {
			pod := h.Namespace + "/" + h.Pod
			if !h.Since.After(e.Time) && !slices.Contains(pods, pod) {
				pods = append(pods, pod)
			}
		}
	}

	if more := len(pods) - maxXIDPods; more > 0 {
		pods = append(pods[:maxXIDPods], fmt.Sprintf("and %d more", more))
	}

	return strings.Join(pods, ", ")
}

// countXID counts an XID in two places: in the GPU's totals, and for the GPU instance that it names
// or, if it names none, in GPUXIDs. A further report of the same incident only updates the time. If
// it is the first that names the instance, the count moves from GPUXIDs to the instance.
func (t *trackedGPU) countXID(e gpu.Event, now time.Time) {
	isNew, located := t.incidents.record(&e, now)
	increment := 0.0

	if isNew {
		increment = 1
	}

	t.totals.XIDs.Value += increment
	t.totals.XIDErrors = addXID(t.totals.XIDErrors, e, increment, now)

	if gi := t.instanceOf(&e); gi != nil {
		if located {
			increment = 1
			t.totals.GPUXIDs = removeXID(t.totals.GPUXIDs, e.XID)
		}

		gi.XIDErrors = addXID(gi.XIDErrors, e, increment, now)

		return
	}

	t.totals.GPUXIDs = addXID(t.totals.GPUXIDs, e, increment, now)
}

// instanceOf returns the GPU instance that an event names; nil if there is none. An instance that
// is younger than the event does not count: the driver reuses ids, and a line of the kernel's log
// may be from an earlier layout.
func (t *trackedGPU) instanceOf(e *gpu.Event) *gpu.GPUInstance {
	id, ok := e.Instance.Get()
	if !ok {
		return nil
	}

	gi := findInstance(t.layout.instances, id)
	if gi == nil || gi.Since.After(e.Time) {
		return nil
	}

	return gi
}

// removeXID subtracts 1 from the count of an XID in a list, and removes the XID if that leaves 0.
func removeXID(list []gpu.XIDCount, xid uint64) []gpu.XIDCount {
	i, found := findXID(list, xid)
	if !found {
		return list
	}

	list[i].Value--
	if list[i].Value > 0 {
		return list
	}

	return slices.Delete(list, i, i+1)
}

// findXID returns where an XID is, or belongs, in a list that is ordered by XID, and whether the
// list has it.
func findXID(list []gpu.XIDCount, xid uint64) (i int, found bool) {
	return slices.BinarySearchFunc(list, xid, func(c gpu.XIDCount, xid uint64) int {
		return cmp.Compare(c.XID, xid)
	})
}

// setLastXID sets when e's XID last occurred, unless the list has a later time. It inserts an XID
// that the list does not have, with the count 0.
func setLastXID(list []gpu.XIDCount, e *gpu.Event, since time.Time) []gpu.XIDCount {
	i, found := findXID(list, e.XID)
	if !found {
		list = slices.Insert(list, i, gpu.XIDCount{XID: e.XID, Counter: gpu.Counter{Since: since}})
	}

	if e.Time.After(list[i].Last) {
		list[i].Last = e.Time
	}

	return list
}

// addXID adds increment to the count of e's XID in a list that is ordered by XID. It inserts an XID
// that the list does not have, unless increment is 0. now is the present time.
func addXID(list []gpu.XIDCount, e gpu.Event, increment float64, now time.Time) []gpu.XIDCount {
	i, found := findXID(list, e.XID)
	if !found && increment == 0 {
		return list
	}

	if !found {
		list = slices.Insert(list, i, gpu.XIDCount{XID: e.XID, Counter: gpu.Counter{Since: e.Time}})
	}

	list[i].Value += increment
	if last := list[i].Last; e.Time.After(last) || last.After(now) { // the latter if the clock was set back
		list[i].Last = e.Time
	}

	return list
}
