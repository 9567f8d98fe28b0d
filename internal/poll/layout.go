package poll

import (
	"errors"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// layoutTracker follows a GPU's GPU and compute instances over time. Ids and UUIDs are reused after a layout change: an
// instance keeps its generation only while every reading has it unchanged.
type layoutTracker struct {
	generation uint64 // 0: the tree has not been seen yet
	tree       []instanceNode
}

// instanceNode identifies a GPU instance and its compute instances within a layout.
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

// matches reports whether both are the same instance. A placement is compared only if both are known: the right to see
// placements may be lost.
func (a instanceNode) matches(b instanceNode) bool {
	placed := a.placement.Present() && b.placement.Present()
	return a.id == b.id && a.profile == b.profile && (!placed || a.placement == b.placement)
}

func (a computeNode) matches(b computeNode) bool {
	return a.id == b.id && a.uuid == b.uuid && a.profile == b.profile
}

// update sets the generations of the instances of g and reports whether the layout changed; the first layout is no
// change.
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
			compute := computeNode{id: ci.ID, uuid: ci.UUID, profile: ci.Profile, generation: next, since: at}
			if known := l.findCompute(old, compute); known != nil {
				compute.generation, compute.since = known.generation, known.since
			} else {
				changed = true
			}
			ci.Generation, ci.Since = compute.generation, compute.since
			node.computeInstances = append(node.computeInstances, compute)
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

// hiddenNodes returns the instances that the reading cannot have seen: without the right to list GPU instances, those
// without a compute instance do not show. They count as unchanged until they can be seen again.
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

// mayLackInstances reports whether a reading may have left out GPU instances because of missing permission.
func mayLackInstances(g *gpu.GPU) bool {
	return slices.ContainsFunc(g.Errors, func(e gpu.ReadError) bool {
		return e.Reading == gpu.ReadingMIG && errors.Is(e.Err, gpu.ErrNoPermission)
	})
}

// findCompute returns the matching compute instance of the previous layout's node with an index; nil if there is none
// or the index is -1.
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

// get returns what could still be created on g; absent if the profiles or the placements are not known. While MIG is
// off nothing can be created and there are no slices: only the maximum of each profile is set.
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
