package sim

import (
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// faultKeys are the keys of a fault beside kind, at and for: those that it needs, then those that it may have.
func faultKeys() map[FaultKind][2][]string {
	return map[FaultKind][2][]string{
		FaultHang:            {nil, {"gpu", "during"}},
		FaultDriverLock:      {nil, nil},
		FaultLost:            {nil, {"gpu", "during"}},
		FaultResetRequired:   {nil, {"gpu", "during"}},
		FaultNotSupported:    {{"reading"}, {"gpu"}},
		FaultNoPermission:    {nil, {"gpu", "reading"}},
		FaultSlow:            {{"delay"}, {"gpu"}},
		FaultXID:             {{"gpu", "xid"}, {"gi", "ci", "recovery"}},
		FaultVersionMismatch: {nil, nil},
		FaultReconfigure:     {{"gpu", "layout"}, {"during"}},
		FaultDestroyLies:     {nil, {"gpu"}},
		FaultEventsLost:      {nil, nil},
		FaultKubeletDown:     {nil, nil},
		FaultKubeletSlow:     {{"delay"}, nil},
		FaultKubeletRestart:  {nil, nil},
		FaultClockJump:       {{"by"}, nil},
		FaultActivityNaN:     {nil, {"gpu"}},
		FaultActivityAbove:   {nil, {"gpu"}},
		FaultDCGMDown:        {nil, nil},
		FaultDCGMRestart:     {nil, nil},
		FaultDCGMPaused:      {nil, nil},
		FaultDCGMNonRoot:     {nil, nil},
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
	o := p.object(n, key, "at", "for", "kind", "gpu", "reading", "during", "delay", "by", "xid", "gi", "ci", "recovery", "layout")
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
	if layout := o.fields["layout"]; layout != nil {
		p.faultLayout(layout, o.sub("layout"), &f, s)
	}
	s.Faults = append(s.Faults, f)
}

// faultLayout reads the layout that somebody else gives to a GPU; it may be empty.
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
		gpu.ReadingRowRemap, gpu.ReadingRecovery, gpu.ReadingProcesses, gpu.ReadingEvents, gpu.ReadingActivity,
	} {
		names = append(names, string(r))
	}
	return names
}
