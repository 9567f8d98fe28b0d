package web

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// detail is a fact about a GPU that its card lists.
type detail struct{ Label, Value string }

// xidView is an XID that has occurred since the exporter started.
type xidView struct {
	XID       uint64
	Name      string // in NVIDIA's catalog
	Count     string
	Last      string // RFC 3339
	Instances string // that it named
}

// gpuDetails returns what we know of a GPU besides its gauges. What the driver does not report has no
// entry.
func gpuDetails(g *gpu.GPU) []detail {
	var details []detail

	add := func(label, value string) {
		if value != "" {
			details = append(details, detail{label, value})
		}
	}

	r := &g.Readings
	add("Clocks", clocksText(r.ClockHertz))
	add("Clocks held back by", clockEventsText(g.Totals.ClockEvents))
	add("Performance state", stateText(r.PerformanceState))
	add("Memory temperature", celsiusText(r.MemoryCelsius))
	add("Fans", fansText(r.Fans))
	add("Media engines", mediaText(r.Media))
	add("PCIe", pcieText(g))
	add("NVLink", nvlinkText(g))
	add("ECC errors", eccText(r.ECC))
	add("Remapped rows", rowsText(r.RemappedRows))
	add("Layout changes", layoutChangesText(g))

	return details
}

func clocksText(c gpu.Clocks) string {
	return listText([]detail{
		{"SM", megahertzText(c.SM)}, {"memory", megahertzText(c.Memory)}, {"video", megahertzText(c.Video)},
	})
}

// listText joins values, each after its label: "SM 1410 MHz, memory 1593 MHz". It leaves out values
// that are empty.
func listText(values []detail) string {
	var texts []string

	for _, v := range values {
		if v.Value != "" {
			texts = append(texts, v.Label+" "+v.Value)
		}
	}

	return strings.Join(texts, ", ")
}

func megahertzText(hertz gpu.Opt[float64]) string {
	h, ok := nodedoc.Finite(hertz).Get()
	if !ok {
		return ""
	}

	return fmt.Sprintf("%.0f MHz", h/1e6)
}

// clockEventsText says why clocks are not at their highest now, and for how long in all each reason
// has applied. It is empty if the driver reports no reasons.
func clockEventsText(events []gpu.ReasonSeconds) string {
	var texts []string

	for _, e := range events {
		if !e.Active {
			continue
		}

		text := nodedoc.ClockEventText(e.Reason)
		if e.Seconds.Value >= 1 {
			text += fmt.Sprintf(
				" (%s in all since the exporter started)",
				ageText(time.Duration(e.Seconds.Value*float64(time.Second))),
			)
		}

		texts = append(texts, text)
	}

	if len(texts) == 0 && len(events) > 0 {
		return "nothing"
	}

	return strings.Join(texts, ", ")
}

func stateText(state gpu.Opt[int]) string {
	p, ok := state.Get()
	if !ok {
		return ""
	}

	return fmt.Sprintf("P%d", p)
}

func celsiusText(celsius gpu.Opt[float64]) string {
	c, ok := nodedoc.Finite(celsius).Get()
	if !ok {
		return ""
	}

	return fmt.Sprintf("%.0f °C", c)
}

func fansText(fans []gpu.Fan) string {
	return strings.Join(mapSlice(fans, func(f *gpu.Fan) string { return percentText(f.Speed) }), ", ")
}

func mediaText(m gpu.Media) string {
	return listText([]detail{
		{"encoder", ratioText(m.Encoder)}, {"decoder", ratioText(m.Decoder)},
		{"JPEG", ratioText(m.JPEG)}, {"OFA", ratioText(m.OFA)},
	})
}

func ratioText(ratio gpu.Opt[float64]) string {
	r, ok := nodedoc.Finite(ratio).Get()
	if !ok {
		return ""
	}

	return percentText(r)
}

func pcieText(g *gpu.GPU) string {
	p := &g.Readings.PCIe

	var link string

	if generation, ok := p.LinkGeneration.Get(); ok {
		link = fmt.Sprintf("generation %d", generation)
	}

	if width, ok := p.LinkWidth.Get(); ok {
		link = strings.TrimSpace(fmt.Sprintf("%s ×%d", link, width))
	}

	traffic := listText([]detail{
		{"in", rateText(g.Rates.PCIeReceive)}, {"out", rateText(g.Rates.PCIeTransmit)},
	})

	var replays string
	if n := p.Replays.Or(0); n > 0 {
		replays = nodedoc.Count(int(n), "replay", "replays")
	}

	return joinTexts(link, traffic, replays)
}

func nvlinkText(g *gpu.GPU) string {
	texts := []string{listText([]detail{
		{"in", rateText(g.Rates.NVLinkReceive)}, {"out", rateText(g.Rates.NVLinkTransmit)},
	})}

	for _, e := range g.Readings.NVLink.Errors {
		if e.Count > 0 {
			texts = append(texts, nodedoc.Count(int(e.Count), spellOut(e.Kind)+" error", spellOut(e.Kind)+" errors"))
		}
	}

	return joinTexts(texts...)
}

// joinTexts joins the texts that are not empty.
func joinTexts(texts ...string) string {
	var known []string

	for _, text := range texts {
		if text != "" {
			known = append(known, text)
		}
	}

	return strings.Join(known, ", ")
}

// rateText formats bytes per second in decimal units, as the data sheets of links do.
func rateText(rate gpu.Opt[float64]) string {
	r, ok := nodedoc.Finite(rate).Get()

	switch {
	case !ok:
		return ""
	case r >= 1e9:
		return fmt.Sprintf("%.1f GB/s", r/1e9)
	case r >= 1e6:
		return fmt.Sprintf("%.0f MB/s", r/1e6)
	default:
		return fmt.Sprintf("%.0f kB/s", r/1e3)
	}
}

// eccText lists the errors that have occurred. It is empty if the driver reports no counts.
func eccText(counts []gpu.ECCCount) string {
	var texts []string

	for _, c := range nodedoc.ECCErrors(counts) {
		text := fmt.Sprintf("%d %s in %s", c.Count, c.Severity, spellOut(c.Location))
		if c.Lifetime == "aggregate" {
			text += " in its life"
		}

		texts = append(texts, text)
	}

	if len(texts) == 0 && len(counts) > 0 {
		return "none"
	}

	return strings.Join(texts, ", ")
}

func rowsText(remapped gpu.Opt[gpu.RemappedRows]) string {
	rows, ok := remapped.Get()
	if !ok {
		return ""
	}

	if rows == (gpu.RemappedRows{}) {
		return "none"
	}

	text := fmt.Sprintf("%d for correctable, %d for uncorrectable errors", rows.Correctable, rows.Uncorrectable)
	if rows.Pending {
		text += ", pending: the next reset takes them into use"
	}

	if rows.Failure {
		text += ", failed: there is no spare row"
	}

	return text
}

func layoutChangesText(g *gpu.GPU) string {
	n := int(g.Totals.LayoutChanges.Value)
	if n == 0 {
		return ""
	}

	return fmt.Sprintf("%d since the exporter started", n)
}

// xidViews lists the XIDs of a GPU. marks are the events of the last minutes, by which it also names
// instances that no Snapshot has any more.
func xidViews(g *gpu.GPU, marks []history.Mark) []xidView {
	return mapSlice(g.Totals.XIDErrors, func(x *gpu.XIDCount) xidView {
		view := xidView{
			XID:       x.XID,
			Name:      gpu.XIDName(x.XID),
			Count:     fmt.Sprintf("%.0f", x.Value),
			Instances: strings.Join(instancesOfXID(g, x.XID, marks), ", "),
		}
		if !x.Last.IsZero() {
			view.Last = x.Last.UTC().Format(time.RFC3339)
		}

		return view
	})
}

// instancesOfXID names the GPU instances on which an XID has occurred: those of the Snapshot first,
// then those that the marks remember.
func instancesOfXID(g *gpu.GPU, xid uint64, marks []history.Mark) []string {
	var names []string

	for i := range g.Instances {
		inst := &g.Instances[i]
		if slices.ContainsFunc(inst.XIDErrors, func(own gpu.XIDCount) bool { return own.XID == xid }) {
			names = append(names, fmt.Sprintf("GI %d", inst.ID))
		}
	}

	for i := range marks {
		m := &marks[i]
		if m.UUID != g.UUID || m.XID != xid || !m.GPUInstance.Present() || hasInstanceOf(g, m) {
			continue
		}

		// We don't read the instances of a released GPU, so that they may still be there.
		name := fmt.Sprintf("GI %d", m.GPUInstance.Or(0))
		if !g.Released.Present() {
			name += " (gone)"
		}

		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}

	return names
}

// hasInstanceOf reports whether a GPU still has the GPU instance that a mark names. A new instance
// with the same id is another one.
func hasInstanceOf(g *gpu.GPU, m *history.Mark) bool {
	return slices.ContainsFunc(g.Instances, func(inst gpu.GPUInstance) bool {
		return m.IsOf(inst.ID, inst.Generation)
	})
}
