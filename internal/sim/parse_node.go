package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// driverMajor is the branch of a driver version: 580 of "580.95.05".
func driverMajor(version string) (int, bool) {
	major, _, ok := strings.Cut(version, ".")
	n, isNumber := gpu.ParseDecimal(major)
	return int(n), ok && isNumber
}

// cudaVersion is NVML's form of a CUDA version: 13000 of "13.0".
func cudaVersion(version string) (int, bool) {
	major, minor, ok := strings.Cut(version, ".")
	a, aOK := gpu.ParseDecimal(major)
	b, bOK := gpu.ParseDecimal(minor)
	return int(a)*1000 + int(b)*10, ok && aOK && bOK && a < 1000 && b < 100
}

// maxGPUs bounds a node; it leaves room for far more devices than any node has.
const maxGPUs = 4096

// gpuEntry is one or several GPUs that are alike.
type gpuEntry struct {
	GPUSpec
	Count  int              `default:"1" range:"1..4096"`
	Layout *strictyaml.Node `yaml:",omitempty"`
}

// FinishYAML adds the GPUs of an entry.
func (e *gpuEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	f, spec := fileOf(r), e.GPUSpec
	if spec.Minor.Present() && e.Count > 1 {
		r.FailAt(n, key, "minor", "is given for %d GPUs; expected one GPU in an entry with a minor number", e.Count)
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
func (f *scenarioFile) readModel(r *strictyaml.Reader, n *strictyaml.Node, key string, into *gpuModel) {
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
			joinNames(gpuModels(), ", ", func(m gpuModel) string { return m.key }))
		return
	}
	f.models[name] = *into
}

// UnmarshalText reads the value of "mig: true | false | pending".
func (m *MIGModeSpec) UnmarshalText(text []byte) error {
	mode, ok := map[string]MIGModeSpec{"false": MIGOff, "true": MIGOn, "pending": MIGPending}[string(text)]
	if *m = mode; !ok {
		return errors.New("true, false or pending")
	}
	return nil
}

// layoutEntry is a GPU instance: "3g.20gb@4", or {gi: "3g.20gb@0", ci: ["1c", "2c"]} if its compute instances are not
// the one that takes it whole.
type layoutEntry struct {
	GI string   `yaml:"gi" expected:"a GPU instance such as 3g.20gb@4"`
	CI []string `yaml:"ci,omitempty"` // nil: one that takes it whole
}

// DecodeYAML reads both forms.
func (e *layoutEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain layoutEntry
	if n.Kind == strictyaml.MappingNode {
		r.Decode(n, key, (*plain)(e))
	} else {
		r.Decode(n, key, &e.GI)
	}
}

// readLayout reads the GPU instances of a GPU of a model.
func readLayout(r *strictyaml.Reader, list *strictyaml.Node, key string, model gpuModel) []LayoutSpec {
	var entries []layoutEntry
	if !r.Decode(list, key, &entries) {
		return nil
	}
	var layout []LayoutSpec
	for i, e := range entries {
		n, at := list.Content[i], fmt.Sprintf("%s[%d]", key, i)
		spec, expected := parseInstance(e.GI, model.mig.Profiles)
		if expected != "" {
			r.Fail(n, at, "is %q; expected %s", e.GI, expected)
			continue
		}
		if e.CI == nil {
			spec.computes = []int{spec.profile.ComputeSlices}
		}
		for j, text := range e.CI {
			size, ok := parseComputeSlices(text, spec.profile)
			if !ok {
				r.Fail(strictyaml.Value(n, "ci").Content[j], fmt.Sprintf("%s.ci[%d]", at, j),
					"is %q; expected a compute instance of %s such as 1c or %dc", text, spec.profile.Name, spec.profile.ComputeSlices)
			}
			spec.computes = append(spec.computes, size)
		}
		used := 0
		for _, size := range spec.computes {
			used += size
		}
		if used > spec.profile.ComputeSlices {
			r.Fail(n, at, "its compute instances take %d slices of %d", used, spec.profile.ComputeSlices)
			continue
		}
		if problem := fits(model.mig.ComputeSlices, layout, spec); problem != "" {
			r.Fail(n, at, "%s", problem)
			continue
		}
		layout = append(layout, spec)
	}
	return layout
}

// parseInstance reads "profile@start". If it is none of the profiles, the result is what was expected.
func parseInstance(text string, profiles []gpu.Profile) (spec LayoutSpec, expected string) {
	name, start, _ := strings.Cut(text, "@")
	at, isNumber := gpu.ParseDecimal(start)
	i := slices.IndexFunc(profiles, func(f gpu.Profile) bool { return f.Name == name })
	if i < 0 {
		return LayoutSpec{}, fmt.Sprintf("one of the model's profiles (%s) and where it starts, such as %s@0",
			joinNames(profiles, ", ", func(p gpu.Profile) string { return p.Name }), profiles[0].Name)
	}
	for _, placement := range profiles[i].Placements {
		if isNumber && placement.Start == int(at) {
			return LayoutSpec{profile: profiles[i], placement: placement}, ""
		}
	}
	return LayoutSpec{}, fmt.Sprintf("%s at one of its placements, %s", name, starts(profiles[i]))
}

// parseComputeSlices reads "2c", a compute instance of a GPU instance.
func parseComputeSlices(text string, profile gpu.Profile) (size int, ok bool) {
	digits, isC := strings.CutSuffix(text, "c")
	n, isNumber := gpu.ParseDecimal(digits)
	if !isC || !isNumber || !slices.Contains(computeSizes(profile.ComputeSlices), int(n)) {
		return 0, false
	}
	return int(n), true
}

// fits returns why a GPU that has the given instances has no room for one more; it is empty if there is room.
func fits(computeSlices int, have []LayoutSpec, add LayoutSpec) string {
	used := add.profile.ComputeSlices
	for _, h := range have {
		if h.placement.Overlaps(add.placement) {
			return add.profile.Name + "@" + add.placement.String() + " overlaps " + h.profile.Name + "@" + h.placement.String()
		}
		if hasMediaExtensions(h.profile) && hasMediaExtensions(add.profile) {
			return "a second profile with media extensions (+me); a GPU has one"
		}
		used += h.profile.ComputeSlices
	}
	if used > computeSlices {
		return "the layout takes more compute slices than the GPU has"
	}
	return ""
}

// starts lists the placements of a profile as an author writes them.
func starts(f gpu.Profile) string {
	placements := slices.SortedFunc(slices.Values(f.Placements), func(a, b gpu.Placement) int { return a.Start - b.Start })
	return joinNames(placements, " ", func(p gpu.Placement) string { return fmt.Sprintf("@%d", p.Start) })
}

// joinNames lists the names of items.
func joinNames[T any](items []T, separator string, name func(T) string) string {
	var names []string
	for _, item := range items {
		names = append(names, name(item))
	}
	return strings.Join(names, separator)
}
