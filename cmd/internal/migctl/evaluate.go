package migctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func addEvaluateCommand(app *kingpin.Application, o *options) {
	c := o.command(app, commandEvaluate, "Show what really happens on a simulated node: "+
		"throughput, request latency and stretch of each workload, compared with a whole GPU of "+
		"its own, and what right-sizing predicted; and what was killed. Not available on a real "+
		"node.")
	c.Arg("gpu", "Only these GPUs: index or UUID.").
		HintAction(o.completions(listGPUs)).
		StringsVar(&o.GPUs)
	c.Flag("url", "The exporter of the simulated node, by its metrics listener "+
		"(--web.listen-address).").
		Default("http://localhost:9401").
		Envar("MIGCTL_URL").
		StringVar(&o.URL)
	addOutputFlag(c, o, formText, formJSON, formYAML)
}

// evaluate shows what really happens on a simulated node.
func (s *session) evaluate(ctx context.Context) error {
	o := &s.opts

	data, err := fetchTruth(ctx, o.URL, o.Timeout)
	if err != nil {
		return err
	}

	var e sim.Evaluation
	if err := s.client.decodeAnswer(data, &e); err != nil {
		return err
	}

	uuids := make([]gpu.UUID, len(e.Processes))
	for i := range e.Processes {
		uuids[i] = e.Processes[i].GPU
	}

	if o.GPUs, err = completeUUIDs(o.GPUs, uuids); err != nil {
		return err
	}

	named := func(p *sim.Outcome) bool {
		return len(o.GPUs) == 0 || slices.ContainsFunc(o.GPUs, func(word string) bool {
			return word == "all" || word == fmt.Sprint(p.Index) ||
				strings.EqualFold(word, string(p.GPU))
		})
	}
	if o.Output != formText {
		if data, err = filterList(data, "processes", o.GPUs, named); err != nil {
			return err
		}

		return s.printDocument(data)
	}

	e.Processes = slices.DeleteFunc(e.Processes, func(p sim.Outcome) bool { return !named(&p) })
	writeEvaluation(s.page, &e)

	return nil
}

// fetchTruth asks an exporter for what really happens on its node.
func fetchTruth(ctx context.Context, address string, timeout time.Duration) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, usageError{fmt.Sprintf("--url %q: expected http://HOST:PORT", address)}
	}

	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	req, err := http.NewRequestWithContext(
		timed,
		http.MethodGet,
		"http://"+u.Host+"/-/sim/truth",
		http.NoBody,
	)
	if err != nil {
		return nil, usageError{fmt.Sprintf("--url %q: %v", address, err)}
	}

	req.Header.Set("User-Agent", "migctl/"+version.Version)

	data, status, err := readAnswer(req)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &unreachable{
			address,
			fmt.Errorf("no answer within %s: %w", timeout, os.ErrDeadlineExceeded),
		}
	case err != nil:
		var outer *url.Error
		if errors.As(err, &outer) {
			err = outer.Err
		}

		return nil, &unreachable{address, err}
	case status == http.StatusNotFound:
		return nil, fmt.Errorf(
			"%s has no /-/sim/truth: this exporter serves a real node, or a recording of one. Only the "+
				"simulated node knows the truth (--driver=sim with a scenario)",
			address,
		)
	case status != http.StatusOK:
		return nil, &unreachable{address, fmt.Errorf("it answers %d %s", status, http.StatusText(status))}
	}

	return data, nil
}

func readAnswer(req *http.Request) (data []byte, status int, err error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()

	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	data, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))

	return data, res.StatusCode, err
}

func writeEvaluation(p *page, e *sim.Evaluation) {
	p.line(text("Node ").in(dim), text("%s", orUnknown(e.Node)).in(bold),
		text("   %s   simulated: what really happens", e.Time.UTC().Format(time.RFC3339)).in(dim))
	running := slices.DeleteFunc(slices.Clone(e.Processes), func(o sim.Outcome) bool {
		return o.Failed != ""
	})
	p.line()

	if len(running) == 0 {
		p.line(text("No process runs on a GPU."))
	} else {
		writeOutcomes(p, running)
	}

	if slices.ContainsFunc(running, func(o sim.Outcome) bool { return o.Requests != nil }) {
		p.line()
		writeRequests(p, running)
	}

	p.line()

	if len(running) == len(e.Processes) {
		p.line(text("No process was killed."))
	}

	for i := range e.Processes {
		if o := &e.Processes[i]; o.Failed != "" {
			p.para(
				"Killed: ",
				red,
				fmt.Sprintf("%s on GPU %d, %s, at %s: %s", outcomeName(o), o.Index, deviceName(o),
					o.FailedAt.UTC().Format(time.RFC3339), o.Failed),
			)
		}
	}

	if len(running) > 0 {
		p.para(
			"! ",
			dim,
			"WORK is the work done, STRETCH how many times as long kernels take, by busy time; both compared "+
				"with a whole GPU that the process has to itself, since it was first seen on its device.",
		)
	}
}

// outcomeName names what runs: the owner of its pod without the kind, the pod, or the process.
func outcomeName(o *sim.Outcome) string {
	if o.Pod == "" {
		return fmt.Sprintf("process %d", o.PID)
	}

	name := o.Pod
	if _, owner, ok := strings.Cut(o.Owner, "/"); ok {
		name = owner
	}

	return o.Namespace + "/" + name
}

func deviceName(o *sim.Outcome) string {
	if o.Profile == "" {
		return "whole"
	}

	return o.Profile
}

// writeOutcomes lists what runs, with what was predicted of it.
func writeOutcomes(p *page, list []sim.Outcome) {
	cells := func(c [10]string) string {
		return p.right(c[0], 3) + " " + p.cell(c[1], 17) + " " + p.cell(c[2], 10) + " " +
			p.right(c[3], 4) + " " + p.right(c[4], 5) + " " + p.right(c[5], 5) + "  " +
			p.cell(c[6], 10) + " " + p.right(c[7], 5) + " " + p.right(c[8], 5) + " " +
			p.right(c[9], 5)
	}
	p.line(span{p.cell("", 38) + p.cell("STRETCH", 13) + "PREDICTED AT p95", dim})
	p.line(
		span{
			cells(
				[...]string{
					"GPU",
					"WORKLOAD",
					"DEVICE",
					"WORK",
					"p50",
					"p95",
					"IN",
					"LOW",
					"EXPD",
					"HIGH",
				},
			),
			dim,
		},
	)

	for i := range list {
		o := &list[i]
		row := [10]string{fmt.Sprint(o.Index), outcomeName(o), deviceName(o), shareText(o.Throughput),
			ratioText(o.Stretch.P50), ratioText(o.Stretch.P95)}
		c := plain

		if t := o.Predicted; t != nil {
			row[6] = t.Profile
			row[7] = ratioText(t.Low)
			row[8] = ratioText(t.Middle)
			row[9] = ratioText(t.High)

			if t.Profile == o.Profile {
				c = green
				// The quantile is known to the width of its bucket.
				if t.High > 0 && o.Stretch.P95 > t.High*1.005 {
					c = red
				}
			}
		}

		p.line(span{cells(row), c})
	}
}

// ratioText is a stretch; none is 0, which stands for an unknown one.
func ratioText(v float64) string {
	if v == 0 {
		return unknown
	}

	return fmt.Sprintf("%.2f", v)
}

// writeRequests lists the loads in requests.
func writeRequests(p *page, list []sim.Outcome) {
	cells := func(c [8]string) string {
		return p.right(c[0], 3) + " " + p.cell(c[1], 17) + " " + p.right(c[2], 8) + " " +
			p.right(c[3], 8) + " " + p.right(c[4], 9) + " " + p.right(c[5], 9) + " " +
			p.right(c[6], 9) + " " + p.right(c[7], 9)
	}
	p.line(span{p.cell("", 22) + p.cell("REQUESTS PER s", 21) + p.cell("LATENCY", 20) + "LATENCY ALONE", dim})
	p.line(span{cells([...]string{"GPU", "WORKLOAD", "served", "alone", "p50", "p95", "p50", "p95"}), dim})

	for i := range list {
		o := &list[i]
		if q := o.Requests; q != nil {
			p.line(text("%s", cells([...]string{
				fmt.Sprint(o.Index),
				outcomeName(o),
				fmt.Sprintf("%.1f", q.PerSecond),
				fmt.Sprintf("%.1f", q.AlonePerSecond),
				latencyText(q.Latency.P50),
				latencyText(q.Latency.P95),
				latencyText(q.AloneLatency.P50),
				latencyText(q.AloneLatency.P95),
			})))
		}
	}

	for i := range list {
		writePredictedLatency(p, &list[i])
	}
}

// writePredictedLatency compares the latency of requests with what was predicted for the slice that
// they are served on.
func writePredictedLatency(p *page, o *sim.Outcome) {
	q := o.Requests

	t := o.Predicted
	if q == nil || t == nil || t.Profile != o.Profile || t.LatencyHigh == 0 ||
		q.AloneLatency.P95 == 0 {
		return
	}

	happened := q.Latency.P95 / q.AloneLatency.P95
	color := green

	if happened < t.LatencyLow || happened > t.LatencyHigh {
		color = red
	}

	predicted := fmt.Sprintf("%.2f to %.2f", t.LatencyLow, t.LatencyHigh)
	if t.LatencyFigure > 0 {
		predicted = fmt.Sprintf("%.2f", t.LatencyFigure)
	}

	p.para(p.right(fmt.Sprint(o.Index), 3)+" ", color, fmt.Sprintf(
		"%s: at p95 requests take %.2f times as long as alone; predicted %s times",
		outcomeName(o),
		happened,
		predicted,
	))
}

// latencyText is a time of a request, or that a queue grows without end.
func latencyText(seconds float64) string {
	switch {
	case seconds == 0:
		return unknown
	case seconds >= sim.EndlessLatency.Seconds():
		return "endless"
	case seconds < 10:
		return fmt.Sprintf("%.1fms", 1000*seconds)
	}

	return fmt.Sprintf("%.0fs", seconds)
}
