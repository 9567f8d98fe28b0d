package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// faultKeys are the keys of a fault beside kind, at and for: those that it needs, then those that it may have.
func faultKeys() map[FaultKind][2][]string {
	return map[FaultKind][2][]string{
		FaultHang:            {nil, {"gpu", "during", "on", "after"}},
		FaultDriverLock:      {nil, nil},
		FaultLost:            {nil, {"gpu", "during", "on", "after"}},
		FaultResetRequired:   {nil, {"gpu", "during", "on", "after"}},
		FaultNotSupported:    {{"reading"}, {"gpu"}},
		FaultNoPermission:    {nil, {"gpu", "reading", "on", "after"}},
		FaultSlow:            {{"delay"}, {"gpu"}},
		FaultXID:             {{"gpu", "xid"}, {"gi", "ci", "recovery", "on", "after"}},
		FaultVersionMismatch: {nil, nil},
		FaultNoDriver:        {nil, nil},
		FaultOverheat:        {{"celsius"}, {"gpu"}},
		FaultPowerBrake:      {nil, {"gpu"}},
		FaultReconfigure:     {{"gpu", "layout"}, {"during", "on", "after"}},
		FaultDestroyLies:     {nil, {"gpu", "on", "after", "times"}},
		FaultChangeFails:     {{"on", "error"}, {"gpu", "after", "times"}},
		FaultElsewhere:       {{"on"}, {"gpu", "after", "times"}},
		FaultProcessStarts:   {nil, {"gpu", "after", "times"}},
		FaultReboot:          {nil, nil},
		FaultEventsLost:      {nil, nil},
		FaultKubeletDown:     {nil, nil},
		FaultKubeletSlow:     {{"delay"}, nil},
		FaultKubeletRestart:  {nil, nil},
		FaultAPIServerDown:   {nil, nil},
		FaultAPIServerSlow:   {{"delay"}, nil},
		FaultBadCheckpoint:   {nil, nil},
		FaultPluginStale:     {nil, nil},
		FaultClockJump:       {{"by"}, nil},
		FaultActivityNaN:     {nil, {"gpu"}},
		FaultActivityAbove:   {nil, {"gpu"}},
		FaultDCGMDown:        {nil, nil},
		FaultDCGMRestart:     {nil, nil},
		FaultDCGMHang:        {nil, nil},
		FaultDCGMPaused:      {nil, nil},
		FaultDCGMNonRoot:     {nil, nil},
		FaultDCGMVersion:     {nil, nil},
		FaultDCGMNoModule:    {nil, nil},
		FaultDCGMGroups:      {nil, nil},
	}
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
	GPU    *int             `yaml:"gpu,omitempty"`
	GI     *int             `yaml:"gi,omitempty" range:"0..255"`
	CI     *int             `yaml:"ci,omitempty" range:"0..255"`
	XID    int              `yaml:"xid,omitempty" range:"1..1048576"`
	By     clockOffset      `yaml:",omitempty"`
	Error  string           `yaml:",omitempty"`
	Layout *strictyaml.Node `yaml:",omitempty"`
}

// DecodeYAML reads an entry, checks it against the keys of its kind, and adds the fault.
func (e *faultEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain faultEntry
	if !r.Decode(n, key, (*plain)(e)) {
		return
	}
	keys, ok := faultKeys()[e.Kind]
	if !ok {
		checkChoice(r, n, key, "kind", string(e.Kind), faultKinds())
		return
	}
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
	checkChoice(r, n, key, "reading", string(e.Reading), readingNames())
	checkChoice(r, n, key, "during", string(e.During), readingNames())
	e.checkCall(r, n, key)
	spec := e.FaultSpec
	spec.By, spec.XID, spec.Error = time.Duration(e.By), uint64(e.XID), changeErrors()[e.Error]
	if e.GI != nil {
		spec.Instance = gpu.Some(gpu.InstanceID(*e.GI))
	}
	if e.CI != nil {
		spec.Compute = gpu.Some(gpu.ComputeID(*e.CI))
	}
	f := fileOf(r)
	if e.GPU != nil {
		spec.GPU = gpu.Some(*e.GPU)
		if gpus := f.scenario.GPUs; *e.GPU < 0 || *e.GPU >= len(gpus) {
			r.FailAt(n, key, "gpu", "is %d; expected a whole number from 0 to %d", *e.GPU, len(gpus)-1)
		} else if e.Layout != nil {
			spec.Layout = readLayout(r, e.Layout, key+".layout", gpus[*e.GPU].model)
		}
	}
	f.scenario.Faults = append(f.scenario.Faults, spec)
}

// checkCall reads what a fault has to do with changes of the partition.
func (e *faultEntry) checkCall(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	checkChoice(r, n, key, "on", string(e.On), changesOf(e.Kind))
	checkChoice(r, n, key, "error", e.Error, slices.Sorted(maps.Keys(changeErrors())))
	if e.Kind == FaultProcessStarts {
		e.On = opDestroyCI
	}
	for _, name := range []string{"after", "times"} {
		if strictyaml.HasKey(n, name) && e.On == "" {
			r.FailAt(n, key, name, "has no meaning without on")
		}
	}
	if e.On != "" && e.During != "" {
		r.FailAt(n, key, "on", "is set together with during; a fault begins with one or the other")
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
