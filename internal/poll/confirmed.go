package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// unlessListed makes unknown whether a device is allocated if only its absence in the list of holders says that it is
// free, and it was first seen after that list was asked for: an older list says nothing of it.
func unlessListed(gpus []gpu.GPU, asked time.Time) {
	free, unknown := gpu.Some(false), gpu.None[bool]()
	for i := range gpus {
		g := &gpus[i]
		for k := range g.Instances {
			gi := &g.Instances[k]
			anyNew := gi.Since.After(asked)
			for c := range gi.ComputeInstances {
				ci := &gi.ComputeInstances[c]
				if ci.Since.After(asked) && ci.Allocated == free {
					ci.Allocated = unknown
					anyNew = true
				}
			}

			if anyNew && gi.Allocated == free {
				gi.Allocated = unknown
			}
			if gi.Allocated == unknown && g.Allocated == free {
				g.Allocated = unknown
			}
		}
	}
}

// markConfirmedFree marks the free devices as confirmed. It is called while the holders are not completely known: then
// a device counts as free only because an operator has confirmed it.
func markConfirmedFree(gpus []gpu.GPU) {
	free := gpu.Some(false)
	for i := range gpus {
		g := &gpus[i]
		g.ConfirmedFree = g.Allocated == free
		for k := range g.Instances {
			gi := &g.Instances[k]
			gi.ConfirmedFree = gi.Allocated == free
			for c := range gi.ComputeInstances {
				gi.ComputeInstances[c].ConfirmedFree = gi.ComputeInstances[c].Allocated == free
			}
		}
	}
}
