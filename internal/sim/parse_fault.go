package sim

import (
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// faultEntry is a fault in a scenario file. It has the keys of all kinds.
type faultEntry struct {
	FaultSpec
	Layout *strictyaml.Node `yaml:",omitempty"`
}

// FinishYAML checks an entry against the keys of its kind, and adds the fault.
func (e *faultEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	f := fileOf(r)
	spec := &e.FaultSpec

	keys := keysOfFaults()[e.Kind]
	for _, name := range keys[requiredKeys] {
		if !strictyaml.HasKey(n, name) {
			r.FailAt(n, key, name, "is missing; a %s fault needs it", e.Kind)
		}
	}

	known := slices.Concat([]string{"at", "for", "kind"}, keys[requiredKeys], keys[optionalKeys])
	for name := range strictyaml.Pairs(n) {
		if !slices.Contains(known, name.Value) {
			r.Fail(name, key+"."+name.Value, "has no meaning for a %s fault", e.Kind)
		}
	}

	spec.checkCall(r, n, key)

	if index, ok := spec.GPU.Get(); ok {
		if gpus := f.scenario.GPUs; index < 0 || index >= len(gpus) {
			r.FailAt(
				n,
				key,
				"gpu",
				"is %d; expected a whole number from 0 to %d",
				index,
				len(gpus)-1,
			)
		} else if e.Layout != nil {
			spec.Layout = readLayout(r, e.Layout, key+".layout", gpus[index].Model)
		}
	}

	f.scenario.Faults = append(f.scenario.Faults, *spec)
}

// checkCall checks the keys by which a fault begins with a call: on, after, times and during.
func (f *FaultSpec) checkCall(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if changes := changesOf(f.Kind); strictyaml.HasKey(n, "on") &&
		!slices.Contains(changes, string(f.On)) {
		r.FailAt(n, key, "on", "is %q; expected one of %s", f.On, strings.Join(changes, ", "))
	}

	if f.Kind == FaultProcessStarts {
		f.On = opDestroyCI
	}

	for _, name := range []string{"after", "times"} {
		if strictyaml.HasKey(n, name) && f.On == "" {
			r.FailAt(n, key, name, "has no meaning without on")
		}
	}

	if f.On != "" && f.During != "" {
		r.FailAt(n, key, "on", "is set together with during; a fault begins with one or the other")
	}
}
