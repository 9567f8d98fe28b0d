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

// Analyze queries the history of all GPUs and returns what is recommended for each.
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

	a.formNodes()

	if err := a.queryAll(ctx); err != nil {
		return nil, err
	}

	return a.report(), nil
}

// analysis is what is known of a fleet while its history is queried.
type analysis struct {
	client  *Client
	options Options
	end     time.Time
	gpus    []*device // by cluster, node and UUID
	// holdersKnown are the clusters of which the history names holders of GPUs.
	holdersKnown map[string]bool
	models       models // guarded by mu
	servers      map[podKey]*advise.ServerHistory

	mu    sync.Mutex
	nodes [][]*device // those that remain to be queried
	chunk int         // GPUs to query at once; a node is not divided
	done  int
}

// device is a GPU of the fleet.
type device struct {
	uuid, cluster, node, name string
	modelCount                int // models that it had
	dialect                   *dialect
	samples                   float64 // of the series that cluster and name are taken from, which has the most
	history                   *history
	answer                    GPU
	first, last               time.Time // of what is known, by step; zero if there is nothing
	untold                    bool      // whether anything held it is not known, unlike of others in its cluster
}

// maxPoints is how many points a query may return: well below the 50 million samples that a query may load by default
// (--query.max-samples).
const maxPoints = 400_000

func firstChunk(window time.Duration) int { return max(1, maxPoints/int(window/step)) }

// listGPUs finds the GPUs of all exporters, a day of history at a time.
func (a *analysis) listGPUs(ctx context.Context) error {
	found := map[string]*device{}

	for _, d := range dialects() {
		for from := time.Duration(0); from < a.options.Window; from += 24 * time.Hour {
			window := min(24*time.Hour, a.options.Window-from)
			if err := a.listWindow(ctx, &d, a.end.Add(-from), window, found); err != nil {
				return err
			}
		}
	}

	if len(found) == 0 {
		return a.nothingFound()
	}

	for _, g := range found {
		a.gpus = append(a.gpus, g)
	}

	slices.SortFunc(a.gpus, func(a, b *device) int {
		return cmp.Or(
			cmp.Compare(a.cluster, b.cluster),
			cmp.Compare(a.node, b.node),
			cmp.Compare(a.uuid, b.uuid),
		)
	})

	return nil
}

// nothingFound says that there is no GPU in the history.
func (a *analysis) nothingFound() error {
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
		Hint: "does this Prometheus scrape mig-exporter or dcgm-exporter, and keep the history of that time? Check " +
			"--match, --window and --time.",
	}
}

// listWindow adds the GPUs of a part of the window, in two halves if that is too much at once.
func (a *analysis) listWindow(ctx context.Context, d *dialect, end time.Time, window time.Duration,
	found map[string]*device) error {
	places := []string{a.options.ClusterLabel}
	for _, l := range placeLabels() {
		places = append(places, string(l))
	}

	query := render(
		d.inventory,
		strings.Join(a.options.Match, ","),
		window,
		strings.Join(places, ", "),
	)

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

	query = render(d.holders, strings.Join(a.options.Match, ","), window, a.options.ClusterLabel)

	clusters, err := a.client.vector(ctx, query, end)
	for _, row := range clusters {
		a.holdersKnown[string(row.Metric[model.LabelName(a.options.ClusterLabel)])] = true
	}

	return err
}

// addRow adds a GPU, or what else is known of it. The latest rows come first, and the labels with the most samples of
// those count.
func (a *analysis) addRow(d *dialect, row *model.Sample, found map[string]*device) {
	uuid := string(row.Metric[d.uuid])
	name := string(row.Metric[d.model])

	if uuid == "" {
		return
	}

	g := found[uuid]
	if g == nil {
		g = &device{uuid: uuid, dialect: d}
		found[uuid] = g
	}

	if g.dialect.name != d.name {
		return
	}

	if name != "" && name != g.name {
		g.modelCount++
	}

	if float64(row.Value) <= g.samples {
		return
	}

	g.samples = float64(row.Value)
	g.cluster = string(row.Metric[model.LabelName(a.options.ClusterLabel)])

	if name != "" {
		g.name = name
	}

	for _, l := range placeLabels() {
		if node := string(row.Metric[l]); node != "" {
			g.node = node
			break
		}
	}
}

// formNodes makes the list of nodes to query: their GPUs are queried together, since a pod holds GPUs of one
// node. Names that two exporters have for the GPUs of one node make two of it.
func (a *analysis) formNodes() {
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

			a.nodes = append(a.nodes, []*device{g})
		}
	}
}

// queriers is how many chunks are queried at once: one is read while the server evaluates the other.
const queriers = 2

// queryAll queries the history of all GPUs.
func (a *analysis) queryAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.progress(0)
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

// nextNodes returns the next nodes of one exporter, as many as may be queried at once but one at least; none at the
// end.
func (a *analysis) nextNodes() [][]*device {
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

	taken := a.nodes[:count]
	a.nodes = a.nodes[count:]

	return taken
}

// queryNodes queries the history of nodes, in two halves if that is too much at once.
func (a *analysis) queryNodes(ctx context.Context, nodes [][]*device) error {
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
		a.progress(len(gpus))
	}

	return err
}

func (a *analysis) progress(more int) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.done += more
	if a.options.Progress != nil {
		a.options.Progress(a.done, len(a.gpus))
	}
}

// selectors returns the matchers that select GPUs.
func (a *analysis) selectors(gpus []*device) string {
	uuids := make([]string, 0, len(gpus))
	for _, g := range gpus {
		uuids = append(uuids, regexp.QuoteMeta(g.uuid))
	}

	own := string(gpus[0].dialect.uuid) + "=~" + strconv.Quote(strings.Join(uuids, "|"))

	return strings.Join(append(slices.Clone(a.options.Match), own), ",")
}

// steps is the range of the means: each covers the step before it.
func (a *analysis) steps() v1.Range {
	return v1.Range{Start: a.end.Add(-a.options.Window).Add(step), End: a.end, Step: step}
}

// hours is the range of the maxima of memory.
func (a *analysis) hours() v1.Range {
	return v1.Range{Start: a.end.Add(-a.options.Window).Add(hour), End: a.end, Step: hour}
}
