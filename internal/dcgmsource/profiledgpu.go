package dcgmsource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// profiledGPU is the state of profiling one GPU.
type profiledGPU struct {
	uuid    gpu.UUID
	device  Entity
	located bool          // the engine knows it
	search  retry.Backoff // while the engine does not know it
	wanted  bool          // it is to be profiled in this cycle

	layout       uint64           // the generation of the layout
	agreed       bool             // the engine's hierarchy shows the layout
	unsettledAt  time.Time        // when the layout or nodes last changed, or did not agree
	differsSince time.Time        // since when it does not; zero: it does
	nodes        []hierarchyNode  // GPU instances, then compute instances, by id
	nextNodes    []hierarchyNode  // mapInstances' buffer
	byLevel      [levels][]Entity // of the nodes that are watched
	hierarchyErr error            // why the hierarchy of its instances could not be read
	// ratiosFromInstances is set if package poll computes the GPU's ratios from its instances: we read
	// only its traffic.
	ratiosFromInstances bool

	own           *watch         // of the GPU alone, if GPUs are not watched together
	watches       [levels]*watch // of its instances
	retry         retry.Backoff  // of creating own and watches
	watchPaused   bool           // one was refused because profiling is paused
	loggedFailure string         // the last failure in the log

	pauseSeen time.Time // when the engine last showed that profiling is paused; zero: it is not
	blanks    blankRun

	activities []gpu.Activity // in this cycle, of each of nodes
}

// hierarchyNode is an instance in the engine's hierarchy.
type hierarchyNode struct {
	entity            Entity
	instance, compute uint32
	slices            int
	// fillsInstance is set for a compute instance with all slices of its GPU instance: it has the
	// same values, and is not watched.
	fillsInstance bool
}

// mapInstances maps the engine's hierarchy to the instances of the Snapshot. If the layout or the
// hierarchy has changed, or if the two do not agree, the watches of instances end at once: we use a
// value only if both have agreed for hierarchyLag. Nothing else tells an entity of the previous
// layout from one of the present layout, since ids are reused.
func (s *Source) mapInstances(p *profiledGPU, g *gpu.GPU, hasHierarchy bool, now time.Time) error {
	p.listNodes(s.hierarchy)
	p.ratiosFromInstances = g.MIG.Enabled.Or(false) &&
		slices.ContainsFunc(g.Instances, func(gi gpu.GPUInstance) bool { return !gi.IsEmpty() })

	p.hierarchyErr = nil
	if len(g.Instances) > 0 {
		p.hierarchyErr = s.hierarchyErr
	}

	unchanged := p.layout == g.MIG.LayoutGeneration && slices.Equal(p.nextNodes, p.nodes)

	p.agreed = hasHierarchy && matchesSnapshot(g, p.nextNodes)
	if p.agreed || !hasHierarchy {
		p.differsSince = time.Time{}
	} else if p.differsSince.IsZero() || p.layout != g.MIG.LayoutGeneration {
		p.differsSince = now
	}

	if unchanged && p.agreed {
		return nil
	}

	p.layout = g.MIG.LayoutGeneration
	p.unsettledAt = now
	p.nodes = append(p.nodes[:0], p.nextNodes...)

	for l := range p.byLevel {
		p.byLevel[l] = p.byLevel[l][:0]
	}

	for _, n := range p.nodes {
		if !n.fillsInstance {
			p.byLevel[n.entity.Level] = append(p.byLevel[n.entity.Level], n.entity)
		}
	}

	return s.releaseInstances(p)
}

// listNodes sets nextNodes to the GPU's instances in the engine's hierarchy.
func (p *profiledGPU) listNodes(hierarchy []MIGEntity) {
	p.nextNodes = p.nextNodes[:0]

	for i := range hierarchy {
		e := &hierarchy[i]
		if e.GPU != p.uuid {
			continue
		}

		n := hierarchyNode{entity: e.Entity, instance: e.Instance, slices: e.Slices}
		if e.Entity.Level == LevelCompute {
			n.compute = e.Compute
		}

		p.nextNodes = append(p.nextNodes, n)
	}

	slices.SortFunc(p.nextNodes, func(a, b hierarchyNode) int {
		return cmp.Or(
			cmp.Compare(a.entity.Level, b.entity.Level),
			cmp.Compare(a.instance, b.instance),
			cmp.Compare(a.compute, b.compute),
		)
	})
	markFilling(p.nextNodes)
}

// markFilling marks the compute instances that have all slices of their GPU instances: the same SMs,
// so the same values, except those of the memory, which no compute instance has.
func markFilling(nodes []hierarchyNode) {
	for i := range nodes {
		n := &nodes[i]
		if n.entity.Level != LevelCompute {
			continue
		}

		n.fillsInstance = n.slices != 0 && slices.ContainsFunc(nodes, func(gi hierarchyNode) bool {
			return gi.entity.Level == LevelInstance && gi.instance == n.instance &&
				gi.slices == n.slices
		})
	}
}

// isStale reports whether the hierarchy has differed from the layout for at least limit.
func (p *profiledGPU) isStale(now time.Time, limit time.Duration) bool {
	return !p.differsSince.IsZero() && now.Sub(p.differsSince) >= limit
}

// hasSettled reports whether the instances may be watched: hierarchyLag has passed, and so has
// an interval, so that the window of every value began in this layout.
func (s *Source) hasSettled(p *profiledGPU, now time.Time) bool {
	return p.agreed && now.Sub(p.unsettledAt) >= max(hierarchyLag, s.opts.Interval)
}

// matchesSnapshot reports whether the hierarchy has exactly the instances of the Snapshot, by ids
// and, if known, slices. A process without the privilege to list GPU instances (and so without
// their placements) does not see those without compute instances.
func matchesSnapshot(g *gpu.GPU, nodes []hierarchyNode) bool {
	hidden := true // no placement is known: this process may not list GPU instances
	count := 0

	for i := range g.Instances {
		gi := &g.Instances[i]
		hidden = hidden && !gi.Placement.Present()

		if !listsOnce(nodes, LevelInstance, uint32(gi.ID), 0, gi.ComputeSlices) {
			return false
		}

		for c := range gi.ComputeInstances {
			ci := &gi.ComputeInstances[c]
			if !listsOnce(nodes, LevelCompute, uint32(gi.ID), uint32(ci.ID), ci.ComputeSlices) {
				return false
			}
		}

		count += 1 + len(gi.ComputeInstances)
	}

	for _, n := range nodes {
		if hidden && n.entity.Level == LevelInstance && isEmpty(nodes, n.instance) &&
			!hasInstance(g, n.instance) {
			count++
		}
	}

	return count == len(nodes)
}

// listsOnce reports whether an instance is among the nodes, once, with the wanted slices.
func listsOnce(nodes []hierarchyNode, l Level, instance, compute uint32, want gpu.Opt[int]) bool {
	found := 0

	for _, n := range nodes {
		if n.entity.Level == l && n.instance == instance && n.compute == compute {
			found++

			if wanted, ok := want.Get(); ok && n.slices != 0 && n.slices != wanted {
				return false
			}
		}
	}

	return found == 1
}

func hasInstance(g *gpu.GPU, instance uint32) bool {
	return slices.ContainsFunc(g.Instances, func(gi gpu.GPUInstance) bool {
		return uint32(gi.ID) == instance
	})
}

// isEmpty reports whether a GPU instance has no compute instance.
func isEmpty(nodes []hierarchyNode, instance uint32) bool {
	return !slices.ContainsFunc(nodes, func(n hierarchyNode) bool {
		return n.entity.Level == LevelCompute && n.instance == instance
	})
}

// profileGPU watches what is not watched yet and reads what is. It returns false if nothing is
// watched, unless that is because profiling is paused.
func (s *Source) profileGPU(p *profiledGPU, now time.Time) (gpu.Profiling, bool, error) {
	failed := s.retryWatches(p, now)
	if isLost(failed) {
		return gpu.Profiling{}, false, failed
	}

	p.activities = slices.Grow(p.activities[:0], len(p.nodes))[:len(p.nodes)]
	clear(p.activities)

	result := gpu.Profiling{LayoutGeneration: p.layout, Source: gpu.ActivityDCGM}
	r := reading{gpu: p, result: &result, oldest: s.oldestValue(now)}
	watched := false

	for _, w := range [...]*watch{s.shared, p.own, p.watches[LevelInstance], p.watches[LevelCompute]} {
		if w == nil {
			continue
		}

		watched = true

		// One watch that fails does not cost the others their values.
		if err := s.readWatch(&r, w); err != nil {
			if isLost(err) {
				return gpu.Profiling{}, false, err
			}

			failed = err
		}
	}

	result.Paused = s.isPaused(p, &r, failed, now)

	if failed == nil {
		failed = p.hierarchyErr
	}

	if failed == nil && p.isStale(now, hierarchyTimeout) {
		failed = s.explainStale()
	}

	if failed != nil {
		s.logFailure(p, failed)
	} else if p.retry.Next.IsZero() { // no attempt to create a watch is postponed
		p.loggedFailure = ""
	}

	r.finish()

	return result, watched || result.Paused, nil
}

// retryWatches creates the watches that are missing, if an attempt is due.
func (s *Source) retryWatches(p *profiledGPU, now time.Time) error {
	if !p.retry.IsDue(now) {
		return nil
	}

	err := s.createWatches(p, now)

	p.watchPaused = errors.Is(err, ErrPaused)
	if err == nil || p.watchPaused { // a pause may end at any time: we try again in each cycle
		p.retry = retry.Backoff{}
	} else {
		p.retry.Postpone(now, minBackoff, maxBackoff)
	}

	return err
}

// isPaused reports whether a GPU has no ratios because profiling is paused: a refused watch or new
// blanks show that. While all watches are too new to show anything, as after a layout change, the
// last answer holds for a while. It also holds if the call hung for so long that what it read is
// out of date.
func (s *Source) isPaused(p *profiledGPU, r *reading, failed error, now time.Time) bool {
	shown := p.blanks.add(r, s.opts.Interval, !p.pauseSeen.IsZero())
	hung := r.oldest > now.UnixMicro()

	switch {
	case r.hasRatio:
		p.pauseSeen = time.Time{}

	case shown || s.pausedInCycle || p.watchPaused || errors.Is(failed, ErrPaused):
		p.pauseSeen = now

	case r.mature && !hung:
		p.pauseSeen = time.Time{} // the watches had the time to show a pause, and show none

	case now.Sub(p.pauseSeen) >= hierarchyTimeoutEmbedded+staleIntervals*s.opts.Interval:
		p.pauseSeen = time.Time{} // the watches should show something by now
	}

	return !p.pauseSeen.IsZero()
}

// blankRun follows the samples of a GPU's ratios from the last value through the blanks after it.
// The zero blankRun has seen no sample.
//
// An engine that was stopped (SIGSTOP), or blocked by a GPU that hung, drops its old samples when
// it goes on (PruneOldSamples: DcgmGpmManager.cpp of DCGM 4). Its first samples then have nothing
// to be compared with and are blanks, as those of a new watch are. They look like those of paused
// profiling.
type blankRun struct {
	newest int64 // sample, in microseconds since 1970; 0: the last cycle had none
	// since is the first blank after a break in the samples; 0: there was no break since the last
	// value
	since int64
}

// add adds what a cycle read, and reports whether it shows that profiling is paused: by blanks that
// follow a value without a break, or that last longer than the blanks of a new watch. If a pause is
// known already, any blank shows that it goes on.
func (b *blankRun) add(r *reading, interval time.Duration, paused bool) bool {
	if !r.hasRatio && r.newestBlank == 0 {
		*b = blankRun{}
		return false
	}

	newest := max(r.newest, r.newestBlank)
	unbroken := b.newest != 0 && newest-b.newest <= (interval+updateLag).Microseconds()
	b.newest = newest

	if r.hasRatio {
		b.since = 0
		return false
	}

	if b.since == 0 && !unbroken {
		b.since = r.newestBlank
	}

	// A new watch has blanks until the engine has sampled three times.
	return paused || b.since == 0 || r.newestBlank-b.since >= (3*interval+updateLag).Microseconds()
}

// explainStale says what to do about an engine that does not follow a change.
func (s *Source) explainStale() error {
	switch {
	case s.cannotStart:
		return fmt.Errorf(
			"map instances: %w: %w: the DCGM in this process is not started again, as it would not start "+
				"while a GPU is in MIG mode",
			ErrStale,
			ErrRequiresRoot,
		)
	case s.opts.Mode == ModeEmbedded:
		return fmt.Errorf(
			"map instances: %w: embedded DCGM was restarted and still does not follow; restart this program",
			ErrStale,
		)
	}

	return fmt.Errorf(
		"map instances: %w: it has not followed a change for %s; restart the nv-hostengine at %s",
		ErrStale,
		hierarchyTimeout,
		s.opts.Address,
	)
}

// createWatches watches the GPU if GPUs are not watched together, and the instances as soon as they
// have settled.
func (s *Source) createWatches(p *profiledGPU, now time.Time) error {
	var failed error

	// create goes on after one watch has failed, unless the connection is lost.
	create := func(w **watch, l Level, entities []Entity) {
		if *w != nil || len(entities) == 0 || failed != nil && isLost(failed) {
			return
		}

		created, err := s.createWatch(l, entities)
		if err != nil {
			failed = err
			return
		}

		*w = created
	}

	if s.cannotShare {
		create(&p.own, LevelGPU, []Entity{p.device})
	}

	if s.hasSettled(p, now) {
		create(&p.watches[LevelInstance], LevelInstance, p.byLevel[LevelInstance])
		create(&p.watches[LevelCompute], LevelCompute, p.byLevel[LevelCompute])
	}

	return failed
}
