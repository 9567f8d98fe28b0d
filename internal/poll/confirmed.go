package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

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
