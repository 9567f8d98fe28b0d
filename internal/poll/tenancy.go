package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// tenancy remembers since when a GPU's devices have been held by whom.
type tenancy struct {
	held map[tenant]stay
}

// tenant is one device of the GPU; instance and compute are absent for the whole GPU.
type tenant struct {
	instance   gpu.Opt[gpu.InstanceID]
	compute    gpu.Opt[gpu.ComputeID]
	generation uint64
}

type stay struct {
	by    gpu.Container
	since time.Time
}

// note writes into the GPU's exclusive holders since when they have held their device.
func (t *tenancy) note(g *gpu.GPU, now time.Time) {
	next := make(map[tenant]stay, len(t.held))
	mark := func(key tenant, holders []gpu.Holder) {
		holder := gpu.ExclusiveHolder(holders)
		if holder == nil {
			return
		}
		s, ok := t.held[key]
		if !ok || s.by != holder.Container {
			s = stay{by: holder.Container, since: now}
		}
		next[key] = s
		holder.Since = s.since
	}
	mark(tenant{}, g.Holders)
	for i := range g.Instances {
		gi := &g.Instances[i]
		mark(tenant{instance: gpu.Some(gi.ID), generation: gi.Generation}, gi.Holders)
		for c := range gi.Computes {
			ci := &gi.Computes[c]
			mark(tenant{instance: gpu.Some(gi.ID), compute: gpu.Some(ci.ID), generation: ci.Generation}, ci.Holders)
		}
	}
	t.held = next
}
