package poll

import (
	"errors"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// layoutTracker follows a GPU's GI/CI tree over time. Ids and UUIDs are reused after a layout change: an instance keeps its generation
// only while it stands unchanged in every reading.
type layoutTracker struct {
	generation uint64 // 0: the tree has not been seen yet
	tree       []instanceNode
}

// instanceNode is what identifies one GPU instance and its compute instances within one layout.
type instanceNode struct {
	id               gpu.InstanceID
	profile          string
	placement        gpu.Opt[gpu.Placement]
	generation       uint64
	since            time.Time
	computeInstances []computeNode
}

type computeNode struct {
	id         gpu.ComputeID
	uuid       gpu.MIGUUID
	profile    string
	generation uint64
	since      time.Time
}

// matches reports whether two are one instance. A placement that is not told (the right to see it was lost) agrees with any.
func (a instanceNode) matches(b instanceNode) bool {
	placed := a.placement.Present() && b.placement.Present()
	return a.id == b.id && a.profile == b.profile && (!placed || a.placement == b.placement)
}

func (a computeNode) matches(b computeNode) bool {
	return a.id == b.id && a.uuid == b.uuid && a.profile == b.profile
}

// update writes the generations into g and reports whether the tree differs from the one before; the first is no change.
func (l *layoutTracker) update(g *gpu.GPU, at time.Time) bool {
	first := l.generation == 0
	next := l.generation + 1
	hidden := l.hiddenNodes(g)
	changed := first || len(g.Instances)+len(hidden) != len(l.tree)
	tree := make([]instanceNode, len(g.Instances))
	for i := range g.Instances {
		gi := &g.Instances[i]
		node := instanceNode{id: gi.ID, profile: gi.Profile, placement: gi.Placement, generation: next, since: at}
		old := slices.IndexFunc(l.tree, node.matches)
		if old >= 0 {
			node.generation, node.since = l.tree[old].generation, l.tree[old].since
			changed = changed || len(gi.ComputeInstances) != len(l.tree[old].computeInstances)
		} else {
			changed = true
		}
		for c := range gi.ComputeInstances {
			ci := &gi.ComputeInstances[c]
			cn := computeNode{id: ci.ID, uuid: ci.UUID, profile: ci.Profile, generation: next, since: at}
			if was := l.findCompute(old, cn); was != nil {
				cn.generation, cn.since = was.generation, was.since
			} else {
				changed = true
			}
			ci.Generation, ci.Since = cn.generation, cn.since
			node.computeInstances = append(node.computeInstances, cn)
		}
		gi.Generation, gi.Since = node.generation, node.since
		tree[i] = node
	}
	if changed {
		l.generation, l.tree = next, append(tree, hidden...)
	}
	g.MIG.LayoutGeneration = l.generation
	return changed && !first
}

// hiddenNodes are the nodes that a reading cannot have seen: the right to list GPU instances was lost, and without it those
// that have no compute instance do not show. They count as unchanged until they could be seen again.
func (l *layoutTracker) hiddenNodes(g *gpu.GPU) []instanceNode {
	if !mayLackInstances(g) {
		return nil
	}
	var list []instanceNode
	for _, node := range l.tree {
		seen := slices.ContainsFunc(g.Instances, func(gi gpu.GPUInstance) bool { return gi.ID == node.id })
		if len(node.computeInstances) == 0 && !seen {
			list = append(list, node)
		}
	}
	return list
}

// mayLackInstances reports whether a reading may have left out GPU instances for lack of a right.
func mayLackInstances(g *gpu.GPU) bool {
	return slices.ContainsFunc(g.Errors, func(e gpu.ReadError) bool {
		return e.Reading == gpu.ReadingMIG && errors.Is(e.Err, gpu.ErrNoPermission)
	})
}

// findCompute finds a compute instance in the node at an index of the tree before, -1 for none.
func (l *layoutTracker) findCompute(node int, c computeNode) *computeNode {
	if node < 0 {
		return nil
	}
	if i := slices.IndexFunc(l.tree[node].computeInstances, c.matches); i >= 0 {
		return &l.tree[node].computeInstances[i]
	}
	return nil
}

// capacityCache computes a GPU's capacity once per layout.
type capacityCache struct {
	generation uint64
	profiles   int
	enabled    bool
	value      gpu.Capacity
}

// get returns what could still be created on g, absent where the profiles or what is placed are not known. While MIG is off
// nothing can be created, and there are no slices: only what the empty GPU could hold is told.
func (c *capacityCache) get(g *gpu.GPU) gpu.Opt[gpu.Capacity] {
	enabled, hasMIG := g.MIG.Enabled.Get()
	placeable := slices.ContainsFunc(g.Profiles, func(p gpu.Profile) bool { return len(p.Placements) > 0 })
	if !hasMIG || !placeable || mayLackInstances(g) || g.MIG.LayoutGeneration == 0 {
		return gpu.None[gpu.Capacity]()
	}
	if c.generation == g.MIG.LayoutGeneration && c.profiles == len(g.Profiles) && c.enabled == enabled {
		return gpu.Some(c.value)
	}
	placed := make([]mig.Placed, 0, len(g.Instances))
	for i := range g.Instances {
		gi := &g.Instances[i]
		at, ok := gi.Placement.Get()
		id, idOK := gi.ProfileID.Get()
		if !ok || !idOK {
			return gpu.None[gpu.Capacity]()
		}
		placed = append(placed, mig.Placed{ProfileID: id, Profile: gi.Profile, Placement: at})
	}
	c.generation, c.profiles, c.enabled = g.MIG.LayoutGeneration, len(g.Profiles), enabled
	c.value = mig.CapacityOf(g.Profiles, placed)
	if !enabled {
		c.value.Compute, c.value.Memory = gpu.SliceCount{}, gpu.SliceCount{}
		for i := range c.value.Profiles {
			c.value.Profiles[i].Available = 0
		}
	}
	return gpu.Some(c.value)
}
