package advise

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Layout is the layout that a GPU should have.
type Layout struct {
	GPU   gpu.UUID
	Index int
	// Whole counts the GPU instances with one compute instance of all their slices, by profile.
	Whole map[string]int
	// Splits lists the sizes of the compute instances, such as "1c", of each other GPU instance, by
	// profile.
	Splits map[string][][]string
}

// Layouts returns the layouts of the GPUs that get slices by the packing: their instances and the new
// slices. Under the single strategy every other GPU gets as many slices of the same profile as fit.
func (r *Report) Layouts(gpus []gpu.GPU) ([]Layout, error) {
	if r.Packing == nil {
		return nil, nil
	}

	var list []Layout

	for i := range gpus {
		g := &gpus[i]

		at := slices.IndexFunc(r.Packing.GPUs, func(p PackedGPU) bool { return p.GPU == g.UUID })
		if at < 0 && !r.SingleStrategy {
			continue
		}

		l, err := layoutOf(g)
		if err != nil {
			return nil, err
		}

		if at < 0 {
			profile := r.Packing.Profile()
			l.Whole[profile] = maxInstances(g, profile)
		} else {
			for _, s := range r.Packing.GPUs[at].Slices {
				if !s.Exists {
					l.Whole[s.Profile]++
				}
			}
		}

		list = append(list, l)
	}

	return list, nil
}

// maxInstances returns how many instances of a profile an empty GPU can have.
func maxInstances(g *gpu.GPU, profile string) int {
	for _, c := range mig.CapacityOf(g.Profiles, nil).Profiles {
		if c.Name == profile {
			return c.Max
		}
	}

	return 0
}

// layoutOf returns the current layout of a GPU.
func layoutOf(g *gpu.GPU) (Layout, error) {
	l := Layout{GPU: g.UUID, Index: g.Index, Whole: map[string]int{}, Splits: map[string][][]string{}}

	for i := range g.Instances {
		inst := &g.Instances[i]
		if inst.Profile == "" {
			return l, fmt.Errorf(
				"GPU instance %d of GPU %d has a profile that is not known: a spec could not keep it",
				inst.ID,
				g.Index,
			)
		}

		if isWhole(inst) {
			l.Whole[inst.Profile]++
			continue
		}

		sizes := []string{}

		for k := range inst.ComputeInstances {
			size, _, _ := strings.Cut(inst.ComputeInstances[k].Profile, ".")
			sizes = append(sizes, size)
		}

		l.Splits[inst.Profile] = append(l.Splits[inst.Profile], sizes)
	}

	return l, nil
}

// isWhole reports whether a GPU instance has one compute instance of all its slices.
func isWhole(i *gpu.GPUInstance) bool {
	all := i.ComputeInstances
	return len(all) == 1 && (all[0].Profile == i.Profile || all[0].Profile == "")
}
