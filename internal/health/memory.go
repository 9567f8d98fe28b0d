package health

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Memory is what a Tracker knows of the GPUs that no driver reports again after a restart of the
// program. It is true of one boot of the node: a reboot resets all GPUs.
type Memory struct {
	GPUs []RememberedGPU `json:"gpus"`
}

// RememberedGPU is what is kept of a GPU with a past.
type RememberedGPU struct {
	Place
	// XIDs are those that are not over, with the time of the last.
	XIDs        map[uint64]time.Time `json:"xids,omitempty"`
	Recovered   time.Time            `json:"recovered,omitzero"`
	Unavailable time.Time            `json:"unavailable,omitzero"`
	Lost        time.Time            `json:"lost,omitzero"`

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

// IsSame reports whether two memories differ at most in what each reading changes.
func (m Memory) IsSame(other Memory) bool {
	return slices.EqualFunc(m.GPUs, other.GPUs, func(a, b RememberedGPU) bool {
		return a.Place == b.Place && maps.EqualFunc(a.XIDs, b.XIDs, time.Time.Equal) &&
			a.Recovered.Equal(b.Recovered) && a.Unavailable.Equal(b.Unavailable) && a.Lost.Equal(b.Lost) &&
			a.Asked == b.Asked && a.ResetRequired == b.ResetRequired && a.Unbound == b.Unbound
	})
}

// Memory returns what the next process has to know, ordered by UUID: nothing of a GPU without a past.
func (t *Tracker) Memory() Memory {
	t.mu.Lock()
	defer t.mu.Unlock()

	list := Memory{GPUs: []RememberedGPU{}}

	for _, all := range []map[string]*memory{t.gpus, t.missing} {
		for _, m := range all {
			if m.hasPast() {
				list.GPUs = append(list.GPUs, m.export())
			}
		}
	}

	slices.SortFunc(list.GPUs, func(a, b RememberedGPU) int { return cmp.Compare(a.UUID, b.UUID) })

	return list
}

// Recall takes up the memory of an earlier process in the same boot. Call it before the first
// Observe.
func (t *Tracker) Recall(list Memory) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.recalled = true

	for _, r := range list.GPUs {
		if r.UUID == "" {
			continue
		}

		t.gpus[string(r.UUID)] = &memory{
			past:          past{recovered: r.Recovered, unavailable: r.Unavailable, xids: r.XIDs},
			place:         r.Place,
			lostAt:        r.Lost,
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

// RecallNode takes up what the Node in the cluster has said of its GPUs since a time, for a process
// that knows nothing of before: a fault that the driver does not report twice. It is unknown whether
// that is over until each GPU says that nothing is to be done, or was seen reset. It does nothing if
// the past is known.
func (t *Tracker) RecallNode(since time.Time, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.recalled || t.logged {
		return
	}

	t.nodeBefore = &Reason{Code: CodeXIDBefore, State: Unknown, Action: ActionNone, Since: since,
		Message: beforeMessage + strings.TrimPrefix(message, beforeMessage)}
}

// beforeMessage is the beginning of the message of what the Node has said before.
const beforeMessage = "whether this is over is not known: "

// IsPast reports whether a reason rests on what a process has seen, and the driver does not report
// twice.
func IsPast(code Code) bool {
	return slices.Contains([]Code{
		CodeXIDNode, CodeXIDHardware, CodeXIDMemory, CodeUnavailable, CodeMissing, CodeXIDBefore,
	}, code)
}

func (m *memory) hasPast() bool {
	return m.place.UUID != "" && (len(m.xids) > 0 || !m.recovered.IsZero() || !m.unavailable.IsZero() ||
		!m.lostAt.IsZero() || m.asked != "" || m.resetRequired || m.unbound)
}

func (m *memory) export() RememberedGPU {
	return RememberedGPU{
		Place:         m.place,
		XIDs:          maps.Clone(m.xids),
		Recovered:     m.recovered,
		Unavailable:   m.unavailable,
		Lost:          m.lostAt,
		ReadAt:        m.readAt,
		DownAt:        m.downAt,
		Energy:        m.energy,
		Asked:         m.asked,
		AskedAt:       m.askedAt,
		ResetRequired: m.resetRequired,
		Unbound:       m.unbound,
	}
}

// remember keeps the XIDs of the GPU that count until it is reset, and whether it is lost.
func (m *memory) remember(g *gpu.GPU, at time.Time) {
	m.place = Place{UUID: g.UUID, Index: g.Index, PCIBusID: g.PCIBusID}

	isLost := !g.Up && len(g.Errors) > 0 && errors.Is(g.Errors[0].Err, gpu.ErrLost)
	if !isLost {
		m.lostAt = time.Time{}
	} else if m.lostAt.IsZero() {
		m.lostAt = at
	}

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

// withPast returns the XIDs of a GPU with those that an earlier process has seen.
func withPast(list []gpu.XIDCount, before past) []gpu.XIDCount {
	all := slices.Clone(list)

	for _, xid := range slices.Sorted(maps.Keys(before.xids)) {
		at := slices.IndexFunc(all, func(x gpu.XIDCount) bool { return x.XID == xid })
		if at < 0 {
			all = append(all, gpu.XIDCount{XID: xid})
			at = len(all) - 1
		}

		if x := &all[at]; x.Value == 0 { // this process has not seen it
			x.Value = 1
			x.Last = before.xids[xid]
		}
	}

	return all
}

// updateMissing keeps the GPUs that were lost and are not listed any more: a driver that counts its
// GPUs anew leaves them out. While not all GPUs are read, it keeps all that have a past.
func (t *Tracker) updateMissing(gpus map[string]*memory, complete bool) {
	for key, m := range t.gpus {
		if m.hasPast() {
			t.missing[key] = m
		}
	}

	maps.DeleteFunc(t.missing, func(key string, m *memory) bool {
		return gpus[key] != nil || complete && m.lostAt.IsZero()
	})
}

// judgeMissing returns the reasons of the GPUs that were lost and are not listed any more.
func (t *Tracker) judgeMissing(complete bool) (reasons []Reason) {
	if !complete {
		return nil
	}

	for _, key := range slices.Sorted(maps.Keys(t.missing)) {
		m := t.missing[key]
		reasons = append(reasons, Reason{Code: CodeMissing, State: Unhealthy, Action: ActionReboot, Since: m.lostAt,
			Message: fmt.Sprintf("GPU %d (%s) at %s was lost, and the driver does not list it any more",
				m.place.Index, m.place.UUID, m.place.PCIBusID)})
	}

	return reasons
}

// judgeNodeBefore returns what the Node in the cluster has said before this process, until all GPUs
// were seen reset or say that nothing is to be done.
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
