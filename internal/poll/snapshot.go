package poll

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// buildSnapshot returns a Snapshot of everything that the loop knows. The loop will modify nothing
// that the Snapshot points to.
func (p *Poller) buildSnapshot(now time.Time) *gpu.Snapshot {
	p.generation++
	s := &gpu.Snapshot{Generation: p.generation, Time: now, Hostname: p.opts.Hostname}
	up := p.driverErr == nil

	s.Sources = append(s.Sources, gpu.SourceState{
		Name: gpu.SourceNVML,
		Up:   up,
		Stale: !up && !p.driverAnsweredAt.IsZero() &&
			now.Sub(p.driverAnsweredAt) < p.staleAfter(),
		LastSuccess: p.driverAnsweredAt,
		Err:         p.driverErr,
	})
	if p.inventory.Driver != (gpu.Driver{}) {
		s.Driver = gpu.Some(p.inventory.Driver)
	}

	s.Sources = append(s.Sources, p.pods.sources()...)
	if p.opts.Sources != nil {
		s.Sources = append(s.Sources, p.opts.Sources()...)
	}

	s.Sources = append(s.Sources, p.profiling.sources(gpu.SourceDCGM)...)
	s.Sources = append(s.Sources, p.jobs.sources(gpu.SourceJobs)...)

	if p.opts.KernelLog != nil {
		s.Sources = append(s.Sources, p.log.state)
	}

	s.GPUs, s.Unread = p.listGPUs(now)

	if p.opts.Jobs != nil {
		attachJobs(s.GPUs, p.jobs.last, p.jobs.readAt)
	}

	switch {
	case p.pods.known:
		p.addPods(s)
	case errors.Is(p.pods.err, gpu.ErrNoKubelet):
		allocateWithoutKubelet(s.GPUs)
	}

	// What containers use depends on the holders.
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if t := p.gpus[g.UUID]; t != nil {
			t.exclusive.update(g, t.energyCounter.Present(), now)
			g.Containers = t.exclusive.collectUses(
				g,
				p.opts.Containers,
				t.isStale(now, p.staleAfter()),
			)
		}
	}

	s.Processes = p.opts.Processes
	for i := range s.GPUs {
		p.describeProcesses(&s.GPUs[i])
	}

	hideReleasedLayouts(s.GPUs) // only now: addPods needs the layouts

	if p.opts.Servers != nil {
		s.Servers = p.opts.Servers()
	}

	s.HungCalls = p.hungCalls()
	s.Pace = p.pacer.pace()

	return s
}

// addPods stores the holders that the kubelet has named.
func (p *Poller) addPods(s *gpu.Snapshot) {
	unmatched := attachHolders(s.GPUs, p.pods.last, p.pods.success, p.opts.Containers)

	// We report unmatched assignments only once we have read every GPU: the device may be on one
	// that we have not read.
	neverRead := slices.ContainsFunc(
		s.GPUs,
		func(g gpu.GPU) bool { return g.Released.Present() && g.LastRead.IsZero() },
	)
	if !p.driverAnsweredAt.IsZero() && len(s.Unread) == 0 && !neverRead {
		s.Unmatched = unmatched
	}

	// Without a configured kubelet there is no list that a witness could complete.
	if !errors.Is(p.pods.err, gpu.ErrNotConfigured) {
		s.Witness = gpu.Some(p.pods.last.Witness)
	}

	s.HoldersIncomplete = p.pods.last.Incomplete
	if s.HoldersIncomplete != "" {
		markConfirmedFree(s.GPUs)
	}
}

// hideReleasedLayouts removes the MIG mode and the layout of released GPUs: another user may have
// changed them since.
func hideReleasedLayouts(gpus []gpu.GPU) {
	for i := range gpus {
		if g := &gpus[i]; g.Released.Present() {
			g.Instances = nil
			g.MIG.Enabled = gpu.None[bool]()
		}
	}
}

// hungCalls returns the number of driver calls that have not returned in time.
func (p *Poller) hungCalls() int {
	n := 0
	if p.opts.HungElsewhere != nil {
		n = p.opts.HungElsewhere()
	}

	now := p.opts.Now()
	for id, t := range p.gpus {
		if p.isReadingHung(id, t, now) {
			n++
		}
	}

	for _, t := range p.missing {
		if t.hangCounted {
			n++
		}
	}

	if p.discovery.isHung(now, p.opts.Timeout) {
		n++
	}

	if p.profiling.call.isHung(now, p.opts.Timeout) {
		n++
	}

	return n
}

// listGPUs returns every GPU that has answered or failed, by index, and in unread the indexes of
// those whose first reading or lookup is under way. A lost GPU comes after the GPU that has its
// index now.
func (p *Poller) listGPUs(now time.Time) (list []gpu.GPU, unread []int) {
	list = make([]gpu.GPU, 0, len(p.gpus)+len(p.missing))
	for _, t := range p.gpus {
		if t.last.LastRead.IsZero() && len(t.failure) == 0 && !t.released.Present() {
			unread = append(unread, t.last.Index)
			continue
		}

		g := t.snapshotGPU(now, p.staleAfter())
		if !p.xidsAreKnown(t) {
			g.Totals.XIDs = gpu.Counter{}
		}

		list = append(list, g)
	}

	for _, t := range p.missing {
		if len(t.failure) == 0 {
			unread = append(unread, t.last.Index)
			continue
		}

		list = append(list, t.snapshotGPU(now, p.staleAfter()))
	}

	slices.SortFunc(list, func(a, b gpu.GPU) int {
		return cmp.Or(
			cmp.Compare(a.Index, b.Index),
			cmp.Compare(p.displacedRank(a.UUID), p.displacedRank(b.UUID)),
			cmp.Compare(a.UUID, b.UUID),
		)
	})
	slices.Sort(unread)

	return list, unread
}

// displacedRank returns 1 for a lost GPU whose index another GPU has, else 0.
func (p *Poller) displacedRank(id gpu.UUID) int {
	if t := p.gpus[id]; t != nil && !t.displacedSince.IsZero() {
		return 1
	}

	return 0
}

// snapshotGPU returns a copy of the GPU for a Snapshot, without its readings if they are stale.
func (t *trackedGPU) snapshotGPU(now time.Time, staleAfter time.Duration) gpu.GPU {
	g := t.last
	g.Up = t.up

	if !t.up {
		g.Errors = t.failure
	}

	g.Totals = t.totals
	if g.ReportsUnavailable {
		g.Totals.Unavailable = gpu.Some(t.unavailable)
	}

	if g.ReportsRecovery {
		g.Totals.RecoveryActions = gpu.Some(t.recoveryActions)
	}

	if !t.hasMIG {
		g.Totals.LayoutChanges = gpu.Counter{}
	}

	g.Totals.XIDErrors = slices.Clone(t.totals.XIDErrors)
	g.Totals.GPUXIDs = slices.Clone(t.totals.GPUXIDs)
	g.Totals.ReadErrors = slices.Clone(t.totals.ReadErrors)
	g.Totals.ClockEvents = slices.Clone(t.totals.ClockEvents)

	g.Instances = cloneInstances(g.Instances)
	for i := range g.Instances {
		gi := &g.Instances[i]
		gi.XIDErrors = slices.Clone(findInstance(t.layout.instances, gi.ID).XIDErrors)
		gi.Up = gi.Up && t.up

		for c := range gi.ComputeInstances {
			gi.ComputeInstances[c].Up = gi.ComputeInstances[c].Up && t.up
		}
	}

	g.Released = t.released
	if t.isStale(now, staleAfter) || g.Released.Present() {
		dropReadings(&g)
	}

	return g
}

// isStale reports whether the GPU is down and its last reading older than staleAfter.
func (t *trackedGPU) isStale(now time.Time, staleAfter time.Duration) bool {
	return !t.up && now.Sub(t.receivedAt) >= staleAfter
}

// dropReadings removes the readings of a GPU, which must not stay at 98 % for hours while it hangs.
// It keeps identity, facts, error counts, and the last MIG mode and layout.
func dropReadings(g *gpu.GPU) {
	noCounter := gpu.None[gpu.Counter]()
	g.Readings = gpu.Readings{}
	g.Activity = gpu.Activity{}
	g.ActivitySource = gpu.ActivityUnknown
	g.ActivityRollup = false
	g.Rates = gpu.LinkRates{}
	g.MIG.Pending = gpu.None[bool]()
	g.Capacity = gpu.None[gpu.Capacity]()
	g.Power = gpu.PowerEstimate{}
	g.Totals.ClockEvents = nil
	g.Totals.PCIeReceive = noCounter
	g.Totals.PCIeTransmit = noCounter
	g.Totals.NVLinkReceive = noCounter
	g.Totals.NVLinkTransmit = noCounter
	g.Totals.EnergyUnallocatedJoules = noCounter

	for i := range g.Instances {
		dropInstanceReadings(&g.Instances[i])
	}
}

func dropInstanceReadings(gi *gpu.GPUInstance) {
	gi.Memory = gpu.Memory{}
	gi.Activity = gpu.Activity{}
	gi.Media = gpu.Media{}
	gi.Rates = gpu.LinkRates{}
	gi.Processes = gpu.None[int]()
	gi.PowerWatts = gpu.None[float64]()
	gi.EnergyJoules = gpu.None[gpu.Counter]()

	for c := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[c]
		ci.ECC = nil
		ci.Processes = gpu.None[int]()
		ci.Activity = gpu.Activity{}
		ci.PowerWatts = gpu.None[float64]()
	}
}
