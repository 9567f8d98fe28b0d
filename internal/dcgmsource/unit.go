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
	id      gpu.UUID
	device  Entity
	located bool // the engine knows it
	wanted  bool

	layout  uint64           // the generation of the layout
	since   time.Time        // since when layout and nodes are the same and agree
	agreed  bool             // the engine's hierarchy shows the layout
	differs time.Time        // since when it does not; zero: it does
	nodes   []hierarchyNode  // GPU instances, then compute instances, by id
	next    []hierarchyNode  // reused
	byLevel [levels][]Entity // of the nodes that are watched
	// rolled is set if package poll computes the GPU's activity from its instances: we read only its
	// traffic.
	rolled bool
	unread error // why the hierarchy of its instances could not be read

	own     *watch // of the GPU alone, if GPUs are not watched together
	watches [levels]*watch
	retry   retry.Backoff
	refused bool      // a watch was refused because profiling is paused
	logged  string    // the last failure in the log
	paused  time.Time // when the engine last showed that profiling is paused; zero: it is not
	blanks  blankRun

	read []gpu.Activity // in this cycle, of each of nodes
}

// hierarchyNode is an instance in the engine's hierarchy.
type hierarchyNode struct {
	entity            Entity
	instance, compute uint32
	slices            int
	// whole is set for a compute instance with all slices of its GPU instance: it has the same
	// values, and is not watched.
	whole bool
}

// mapInstances maps the engine's hierarchy to the instances of the Snapshot. If the layout or the
// hierarchy has changed, or if the two do not agree, the watches of instances end at once: we use a
// value only if both have agreed for the settle time. Nothing else tells an entity of the previous
// layout from one of the present layout, since ids are reused.
func (s *Source) mapInstances(u *profiledGPU, g *gpu.GPU, hasHierarchy bool, now time.Time) error {
	u.next = u.next[:0]
	for i := range s.tree {
		if e := &s.tree[i]; e.GPU == u.id {
			n := hierarchyNode{entity: e.Entity, instance: e.Instance, slices: e.Slices}
			if e.Entity.Level == LevelCompute {
				n.compute = e.Compute
			}

			u.next = append(u.next, n)
		}
	}

	slices.SortFunc(u.next, func(a, b hierarchyNode) int {
		return cmp.Or(
			cmp.Compare(a.entity.Level, b.entity.Level),
			cmp.Compare(a.instance, b.instance),
			cmp.Compare(a.compute, b.compute),
		)
	})
	markWhole(u.next)
	u.rolled = g.MIG.Enabled.Or(false) &&
		slices.ContainsFunc(g.Instances, func(gi gpu.GPUInstance) bool { return !gi.IsEmpty() })

	u.unread = nil
	if len(g.Instances) > 0 {
		u.unread = s.treeErr
	}

	same := u.layout == g.MIG.LayoutGeneration && slices.Equal(u.next, u.nodes)

	u.agreed = hasHierarchy && matchesSnapshot(g, u.next)
	if u.agreed || !hasHierarchy {
		u.differs = time.Time{}
	} else if u.differs.IsZero() || u.layout != g.MIG.LayoutGeneration {
		u.differs = now
	}

	if same && u.agreed {
		return nil
	}

	u.layout = g.MIG.LayoutGeneration
	u.since = now
	u.nodes = append(u.nodes[:0], u.next...)

	for l := range u.byLevel {
		u.byLevel[l] = u.byLevel[l][:0]
	}

	for _, n := range u.nodes {
		if !n.whole {
			u.byLevel[n.entity.Level] = append(u.byLevel[n.entity.Level], n.entity)
		}
	}

	return s.releaseInstances(u)
}

// markWhole marks the compute instances that have all slices of their GPU instances: the same SMs,
// so the same values, except those of the memory, which no compute instance has.
func markWhole(nodes []hierarchyNode) {
	for i := range nodes {
		n := &nodes[i]
		if n.entity.Level != LevelCompute {
			continue
		}

		n.whole = n.slices != 0 && slices.ContainsFunc(nodes, func(gi hierarchyNode) bool {
			return gi.entity.Level == LevelInstance && gi.instance == n.instance &&
				gi.slices == n.slices
		})
	}
}

// isStale reports whether the hierarchy has differed from the layout for at least limit.
func (u *profiledGPU) isStale(now time.Time, limit time.Duration) bool {
	return !u.differs.IsZero() && now.Sub(u.differs) >= limit
}

// hasSettled reports whether the instances may be watched: the settle time has passed, and so has
// an interval, so that the window of every value began in this layout.
func (s *Source) hasSettled(u *profiledGPU, now time.Time) bool {
	return u.agreed && now.Sub(u.since) >= max(settleTime, s.opts.Interval)
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
// watched.
func (s *Source) profileGPU(u *profiledGPU, now time.Time) (gpu.Profiling, bool, error) {
	var failed error
	if u.retry.IsDue(now) {
		failed = s.watchUnit(u, now)
		if isLost(failed) {
			return gpu.Profiling{}, false, failed
		}

		u.refused = errors.Is(failed, ErrPaused)
		if failed == nil || u.refused {
			u.retry = retry.Backoff{}
		} else {
			u.retry.Postpone(now, minBackoff, maxBackoff)
		}
	}

	p := gpu.Profiling{LayoutGeneration: u.layout, Source: gpu.ActivityDCGM}
	u.read = slices.Grow(u.read[:0], len(u.nodes))[:len(u.nodes)]
	clear(u.read)
	watched := false
	r := reading{unit: u, into: &p, oldest: s.oldestValue(now)}

	for _, w := range [...]*watch{s.shared, u.own, u.watches[LevelInstance], u.watches[LevelCompute]} {
		if w == nil {
			continue
		}

		watched = true

		if err := s.readWatch(&r, w); err != nil {
			if isLost(err) {
				return gpu.Profiling{}, false, err
			}

			failed = err
		}
	}

	p.Paused = s.isPaused(u, &r, failed, now)
	if failed == nil {
		failed = u.unread
	}

	if failed == nil && u.isStale(now, hierarchyTimeout) {
		failed = s.explainStale()
	}

	switch {
	case failed != nil:
		s.logFailure(u, failed)
	case u.retry.Next.IsZero():
		u.logged = ""
	}

	r.finish()

	return p, watched || p.Paused, nil
}

// isPaused reports whether a GPU has no ratios because profiling is paused: a refused watch or new
// blanks show that. While all watches are too new to show anything, as after a layout change, the
// last answer holds for a while. It also holds if the call hung for so long that what it read is
// out of date.
func (s *Source) isPaused(u *profiledGPU, r *reading, failed error, now time.Time) bool {
	shown := u.blanks.add(r, s.opts.Interval, !u.paused.IsZero())
	hung := r.oldest > now.UnixMicro()

	switch {
	case r.ratio:
		u.paused = time.Time{}
	case shown || s.refused || u.refused || errors.Is(failed, ErrPaused):
		u.paused = now
	case r.mature && !hung || now.Sub(u.paused) >= hierarchyTimeoutEmbedded+staleIntervals*s.opts.Interval:
		u.paused = time.Time{}
	}

	return !u.paused.IsZero()
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
	if !r.ratio && r.blank == 0 {
		*b = blankRun{}
		return false
	}

	newest := max(r.newest, r.blank)
	unbroken := b.newest != 0 && newest-b.newest <= (interval+updateLag).Microseconds()
	b.newest = newest

	if r.ratio {
		b.since = 0
		return false
	}

	if b.since == 0 && !unbroken {
		b.since = r.blank
	}

	// A new watch has blanks until the engine has sampled three times.
	return paused || b.since == 0 || r.blank-b.since >= (3*interval+updateLag).Microseconds()
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

// watchUnit watches the GPU if GPUs are not watched together, and the instances as soon as they
// have settled.
func (s *Source) watchUnit(u *profiledGPU, now time.Time) error {
	var failed error

	try := func(w **watch, l Level, entities []Entity) {
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
	if s.split {
		try(&u.own, LevelGPU, []Entity{u.device})
	}

	if s.hasSettled(u, now) {
		try(&u.watches[LevelInstance], LevelInstance, u.byLevel[LevelInstance])
		try(&u.watches[LevelCompute], LevelCompute, u.byLevel[LevelCompute])
	}

	return failed
}
