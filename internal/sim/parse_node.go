package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// DecodeYAML reads the node section, in which every key has a default.
func (s *NodeSpec) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain NodeSpec
	if !r.Decode(n, key, (*plain)(s)) {
		return
	}
	if _, ok := driverMajor(s.Driver); !ok {
		r.FailAt(n, key, "driver", "is %q; expected a driver version such as \"580.95.05\"", s.Driver)
	}
	if _, ok := cudaVersion(s.CUDA); !ok {
		r.FailAt(n, key, "cuda", "is %q; expected a CUDA version such as \"13.0\"", s.CUDA)
	}
}

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
	Model   string
	Count   int              `default:"1" range:"1..4096"`
	Minor   *int             `yaml:",omitempty" range:"0..65536"`
	Fans    int              `yaml:",omitempty" range:"0..8"`
	MIG     MIGModeSpec      `yaml:"mig,omitempty"`
	Layout  *strictyaml.Node `yaml:",omitempty"`
	Sharing *SharingSpec     `yaml:",omitempty"`
}

// DecodeYAML reads an entry and adds its GPUs.
func (e *gpuEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain gpuEntry
	if !r.Decode(n, key, (*plain)(e)) {
		return
	}
	f := fileOf(r)
	model, ok := f.model(e.Model)
	if !ok {
		r.FailAt(n, key, "model", "is %q, which cannot be simulated; expected one of %s", e.Model, modelKeys())
		return
	}
	spec := GPUSpec{Model: e.Model, model: model, Fans: e.Fans, MIG: e.MIG}
	if e.Minor != nil {
		spec.Minor = gpu.Some(*e.Minor)
		if e.Count > 1 {
			r.FailAt(n, key, "minor", "is given for %d GPUs; expected one GPU in an entry with a minor number", e.Count)
		}
	}
	if e.Layout != nil {
		if e.MIG != MIGOn {
			r.FailAt(n, key, "layout", "is given without mig: true")
		}
		spec.Layout = readLayout(r, e.Layout, key+".layout", model)
	}
	if e.Sharing != nil {
		spec.Sharing = *e.Sharing
	}
	if len(f.scenario.GPUs)+e.Count > maxGPUs {
		r.Fail(n, key, "makes more than %d GPUs", maxGPUs)
		return
	}
	f.scenario.GPUs = append(f.scenario.GPUs, slices.Repeat([]GPUSpec{spec}, e.Count)...)
}

// model returns a model by its name in scenarios.
func (f *scenarioFile) model(name string) (model gpuModel, ok bool) {
	if model, ok = f.models[name]; !ok {
		if model, ok = findModel(name); ok {
			f.models[name] = model
		}
	}
	return model, ok
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
		if used := sum(spec.computes); used > spec.profile.ComputeSlices {
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
			profileNames(profiles), profiles[0].Name)
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

func sum(list []int) int {
	total := 0
	for _, v := range list {
		total += v
	}
	return total
}

func profileNames(profiles []gpu.Profile) string {
	var names []string
	for _, f := range profiles {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}

// starts lists the placements of a profile as an author writes them.
func starts(f gpu.Profile) string {
	placements := slices.SortedFunc(slices.Values(f.Placements), func(a, b gpu.Placement) int {
		return cmp.Compare(a.Start, b.Start)
	})
	var list []string
	for _, p := range placements {
		list = append(list, "@"+strings.SplitN(p.String(), ":", 2)[0])
	}
	return strings.Join(list, " ")
}
