package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Memory is what a Tracker hands to the next process on the node: facts about GPUs that the driver
// reports only once. It is valid for one boot of the node, because a reboot resets all GPUs.
type Memory struct {
	GPUs []RememberedGPU `json:"gpus"`
}

// RememberedGPU is the stored form of a gpuMemory: see there for the fields.
type RememberedGPU struct {
	Place
	// XIDs are the XIDs that are not over, with the time of the last of each.
	XIDs        map[uint64]time.Time `json:"xids,omitempty"`
	Recovered   time.Time            `json:"recovered,omitzero"`
	Unavailable time.Time            `json:"unavailable,omitzero"`
	Fault       string               `json:"fault,omitempty"`
	FaultSince  time.Time            `json:"faultSince,omitzero"`

	ReadAt        time.Time          `json:"readAt,omitzero"`
	DownAt        time.Time          `json:"downAt,omitzero"`
	Energy        gpu.Opt[float64]   `json:"energyJoules,omitzero"`
	Asked         gpu.RecoveryAction `json:"asked,omitempty"`
	AskedAt       time.Time          `json:"askedAt,omitzero"`
	ResetRequired bool               `json:"resetRequired,omitempty"`
	Unbound       bool               `json:"unbound,omitempty"`
}

// Place is where a GPU is, or was.
type Place struct {
	UUID     gpu.UUID `json:"uuid"`
	Index    int      `json:"index"`
	PCIBusID string   `json:"pciBusId,omitempty"`
}

// IsSame reports whether two memories are the same except for the fields that change with every
// reading.
func (m Memory) IsSame(other Memory) bool {
	return slices.EqualFunc(m.GPUs, other.GPUs, func(a, b RememberedGPU) bool {
		return a.Place == b.Place && maps.EqualFunc(a.XIDs, b.XIDs, time.Time.Equal) &&
			a.Recovered.Equal(b.Recovered) && a.Unavailable.Equal(b.Unavailable) && a.FaultSince.Equal(b.FaultSince) &&
			a.Asked == b.Asked && a.ResetRequired == b.ResetRequired && a.Unbound == b.Unbound
	})
}

// Memory returns what the next process has to know, ordered by UUID. GPUs without a past are left
// out.
func (t *Tracker) Memory() Memory {
	t.mu.Lock()
	defer t.mu.Unlock()

	memory := Memory{GPUs: []RememberedGPU{}}

	for _, byKey := range []map[string]*gpuMemory{t.gpus, t.missing} {
		for _, m := range byKey {
			if m.hasPast() {
				memory.GPUs = append(memory.GPUs, m.export())
			}
		}
	}

	slices.SortFunc(memory.GPUs, func(a, b RememberedGPU) int { return cmp.Compare(a.UUID, b.UUID) })

	return memory
}

// Recall sets what an earlier process in the same boot has left. Call it before the first Observe.
func (t *Tracker) Recall(memory Memory) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.recalled = true

	for _, r := range memory.GPUs {
		if r.UUID == "" {
			continue
		}

		t.gpus[string(r.UUID)] = &gpuMemory{
			past:          past{recovered: r.Recovered, unavailable: r.Unavailable, xids: r.XIDs},
			place:         r.Place,
			fault:         r.Fault,
			faultSince:    r.FaultSince,
			downAt:        r.DownAt,
			readAt:        r.ReadAt,
			energy:        r.Energy,
			asked:         r.Asked,
			askedAt:       r.AskedAt,
			resetRequired: r.ResetRequired,
			unbound:       r.Unbound,
		}
	}
}

// RecallNode is for a process that knows nothing about the past: it sets a message about a fault
// that the Node in the cluster shows since a time. The driver may not report that fault again. So
// it makes the node unknown until every GPU either was seen reset or its driver says that no action
// is needed. If we know the past by Recall or by the kernel's log, RecallNode does nothing.
func (t *Tracker) RecallNode(since time.Time, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.recalled || t.kernelLogRead {
		return
	}

	t.nodeBefore = &Reason{Code: CodeXIDBefore, State: Unknown, Action: ActionNone, Since: since,
		Message: beforeMessage + strings.TrimPrefix(message, beforeMessage)}
}

// beforeMessage precedes the Node's message in the reason that RecallNode sets. The Node shows that
// reason in turn: after another restart RecallNode gets the message with it.
const beforeMessage = "whether this is over is not known: "

// IsPast reports whether a reason comes from something that the driver reports only once, so that a
// process that starts later does not see it.
func IsPast(code Code) bool {
	return slices.Contains([]Code{
		CodeXIDNode, CodeXIDHardware, CodeXIDMemory, CodeUnavailable, CodeMissing, CodeXIDBefore,
	}, code)
}

// hasPast reports whether m has something that the next process has to know.
func (m *gpuMemory) hasPast() bool {
	return m.place.UUID != "" && (len(m.xids) > 0 || !m.recovered.IsZero() || !m.unavailable.IsZero() ||
		!m.faultSince.IsZero() || m.asked != "" || m.resetRequired || m.unbound)
}

func (m *gpuMemory) export() RememberedGPU {
	return RememberedGPU{
		Place:         m.place,
		XIDs:          maps.Clone(m.xids),
		Recovered:     m.recovered,
		Unavailable:   m.unavailable,
		Fault:         m.fault,
		FaultSince:    m.faultSince,
		ReadAt:        m.readAt,
		DownAt:        m.downAt,
		Energy:        m.energy,
		Asked:         m.asked,
		AskedAt:       m.askedAt,
		ResetRequired: m.resetRequired,
		Unbound:       m.unbound,
	}
}

// remember keeps where the GPU is, and its XIDs that count until a reset.
func (m *gpuMemory) remember(g *gpu.GPU) {
	m.place = Place{UUID: g.UUID, Index: g.Index, PCIBusID: cmp.Or(g.PCIBusID, m.place.PCIBusID)}

	for _, x := range g.Totals.XIDErrors {
		class := ClassOf(x.XID)
		if x.Value == 0 || class == ClassApplication || class == ClassOther || !x.Last.After(m.xids[x.XID]) {
			continue
		}

		if m.xids == nil {
			m.xids = map[uint64]time.Time{}
		}

		m.xids[x.XID] = x.Last
	}

	maps.DeleteFunc(m.xids, func(_ uint64, last time.Time) bool { return !last.After(m.recovered) })
}

// rememberFault keeps that a GPU is unhealthy, until it is seen well again or is released on
// purpose. While its state is unknown, it may still be unhealthy.
func (m *gpuMemory) rememberFault(v Verdict, released bool, at time.Time) {
	switch {
	case released || v.State == Healthy || v.State == Degraded:
		m.fault = ""
		m.faultSince = time.Time{}
	case v.State == Unhealthy && m.faultSince.IsZero():
		m.fault = v.Message
		m.faultSince = at
	}
}

// withPast returns the XIDs of a GPU together with the XIDs that an earlier process has seen.
func withPast(list []gpu.XIDCount, before past) []gpu.XIDCount {
	all := slices.Clone(list)

	for _, xid := range slices.Sorted(maps.Keys(before.xids)) {
		i := slices.IndexFunc(all, func(x gpu.XIDCount) bool { return x.XID == xid })
		if i < 0 {
			all = append(all, gpu.XIDCount{XID: xid})
			i = len(all) - 1
		}

		if x := &all[i]; x.Value == 0 { // this process has not seen it
			x.Value = 1 // or more: we only know that it occurred
			x.Last = before.xids[xid]
		}
	}

	return all
}

// updateMissing updates t.missing, the GPUs that were unhealthy and that the driver does not list
// any more. gpus are the GPUs of the Snapshot; complete is whether it has all that the driver lists. If
// not, any GPU with a past may come back: we keep them all. A GPU in whose slot another one answers was
// replaced, and is missed no longer.
func (t *Tracker) updateMissing(gpus map[string]*gpuMemory, complete bool) {
	for key, m := range t.gpus {
		if m.hasPast() {
			t.missing[key] = m
		}
	}

	maps.DeleteFunc(t.missing, func(key string, m *gpuMemory) bool {
		return gpus[key] != nil || complete && (m.faultSince.IsZero() || m.place.isTaken(gpus))
	})
}

// isTaken reports whether one of the GPUs has answered at the PCI bus id of the place.
func (p Place) isTaken(gpus map[string]*gpuMemory) bool {
	for _, m := range gpus {
		if p.PCIBusID != "" && m.place.PCIBusID == p.PCIBusID && !m.readAt.IsZero() {
			return true
		}
	}

	return false
}

// judgeMissing returns a reason for each GPU that was unhealthy and that the driver does not list
// any more: that it is gone does not make the node well.
func (t *Tracker) judgeMissing(complete bool) (reasons []Reason) {
	if !complete {
		return nil
	}

	for _, key := range slices.Sorted(maps.Keys(t.missing)) {
		m := t.missing[key]
		reasons = append(reasons, Reason{
			Code: CodeMissing, State: Unhealthy, Action: ActionReboot, Since: m.faultSince,
			Message: fmt.Sprintf("GPU %d (%s) at %s was unhealthy (%s), and the driver does not list it any more",
				m.place.Index, m.place.UUID, m.place.PCIBusID, m.fault),
		})
	}

	return reasons
}

// judgeNodeBefore returns the reason that RecallNode has set, and drops it once it is over.
func (t *Tracker) judgeNodeBefore(s *gpu.Snapshot, complete bool) []Reason {
	if t.nodeBefore == nil {
		return nil
	}

	isUnclear := func(g gpu.GPU) bool {
		m := t.gpus[keyOf(&g)]
		return g.Readings.RecoveryAction != gpu.Some(gpu.RecoveryNone) && (m == nil || m.recovered.IsZero())
	}

	if complete && len(s.GPUs) > 0 && !slices.ContainsFunc(s.GPUs, isUnclear) {
		t.nodeBefore = nil
		return nil
	}

	return []Reason{*t.nodeBefore}
}
