package sim

import (
	"maps"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// faultKeys are the keys of a fault beside kind, at and for: those that it needs, then those that it may have.
func faultKeys() map[FaultKind][2][]string {
	keys := map[FaultKind][2][]string{
		FaultNotSupported:  {{"reading"}, {"gpu"}},
		FaultNoPermission:  {nil, {"gpu", "reading", "on", "after"}},
		FaultSlow:          {{"delay"}, {"gpu"}},
		FaultXID:           {{"gpu", "xid"}, {"gi", "ci", "recovery", "on", "after"}},
		FaultOverheat:      {{"celsius"}, {"gpu"}},
		FaultReconfigure:   {{"gpu", "layout"}, {"during", "on", "after"}},
		FaultDestroyLies:   {nil, {"gpu", "on", "after", "times"}},
		FaultChangeFails:   {{"on", "error"}, {"gpu", "after", "times"}},
		FaultElsewhere:     {{"on"}, {"gpu", "after", "times"}},
		FaultProcessStarts: {nil, {"gpu", "after", "times"}},
		FaultKubeletSlow:   {{"delay"}, nil},
		FaultAPIServerSlow: {{"delay"}, nil},
		FaultClockJump:     {{"by"}, nil},
	}
	for _, kind := range []FaultKind{FaultHang, FaultLost, FaultResetRequired} {
		keys[kind] = [2][]string{nil, {"gpu", "during", "on", "after"}}
	}
	for _, kind := range []FaultKind{FaultPowerBrake, FaultActivityNaN, FaultActivityAbove} {
		keys[kind] = [2][]string{nil, {"gpu"}}
	}
	for _, kind := range []FaultKind{
		FaultDriverLock, FaultVersionMismatch, FaultNoDriver, FaultReboot, FaultEventsLost, FaultPluginStale,
		FaultKubeletDown, FaultKubeletRestart, FaultAPIServerDown, FaultBadCheckpoint, FaultDCGMDown, FaultDCGMRestart,
		FaultDCGMHang, FaultDCGMPaused, FaultDCGMNonRoot, FaultDCGMVersion, FaultDCGMNoModule, FaultDCGMGroups,
	} {
		keys[kind] = [2][]string{}
	}
	return keys
}

func faultKinds() []string {
	var kinds []string
	for kind := range faultKeys() {
		kinds = append(kinds, string(kind))
	}
	slices.Sort(kinds)
	return kinds
}

// faultEntry is a fault with the keys of all kinds.
type faultEntry struct {
	FaultSpec
	Layout *strictyaml.Node `yaml:",omitempty"`
}

// FinishYAML checks an entry against the keys of its kind, and adds the fault.
func (e *faultEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	f, spec, keys := fileOf(r), &e.FaultSpec, faultKeys()[e.Kind]
	for _, name := range keys[0] {
		if !strictyaml.HasKey(n, name) {
			r.FailAt(n, key, name, "is missing; a %s fault needs it", e.Kind)
		}
	}
	for name := range strictyaml.Pairs(n) {
		if !slices.Contains(slices.Concat([]string{"at", "for", "kind"}, keys[0], keys[1]), name.Value) {
			r.Fail(name, key+"."+name.Value, "has no meaning for a %s fault", e.Kind)
		}
	}
	spec.checkCall(r, n, key)
	if index, ok := spec.GPU.Get(); ok {
		if gpus := f.scenario.GPUs; index < 0 || index >= len(gpus) {
			r.FailAt(n, key, "gpu", "is %d; expected a whole number from 0 to %d", index, len(gpus)-1)
		} else if e.Layout != nil {
			spec.Layout = readLayout(r, e.Layout, key+".layout", gpus[index].Model)
		}
	}
	f.scenario.Faults = append(f.scenario.Faults, *spec)
}

// checkCall checks what a fault has to do with changes of the partition.
func (f *FaultSpec) checkCall(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if changes := changesOf(f.Kind); strictyaml.HasKey(n, "on") && !slices.Contains(changes, string(f.On)) {
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

// readChangeError reads the name of an error of changes.
func readChangeError(r *strictyaml.Reader, n *strictyaml.Node, key string, into *error) {
	errs := changeErrors()
	if *into = errs[n.Value]; *into == nil {
		r.Expected(n, key, "one of %s", strings.Join(slices.Sorted(maps.Keys(errs)), ", "))
	}
}

// changesOf are the changes that a fault of a kind can be about.
func changesOf(kind FaultKind) []string {
	var list []string
	for _, op := range []ChangeOp{opCreateGI, opCreateCI, opDestroyGI, opDestroyCI, opMIGMode, anyChange} {
		creates, destroys := op == opCreateGI || op == opCreateCI, op == opDestroyGI || op == opDestroyCI
		if op != anyChange && (kind == FaultElsewhere && !creates || kind == FaultDestroyLies && !destroys) {
			continue
		}
		list = append(list, string(op))
	}
	return list
}

// readingNames are the readings that a fault can strike.
func readingNames() []string {
	var names []string
	for _, r := range []gpu.Reading{
		gpu.ReadingInventory, gpu.ReadingMIG, gpu.ReadingMemory, gpu.ReadingUtilization, gpu.ReadingPower, gpu.ReadingEnergy,
		gpu.ReadingTemperature, gpu.ReadingClocks, gpu.ReadingClockEvents, gpu.ReadingPCIe, gpu.ReadingNVLink, gpu.ReadingECC,
		gpu.ReadingRowRemap, gpu.ReadingRecovery, gpu.ReadingProcesses, gpu.ReadingEvents, gpu.ReadingActivity,
		gpu.ReadingFans, gpu.ReadingMedia,
	} {
		names = append(names, string(r))
	}
	return names
}
