package advise

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// countSlices corrects a packing for the single strategy: all GPUs of the node are partitioned, so
// that a GPU that nothing holds afterwards is no whole GPU either. It becomes free slices.
func (r *Report) countSlices(gpus []gpu.GPU) {
	if r.Packing == nil || !r.SingleStrategy {
		return
	}

	r.Packing.FreedGPUs = []int{}
	profile := r.Packing.Profile()

	if profile == "" {
		return // nothing was placed
	}

	for i := range gpus {
		g := &gpus[i]

		used := slices.ContainsFunc(r.Packing.GPUs, func(p PackedGPU) bool { return p.GPU == g.UUID })
		if !used && r.ofWhole(g.UUID) != nil {
			r.Packing.FreeSlices += maxInstances(g, profile)
		}
	}
}
