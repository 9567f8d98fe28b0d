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
	Profile string
	UUID    string
	Down    bool
	SM      gauge
	holdingView
	Errors []string
	// Only GPU instances have the rest.
	Placement string
	Memory    *gauge
	Power     string
	// Empty if one compute instance has the whole GPU instance: then the row has the compute instance's UUID.
	ComputeInstances []deviceView
}

// addLayout adds the axis and the instances of a GPU in MIG mode. kubelet is whether the node has one.
func addLayout(view *gpuView, g *gpu.GPU, kubelet bool) {
	view.HasKubelet = kubelet

	axis := layOutAxis(g)
	for _, s := range axis {
		block := newBlockView(g, s, kubelet)
		view.Axis = append(view.Axis, block)
		view.HasUnknown = view.HasUnknown || block.Class == "unknown"
		view.HasFree = view.HasFree || block.Class == "free"
		view.HasStranded = view.HasStranded || s.Stranded

		for u := s.Start; u < s.End(); u++ {
			view.Units = append(view.Units, u)
		}
	}

	if axis == nil && len(g.Instances) > 0 {
		view.NoAxis = "Where the instances lie on the GPU is not known: the driver reports placements to privileged " +
			"processes only."
	}

	view.Instances = mapSlice(g.Instances, func(inst *gpu.GPUInstance) deviceView {
		return newInstanceView(inst, kubelet)
	})

	if w, ok := nodedoc.Finite(g.Power.UnallocatedWatts).Get(); ok && len(g.Instances) > 0 {
		view.Unallocated = "≈ " + wattsText(w)
	}

	view.Available = availableText(g)
}

// layOutAxis returns the segments of a GPU's placement axis.
func layOutAxis(g *gpu.GPU) []nodedoc.Segment {
	capacity := g.Capacity.Or(gpu.Capacity{})
	axis := nodedoc.Axis{
		Units:     nodedoc.AxisUnits(capacity.Memory, g.Profiles),
		Profiles:  g.Profiles,
		Available: capacity.Profiles,
	}

	placements := make([]gpu.Opt[gpu.Placement], 0, len(g.Instances))
	for i := range g.Instances {
		placements = append(placements, g.Instances[i].Placement)
	}

	return axis.LayOut(placements)
}

// newBlockView returns the block of a segment of the axis: stranded or free slices, or a GPU instance.
func newBlockView(g *gpu.GPU, s nodedoc.Segment, kubelet bool) blockView {
	block := blockView{Span: s.Size}
	units := nodedoc.Count(s.Size, "memory slice", "memory slices")

	if s.Stranded {
		block.Class = "stranded"
		block.Title = units + " stranded: no profile that could still be created covers it"

		return block
	}

	if s.Instance == nodedoc.Room {
		block.Class = "free"
		block.Title = units + " free"

		return block
	}

	inst := &g.Instances[s.Instance]
	block.Gauge = memoryGauge(inst.Memory)
	block.Parts = newPartViews(inst, kubelet)
	block.Class = "down"

	if inst.Up {
		block.Class = instanceUse(inst, kubelet)
	}

	// A narrow block shows 3g of 3g.20gb.
	block.Profile = profileText(inst.Profile)
	if slices, memory, ok := strings.Cut(inst.Profile, "g."); ok {
		block.Profile = slices + "g"
		block.ProfileRest = "." + memory
	}

	block.Title = fmt.Sprintf(
		"GPU instance %d, %s at %s",
		inst.ID,
		profileText(inst.Profile),
		s.Placement,
	)
	if ratio, ok := nodedoc.Finite(inst.Activity.SM).Get(); ok {
		block.Title += ", SM activity " + percentText(ratio)
	}

	if w, ok := nodedoc.Finite(inst.PowerWatts).Get(); ok {
		block.Title += ", about " + wattsText(w)
	}

	if block.Class == "unknown" {
		block.Holder = "unknown"
		block.Title += ", " + unknownUse(kubelet)
	}

	if len(inst.Holders) > 0 {
		block.Holder = inst.Holders[0].Pod
	}

	return block
}

// instanceUse returns the class of a GPU instance by its use.
func instanceUse(inst *gpu.GPUInstance, kubelet bool) string {
	if !kubelet && inst.IsEmpty() && len(inst.Jobs) == 0 {
		return "idle" // nothing can run there
	}

	return useClass(&inst.Device, inst.Jobs, inst.Processes, kubelet)
}

// useClass returns the class of a device by its use. If a kubelet gives out the devices, only its allocations count.
// Without one a device is used if a batch job has it, a process runs on it or it is active. It is idle only if we know
// that it has no process.
func useClass(d *gpu.Device, jobs []string, processes gpu.Opt[int], kubelet bool) string {
	active := nodedoc.Finite(d.Activity.GraphicsEngine).Or(0) > 0 ||
		nodedoc.Finite(d.Activity.SM).Or(0) > 0

	switch {
	case kubelet && !d.Allocated.Present():
		return "unknown"
	case d.Allocated.Or(len(d.Holders)+len(jobs) > 0):
		return "used"
	case kubelet:
		return "idle"
	case processes.Or(0) > 0, active:
		return "used"
	case !processes.Present():
		return "unknown"
	}

	return "idle"
}

// unknownUse says what we do not know about a device of the class unknown.
func unknownUse(kubelet bool) string {
	if kubelet {
		return "not known whether a pod holds it"
	}

	return "not known whether anything runs on it"
}

// newPartViews returns a part for each compute instance of a GPU instance, and one for the compute slices that have
// none.
func newPartViews(inst *gpu.GPUInstance, kubelet bool) []partView {
	var parts []partView

	rest := inst.ComputeSlices.Or(0)
	for i := range inst.ComputeInstances {
		c := &inst.ComputeInstances[i]
		slices := c.ComputeSlices.Or(1)
		rest -= slices

		part := partView{Class: widthClass(slices),
			Title: fmt.Sprintf("compute instance %d, %s", c.ID, profileText(c.Profile))}
		if len(c.Holders) > 0 {
			if len(inst.Holders) == 0 { // else the block names it
				part.Text = c.Holders[0].Pod
			}

			part.Title += ", " + podText(&c.Holders[0])
		}

		use := useClass(&c.Device, nil, c.Processes, kubelet)
		if use != "idle" {
			part.Class += " " + use
		}

		if use == "unknown" {
			part.Title += ", " + unknownUse(kubelet)
		}

		if !c.Up {
			part.Class += " down"
		}

		parts = append(parts, part)
	}

	if (rest > 0 || len(inst.ComputeInstances) == 0) && !inst.ComputesHidden {
		text := nodedoc.Count(rest, "compute slice", "compute slices") + " without a compute instance"
		if inst.IsEmpty() {
			text = "no compute instance: nothing can run here"
		}

		parts = append(parts, partView{Class: widthClass(max(rest, 1)) + " none", Title: text})
	}

	return parts
}

// widthMax is the number of width classes in the style sheet.
const widthMax = 12

// widthClass returns the class that makes a part as wide as its slices.
func widthClass(slices int) string { return fmt.Sprintf("w%d", min(max(slices, 1), widthMax)) }

func newDeviceView(d *gpu.Device, id uint32, profile string, kubelet bool) deviceView {
	return deviceView{
		ID:          id,
		Profile:     profileText(profile),
		Down:        !d.Up,
		SM:          smGauge(d.Activity),
		Errors:      errorTexts(d.Errors),
		holdingView: newHoldingView(d, kubelet),
	}
}

func newInstanceView(inst *gpu.GPUInstance, kubelet bool) deviceView {
	view := newDeviceView(&inst.Device, uint32(inst.ID), inst.Profile, kubelet)
	view.Memory = memoryGauge(inst.Memory)
	view.Empty = inst.IsEmpty()

	if p, ok := inst.Placement.Get(); ok {
		view.Placement = p.String()
	}

	if w, ok := nodedoc.Finite(inst.PowerWatts).Get(); ok {
		view.Power = "≈ " + wattsText(w)
	}

	// A compute instance that has the whole GPU instance gets no row of its own.
	if len(inst.ComputeInstances) == 1 && inst.ComputeInstances[0].Profile == inst.Profile {
		c := &inst.ComputeInstances[0]
		view.UUID = string(c.UUID)
		view.Down = view.Down || !c.Up
		view.Errors = append(view.Errors, errorTexts(c.Errors)...)

		if len(view.Holders) == 0 {
			view.Holders = holderViews(c.Holders)
		}

		return view
	}

	view.ComputeInstances = mapSlice(
		inst.ComputeInstances,
		func(c *gpu.ComputeInstance) deviceView {
			part := newDeviceView(&c.Device, uint32(c.ID), c.Profile, kubelet)
			part.UUID = string(c.UUID)

			return part
		},
	)

	return view
}

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
