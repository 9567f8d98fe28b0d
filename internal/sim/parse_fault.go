package sim

import (
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
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

// fault reads one fault and holds it to the keys of its kind.
func (p *parser) fault(n *yaml.Node, key string, s *Scenario) {
	o := p.object(n, key, "at", "for", "kind", "gpu", "reading", "during", "delay", "by", "xid", "gi", "ci", "recovery", "layout",
		"on", "after", "times", "error", "celsius")
	if o.fields == nil {
		return
	}
	if o.required("kind") == "" {
		return
	}
	kind := FaultKind(o.choice("kind", "", faultKinds()...))
	keys, ok := faultKeys()[kind]
	if !ok {
		return
	}
	always := []string{"at", "for", "kind"}
	for _, name := range keys[0] {
		if !o.has(name) {
			p.fail(n, o.sub(name), "is missing; a %s fault needs it", kind)
		}
	}
	for _, name := range n.Content {
		if o.fields[name.Value] != nil && !slices.Contains(slices.Concat(always, keys[0], keys[1]), name.Value) {
			p.fail(name, o.sub(name.Value), "has no meaning for a %s fault", kind)
		}
	}
	f := FaultSpec{Kind: kind, At: o.duration("at"), For: o.duration("for"), Delay: o.duration("delay")}
	if o.has("gpu") {
		f.GPU = gpu.Some(int(o.integer("gpu", 0, 0, int64(len(s.GPUs)-1))))
	}
	f.Celsius = int(o.integer("celsius", 0, 0, 127))
	f.XID = uint64(o.integer("xid", 0, 1, 1<<20))
	if o.has("gi") {
		f.Instance = gpu.Some(gpu.InstanceID(o.integer("gi", 0, 0, 255)))
	}
	if o.has("ci") {
		f.Compute = gpu.Some(gpu.ComputeID(o.integer("ci", 0, 0, 255)))
	}
	if o.has("recovery") {
		f.Recovery = gpu.RecoveryAction(o.choice("recovery", "none", "none", "reset", "reboot", "drain", "drain_and_reset"))
	}
	if o.has("reading") {
		f.Reading = gpu.Reading(o.choice("reading", "", readingNames()...))
	}
	if o.has("during") {
		f.During = gpu.Reading(o.choice("during", "", readingNames()...))
	}
	if o.has("by") {
		f.By = o.offset("by")
	}
	p.faultOfCall(n, o, &f)
	if layout := o.fields["layout"]; layout != nil {
		p.faultLayout(layout, o.sub("layout"), &f, s)
	}
	s.Faults = append(s.Faults, f)
}

// maxCalls bounds how many changes a fault waits for, or strikes.
const maxCalls = 1 << 16

// faultOfCall reads what a fault has to do with changes of the partition.
func (p *parser) faultOfCall(n *yaml.Node, o object, f *FaultSpec) {
	if f.Kind == FaultProcessStarts {
		f.On = opDestroyCI
	}
	if o.has("on") {
		f.On = ChangeOp(o.choice("on", "", changesOf(f.Kind)...))
	}
	for _, name := range []string{"after", "times"} {
		if o.has(name) && f.On == "" {
			p.fail(n, o.sub(name), "has no meaning without on")
		}
	}
	if f.On != "" && f.During != "" {
		p.fail(n, o.sub("on"), "stands beside during; a fault begins with one or the other")
	}
	f.After = int(o.integer("after", 0, 0, maxCalls))
	f.Times = int(o.integer("times", 1, 1, maxCalls))
	if o.has("error") {
		f.Error = changeErrors()[o.choice("error", "", slices.Sorted(maps.Keys(changeErrors()))...)]
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

// faultLayout reads the layout that another client gives to a GPU; it may be empty.
func (p *parser) faultLayout(n *yaml.Node, key string, f *FaultSpec, s *Scenario) {
	index, ok := f.GPU.Get()
	if !ok || index >= len(s.GPUs) {
		return
	}
	f.Layout = p.layout(n, key, s.GPUs[index].board)
}

// readingNames are the readings that a fault can strike.
func readingNames() []string {
	var names []string
	for _, r := range []gpu.Reading{
		gpu.ReadingInventory, gpu.ReadingMIG, gpu.ReadingMemory, gpu.ReadingUtilization, gpu.ReadingPower, gpu.ReadingEnergy,
		gpu.ReadingTemperature, gpu.ReadingClocks, gpu.ReadingClockEvents, gpu.ReadingPCIe, gpu.ReadingNVLink, gpu.ReadingECC,
		gpu.ReadingRowRemap, gpu.ReadingRecovery, gpu.ReadingProcesses, gpu.ReadingEvents, gpu.ReadingActivity, gpu.ReadingFans, gpu.ReadingMedia,
	} {
		names = append(names, string(r))
	}
	return names
}
