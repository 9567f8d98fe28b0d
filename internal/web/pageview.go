package web

import (
	"errors"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// pageView is the data of the page's template, which escapes all texts.
type pageView struct {
	CSS          template.CSS
	JS           template.JS
	RefreshMS    int64  // after which the script fetches the page again, in milliseconds
	RefreshS     int64  // after which a browser without scripts reloads it, in seconds
	Version      string // the version of the program
	PageVersion  string // see pageHandler
	Simulated    bool
	State        bool // see Options; without it the page has only links
	Links        []link
	Hostname     string
	Facts        []string // of the node: driver, CUDA
	Sources      []badge
	Notices      []notice
	SnapshotTime string // RFC 3339; empty before the first Snapshot
	Age          string
	// When the Snapshot was taken and when the page was rendered, in milliseconds by this host's clock.
	// The script computes by them how old the readings are in the browser.
	TakenMS, RenderedMS int64

	Tiles []tile
	GPUs  []gpuView
	Keys  []key // the legend: the kinds of blocks that the strips have
	// Utilization is set if a strip shows the utilization instead of SM activity, which the legend
	// then explains.
	Utilization bool
}

// key is an entry of the legend: it explains the blocks of a class.
type key struct{ Class, Text string }

type link struct{ Href, Text string }

// badge names a state in a word or two; Class is one of "good", "warn", "bad", "plain".
type badge struct{ Text, Class, Title string }

// notice is a problem of the node as a whole.
type notice struct {
	Class, Title, Text string
	Unmatched          []unmatchedView
	More               int      // how many devices Unmatched leaves out
	Commands           []string // what to run to see the exporter at work without a GPU
	Hint               string
}

// tile is a figure of the node. The tile of check-node opens to its findings.
type tile struct {
	Label, Value, Note string
	Findings           []Finding
	More               int // how many findings it leaves out
}

// newPageView returns the page of a Snapshot; snap is nil before the first.
func newPageView(opts Options, snap *gpu.Snapshot, now time.Time, advised advice) pageView {
	page := pageView{
		RefreshMS: refreshEvery.Milliseconds(),
		RefreshS:  int64(reloadEvery / time.Second),
		Version:   opts.Version,
		Simulated: opts.Simulated,
		State:     opts.State,
		Links:     pageLinks(opts),
	}
	if !opts.State {
		return page
	}

	if snap == nil {
		page.Notices = []notice{{Class: "plain", Title: "Reading the node for the first time",
			Text: "No snapshot has been taken yet. This page shows it as soon as there is one."}}

		return page
	}

	page.Hostname = snap.Hostname
	page.SnapshotTime = snap.Time.UTC().Format(time.RFC3339)
	age := now.Sub(snap.Time)
	page.Age = ageText(age)
	page.TakenMS = snap.Time.UnixMilli()
	page.RenderedMS = now.UnixMilli()

	if d, ok := snap.Driver.Get(); ok {
		page.Facts = append(page.Facts, "driver "+d.Version)
		if d.CUDA != "" {
			page.Facts = append(page.Facts, "CUDA "+d.CUDA)
		}
	}

	page.Sources = mapSlice(snap.Sources, sourceBadge)
	if n := nodeNotice(opts, snap, now); n != nil {
		page.Notices = append(page.Notices, *n)
	}

	if n := paceNotice(snap); n != nil {
		page.Notices = append(page.Notices, *n)
	}

	page.Notices = append(page.Notices, holderNotices(snap)...)
	doc := nodedoc.New(snap)

	if len(snap.GPUs) > 0 {
		page.Tiles = nodeTiles(snap, &doc)
	}

	if t, ok := checkTile(&opts); ok {
		page.Tiles = append(page.Tiles, t)
	}

	view := viewer{
		snap:    snap,
		doc:     &doc,
		now:     now,
		kubelet: doc.HasKubelet(),
		advice:  advised,
		health:  opts.Node.report(),
		marks:   opts.Node.past.Marks(),
	}
	for i := range snap.GPUs {
		page.GPUs = append(page.GPUs, view.newGPUView(i))
	}

	page.explainBlocks()

	return page
}

// explainBlocks adds the legend of the blocks that the GPUs have.
func (p *pageView) explainBlocks() {
	for i := range p.GPUs {
		for _, b := range p.GPUs[i].Axis {
			p.Utilization = p.Utilization || slices.ContainsFunc(b.Loads, func(l load) bool { return l.Letter == "U" })
		}
	}

	all := []key{
		{"held", "held"}, {"free", "free"}, {"unknown", "unknown whether held"}, {"down", "does not answer"},
		{"room", "no instance"}, {"stranded", "stranded"},
	}

	for _, k := range all {
		for i := range p.GPUs {
			if slices.ContainsFunc(p.GPUs[i].Axis, func(b blockView) bool { return b.Class == k.Class }) {
				p.Keys = append(p.Keys, k)
				break
			}
		}
	}
}

// pageLinks returns the links of the page. They are relative, so that they also work behind a proxy
// that serves the page under another path.
func pageLinks(opts Options) []link {
	links := []link{{strings.TrimPrefix(pathMetrics, "/"), "Metrics"}}
	if opts.State {
		links = append(links, link{strings.TrimPrefix(pathNode, "/"), "JSON"})
	}

	links = append(links, link{strings.TrimPrefix(pathReady, "/"), "Ready"},
		link{strings.TrimPrefix(pathHealthy, "/"), "Health"})
	if opts.Pprof {
		links = append(links, link{strings.TrimPrefix(pathPprof, "/"), "Profiles"})
	}

	return links
}

func sourceBadge(s *gpu.SourceState) badge {
	switch {
	case errors.Is(s.Err, gpu.ErrNotConfigured):
		return badge{
			Text:  s.Name + " " + gpu.ErrNotConfigured.Error(),
			Class: "plain",
			Title: sourceReason(*s),
		}
	case s.Up:
		return badge{Text: s.Name, Class: "good", Title: s.Name + " answers"}
	case s.Stale:
		return badge{Text: s.Name + " stale", Class: "warn", Title: sourceReason(*s)}
	default:
		return badge{Text: s.Name + " down", Class: "bad", Title: sourceReason(*s)}
	}
}

// nodeNotice returns the most important problem of the node as a whole; nil if there is none.
func nodeNotice(opts Options, snap *gpu.Snapshot, now time.Time) *notice {
	driver, _ := sourceState(snap, gpu.SourceNVML)
	if !driver.Up {
		n := &notice{
			Class: "bad",
			Title: "No NVIDIA driver answers on this node",
			Text:  sourceReason(driver),
			Hint:  "The exporter keeps looking: a driver that arrives later is picked up without a restart.",
		}
		if len(snap.GPUs) > 0 {
			n.Title = "The NVIDIA driver no longer answers"
		} else if !opts.Simulated {
			n.Commands = []string{"mig-exporter --driver=sim"}
		}

		return n
	}

	if age := now.Sub(snap.Time); opts.ReadyMaxAge > 0 && age > opts.ReadyMaxAge {
		return &notice{Class: "bad", Title: "Readings have stalled",
			Text: "The readings shown here are " + ageText(age) + " old."}
	}

	if n := len(snap.Unread); n > 0 {
		return &notice{
			Class: "plain",
			Title: fmt.Sprintf("%d of %d GPUs have not been read yet", n, n+len(snap.GPUs)),
			Text: "Their first readings are under way: " + indexesText(snap.Unread) +
				". They appear here as they answer.",
		}
	}

	if len(snap.GPUs) == 0 {
		return &notice{Class: "plain", Title: "The driver answers, but lists no GPU",
			Text: "A GPU that appears later is picked up without a restart."}
	}

	return nil
}

// paceNotice says that we read the GPUs less often than configured; nil if we do not.
func paceNotice(snap *gpu.Snapshot) *notice {
	p := &snap.Pace
	if !p.Stretched() {
		return nil
	}

	every := func(t gpu.TierPace) string {
		if t.Now == t.Configured {
			return fmt.Sprintf("every %s, as configured", t.Now)
		}

		return fmt.Sprintf("every %s instead of %s", t.Now, t.Configured)
	}

	return &notice{
		Class: "warn",
		Title: "The GPUs are read less often than configured",
		Text: "Calls of the driver take more than --poll.driver-budget. Memory, activity and power are read " +
			every(p.Fast) + "; what is dear or seldom changes " + every(p.Slow) + ".",
		Hint: "Metrics mig_exporter_driver_seconds_total and mig_exporter_poll_interval_seconds.",
	}
}

// indexesText names GPUs by index.
func indexesText(indexes []int) string {
	var names []string
	for _, i := range indexes {
		names = append(names, fmt.Sprintf("GPU %d", i))
	}

	return strings.Join(names, ", ")
}

// nodeTiles returns the tiles with the totals of the node.
func nodeTiles(snap *gpu.Snapshot, doc *nodedoc.Document) []tile {
	var up, migEnabled, instances int
	var watts share[float64]
	var memory share[uint64]

	for i := range snap.GPUs {
		g := &snap.GPUs[i]
		if g.Up {
			up++
		}

		if g.MIG.Enabled.Or(false) {
			migEnabled++
		}

		instances += len(g.Instances)

		watts.add(nodedoc.Finite(g.Readings.PowerWatts), nodedoc.Finite(g.Readings.PowerLimitWatts))
		memory.add(g.Readings.Memory.Used, g.Readings.Memory.Total)
	}

	answering := "all answer"

	switch silent := len(snap.GPUs) - up; {
	case silent == 1:
		answering = "1 does not answer"
	case silent > 1:
		answering = fmt.Sprintf("%d do not answer", silent)
	}

	tiles := []tile{{Label: "GPUs", Value: fmt.Sprint(len(snap.GPUs)), Note: answering}}
	if t, ok := freeTile(doc); ok {
		tiles = append(tiles, t)
	}

	if migEnabled > 0 {
		tiles = append(
			tiles,
			tile{
				Label: "In MIG mode",
				Value: fmt.Sprint(migEnabled),
				Note:  nodedoc.Count(instances, "GPU instance", "GPU instances"),
			},
		)
	}

	if memory.whole > 0 {
		tiles = append(tiles, tile{
			Label: "Memory used",
			Value: bytesText(memory.part),
			Note:  "of " + bytesText(memory.whole) + withoutText(memory.without),
		})
	}

	if watts.whole > 0 {
		tiles = append(tiles, tile{
			Label: "Power",
			Value: wattsText(watts.part),
			Note:  "limit " + wattsText(watts.whole) + withoutText(watts.without),
		})
	}

	return tiles
}

// share adds up what GPUs use and what they have, over the GPUs of which we know both. If it added the
// use of a GPU without its limit, the node could seem to use more than it has.
type share[T uint64 | float64] struct {
	part, whole T
	without     int // how many GPUs are left out
}

func (s *share[T]) add(part, whole gpu.Opt[T]) {
	if !part.Present() || !whole.Present() {
		s.without++
		return
	}

	s.part += part.Or(0)
	s.whole += whole.Or(0)
}

// withoutText says how many GPUs a total leaves out. It is empty if it leaves out none.
func withoutText(count int) string {
	if count == 0 {
		return ""
	}

	return ", without " + nodedoc.Count(count, "GPU", "GPUs")
}
