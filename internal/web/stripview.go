package web

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// blockView is one block of the strip that a GPU's row draws of its placement axis: a GPU instance, or
// a stretch of the axis without one. A GPU without MIG is a single block.
type blockView struct {
	Key     string // unique among the blocks of a GPU, and stable while the page is open
	Span    int    // its length in memory slices; 1 without an axis
	Class   string // "held", "free", "unknown", "down", "room", "stranded"
	Title   string // the tooltip
	Find    string // what the search field compares with
	Is      string // the words that the filter finds it by, see filterWords
	Profile string // "3g", or "whole GPU"
	// ProfileRest is the rest of the profile's name, ".20gb", which a narrow block doesn't show.
	ProfileRest string
	At          string // where it begins on the axis: "@4"
	Holder      string // the first holder, or a word for the state if no holder has a name
	More        int    // how many further holders there are
	Loads       []load
	Parts       []partView // empty unless the GPU instance has several parts, or no compute instance
}

// Down reports whether the block's device doesn't answer. The template writes "down" in such a block.
func (b blockView) Down() bool { return b.Class == "down" }

// load is a gauge in the width of a block: a letter instead of the label, with a thin bar.
type load struct {
	Letter       string // "M" for memory, "S" for SM activity, "U" for utilization
	Label, Class string // see gauge
	Bar          bool
	Percent      int
	Value        string // shown instead of the bar
	Over         string // see gauge
}

// partView is a part of a GPU instance's block, as wide as its compute slices: a compute instance, or
// the slices that none has.
type partView struct{ Class, Title, Text string }

// layOutAxis returns the segments of a GPU's placement axis, or nil if we can't lay it out: see
// nodedoc.Axis.LayOut.
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

// newInstanceBlock returns the block of a GPU instance without its place on the axis, which newBlock
// adds if we know it.
func (v *viewer) newInstanceBlock(g *gpu.GPU, inst *gpu.GPUInstance, doc *nodedoc.Instance) blockView {
	block := blockView{
		Key:     "gi-" + instanceKey(inst),
		Span:    1,
		Class:   "down", // unless it answers
		Title:   fmt.Sprintf("GPU instance %d, %s", inst.ID, profileText(inst.Profile)),
		Profile: profileText(inst.Profile),
		Loads:   loadsOf(inst.Memory, smGauge(inst.Activity)),
		Parts:   newPartViews(inst, doc, v.kubelet),
	}

	use := doc.Evidence(v.kubelet)
	if inst.Up {
		block.Class = string(use.State())
	}

	// 3g.20gb becomes 3g and .20gb. A name of another form stays in one piece.
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

	// An instance without compute instances has a part that says that nothing can run there. To call
	// it free as well would promise too much.
	names := holderNames(&inst.Device, inst.Jobs)
	if len(names) > 0 || !inst.IsEmpty() {
		block.addHolders(names, &inst.Device, use)
	}

	block.Find = strings.Join(instanceSearchWords(inst, names), " ")
	block.Is = filterWords(v.health.StateOfInstance(g, inst) != health.Healthy,
		v.advice.isUnderused(g.UUID, gpu.Some(inst.ID)))

	return block
}

// instanceSearchWords returns what a reader may type to find a GPU instance, whose holders are names.
func instanceSearchWords(inst *gpu.GPUInstance, names []string) []string {
	words := append([]string{inst.Profile, fmt.Sprint("gi-", inst.ID)}, names...)

	for i := range inst.ComputeInstances {
		c := &inst.ComputeInstances[i]
		words = append(words, string(c.UUID))

		// The holders of a GPU instance hold its compute instances, too: they are among the names.
		if len(inst.Holders) == 0 {
			words = append(words, holderNames(&c.Device, nil)...)
		}
	}

	return words
}

// newWholeBlock returns the block of a GPU without MIG, which takes the whole axis.
func (v *viewer) newWholeBlock(g *gpu.GPU, doc *nodedoc.GPU) blockView {
	block := blockView{
		Key:     "whole",
		Span:    1,
		Class:   "down", // unless it answers
		Profile: "whole GPU",
		Title:   "the whole GPU",
	}

	use := doc.Evidence(v.kubelet)
	if g.Up {
		block.Class = string(use.State())
		block.Loads = loadsOf(g.Readings.Memory, activityGauge(g))
	}

	names := holderNames(&g.Device, g.Jobs)
	block.addHolders(names, &g.Device, use)
	block.Find = strings.Join(names, " ")

	return block
}

// addHolders names the holders of a block's device. If we know no name, it says "free", "held" or
// "unknown". It doesn't say "unknown" of a device that doesn't answer: "down" says it already.
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
	case state == nodedoc.Held && len(b.Parts) == 0: // parts name their own holders
		b.Holder = string(state)
		b.Title += ", held by " + use.UnnamedHolder()
	case state == nodedoc.UnknownUse && !b.Down():
		b.Holder = string(state)
		b.Title += ", " + use.WhyUnknown()
	}
}

// loadsOf returns the loads of a device's memory and activity. Unknown memory is left out; unknown
// activity is shown as a dash.
func loadsOf(memory gpu.Memory, activity gauge) []load {
	var loads []load
	if m := memoryGauge(memory); m != nil {
		loads = append(loads, newLoad(m))
	}

	return append(loads, newLoad(&activity))
}

func newLoad(g *gauge) load {
	l := load{
		Letter:  g.Label[:1],
		Label:   g.Label,
		Class:   g.Class(),
		Bar:     g.Bar,
		Percent: g.Percent,
		Over:    g.Over,
	}
	if !g.Bar {
		l.Value = g.Value
	}

	return l
}

// newPartViews returns a part for each compute instance of a GPU instance, and one for the compute
// slices that have none. It returns nil if one compute instance is all of the GPU instance: the block
// shows that one without parts.
func newPartViews(inst *gpu.GPUInstance, doc *nodedoc.Instance, kubelet bool) []partView {
	if len(inst.ComputeInstances) == 1 && !inst.IsSplit() {
		return nil
	}

	var parts []partView

	unassigned := inst.ComputeSlices.Or(0)
	for i := range inst.ComputeInstances {
		parts = append(parts, newComputePart(inst, i, doc, kubelet))
		unassigned -= computeWidth(&inst.ComputeInstances[i])
	}

	// The slices may belong to compute instances that the driver hides from us.
	if inst.ComputeInstancesHidden {
		return parts
	}

	switch {
	case inst.IsEmpty():
		parts = append(parts, partView{
			Class: widthClass(unassigned) + " none",
			Title: "no compute instance: nothing can run here",
			Text:  "no compute instance",
		})
	case unassigned > 0:
		parts = append(parts, partView{
			Class: widthClass(unassigned) + " none",
			Title: nodedoc.Count(unassigned, "compute slice", "compute slices") + " without a compute instance",
		})
	}

	return parts
}

// computeWidth returns how many compute slices a compute instance has, or 1 if we don't know it: it
// must be seen.
func computeWidth(c *gpu.ComputeInstance) int { return c.ComputeSlices.Or(1) }

// newComputePart returns the part of the compute instance at an index of a GPU instance.
func newComputePart(inst *gpu.GPUInstance, index int, doc *nodedoc.Instance, kubelet bool) partView {
	c := &inst.ComputeInstances[index]
	part := partView{
		Class: widthClass(computeWidth(c)),
		Title: fmt.Sprintf("compute instance %d, %s", c.ID, profileText(c.Profile)),
	}

	if len(c.Holders) > 0 {
		part.Title += ", " + podText(&c.Holders[0])

		if len(inst.Holders) == 0 { // the block names the holders of the GPU instance itself
			part.Text = c.Holders[0].Pod
		}
	}

	use := doc.ComputeInstances[index].Evidence(doc, kubelet)

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

	return part
}

// maxWidthClass is the last of the width classes in the style sheet, w1 to w12.
const maxWidthClass = 12

// widthClass returns the class that makes a part as wide as its slices.
func widthClass(slices int) string { return fmt.Sprintf("w%d", min(max(slices, 1), maxWidthClass)) }
