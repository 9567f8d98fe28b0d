package web

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// deviceView is the row of a GPU instance or of a compute instance in the card's list.
type deviceView struct {
	ID      uint32
	Key     string // identifies the device, also in the history
	Profile string
	UUID    string
	Down    bool
	SM      gauge
	Holding holdingView
	Errors  []string
	// Only GPU instances have the rest.
	Placement string
	Memory    gauge
	Power     string
	// ComputeInstances is empty if one compute instance is all of the GPU instance. Then both are one
	// row, with the UUID and the errors of the compute instance.
	ComputeInstances []deviceView
}

// addLayout adds the axis and the instances of a GPU in MIG mode.
func (v *viewer) addLayout(view *gpuView, g *gpu.GPU, doc *nodedoc.GPU) {
	axis := layOutAxis(g)
	for _, s := range axis {
		view.Axis = append(view.Axis, v.newBlock(g, doc, s))
		view.Units += s.Size
	}

	// Without an axis we draw the instances side by side, all of one length.
	if axis == nil && len(g.Instances) > 0 {
		view.NoAxis = "Where the instances lie on the GPU is not known: the driver reports " +
			"placements to privileged processes only."

		for i := range g.Instances {
			view.Axis = append(view.Axis, v.newInstanceBlock(g, &g.Instances[i], &doc.GPUInstances[i]))
		}
	}

	for i := range g.Instances {
		view.Instances = append(view.Instances, v.newInstanceView(g, &g.Instances[i], &doc.GPUInstances[i]))
	}

	if w, ok := nodedoc.Finite(g.Power.UnallocatedWatts).Get(); ok && len(g.Instances) > 0 {
		view.Unallocated = "≈ " + wattsText(w)
	}

	view.Available = availableText(g)
}

func newDeviceView(d *gpu.Device, id uint32, profile string) deviceView {
	return deviceView{
		ID:      id,
		Profile: profileText(profile),
		Down:    !d.Up,
		SM:      smGauge(d.Activity),
		Errors:  errorTexts(d.Errors),
	}
}

func (v *viewer) newInstanceView(g *gpu.GPU, inst *gpu.GPUInstance, doc *nodedoc.Instance) deviceView {
	view := newDeviceView(&inst.Device, uint32(inst.ID), inst.Profile)
	view.Key = instanceKey(inst)
	view.Holding = newHoldingView(
		&inst.Device,
		usesOf(g, inst.ID, gpu.None[gpu.ComputeID]()),
		inst.Jobs,
		doc.Evidence(v.kubelet),
	)
	view.Memory = orUnknown(memoryGauge(inst.Memory), "Memory")
	view.Holding.Empty = inst.IsEmpty()

	if p, ok := inst.Placement.Get(); ok {
		view.Placement = p.String()
	}

	if w, ok := nodedoc.Finite(inst.PowerWatts).Get(); ok {
		view.Power = "≈ " + wattsText(w)
	}

	if !inst.IsSplit() && len(inst.ComputeInstances) == 1 {
		view.addOnlyCompute(&inst.ComputeInstances[0], usesOf(g, inst.ID, gpu.Some(inst.ComputeInstances[0].ID)))
		return view
	}

	view.Holding.Held = "" // each compute instance has a row that says it

	for i := range inst.ComputeInstances {
		c := &inst.ComputeInstances[i]
		use := doc.ComputeInstances[i].Evidence(doc, v.kubelet)

		row := newDeviceView(&c.Device, uint32(c.ID), c.Profile)
		row.Key = fmt.Sprintf("%s/%d.%d", view.Key, c.ID, c.Generation)
		row.UUID = string(c.UUID)
		row.Holding = newHoldingView(&c.Device, usesOf(g, inst.ID, gpu.Some(c.ID)), nil, use)

		view.ComputeInstances = append(view.ComputeInstances, row)
	}

	return view
}

// addOnlyCompute adds to the row of a GPU instance the compute instance that is all of it. uses says
// how much of it each container uses.
func (v *deviceView) addOnlyCompute(c *gpu.ComputeInstance, uses []gpu.ContainerUse) {
	v.UUID = string(c.UUID)
	v.Down = v.Down || !c.Up
	v.Errors = append(v.Errors, errorTexts(c.Errors)...)

	if len(v.Holding.Holders) == 0 {
		v.Holding.Holders = holderViews(c.Holders, uses)
	}

	if len(v.Holding.Holders) > 0 {
		v.Holding.Held = "" // a named holder says more
	}
}

// instanceKey identifies a GPU instance of a GPU. The generation distinguishes it from earlier
// instances that had the same id.
func instanceKey(inst *gpu.GPUInstance) string { return fmt.Sprintf("%d.%d", inst.ID, inst.Generation) }

// availableText says which instances could still be created on the GPU.
func availableText(g *gpu.GPU) string {
	c, ok := g.Capacity.Get()
	if !ok {
		return ""
	}

	var profiles []string

	for _, p := range c.Profiles {
		if p.Available > 0 {
			profiles = append(profiles, fmt.Sprintf("%d × %s", p.Available, p.Name))
		}
	}

	text := "Nothing more fits."
	if len(profiles) > 0 {
		text = "Could still hold " + strings.Join(profiles, " or ") + "."
	}

	var stranded []string
	if n := c.Memory.Stranded; n > 0 {
		stranded = append(stranded, nodedoc.Count(n, "memory slice", "memory slices"))
	}

	if n := c.Compute.Stranded; n > 0 {
		stranded = append(stranded, nodedoc.Count(n, "compute slice", "compute slices"))
	}

	if len(stranded) > 0 {
		text += " Stranded: " + strings.Join(stranded, ", ") + "."
	}

	return text
}

func profileText(name string) string {
	if name == "" {
		return "unknown profile"
	}

	return name
}
