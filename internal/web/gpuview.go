package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// gpuView is one GPU's card.
type gpuView struct {
	Index    int
	Name     string
	UUID     string
	PCIBusID string
	Down     bool
	Badges   []badge
	Problem  string // since when it is down, and how old the shown readings are
	Gauges   []gauge
	holdingView
	Shared    []sharedView
	SharedBy  string
	MIG       bool
	Units     []int       // the labels of the axis; nil: there is no axis
	Axis      []blockView // their spans add up to the length of Units
	Instances []deviceView
	NoAxis    string // why there is no axis
	Available string // what could still be created
	Errors    []string
	// HasFree, HasStranded and HasUnknown are set if the axis has such blocks, which the legend explains.
	HasFree, HasStranded, HasUnknown bool
	HasKubelet                       bool   // the legend says "held" instead of "used"
	Unallocated                      string // the power that is not assigned to any instance
	Unconfirmed                      []unconfirmedView
	Processes                        processesView
}

// gauge is a reading, with a bar if it has a maximum, which Of names.
type gauge struct {
	Label, Value, Of string
	Percent          int // of the bar
	Bar              bool
}

// blockView is an instance on the axis, or a free or stranded part of it.
type blockView struct {
	Span    int
	Class   string // "used", "idle", "unknown", "down", "free", "stranded"
	Title   string
	Profile string
	// ProfileRest is the part of the profile's name that a narrow block does not show.
	ProfileRest string
	Holder      string
	Gauge       *gauge
	Parts       []partView
}

// partView is a compute instance in its GPU instance's block, as wide as its slices.
type partView struct{ Class, Title, Text string }

func newGPUView(g *gpu.GPU, now time.Time, kubelet bool) gpuView {
	view := gpuView{
		Index:    g.Index,
		Name:     g.Name,
		UUID:     string(g.UUID),
		PCIBusID: g.PCIBusID,
		Down:     !g.Up,
		Badges:   gpuBadges(g),
		Gauges:   gpuGauges(g),
		Errors:   errorTexts(g.Errors),
		MIG:      g.MIG.Enabled.Or(false) || len(g.Instances) > 0,
	}
	if view.Name == "" {
		view.Name = "Unknown model"
	}

	if !g.Up {
		view.Problem = downText(g, now)
	}

	view.holdingView = newHoldingView(&g.Device, kubelet && g.UUID != "")

	view.Unconfirmed = unconfirmedViews(g)

	// A table lists who shares the GPU.
	if len(g.Holders) > 0 && g.Holders[0].Sharing != gpu.SharingExclusive {
		view.SharedBy = sharedText(g.Holders)
		view.Shared = sharedViews(g)
		view.Holders = nil
	}

	if view.MIG {
		addLayout(&view, g, kubelet)
	}

	return view
}

func gpuBadges(g *gpu.GPU) []badge {
	var badges []badge

	switch {
	case g.Released.Present():
		badges = append(badges, badge{
			Text:  "released",
			Class: "warn",
			Title: "The exporter keeps the GPU closed, so that it can be reset, unbound or passed to a virtual machine.",
		})
	case !g.Up && len(g.Errors) > 0 && g.Errors[0].Reason() == gpu.ReasonLost:
		badges = append(badges, badge{Text: "lost", Class: "bad"})
	case !g.Up:
		badges = append(badges, badge{Text: "down", Class: "bad"})
	}

	if mode := modeBadge(g.MIG); mode.Text != "" {
		badges = append(badges, mode)
	}

	if action := g.Readings.RecoveryAction.Or(gpu.RecoveryNone); action != gpu.RecoveryNone {
		badges = append(badges, badge{Text: "needs " + spellOut(action), Class: "bad"})
	}

	if rows, ok := g.Readings.RemappedRows.Get(); ok && rows.Failure {
		badges = append(badges, badge{Text: "row remap failed", Class: "bad"})
	} else if rows.Pending {
		badges = append(badges, badge{Text: "row remap pending", Class: "warn",
			Title: "takes effect with the next reset of the GPU"})
	}

	for _, e := range g.Totals.ClockEvents {
		if e.Active && slowsDown(e.Reason) {
			badges = append(
				badges,
				badge{
					Text:  spellOut(e.Reason),
					Class: "warn",
					Title: "why clocks are not at their highest",
				},
			)
		}
	}

	if n := g.Totals.XIDs.Value; n > 0 {
		badges = append(
			badges,
			badge{
				Text:  nodedoc.Count(int(n), "XID", "XIDs"),
				Class: "warn",
				Title: "XID errors since the exporter started",
			},
		)
	}

	if n := g.Totals.Unavailable.Or(gpu.Counter{}).Value; n > 0 {
		badges = append(badges, badge{
			Text:  nodedoc.Count(int(n), "unavailable event", "unavailable events"),
			Class: "bad",
			Title: "since the exporter started, the driver has said that it cannot use the GPU any more",
		})
	}

	if n := g.Totals.RecoveryActions.Or(gpu.Counter{}).Value; n > 0 {
		badges = append(badges, badge{
			Text:  nodedoc.Count(int(n), "recovery event", "recovery events"),
			Class: "warn",
			Title: "changes of what the driver asks to be done about the GPU, since the exporter started",
		})
	}

	return badges
}

// modeBadge says that MIG is enabled, or that its mode is about to change; it is empty for a GPU without MIG.
func modeBadge(mode gpu.MIGState) badge {
	enabled, known := mode.Enabled.Get()
	pending := mode.Pending.Or(enabled)

	switch {
	case known && pending != enabled:
		return badge{Text: "MIG pending", Class: "warn",
			Title: fmt.Sprintf("MIG mode is %s and becomes %s with the next reset",
				nodedoc.ModeName(gpu.Some(enabled)), nodedoc.ModeName(gpu.Some(pending)))}
	case enabled:
		return badge{Text: "MIG", Class: "plain"}
	}

	return badge{}
}

// slowsDown reports whether a clock event reason needs attention. Those of normal operation do not: idleness, clocks
// that were set, the power limit under full load.
func slowsDown(reason string) bool {
	return strings.HasPrefix(reason, "hw_") || strings.Contains(reason, "thermal")
}

// spellOut replaces the underscores of an identifier by spaces.
func spellOut[T ~string](name T) string { return strings.ReplaceAll(string(name), "_", " ") }

func gpuGauges(g *gpu.GPU) []gauge {
	r := &g.Readings

	var gauges []gauge
	if m := memoryGauge(r.Memory); m != nil {
		gauges = append(gauges, *m)
	}

	if g.Up || g.Activity.SM.Present() {
		gauges = append(gauges, smGauge(g.Activity))
	}

	if u, ok := nodedoc.Finite(r.Utilization).Get(); ok {
		gauges = append(
			gauges,
			gauge{Label: "Utilization", Value: percentText(u), Percent: percent(u), Bar: true},
		)
	}

	if w, ok := nodedoc.Finite(r.PowerWatts).Get(); ok {
		power := gauge{Label: "Power", Value: wattsText(w)}
		if limit, ok := nodedoc.Finite(r.PowerLimitWatts).Get(); ok && limit > 0 {
			power.Of = "of " + wattsText(limit)
			power.Percent = percent(w / limit)
			power.Bar = true
		}

		gauges = append(gauges, power)
	}

	if c, ok := nodedoc.Finite(r.TemperatureCelsius).Get(); ok {
		gauges = append(gauges, gauge{Label: "Temperature", Value: fmt.Sprintf("%.0f °C", c)})
	}

	return gauges
}

// smGauge returns the gauge of SM activity. If it is unknown, the value is a dash without a bar: unknown must not
// look idle.
func smGauge(a gpu.Activity) gauge {
	g := gauge{Label: "SM activity", Value: "–"}
	if ratio, ok := nodedoc.Finite(a.SM).Get(); ok {
		g.Value = percentText(ratio)
		g.Percent = percent(ratio)
		g.Bar = true
	}

	return g
}

func memoryGauge(m gpu.Memory) *gauge {
	used, ok := m.Used.Get()
	if !ok {
		return nil
	}

	g := &gauge{Label: "Memory", Value: bytesText(used)}
	if total, ok := m.Total.Get(); ok && total > 0 {
		g.Of = "of " + bytesText(total)
		g.Percent = percent(float64(used) / float64(total))
		g.Bar = true
	}

	return g
}

// downText says when a GPU answered last, and whether readings of that time are shown.
func downText(g *gpu.GPU, now time.Time) string {
	if r, ok := g.Released.Get(); ok {
		text := "Released " + ageText(now.Sub(r.Since)) +
			" ago: the exporter keeps it closed and reads nothing of it."
		if r.Unbound {
			text += " The driver does not list it any more."
		}

		return text
	}

	if g.UUID == "" {
		return "The driver counts this GPU but returns no handle for it."
	}

	if g.LastRead.IsZero() {
		return "It has not answered since the exporter started."
	}

	text := "It last answered " + ageText(now.Sub(g.LastRead)) + " ago."
	if g.Readings.Memory.Used.Present() || g.Readings.PowerWatts.Present() {
		return text + " The readings shown are from then."
	}

	return text + " Its readings are dropped."
}

func errorTexts(errs []gpu.ReadError) []string {
	texts := make([]string, 0, len(errs))
	for i := range errs {
		message := ""
		if errs[i].Err != nil {
			message = errs[i].Err.Error()
		}

		texts = append(texts, fmt.Sprintf("%s: %s", spellOut(errs[i].Reading), message))
	}

	return texts
}
