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
)

// Survey asks for the history of all GPUs and returns what is recommended for each.
func Survey(ctx context.Context, c *Client, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &survey{client: c, options: o, end: o.End.Truncate(step), chunk: firstChunk(o.Window),
		holdersKnown: map[string]bool{}, models: models{}}
	if err := s.listGPUs(ctx); err != nil {
		return nil, err
	}
	s.formNodes()
	if err := s.askAll(ctx); err != nil {
		return nil, err
	}
	return s.report(), nil
}

// survey is a survey under way.
type survey struct {
	client  *Client
	options Options
	end     time.Time
	gpus    []*device // by cluster, node and UUID
	// holdersKnown are the clusters of which the history names holders of GPUs.
	holdersKnown map[string]bool
	models       models // guarded by mu

	mu    sync.Mutex
	nodes [][]*device // those that remain to be asked for
	chunk int         // GPUs to ask for at once; a node is not divided
	done  int
}

// device is a GPU of the fleet.
type device struct {
	uuid, cluster, node, name string
	names                     int // models that it had
	dialect                   *dialect
	samples                   float64 // under the names that were taken
	history                   *history
	answer                    GPU
	last                      time.Time // end of the last step of which anything is known; zero if there is none
}

// maxPoints is how many points a query may return: well below the 50 million samples that a server holds by default,
// and 20 million for a week of 1600 GPUs.
const maxPoints = 400_000

func firstChunk(window time.Duration) int { return max(1, maxPoints/int(window/step)) }

// listGPUs finds the GPUs of all exporters, a day of history at a time.
func (s *survey) listGPUs(ctx context.Context) error {
	found := map[string]*device{}
	for _, d := range dialects() {
		for from := time.Duration(0); from < s.options.Window; from += 24 * time.Hour {
			window := min(24*time.Hour, s.options.Window-from)
			if err := s.listWindow(ctx, &d, s.end.Add(-from), window, found); err != nil {
				return err
			}
		}
	}
	if len(found) == 0 {
		return s.nothingFound()
	}
	for _, g := range found {
		s.gpus = append(s.gpus, g)
	}
	slices.SortFunc(s.gpus, func(a, b *device) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.node, b.node), cmp.Compare(a.uuid, b.uuid))
	})
	return nil
}

// nothingFound says that there is no GPU in the history.
func (s *survey) nothingFound() error {
	var families []string
	for _, d := range dialects() {
		families = append(families, d.family)
	}
	where := ""
	if len(s.options.Match) > 0 {
		where = " with " + strings.Join(s.options.Match, ",")
	}
	for _, w := range s.client.Warnings() {
		where += "; it warns: " + w
	}
	return &QueryError{
		URL: s.client.url, Reached: true,
		Err: fmt.Errorf("there is no GPU in the %s before %s: none of %s has a sample%s", model.Duration(s.options.Window),
			s.end.UTC().Format(time.RFC3339), strings.Join(families, ", "), where),
		Hint: "does this Prometheus scrape mig-exporter or dcgm-exporter, and keep the history of that time? Check " +
			"--match, --window and --time.",
	}
}

// listWindow adds the GPUs of a part of the window, in two halves if that is too much to ask for at once.
func (s *survey) listWindow(ctx context.Context, d *dialect, end time.Time, window time.Duration,
	found map[string]*device) error {
	places := []string{s.options.ClusterLabel}
	for _, l := range placeLabels() {
		places = append(places, string(l))
	}
	query := render(d.inventory, strings.Join(s.options.Match, ","), window, strings.Join(places, ", "))
	rows, err := s.client.vector(ctx, query, end)
	if isTooMuch(err) && window >= 2*time.Hour {
		half := (window / 2).Truncate(time.Hour)
		if err := s.listWindow(ctx, d, end, half, found); err != nil {
			return err
		}
		return s.listWindow(ctx, d, end.Add(-half), window-half, found)
	}
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return nil
	}
	for _, row := range rows {
		s.addRow(d, row, found)
	}
	query = render(d.holders, strings.Join(s.options.Match, ","), window, s.options.ClusterLabel)
	clusters, err := s.client.vector(ctx, query, end)
	for _, row := range clusters {
		s.holdersKnown[string(row.Metric[model.LabelName(s.options.ClusterLabel)])] = true
	}
	return err
}

// addRow adds a GPU, or what else is known of it. The latest rows come first, and the labels with the most samples of
// those count.
func (s *survey) addRow(d *dialect, row *model.Sample, found map[string]*device) {
	uuid, name := string(row.Metric[d.uuid]), string(row.Metric[d.model])
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
		g.names++
	}
	if float64(row.Value) <= g.samples {
		return
	}
	g.samples, g.cluster = float64(row.Value), string(row.Metric[model.LabelName(s.options.ClusterLabel)])
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

// formNodes makes the list of nodes to ask for: their GPUs are asked for together, since a pod holds GPUs of one
// node. Names that two exporters have for the GPUs of one node make two of it.
func (s *survey) formNodes() {
	for _, d := range dialects() {
		for _, g := range s.gpus {
			if g.dialect.name != d.name {
				continue
			}
			if n := len(s.nodes); n > 0 {
				last := s.nodes[n-1][0]
				if last.dialect.name == d.name && last.cluster == g.cluster && last.node == g.node {
					s.nodes[n-1] = append(s.nodes[n-1], g)
					continue
				}
			}
			s.nodes = append(s.nodes, []*device{g})
		}
	}
}

// askers is how many chunks are asked for at once: one is read while the server evaluates the other.
const askers = 2

// askAll asks for the history of all GPUs.
func (s *survey) askAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.progress(0)
	var wait sync.WaitGroup
	errs := make([]error, askers)
	for i := range errs {
		wait.Go(func() {
			for nodes := s.take(); len(nodes) > 0 && errs[i] == nil; nodes = s.take() {
				errs[i] = s.askNodes(ctx, nodes)
			}
			if errs[i] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	slices.SortStableFunc(errs, func(a, b error) int { // the one that canceled the others comes first
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

// take returns the next nodes of one exporter, as many as may be asked for at once but one at least; none at the end.
func (s *survey) take() [][]*device {
	s.mu.Lock()
	defer s.mu.Unlock()
	count, gpus := 0, 0
	for count < len(s.nodes) && s.nodes[count][0].dialect.name == s.nodes[0][0].dialect.name {
		if gpus += len(s.nodes[count]); gpus > s.chunk && count > 0 {
			break
		}
		count++
	}
	taken := s.nodes[:count]
	s.nodes = s.nodes[count:]
	return taken
}

// askNodes asks for the history of nodes, in two halves if that is too much to ask for at once.
func (s *survey) askNodes(ctx context.Context, nodes [][]*device) error {
	gpus := slices.Concat(nodes...)
	err := s.askGPUs(ctx, gpus)
	if isTooMuch(err) && len(nodes) > 1 {
		s.mu.Lock()
		s.chunk = max(1, min(s.chunk, len(gpus)/2))
		s.mu.Unlock()
		if err := s.askNodes(ctx, nodes[:len(nodes)/2]); err != nil {
			return err
		}
		return s.askNodes(ctx, nodes[len(nodes)/2:])
	}
	if err == nil {
		s.progress(len(gpus))
	}
	return err
}

func (s *survey) progress(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += more
	if s.options.Progress != nil {
		s.options.Progress(s.done, len(s.gpus))
	}
}

// selectors returns the matchers that select GPUs.
func (s *survey) selectors(gpus []*device) string {
	uuids := make([]string, 0, len(gpus))
	for _, g := range gpus {
		uuids = append(uuids, regexp.QuoteMeta(g.uuid))
	}
	own := string(gpus[0].dialect.uuid) + "=~" + strconv.Quote(strings.Join(uuids, "|"))
	return strings.Join(append(slices.Clone(s.options.Match), own), ",")
}

// steps is the range of the means: each covers the step before it.
func (s *survey) steps() v1.Range {
	return v1.Range{Start: s.end.Add(-s.options.Window).Add(step), End: s.end, Step: step}
}

// hours is the range of the maxima of memory.
func (s *survey) hours() v1.Range {
	return v1.Range{Start: s.end.Add(-s.options.Window).Add(hour), End: s.end, Step: hour}
}
