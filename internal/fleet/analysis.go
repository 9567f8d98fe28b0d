package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// Analyze queries the history of all GPUs and returns a recommendation for each.
func Analyze(ctx context.Context, c *Client, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	a := &analysis{client: c, options: o, end: o.End.Truncate(step), chunk: firstChunk(o.Window),
		holdersKnown: map[string]bool{}, models: models{}}
	if err := a.listGPUs(ctx); err != nil {
		return nil, err
	}

	if err := a.queryServers(ctx); err != nil {
		return nil, err
	}

	a.groupByNode()

	if err := a.queryAll(ctx); err != nil {
		return nil, err
	}

	return a.report(), nil
}

// analysis collects what we learn of a fleet from its history.
type analysis struct {
	client  *Client
	options Options
	end     time.Time   // of the window
	gpus    []*fleetGPU // by cluster, node and UUID
	// holdersKnown has the clusters whose history names holders of GPUs.
	holdersKnown map[string]bool
	models       models // guarded by mu
	servers      map[podKey]*advise.ServerHistory
	refused      refusals
	serverPart   time.Duration // the longest part of the window that we ask about servers at once
	// exporters has the exporter of each node, by cluster and node; empty if there are several.
	exporters map[place]string

	mu    sync.Mutex
	nodes [][]*fleetGPU // the nodes that remain to be queried, each with its GPUs
	chunk int           // how many GPUs to query at once; we don't divide a node
	done  int           // GPUs queried
}

// place says where a GPU is; a history need not name clusters.
type place struct{ cluster, node string }

// fleetGPU is a GPU of the fleet.
type fleetGPU struct {
	uuid string
	place
	name        string // of the model, as the driver reports it
	modelCount  int    // how many names of models its series have had
	dialect     *dialect
	samples     float64  // of the series that cluster and name are from, which has the most
	history     *history // only while we query it
	answer      GPU
	first, last time.Time // begin and end of its history; zero if it has none
	// holderUnknown says that the history never shows whether anything held it, although it shows
	// holders of other GPUs in the cluster; holderUnread, that it lacks that for some of the time.
	holderUnknown, holderUnread bool
	lapsed                      bool // see advice
	// hasNeighbor says that another GPU of the node may have been held at the same time.
	hasNeighbor bool
}

// maxPoints is how many points a query may return at first. A query loads more samples than it
// returns points; by default, Prometheus lets it load 50 million (--query.max-samples).
const maxPoints = 400_000

// firstChunk returns how many GPUs to query at once until the server says that it is too much.
func firstChunk(window time.Duration) int { return max(1, maxPoints/int(window/step)) }

// listGPUs finds the GPUs of all exporters: those of the last hour first, as one exporter may have
// replaced another, then a day of history at a time.
func (a *analysis) listGPUs(ctx context.Context) error {
	found := map[string]*fleetGPU{}

	if err := a.listPart(ctx, a.end, hour, found); err != nil {
		return err
	}

	for from := time.Duration(0); from < a.options.Window; from += 24 * time.Hour {
		window := min(24*time.Hour, a.options.Window-from)
		if err := a.listPart(ctx, a.end.Add(-from), window, found); err != nil {
			return err
		}
	}

	if len(found) == 0 {
		return a.newNoGPUError()
	}

	for _, g := range found {
		a.gpus = append(a.gpus, g)
	}

	slices.SortFunc(a.gpus, func(a, b *fleetGPU) int {
		return cmp.Or(
			cmp.Compare(a.cluster, b.cluster),
			cmp.Compare(a.node, b.node),
			cmp.Compare(a.uuid, b.uuid),
		)
	})

	return nil
}

// newNoGPUError returns an error that says that there is no GPU in the history.
func (a *analysis) newNoGPUError() error {
	var families []string
	for _, d := range dialects() {
		families = append(families, d.family)
	}

	where := ""
	if len(a.options.Match) > 0 {
		where = " with " + strings.Join(a.options.Match, ",")
	}

	for _, w := range a.client.Warnings() {
		where += "; it warns: " + w
	}

	return &QueryError{
		URL:     a.client.url,
		Reached: true,
		Err: fmt.Errorf(
			"there is no GPU in the %s before %s: none of %s has a sample%s",
			model.Duration(a.options.Window),
			a.end.UTC().Format(time.RFC3339),
			strings.Join(families, ", "),
			where,
		),
		Hint: "does this Prometheus scrape mig-exporter or dcgm-exporter, and keep the history of that " +
			"time? Check --match, --window and --time.",
	}
}

// listPart adds the GPUs of all exporters in a part of the window to found.
func (a *analysis) listPart(
	ctx context.Context, end time.Time, window time.Duration, found map[string]*fleetGPU,
) error {
	for _, d := range dialects() {
		if err := a.listWindow(ctx, &d, end, window, found); err != nil {
			return err
		}
	}

	return nil
}

// listWindow adds the GPUs in a part of the window to found. If that is too much for one query, it
// queries two halves.
func (a *analysis) listWindow(ctx context.Context, d *dialect, end time.Time, window time.Duration,
	found map[string]*fleetGPU) error {
	labels := []string{a.options.ClusterLabel}
	for _, l := range placeLabels() {
		labels = append(labels, string(l))
	}

	match := strings.Join(a.options.Match, ",")
	query := render(d.inventory, match, window, strings.Join(labels, ", "))

	rows, err := a.client.vector(ctx, query, end)
	if isTooMuch(err) && window >= 2*time.Hour {
		half := (window / 2).Truncate(time.Hour)
		if err := a.listWindow(ctx, d, end, half, found); err != nil {
			return err
		}

		return a.listWindow(ctx, d, end.Add(-half), window-half, found)
	}

	if err != nil {
		return err
	}

	if len(rows) == 0 {
		return nil
	}

	for _, row := range rows {
		a.addRow(d, row, found)
	}

	query = render(d.holders, match, window, a.options.ClusterLabel)

	clusters, err := a.client.vector(ctx, query, end)
	for _, row := range clusters {
		a.holdersKnown[string(row.Metric[model.LabelName(a.options.ClusterLabel)])] = true
	}

	return err
}

// addRow adds the GPU of a series to found. A GPU can have several series, if its labels have
// changed: those of the series with the most samples count, or of the first among equals, since we
// list the latest days first. A GPU keeps the dialect in which we have found it.
func (a *analysis) addRow(d *dialect, row *model.Sample, found map[string]*fleetGPU) {
	uuid := string(row.Metric[d.uuid])
	if uuid == "" {
		return
	}

	g := found[uuid]
	if g == nil {
		g = &fleetGPU{uuid: uuid, dialect: d}
		found[uuid] = g
	}

	if g.dialect.name != d.name {
		return
	}

	name := string(row.Metric[d.model])
	if name != "" && name != g.name {
		g.modelCount++
	}

	if float64(row.Value) <= g.samples {
		return
	}

	g.samples = float64(row.Value)
	place := a.placeOf(row.Metric)
	place.node = cmp.Or(place.node, g.node) // a series may lack it
	g.place = place

	if name != "" {
		g.name = name
	}
}

// placeOf returns the place that labels name.
func (a *analysis) placeOf(labels model.Metric) place {
	p := place{cluster: string(labels[model.LabelName(a.options.ClusterLabel)])}

	for _, l := range placeLabels() {
		if p.node = string(labels[l]); p.node != "" {
			break
		}
	}

	return p
}

// groupByNode fills nodes. We query the GPUs of a node together, to see which pods hold several of
// them. If each of two exporters serves some GPUs of a node, it lists the node twice.
func (a *analysis) groupByNode() {
	a.exporters = map[place]string{}

	for _, g := range a.gpus {
		exporter, known := a.exporters[g.place]
		if known && exporter != g.dialect.name {
			a.exporters[g.place] = ""
		} else {
			a.exporters[g.place] = g.dialect.name
		}
	}

	for _, d := range dialects() {
		for _, g := range a.gpus {
			if g.dialect.name != d.name {
				continue
			}

			if n := len(a.nodes); n > 0 {
				last := a.nodes[n-1][0]
				if last.dialect.name == d.name && last.cluster == g.cluster && last.node == g.node {
					a.nodes[n-1] = append(a.nodes[n-1], g)
					continue
				}
			}

			a.nodes = append(a.nodes, []*fleetGPU{g})
		}
	}
}

// queriers is how many chunks we query at once: the server can evaluate one query while we read the
// answer to another.
const queriers = 2

// queryAll queries the history of all GPUs.
func (a *analysis) queryAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	a.addDone(0)

	var wait sync.WaitGroup

	errs := make([]error, queriers)
	for i := range errs {
		wait.Go(func() {
			for nodes := a.nextNodes(); len(nodes) > 0 && errs[i] == nil; nodes = a.nextNodes() {
				errs[i] = a.queryNodes(ctx, nodes)
			}

			if errs[i] != nil {
				cancel()
			}
		})
	}

	wait.Wait()

	// The error that canceled the others comes first.
	slices.SortStableFunc(errs, func(a, b error) int {
		return cmp.Compare(rankCanceled(a), rankCanceled(b))
	})

	return errs[0]
}

func rankCanceled(err error) int {
	switch {
	case err == nil:
		return 2
	case errors.Is(err, context.Canceled):
		return 1
	}

	return 0
}

// nextNodes takes the next nodes from the list: nodes of one exporter, as many as chunk allows, but
// at least one. It returns none at the end.
func (a *analysis) nextNodes() [][]*fleetGPU {
	a.mu.Lock()
	defer a.mu.Unlock()

	count := 0
	gpus := 0

	for count < len(a.nodes) && a.nodes[count][0].dialect.name == a.nodes[0][0].dialect.name {
		if gpus += len(a.nodes[count]); gpus > a.chunk && count > 0 {
			break
		}

		count++
	}

	next := a.nodes[:count]
	a.nodes = a.nodes[count:]

	return next
}

// queryNodes queries the history of nodes. If that is too much at once, it queries two halves, and
// makes later chunks smaller.
func (a *analysis) queryNodes(ctx context.Context, nodes [][]*fleetGPU) error {
	gpus := slices.Concat(nodes...)

	err := a.queryGPUs(ctx, gpus)
	if isTooMuch(err) && len(nodes) > 1 {
		a.mu.Lock()
		a.chunk = max(1, min(a.chunk, len(gpus)/2))
		a.mu.Unlock()

		if err := a.queryNodes(ctx, nodes[:len(nodes)/2]); err != nil {
			return err
		}

		return a.queryNodes(ctx, nodes[len(nodes)/2:])
	}

	if err == nil {
		a.addDone(len(gpus))
	}

	return err
}

// addDone counts GPUs as queried, and reports the progress.
func (a *analysis) addDone(more int) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.done += more
	if a.options.Progress != nil {
		a.options.Progress(a.done, len(a.gpus))
	}
}

// selectors returns the label matchers of a query for gpus, which have the same dialect.
func (a *analysis) selectors(gpus []*fleetGPU) string {
	uuids := make([]string, 0, len(gpus))
	for _, g := range gpus {
		uuids = append(uuids, regexp.QuoteMeta(g.uuid))
	}

	own := string(gpus[0].dialect.uuid) + "=~" + strconv.Quote(strings.Join(uuids, "|"))

	return strings.Join(append(slices.Clone(a.options.Match), own), ",")
}

// steps returns the times at which to query means: a mean covers the step before its time.
func (a *analysis) steps() v1.Range {
	return v1.Range{Start: a.end.Add(-a.options.Window).Add(step), End: a.end, Step: step}
}

// hours returns the times at which to query the use of memory in the hour of the clock before.
func (a *analysis) hours() v1.Range {
	return v1.Range{
		Start: a.end.Add(-a.options.Window).Truncate(hour).Add(hour),
		End:   a.end.Truncate(hour),
		Step:  hour,
	}
}
