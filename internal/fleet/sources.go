package fleet

import (
	"context"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// sources says what the history has of what tells the exporters of a node who holds its GPUs: without
// a list of containers or batch jobs, a GPU on which no process runs may be held.
type sources struct {
	kubelet  bool   // there is one: containers hold GPUs, with and without processes
	jobsDown []bool // the steps in which the files of batch jobs could not be used
}

// knowsJobs reports whether all batch jobs on the node are known in a step.
func (s *sources) knowsJobs(at int) bool { return s == nil || !s.jobsDown[at] }

// processesTell reports whether nothing holds a GPU in a step if no process runs on it: nothing but
// batch jobs, which are known, could hold it without one.
func (s *sources) processesTell(at int) bool { return s.knowsJobs(at) && (s == nil || !s.kubelet) }

// listSources queries the sources of the nodes in a part of the window.
func (a *analysis) listSources(
	ctx context.Context,
	d *dialect,
	end time.Time,
	window time.Duration,
	places string,
) error {
	if d.kubelets == "" {
		return nil
	}

	render := func(template string) string {
		return render(template, a.matchers(), window, places)
	}

	nodes, err := a.client.vector(ctx, render(d.kubelets), end)
	if err != nil {
		return err
	}

	for _, row := range nodes {
		a.sourcesOf(row.Metric).kubelet = true
	}

	steps := v1.Range{Start: end.Add(-window).Add(step), End: end, Step: step}

	down, err := a.client.matrix(ctx, render(d.jobsDown), steps)
	for _, row := range down {
		node := a.sourcesOf(row.Metric)
		for _, p := range row.Values {
			if at := int(p.Timestamp.Time().Sub(a.steps().Start) / step); at >= 0 && at < len(node.jobsDown) {
				node.jobsDown[at] = true
			}
		}
	}

	return err
}

// sourcesOf returns the sources of the node that labels name.
func (a *analysis) sourcesOf(labels model.Metric) *sources {
	place := a.placeOf(labels)

	s := a.sources[place]
	if s == nil {
		s = &sources{jobsDown: make([]bool, int(a.options.Window/step))}
		a.sources[place] = s
	}

	return s
}
