package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Tracker judges each Snapshot, and keeps since when each reason stands. Of XIDs from before this
// process it knows those of the kernel's log, and what Recall takes up. It is safe for concurrent use.
type Tracker struct {
	maxAge time.Duration
	began  time.Time

	mu         sync.Mutex
	report     Report // of the last Snapshot; not complete before the first
	gpus       map[string]*memory
	missing    map[string]*memory   // of GPUs that are not in the last Snapshot
	states     map[string]standing  // by device
	since      map[string]time.Time // by device and reason
	recalled   bool                 // the memory of earlier processes in this boot is known
	logged     bool                 // the kernel's log was read at the last Snapshot
	nodeBefore *Reason              // see RecallNode; nil: there is none, or it is over
}

// standing is the state of a device, and when it became that.
type standing struct {
	state State
	since time.Time
}

// memory is what we keep of a GPU between Snapshots.
type memory struct {
	past
	place         Place
	lostAt        time.Time // when it was first seen lost; zero if it is not
	downAt        time.Time // of the last Snapshot in which it was down or released
	readAt        time.Time // of the last reading that was good
	energy        gpu.Opt[float64]
	asked         gpu.RecoveryAction // that the driver asked for last; empty: it does not say
	askedAt       time.Time
	unavailables  float64 // events that were counted
	resetRequired bool    // it was down because it had to be reset
	unbound       bool    // it was unbound from the driver
}

// New returns a Tracker that has seen nothing at now. A Snapshot older than maxAge tells nothing
// about now any more; 0 is no limit.
func New(maxAge time.Duration, now time.Time) *Tracker {
	return &Tracker{
		maxAge:  maxAge,
		began:   now,
		gpus:    map[string]*memory{},
		missing: map[string]*memory{},
		states:  map[string]standing{},
		since:   map[string]time.Time{},
	}
}

// Observe judges a Snapshot.
func (t *Tracker) Observe(s *gpu.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()

	r := Report{
		APIVersion: apiVersion,
		Generation: s.Generation,
		Time:       s.Time,
		Hostname:   s.Hostname,
		GPUs:       make([]GPU, 0, len(s.GPUs)),
	}
	t.logged = isUp(s, gpu.SourceKernelLog)
	complete := isComplete(s)
	allHang := doAllHang(s)
	gpus := make(map[string]*memory, len(s.GPUs))
	keep := &keeper{at: s.Time, tracker: t, states: map[string]standing{}, since: map[string]time.Time{}}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		key := keyOf(g)
		m := cmp.Or(t.gpus[key], t.missing[key])

		if m == nil {
			m = &memory{}
		}

		m.observe(g, s.Time)
		m.remember(g, s.Time)
		gpus[key] = m

		r.GPUs = append(r.GPUs, judgeAll(g, m.past, s.Time, allHang, keep))
	}

	t.updateMissing(gpus, complete)
	t.gpus = gpus

	reasons := slices.Concat(judgeNode(s), t.judgeMissing(complete), t.judgeNodeBefore(s, complete))
	r.Verdict = r.summarize(keep.dateReasons("node", reasons), keep)
	t.report = r
	t.states = keep.states
	t.since = keep.since
}

// judgeAll judges a GPU and its instances.
func judgeAll(g *gpu.GPU, before past, now time.Time, allHang bool, keep *keeper) GPU {
	key := keyOf(g)
	reasons := keep.dateReasons(key, judgeGPU(g, before, now, keep.tracker.logged, allHang))
	judged := GPU{
		Index:     g.Index,
		UUID:      g.UUID,
		Name:      g.Name,
		PCIBusID:  g.PCIBusID,
		XIDsSince: g.Totals.XIDs.Since,
		Verdict:   keep.dateState(key, newVerdict(slices.Clone(reasons))),
		Instances: make([]Instance, 0, len(g.Instances)),
	}

	// A driver that says what to do says so after a restart, too.
	isPastKnown := keep.tracker.recalled || keep.tracker.logged || g.Readings.RecoveryAction.Present()
	if judged.State == Healthy && !isPastKnown {
		judged.Message = fmt.Sprintf("nothing is known to be wrong; XIDs from before %s are not known",
			judged.XIDsSince.UTC().Format(time.RFC3339))
	}

	for i := range g.Instances {
		gi := &g.Instances[i]
		id := gpu.IDOfInstance(g.UUID, gi).String()
		own := keep.dateReasons(id, judgeInstance(g, gi, reasons, before, now))
		judged.Instances = append(judged.Instances, Instance{
			ID:         gi.ID,
			Generation: gi.Generation,
			Profile:    gi.Profile,
			Placement:  gi.Placement,
			UUIDs:      uuidsOf(gi),
			Verdict:    keep.dateState(id, newVerdict(own)),
		})
	}

	return judged
}

// uuidsOf returns the UUIDs of the MIG devices of an instance, which containers and schedulers know.
func uuidsOf(gi *gpu.GPUInstance) []gpu.MIGUUID {
	list := make([]gpu.MIGUUID, 0, len(gi.ComputeInstances))
	for c := range gi.ComputeInstances {
		if id := gi.ComputeInstances[c].UUID; id != "" {
			list = append(list, id)
		}
	}

	return list
}

// keyOf identifies a GPU over time. One without a handle has no UUID.
func keyOf(g *gpu.GPU) string {
	if g.UUID == "" {
		return "index " + strconv.Itoa(g.Index)
	}

	return string(g.UUID)
}

// isComplete reports whether a Snapshot identifies all GPUs that the driver lists.
func isComplete(s *gpu.Snapshot) bool {
	return isUp(s, gpu.SourceNVML) && len(s.Unread) == 0 &&
		!slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == "" })
}

func isUp(s *gpu.Snapshot, source string) bool {
	return slices.ContainsFunc(s.Sources, func(state gpu.SourceState) bool {
		return state.Name == source && state.Up
	})
}

// doAllHang reports whether calls hang for each GPU of a node that has several: then a lock of the
// driver holds them up.
func doAllHang(s *gpu.Snapshot) bool {
	return len(s.GPUs) > 1 && !slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool {
		return g.Up || len(g.Errors) == 0 || !errors.Is(g.Errors[0].Err, gpu.ErrTimeout)
	})
}

// observe takes from a GPU what later Snapshots do not tell. It decides up to when XIDs are over: no
// event says that a GPU was reset, but these do:
//
//   - it was down because it had to be reset, or unbound from the driver, and answers again;
//   - the driver asked for something, and asks for nothing any more;
//   - its energy counter, which runs since the driver was loaded (nvml.h,
//     nvmlDeviceGetTotalEnergyConsumption), is lower than it was.
func (m *memory) observe(g *gpu.GPU, at time.Time) {
	if n := g.Totals.Unavailable.Or(gpu.Counter{}).Value; n != m.unavailables {
		if n > m.unavailables {
			m.unavailable = at
		}

		m.unavailables = n
	}

	if !g.Up {
		m.downAt = at
		m.unbound = m.unbound || g.Released.Or(gpu.Release{}).Unbound
		m.resetRequired = m.resetRequired ||
			len(g.Errors) > 0 && errors.Is(g.Errors[0].Err, gpu.ErrResetRequired)

		return
	}

	// What came while it was down came before it was reset.
	before := m.readAt
	if m.downAt.After(before) {
		before = m.downAt
	}

	energy, hasEnergy := g.Readings.EnergyJoules.Get()
	if m.unbound || m.resetRequired || hasEnergy && energy < m.energy.Or(0) {
		m.recoverAt(before)
	}

	m.unbound = false
	m.resetRequired = false

	if hasEnergy {
		m.energy = g.Readings.EnergyJoules
	}

	m.readAt = at

	asked, known := g.Readings.RecoveryAction.Get()
	switch {
	case !known:
	case asked != gpu.RecoveryNone:
		m.asked = asked
		m.askedAt = at
	case m.asked != "":
		m.asked = ""
		m.recoverAt(m.askedAt)
	}
}

func (m *memory) recoverAt(at time.Time) {
	if at.After(m.recovered) {
		m.recovered = at
	}
}

// keeper carries over since when states and reasons stand, for what is there still.
type keeper struct {
	at      time.Time
	tracker *Tracker
	states  map[string]standing
	since   map[string]time.Time
}

// dateReasons sets since when the reasons of a device stand: when we first saw them, or when they say that
// they began. Neither is later than now, whatever was done to the clock.
func (k *keeper) dateReasons(device string, reasons []Reason) []Reason {
	for i := range reasons {
		r := &reasons[i]
		key := device + "/" + string(r.Code) + "/" + formatNumber(r.XID.Or(0))

		if known, ok := k.tracker.since[key]; ok {
			r.Since = known
		}

		if r.Since.IsZero() || r.Since.After(k.at) {
			r.Since = k.at
		}

		k.since[key] = r.Since
	}

	return reasons
}

// dateState sets since when a device has its state.
func (k *keeper) dateState(device string, v Verdict) Verdict {
	known, ok := k.tracker.states[device]
	if !ok || known.state != v.State {
		known = standing{state: v.State, since: k.at}
	}

	// The state is at least as old as a reason for it that is older than this process' view.
	for i := range v.Reasons {
		if v.Reasons[i].State == v.State && v.Reasons[i].Since.Before(known.since) && !ok {
			known.since = v.Reasons[i].Since
		}
	}

	if known.since.After(k.at) {
		known.since = k.at
	}

	k.states[device] = known
	v.Since = known.since

	return v
}
