package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// markConfirmedFree marks the devices that are free. It is for GPUs of which it is not known who holds them: no device is free then but by
// an operator's confirmation.
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
