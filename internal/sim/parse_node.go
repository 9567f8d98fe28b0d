package sim

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// maxGPUs bounds the GPUs of a node, far above what any node has.
const maxGPUs = 4096

// gpuEntry is an entry for one GPU, or for Count GPUs that are alike.
type gpuEntry struct {
	GPUSpec
	Count  int              `default:"1" range:"1..4096"`
	Layout *strictyaml.Node `yaml:",omitempty"`
}

// FinishYAML adds the GPUs of an entry.
func (e *gpuEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	f := fileOf(r)

	spec := e.GPUSpec
	if spec.Minor.Present() && e.Count > 1 {
		r.FailAt(
			n,
			key,
			"minor",
			"is given for %d GPUs; expected one GPU in an entry with a minor number",
			e.Count,
		)
	}

	if e.Layout != nil {
		if spec.MIG != MIGOn {
			r.FailAt(n, key, "layout", "is given without mig: true")
		}

		spec.Layout = readLayout(r, e.Layout, key+".layout", spec.Model)
	}

	if len(f.scenario.GPUs)+e.Count > maxGPUs {
		r.Fail(n, key, "makes more than %d GPUs", maxGPUs)
		return
	}

	f.scenario.GPUs = append(f.scenario.GPUs, slices.Repeat([]GPUSpec{spec}, e.Count)...)
}

// readModel reads the name of a model.
func (f *scenarioFile) readModel(
	r *strictyaml.Reader,
	n *strictyaml.Node,
	key string,
	into *gpuModel,
) {
	var name string
	if !r.Decode(n, key, &name) {
		return
	}

	var known bool
	if *into, known = f.models[name]; known {
		return
	}

	if *into, known = findModel(name); !known {
		r.Fail(n, key, "is %q, which cannot be simulated; expected one of %s", name,
			joinNames(gpuModels(), func(m gpuModel) string { return m.key }))

		return
	}

	f.models[name] = *into
}

// layoutEntry is a GPU instance: "3g.20gb@4", or {gi: "3g.20gb@0", ci: ["1c", "2c"]} if it has
// other compute instances than one of its full size.
type layoutEntry struct {
	GI string   `yaml:"gi" expected:"a GPU instance such as 3g.20gb@4"`
	CI []string `yaml:"ci,omitempty"` // nil: one compute instance of the full size
}

// DecodeYAML reads both forms: a text, or a mapping.
func (e *layoutEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain layoutEntry

	if n.Kind == strictyaml.MappingNode {
		r.Decode(n, key, (*plain)(e))
	} else {
		r.Decode(n, key, &e.GI)
	}
}

// readLayout reads the GPU instances of a GPU, and checks that a GPU of the model can have them all.
func readLayout(
	r *strictyaml.Reader,
	list *strictyaml.Node,
	key string,
	model gpuModel,
) []InstanceSpec {
	var entries []layoutEntry
	if !r.Decode(list, key, &entries) {
		return nil
	}

	trial := &simGPU{mig: model.mig} // holds the instances so far, to check the next against
	layout := []InstanceSpec(nil)

	for i, e := range entries {
		n := list.Content[i]
		entryKey := fmt.Sprintf("%s[%d]", key, i)

		spec, expected := parseInstance(model.mig.Profiles, e.GI)
		if expected != "" {
			r.Fail(n, entryKey, "is %q; expected %s", e.GI, expected)
			continue
		}

		fullSize := spec.profile.ComputeSlices
		if e.CI == nil {
			spec.computeSlices = []int{fullSize}
		}

		used := 0

		for j, text := range e.CI {
			size, ok := parseComputeSize(text, spec.profile)
			if !ok {
				r.Fail(
					strictyaml.Value(n, "ci").Content[j],
					fmt.Sprintf("%s.ci[%d]", entryKey, j),
					"is %q; expected a compute instance of %s such as 1c or %dc",
					text,
					spec.profile.Name,
					fullSize,
				)
			}

			spec.computeSlices = append(spec.computeSlices, size)
			used += size
		}

		if used > fullSize {
			r.Fail(n, entryKey, "its compute instances take %d slices of %d", used, fullSize)
		} else if problem := trial.addInstance(spec); problem != "" {
			r.Fail(n, entryKey, "%s", problem)
		}

		layout = append(layout, spec)
	}

	return layout
}
