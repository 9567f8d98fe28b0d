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

	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func addEvaluateCommand(app *kingpin.Application, o *options) {
	c := o.command(app, commandEvaluate, "Show what really happens on a simulated node: "+
		"throughput, request latency and stretch of each workload, compared with a whole GPU of "+
		"its own, and what right-sizing predicted; and what was killed. Not available on a real "+
		"node.")
	c.Arg("gpu", "Only these GPUs: index or UUID.").
		HintAction(o.completionsOf(func() (*client, error) { return newExporterClient(o, o.URL) }, listGPUs)).
		StringsVar(&o.GPUs)
	c.Flag("url", "The exporter of the simulated node, by its metrics listener "+
		"(--web.listen-address).").
		Default("http://localhost:9401").
		Envar("MIGCTL_URL").
		StringVar(&o.URL)
	addOutputFlag(c, o, formText, formJSON, formYAML)
}

// evaluate shows what the processes on a simulated node achieve, beside the predictions.
func (s *session) evaluate(ctx context.Context) error {
	o := &s.opts

	data, err := fetchTruth(ctx, o.URL, o.requestTimeout())
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

// fetchTruth fetches the document of /-/sim/truth from the exporter of a simulated node.
func fetchTruth(ctx context.Context, address string, timeout time.Duration) ([]byte, error) {
	u, err := url.Parse(address)
	address = fleet.HidePassword(address)

	if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, usageError{fmt.Sprintf("%s %q: expected http://HOST:PORT", urlName, address)}
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
		return nil, usageError{fmt.Sprintf("%s %q cannot be asked", urlName, address)}
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
			p.paragraph(
				"Killed: ",
				red,
				fmt.Sprintf("%s on GPU %d, %s, at %s: %s", outcomeName(o), o.Index, deviceName(o),
					o.FailedAt.UTC().Format(time.RFC3339), o.Failed),
			)
		}
	}

	if len(running) > 0 {
		p.paragraph(
			"! ",
			dim,
			"WORK is the work done, STRETCH how many times as long kernels take, by busy time; both compared "+
				"with a whole GPU that the process has to itself, since it was first seen on its device.",
		)
	}
}

// outcomeName returns a name for the process: the owner of its pod without the kind, the pod, or its
// id.
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

// writeOutcomes lists the processes, with the predictions for them.
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

		if predicted := o.Predicted; predicted != nil {
			row[6] = predicted.Profile
			row[7] = ratioText(predicted.Low)
			row[8] = ratioText(predicted.Middle)
			row[9] = ratioText(predicted.High)

			if predicted.Profile == o.Profile {
				c = green
				// The factor is the width of the buckets from which the server has the quantile.
				if predicted.High > 0 && o.Stretch.P95 > predicted.High*1.005 {
					c = red
				}
			}
		}

		p.line(span{cells(row), c})
	}
}

// ratioText formats a stretch; 0 stands for an unknown one.
func ratioText(v float64) string {
	if v == 0 {
		return unknown
	}

	return fmt.Sprintf("%.2f", v)
}

// writeRequests lists the processes that answer requests.
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
		if r := o.Requests; r != nil {
			p.line(text("%s", cells([...]string{
				fmt.Sprint(o.Index),
				outcomeName(o),
				fmt.Sprintf("%.1f", r.PerSecond),
				fmt.Sprintf("%.1f", r.AlonePerSecond),
				latencyText(r.Latency.P50),
				latencyText(r.Latency.P95),
				latencyText(r.AloneLatency.P50),
				latencyText(r.AloneLatency.P95),
			})))
		}
	}

	for i := range list {
		writePredictedLatency(p, &list[i])
	}
}

// writePredictedLatency compares the latency of a process's requests with what was predicted for its
// slice.
func writePredictedLatency(p *page, o *sim.Outcome) {
	requests := o.Requests

	predicted := o.Predicted
	if requests == nil || predicted == nil || predicted.Profile != o.Profile ||
		predicted.LatencyHigh == 0 || requests.AloneLatency.P95 == 0 {
		return
	}

	factor := requests.Latency.P95 / requests.AloneLatency.P95
	color := green

	if factor < predicted.LatencyLow || factor > predicted.LatencyHigh {
		color = red
	}

	figure := fmt.Sprintf("%.2f to %.2f", predicted.LatencyLow, predicted.LatencyHigh)
	if predicted.LatencyFigure > 0 {
		figure = fmt.Sprintf("%.2f", predicted.LatencyFigure)
	}

	p.paragraph(p.right(fmt.Sprint(o.Index), 3)+" ", color, fmt.Sprintf(
		"%s: at p95 requests take %.2f times as long as alone; predicted %s times",
		outcomeName(o),
		factor,
		figure,
	))
}

// latencyText formats the time of a request; "endless" if its queue grows without bound.
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
