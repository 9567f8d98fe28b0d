package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// gpuView is one GPU: its row, and the card to which it opens.
type gpuView struct {
	Key         string // unique among the GPUs, and stable while the page is open
	Index       int
	Name        string
	ShortName   string // without "NVIDIA"
	UUID        string
	PCIBusID    string
	Down        bool
	Open        bool   // the card is open at first
	Find        string // what the search field compares with
	Is          string // the words that the filter finds it by, see filterWords
	Busy        int    // see busyness; the page sorts by it
	Badges      []badge
	Figures     []gauge // in the row
	Problem     string  // since when it is down, and how old the shown readings are
	Gauges      []gauge // in the card
	NoSM        string  // why SM activity is missing
	Holding     holdingView
	SharedBy    string // see sharedText; empty if a single container can hold the GPU
	MIG         bool
	Units       int         // length of the axis; 0 if we can't lay it out
	Axis        []blockView // together as long as Units; without MIG one block
	Instances   []deviceView
	NoAxis      string // why there is no axis
	Available   string // what could still be created
	Errors      []string
	Unallocated string // the power that is not assigned to any instance
	Unconfirmed []unconfirmedView
	Details     []detail
	XIDs        []xidView
	Advice      []adviceView
	Processes   processesView
}

// viewer makes the views of the GPUs of one Snapshot. Its fields are what a view shows besides the
// GPU itself.
type viewer struct {
	snap    *gpu.Snapshot
	doc     *nodedoc.Document // of snap
	now     time.Time
	kubelet bool // see nodedoc.Document.HasKubelet
	advice  advice
	health  *health.Report
	marks   []history.Mark
}

// newGPUView returns the view of the GPU at an index of the Snapshot.
func (v *viewer) newGPUView(i int) gpuView {
	g := &v.snap.GPUs[i]
	doc := &v.doc.GPUs[i]
	view := gpuView{
		Key:       string(g.UUID),
		Index:     g.Index,
		Name:      g.Name,
		UUID:      string(g.UUID),
		PCIBusID:  g.PCIBusID,
		Down:      !g.Up,
		Open:      len(v.snap.GPUs) == 1,
		Busy:      busyness(g),
		Badges:    gpuBadges(g),
		Figures:   rowGauges(g),
		Gauges:    gpuGauges(g),
		NoSM:      whyNoActivity(v.snap, g),
		Errors:    errorTexts(g.Errors),
		MIG:       g.MIG.Enabled.Or(false) || len(g.Instances) > 0,
		Details:   gpuDetails(g),
		XIDs:      xidViews(g, v.marks),
		Advice:    v.advice.viewsOf(g),
		Processes: newProcessesView(g, v.snap.Processes),
		ShortName: strings.TrimPrefix(g.Name, "NVIDIA "),
	}
	view.Find = strings.Join([]string{fmt.Sprint("gpu-", g.Index), g.Name, string(g.UUID), g.PCIBusID}, " ")

	if view.Key == "" {
		view.Key = fmt.Sprint("index-", g.Index)
	}

	if view.Name == "" {
		view.Name = "Unknown model"
		view.ShortName = view.Name
	}

	if !g.Up {
		view.Problem = downText(g, v.now)
	}

	view.Holding = newHoldingView(&g.Device, g.Containers, g.Jobs, doc.Evidence(v.kubelet))

	if g.UUID == "" {
		view.Holding.Unknown = "" // the driver returns no handle for the GPU: nothing can hold it
	}

	view.Unconfirmed = unconfirmedViews(g)

	if isShared(g.Holders) {
		view.SharedBy = sharedText(g.Holders)
	}

	underused := v.advice.isUnderused(g.UUID, gpu.None[gpu.InstanceID]())
	view.Is = filterWords(v.health.StateOf(g) != health.Healthy, underused)

	if underused {
		view.Badges = append(view.Badges, badge{Text: "underused", Class: "plain", Title: "see right-sizing below"})
	}

	if view.MIG {
		v.addLayout(&view, g, doc)
	} else {
		view.Axis = []blockView{v.newWholeBlock(g, doc)}
	}

	return view
}

// busyness returns the best known measure of how busy a GPU is, in thousandths; -1 if there is
// none.
func busyness(g *gpu.GPU) int {
	for _, ratio := range []gpu.Opt[float64]{g.Activity.SM, g.Activity.GraphicsEngine, g.Readings.Utilization} {
		if r, ok := nodedoc.Finite(ratio).Get(); ok {
			return int(1000 * r)
		}
	}

	return -1
}

// filterWords returns the words by which the page's filter finds a device.
func filterWords(unhealthy, underused bool) string {
	switch {
	case unhealthy && underused:
		return "unhealthy underused"
	case unhealthy:
		return "unhealthy"
	case underused:
		return "underused"
	}

	return ""
}

func gpuBadges(g *gpu.GPU) []badge {
	var badges []badge

	switch {
	case g.Released.Present():
		badges = append(badges, badge{
			Text:  "released",
			Class: "warn",
			Title: "The exporter keeps the GPU closed, so that it can be reset, unbound " +
				"or passed to a virtual machine.",
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
		if e.Active && health.SlowsDown(e.Reason) {
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

// modeBadge says that MIG is enabled, or that the mode changes with the next reset. It is empty if MIG
// is off and stays so.
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

// spellOut replaces the underscores of an identifier by spaces.
func spellOut[T ~string](name T) string { return strings.ReplaceAll(string(name), "_", " ") }

// downText says why we have no current readings of a GPU: since when it is released, or when it last
// answered and whether the page shows the readings of then.
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
