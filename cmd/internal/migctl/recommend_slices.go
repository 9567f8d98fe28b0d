package migctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// changeText names a slice, its holder, and what it is to become.
func changeText(r *advise.Recommendation, to string) string {
	return fmt.Sprintf(
		"GPU %d, %s, %s: to %s",
		r.Index,
		sliceText(r),
		holderText(r),
		cmp.Or(to, "a whole GPU"),
	)
}

// layoutWords returns a layout as the value of --devices.
func layoutWords(layout map[string]int) string {
	var words []string
	for _, profile := range sortedKeys(layout) {
		words = append(words, fmt.Sprintf("%s=%d", profile, layout[profile]))
	}

	return cmp.Or(strings.Join(words, ","), "none")
}

// writeSliceProcedure writes how slices get to what is recommended for them.
func (s *session) writeSliceProcedure(ctx context.Context, w *procedure) error {
	var node nodedoc.Document
	if slices.ContainsFunc(w.report.Devices, func(r advise.Recommendation) bool {
		return r.ChangesSlice()
	}) {
		if err := s.client.fetch(ctx, "/node", &node); err != nil {
			return err
		}
	}

	plan := w.report.PlanSlices(instancesOf(node.GPUs))
	w.writeSlicePlan(&plan)

	return nil
}

// instancesOf returns the instances of GPUs and the profiles that they offer, which layouts are
// planned from.
func instancesOf(list []nodedoc.GPU) []gpu.GPU {
	gpus := make([]gpu.GPU, len(list))

	for i := range list {
		g := &gpus[i]
		g.Index = list[i].Index
		g.UUID = list[i].UUID
		g.Profiles = list[i].Profiles
		g.Instances = make([]gpu.GPUInstance, len(list[i].GPUInstances))

		for k := range g.Instances {
			was := &list[i].GPUInstances[k]
			inst := &g.Instances[k]
			inst.ID = was.ID
			inst.Profile = was.Profile
			inst.ProfileID = was.ProfileID
			inst.Placement = was.Placement
			inst.Allocated = was.Allocated

			for n := range was.ComputeInstances {
				c := gpu.ComputeInstance{Profile: was.ComputeInstances[n].Profile}
				inst.ComputeInstances = append(inst.ComputeInstances, c)
			}
		}
	}

	return gpus
}
