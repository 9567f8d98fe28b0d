package web

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// blockView is an instance on the axis, or a part of it without one, or a GPU without MIG.
type blockView struct {
	Key     string // tells the block from the others of its GPU
	Span    int    // its length in memory slices; 1 without an axis
	Class   string // "held", "free", "unknown", "down", "room", "stranded"
	Title   string
	Find    string // what the search field compares with
	Is      string // what it is, for the filter: "underused", "unhealthy"
	Profile string
	// ProfileRest is the part of the profile's name that a narrow block does not show.
	ProfileRest string
	At          string // where it begins on the axis: "@4"
	Holder      string // the first holder
	More        int    // how many further holders there are
	Loads       []load
	Parts       []partView
}

// Down reports whether the block's device does not answer, which the page says in a word, too.
func (b blockView) Down() bool { return b.Class == "down" }

// load is how much of a device is used: a thin bar with a letter.
type load struct {
	Letter       string // "M" for memory, "S" for SM activity, "U" for utilization
	Label, Class string
	Bar          bool
	Percent      int
	Value        string // if it has no bar
	Over         string // as in gauge
}

// partView is a compute instance in its GPU instance's block, as wide as its slices.
type partView struct{ Class, Title, Text string }

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

// newBlock returns the block of a segment of the axis.
func (v *viewer) newBlock(g *gpu.GPU, doc *nodedoc.GPU, s nodedoc.Segment) blockView {
	units := nodedoc.Count(s.Size, "memory slice", "memory slices")

	if s.Stranded {
		return blockView{
			Key: fmt.Sprint("at-", s.Start), Span: s.Size, Class: "stranded",
			Title: units + " stranded: no profile that could still be created covers it",
		}
	}

	if s.Instance == nodedoc.Room {
		return blockView{
			Key: fmt.Sprint("at-", s.Start), Span: s.Size, Class: "room", Title: units + " without an instance",
		}
	}

	block := v.newInstanceBlock(g, &g.Instances[s.Instance], &doc.GPUInstances[s.Instance])
	block.Span = s.Size
	block.At = fmt.Sprint("@", s.Start)

	return block
}

func (v *viewer) newInstanceBlock(g *gpu.GPU, inst *gpu.GPUInstance, doc *nodedoc.Instance) blockView {
	block := blockView{
		Key:     "gi-" + instanceKey(inst),
		Span:    1,
		Class:   "down",
		Title:   fmt.Sprintf("GPU instance %d, %s", inst.ID, profileText(inst.Profile)),
		Profile: profileText(inst.Profile),
		Loads:   loadsOf(inst.Memory, smGauge(inst.Activity)),
		Parts:   newPartViews(inst, doc, v.kubelet),
	}

	use := doc.Evidence(v.kubelet)
	if inst.Up {
		block.Class = string(use.State())
	}

	if slices, memory, ok := strings.Cut(inst.Profile, "g."); ok {
		block.Profile = slices + "g"
		block.ProfileRest = "." + memory
	}

	if p, ok := inst.Placement.Get(); ok {
		block.Title += " at " + p.String()
	}

	if w, ok := nodedoc.Finite(inst.PowerWatts).Get(); ok {
		block.Title += ", about " + wattsText(w)
	}

	names := holderNames(&inst.Device, inst.Jobs)
	if len(names) > 0 || !inst.IsEmpty() { // else its part says that nothing can run
		block.addHolders(names, &inst.Device, use)
	}

	find := append([]string{inst.Profile, fmt.Sprint("gi-", inst.ID)}, names...)
	for i := range inst.ComputeInstances {
		c := &inst.ComputeInstances[i]
		find = append(find, string(c.UUID))

		if len(inst.Holders) == 0 {
			find = append(find, holderNames(&c.Device, nil)...)
		}
	}

	block.Find = strings.Join(find, " ")
	block.Is = filterWords(v.health.StateOfInstance(g, inst) != health.Healthy,
		v.advice.isUnderused(g.UUID, gpu.Some(inst.ID)))

	return block
}

// newWholeBlock returns the block of a GPU without MIG, which takes the whole axis.
func (v *viewer) newWholeBlock(g *gpu.GPU, doc *nodedoc.GPU) blockView {
	activity := smGauge(g.Activity)
	if used := utilizationGauge(&g.Readings); used != nil && !activity.Bar {
		activity = *used
	}

	block := blockView{Key: "whole", Span: 1, Class: "down", Profile: "whole GPU", Title: "the whole GPU"}

	use := doc.Evidence(v.kubelet)
	if g.Up {
		block.Class = string(use.State())
		block.Loads = loadsOf(g.Readings.Memory, activity)
	}

	names := holderNames(&g.Device, g.Jobs)
	block.addHolders(names, &g.Device, use)
	block.Find = strings.Join(names, " ")

	return block
}

// addHolders adds the holders of a device, or that it has none. A device that does not answer has no
// word for an unknown use.
func (b *blockView) addHolders(names []string, d *gpu.Device, use nodedoc.UseEvidence) {
	state := use.State()

	switch {
	case len(names) > 0:
		b.Holder = names[0]
		if len(d.Holders) > 0 && d.Holders[0].Pod != "" {
			b.Holder = d.Holders[0].Pod // the axis has little room: the namespace is in the title
		}

		b.More = len(names) - 1
		b.Title += ", " + strings.Join(names, ", ")
	case state == nodedoc.Free:
		b.Holder = string(state)
		b.Title += ", held by nothing"
	case state == nodedoc.Held && len(b.Parts) == 0: // else its parts name their holders
		b.Holder = string(state)
		b.Title += ", held by " + use.UnnamedHolder()
	case state == nodedoc.UnknownUse && !b.Down():
		b.Holder = string(state)
		b.Title += ", " + use.WhyUnknown()
	}
}

// loadsOf returns the bars of a device's memory and activity, without those that are unknown.
func loadsOf(memory gpu.Memory, activity gauge) []load {
	var loads []load
	if m := memoryGauge(memory); m != nil {
		loads = append(loads, newLoad(m))
	}

	return append(loads, newLoad(&activity))
}

func newLoad(g *gauge) load {
	l := load{
		Letter: g.Label[:1], Label: g.Label, Class: g.Class(),
		Bar: g.Bar, Percent: g.Percent, Over: g.Over,
	}
	if !g.Bar {
		l.Value = g.Value
	}

	return l
}

// newPartViews returns the compute instances of a GPU instance, and a part for the compute slices
// that have none. There are none if one compute instance is all of it.
func newPartViews(inst *gpu.GPUInstance, doc *nodedoc.Instance, kubelet bool) []partView {
	if len(inst.ComputeInstances) == 1 && !inst.IsSplit() {
		return nil
	}

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

		use := doc.ComputeInstances[i].Evidence(doc, kubelet)

		switch state := use.State(); state {
		case nodedoc.UnknownUse:
			part.Class += " " + string(state)
			part.Title += ", " + use.WhyUnknown()
		case nodedoc.Held:
			part.Class += " " + string(state)

			if len(c.Holders) == 0 {
				part.Title += ", held by " + use.UnnamedHolder()
			}
		case nodedoc.Free:
			part.Title += ", held by nothing"
		}

		if !c.Up {
			part.Class += " down"
		}

		parts = append(parts, part)
	}

	if (rest > 0 || len(inst.ComputeInstances) == 0) && !inst.ComputesHidden {
		part := partView{
			Class: widthClass(max(rest, 1)) + " none",
			Title: nodedoc.Count(rest, "compute slice", "compute slices") + " without a compute instance",
		}
		if inst.IsEmpty() {
			part.Text = "no compute instance"
			part.Title = "no compute instance: nothing can run here"
		}

		parts = append(parts, part)
	}

	return parts
}

// widthMax is the number of width classes in the style sheet.
const widthMax = 12

// widthClass returns the class that makes a part as wide as its slices.
func widthClass(slices int) string { return fmt.Sprintf("w%d", min(max(slices, 1), widthMax)) }
