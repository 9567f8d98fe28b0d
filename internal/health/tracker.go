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

// Tracker judges each Snapshot, and keeps since when each reason holds. It knows XIDs from before
// this process only by the kernel's log and by Recall. It is safe for concurrent use.
type Tracker struct {
	maxAge time.Duration // of a Snapshot that still counts; 0: no limit
	began  time.Time

	mu            sync.Mutex
	report        Report                // of the last Snapshot; its APIVersion is empty before the first
	gpus          map[string]*gpuMemory // by keyOf: the GPUs of the last Snapshot
	missing       map[string]*gpuMemory // by keyOf: see updateMissing
	states        map[string]datedState // by device: the node, a GPU or an instance
	since         map[string]time.Time  // since when a reason of a device holds; see dateReasons for the keys
	recalled      bool                  // Recall was called: we know what earlier processes in this boot saw
	kernelLogRead bool                  // the kernel's log was read at the last Snapshot
	nodeBefore    *Reason               // see RecallNode; nil: there is none, or it is over
}

// datedState is the state of a device, and since when it has that state.
type datedState struct {
	state State
	since time.Time
}

// gpuMemory is what we keep of a GPU between Snapshots.
type gpuMemory struct {
	past
	place         Place
	fault         string             // why the GPU is unhealthy, by its first such verdict; empty if it is not
	faultSince    time.Time          // when we first saw the GPU unhealthy; zero if it is not
	downAt        time.Time          // of the last Snapshot in which the GPU was down or released
	readAt        time.Time          // of the last Snapshot with a good reading
	energy        gpu.Opt[float64]   // the energy counter in joules at the last reading that had it
	asked         gpu.RecoveryAction // the last action that the driver asked for; empty once that is over
	askedAt       time.Time          // of the last Snapshot in which the driver asked for it
	unavailables  float64            // how many events "unavailable" we have seen
	resetRequired bool               // the GPU was down because it had to be reset, and has not come back yet
	unbound       bool               // the GPU was unbound from the driver, and has not come back yet
}

// New returns a Tracker that has seen nothing at now. A Snapshot older than maxAge says nothing
// about the present; 0 is no limit.
func New(maxAge time.Duration, now time.Time) *Tracker {
	return &Tracker{
		maxAge:  maxAge,
		began:   now,
		gpus:    map[string]*gpuMemory{},
		missing: map[string]*gpuMemory{},
		states:  map[string]datedState{},
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
	t.kernelLogRead = isUp(s, gpu.SourceKernelLog)
	complete := isComplete(s)
	allHang := doAllHang(s)
	gpus := make(map[string]*gpuMemory, len(s.GPUs))
	keep := &keeper{at: s.Time, tracker: t, states: map[string]datedState{}, since: map[string]time.Time{}}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		key := keyOf(g)
		m := cmp.Or(t.gpus[key], t.missing[key])

		if m == nil {
			m = &gpuMemory{}
		}

		m.observe(g, s.Time)
		m.remember(g)
		gpus[key] = m

		judged := judgeAll(g, m.past, s.Time, allHang, keep)
		m.rememberFault(judged.Verdict, g.Released.Present(), s.Time)
		r.GPUs = append(r.GPUs, judged)
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
	reasons := keep.dateReasons(key, judgeGPU(g, before, now, keep.tracker.kernelLogRead, allHang))
	judged := GPU{
		Index:     g.Index,
		UUID:      g.UUID,
		Name:      g.Name,
		PCIBusID:  g.PCIBusID,
		XIDsSince: g.Totals.XIDs.Since,
		Verdict:   keep.dateState(key, newVerdict(slices.Clone(reasons))),
		Instances: make([]Instance, 0, len(g.Instances)),
	}

	// A driver that reports a recovery action still does so after a restart of this program.
	isPastKnown := keep.tracker.recalled || keep.tracker.kernelLogRead || g.Readings.RecoveryAction.Present()
	if judged.State == Healthy && !isPastKnown {
		judged.Message = fmt.Sprintf("nothing is known to be wrong; XIDs from before %s are not known",
			judged.XIDsSince.UTC().Format(time.RFC3339))
	}

	for i := range g.Instances {
		gi := &g.Instances[i]
		id := gpu.IDOfInstance(g.UUID, gi).String()
		instanceReasons := keep.dateReasons(id, judgeInstance(g, gi, reasons, before, now))
		judged.Instances = append(judged.Instances, Instance{
			ID:         gi.ID,
			Generation: gi.Generation,
			Profile:    gi.Profile,
			Placement:  gi.Placement,
			UUIDs:      uuidsOf(gi),
			Verdict:    keep.dateState(id, newVerdict(instanceReasons)),
		})
	}

	return judged
}

// uuidsOf returns the UUIDs of the MIG devices of an instance: containers and schedulers know
// these.
func uuidsOf(gi *gpu.GPUInstance) []gpu.MIGUUID {
	list := make([]gpu.MIGUUID, 0, len(gi.ComputeInstances))
	for c := range gi.ComputeInstances {
		if id := gi.ComputeInstances[c].UUID; id != "" {
			list = append(list, id)
		}
	}

	return list
}

// keyOf identifies a GPU over time: by its UUID or, if it has no handle and so no UUID, by its
// index.
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

// observe keeps what later Snapshots will not say about a GPU. It also decides whether the GPU was
// reset, so that earlier XIDs are over. The driver has no event for that; we take it as reset if
//
//   - it was down because it had to be reset, or unbound from the driver, and answers again,
//   - the driver asked for a recovery action, and asks for none any more, or
//   - its energy counter, which begins when the driver is loaded (nvml.h,
//     nvmlDeviceGetTotalEnergyConsumption), is lower than before.
func (m *gpuMemory) observe(g *gpu.GPU, at time.Time) {
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

	// XIDs that came while the GPU was down are from before the reset.
	lastBefore := m.readAt
	if m.downAt.After(lastBefore) {
		lastBefore = m.downAt
	}

	energy, hasEnergy := g.Readings.EnergyJoules.Get()
	if m.unbound || m.resetRequired || hasEnergy && energy < m.energy.Or(0) {
		m.recoverAt(lastBefore)
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

// recoverAt records that XIDs and events up to a time are over.
func (m *gpuMemory) recoverAt(at time.Time) {
	if at.After(m.recovered) {
		m.recovered = at
	}
}

// keeper carries over, from one Snapshot to the next, since when states and reasons hold. It drops
// those that are over.
type keeper struct {
	at      time.Time // of the Snapshot
	tracker *Tracker  // has the states and times up to the Snapshot before
	states  map[string]datedState
	since   map[string]time.Time
}

// dateReasons sets since when the reasons of a device hold: when we first saw them, or the earlier
// time that they have themselves. No time is later than the Snapshot, even if the clock was set
// back.
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
		known = datedState{state: v.State, since: k.at}
	}

	// A device that is new to us has had its state for as long as the oldest reason for it.
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
