package truth

import (
	"fmt"
	"math"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

const (
	minContained  = 0.9  // of the intervals printed, those that contain what was seen
	figureError   = 0.25 // of a figure, relative to what was seen, up to a load of figureLoad
	figureLoad    = 0.8
	minFigureGood = 0.9
	// minSample is how many predictions a share has to be of to be held against its limit.
	minSample = 150
)

// prediction is one of the latency of requests, and what was seen.
type prediction struct {
	record        *record
	said          advise.Latency
	before, after float64 // in the week before the move and after it
}

func (p *prediction) contains(seen float64) bool {
	return seen >= p.said.Low/resolution && seen <= p.said.High*resolution
}

// isPredicted reports whether an answer has a prediction of latency.
func isPredicted(l advise.Latency) bool { return l != advise.Latency{} }

// recall returns how many workloads that held their GPU when the advice was asked for have a slice
// by what can be observed, and how many of them are recommended one that does by that.
func (s *summary) recall(way int) (total, recalled int) {
	for i := range s.records {
		if r := &s.records[i]; r.foreseeable && r.present && r.past {
			total++

			if v := &r.verdicts[way]; v.given && v.past {
				recalled++
			}
		}
	}

	return total, recalled
}

// predictions returns those of the slices recommended by default, and the number of workloads that
// answer requests of which nothing was predicted. Clients that wait are left out if annotations say
// that they do.
func (s *summary) predictions() (list []prediction, missing int) {
	for i := range s.records {
		r := &s.records[i]

		v := &r.verdicts[byDefault]
		if !v.given || !r.foreseeable || r.arrivals == "" || r.arrivals == arriveClosed && r.known {
			continue
		}

		if !v.seen.waits.known {
			continue
		}

		if !isPredicted(v.latency) {
			missing++
			continue
		}

		list = append(list, prediction{r, v.latency, v.waitsBefore.latency, v.seen.waits.latency})
	}

	return list, missing
}

// contained counts the predictions whose interval contains what was seen in the week before the
// move and after it.
func contained(list []prediction) (before, after int) {
	for i := range list {
		p := &list[i]
		if p.contains(p.before) {
			before++
		}

		if p.contains(p.after) {
			after++
		}
	}

	return before, after
}

// figureErrors returns how far the figures are off that are to be right, relative to what was seen.
func figureErrors(list []prediction) (before, after []float64) {
	for i := range list {
		if p := &list[i]; p.said.Figure > 0 && p.said.Load <= figureLoad {
			before = append(before, math.Abs(p.said.Figure/p.before-1))
			after = append(after, math.Abs(p.said.Figure/p.after-1))
		}
	}

	return before, after
}

func within(errors []float64, limit float64) int {
	n := 0

	for _, e := range errors {
		if e <= limit {
			n++
		}
	}

	return n
}

// shareViolations returns which limits do not hold of shares: of predictions of latency, and of
// recall.
func (s *summary) shareViolations() []string {
	var found []string

	list, _ := s.predictions()
	if _, after := contained(list); len(list) >= minSample && float64(after) < minContained*float64(len(list)) {
		found = append(found, fmt.Sprintf("%d of %d intervals contain the p95 of latency that was seen; expected %.0f %%",
			after, len(list), 100*minContained))
	}

	_, errors := figureErrors(list)

	good := within(errors, figureError)
	if len(errors) >= minSample && float64(good) < minFigureGood*float64(len(errors)) {
		found = append(found, fmt.Sprintf("%d of %d figures of latency are within %.0f %% of what was seen; expected %.0f %%",
			good, len(errors), 100*figureError, 100*minFigureGood))
	}

	total, recalled := s.recall(byDefault)
	if total >= minSample && float64(recalled) < minRecall*float64(total) {
		found = append(found, fmt.Sprintf("%d of the %d workloads that have a slice by what can be observed are recommended one; "+
			"expected %.0f %%", recalled, total, 100*minRecall))
	}

	return found
}

// renderLatency has what became of requests.
func (s *summary) renderLatency(b *strings.Builder) {
	fmt.Fprintf(b, `## Requests

%d of the workloads answer requests. These are simulated one by one, by code that shares nothing with the advisor
(internal/sim/requests): arrivals are Poisson with the rate of each minute, in bursts of seconds, with a rate of each ten
seconds, or of clients that wait for their answers; service times of 8 ms to 5 s on the whole GPU are constant, exponential or log-normal, of one kind
of request or of several; one is served after the other, or up to 32 together. In the last 12 days before the advice the advisor is shown
a poll every second, as the exporter polls, with the busy time that the simulation gives; before that, one Snapshot a minute. Compared is the p95
of latency in the slice with that on the whole GPU, over the same requests of the %d busiest hours of the week after the move. A
regret by latency is a ratio above %v; of clients that wait, a loss of more than 5 %% of throughput. Half of the workloads carry
the annotation `+"`mig-exporter.io/service-time`"+`.

| regrets | by default | strictly | naive rule |
|---|--:|--:|--:|
`, s.serving(), judgedHours, float64(maxStretch))
	row := func(name string, holds func(*verdict) bool) { s.renderCounts(b, name, holds) }
	row("requests judged", func(v *verdict) bool { return v.seen.waits.known })
	row("by latency, or throughput of clients that wait", func(v *verdict) bool { return v.seen.late })
	row("of them, not by the workload model minute by minute", func(v *verdict) bool { return v.seen.late && !v.seen.slow })
	row("of them, at p95 alone", func(v *verdict) bool { return v.seen.late && v.seen.p95Alone })
	row("advice to grow within an hour", func(v *verdict) bool {
		return v.seen.late && v.seen.lateDelay >= 0 && v.seen.lateDelay <= noticeWithin
	})
	b.WriteString(`
At p95 alone: requests of one kind are longer than others, and p90 and p99 of latency keep the limit. If one request in thirty is ten times as long as the others, p95 of latency lies between the
short and the long ones, and a little more waiting moves it by far. If one in twenty is, it does not. Both kinds of workload look alike to
polls, which see busy time and not requests, so advice that notices the one is wrong for the other
(` + "`TestPollsDoNotShowBetweenWhichRequestsP95Lies`" + `). To be noticed within an hour is asked of all other regrets.

`)
	s.renderIntervals(b)
	s.renderLate(b)
}

func (s *summary) serving() int {
	n := 0

	for i := range s.records {
		if s.records[i].arrivals != "" {
			n++
		}
	}

	return n
}

// renderIntervals has how well latency is predicted.
func (s *summary) renderIntervals(b *strings.Builder) {
	list, missing := s.predictions()
	fmt.Fprintf(b, `Of the slices recommended by default to workloads that answer requests, %d have a predicted p95 of latency and %d
have none. The interval should contain what is seen for nine in ten, the figure be within 25 %% for nine in ten if the load of the slice is up to
0.8. Growing loads, and days that come once a week, are in the week after the move alone.

| | predicted | interval contains the week before | the week after | figures | within 25 %%, week before | week after |
|---|--:|--:|--:|--:|--:|--:|
`, len(list), missing)
	row := func(name string, which func(*record) bool) {
		var some []prediction

		for _, p := range list {
			if which(p.record) {
				some = append(some, p)
			}
		}

		before, after := contained(some)
		errorsBefore, errorsAfter := figureErrors(some)
		fmt.Fprintf(b, "| %s | %d | %s | %s | %d | %s | %s |\n", name, len(some), percent(before, len(some)),
			percent(after, len(some)), len(errorsAfter), percent(within(errorsBefore, figureError), len(errorsBefore)),
			percent(within(errorsAfter, figureError), len(errorsAfter)))
	}
	row("all", func(*record) bool { return true })
	row("service time known", func(r *record) bool { return r.known })
	row("not known", func(r *record) bool { return !r.known })

	for _, name := range arrivalNames() {
		row(name, func(r *record) bool { return r.arrivals == name })
	}

	unbounded := 0
	var widths []float64

	for _, p := range list {
		switch {
		case p.said.IsUnbounded():
			unbounded++
		case p.said.Figure == 0:
			widths = append(widths, p.said.High/p.said.Low)
		}
	}

	fmt.Fprintf(b, `
Intervals are wide where the service time is not known: the upper end is %.1f times the lower one at p50, and %.1f times at p90. %d have no
upper end.

`, quantile(widths, 0.5), quantile(widths, 0.9), unbounded)
}

// renderLate has the regrets by latency.
func (s *summary) renderLate(b *strings.Builder) {
	b.WriteString(`| workload | kind, arrivals | slice | p95 of latency | p90, p99 | predicted | throughput | load | advice to grow after |
|---|---|---|--:|--:|--:|--:|--:|--:|
`)

	for i := range s.records {
		r := &s.records[i]
		for way := range naively {
			v := &r.verdicts[way]
			if !v.given || !r.foreseeable || !v.seen.late {
				continue
			}

			name := r.model
			if way == strictly {
				name += ", strict"
			}

			predicted := "–"
			if isPredicted(v.latency) {
				predicted = fmt.Sprintf("%.2f–%.2f", v.latency.Low, v.latency.High)
			}

			fmt.Fprintf(b, "| %s | %s, %s | %s | %.2f | %.2f, %.2f | %s | %.3f | %.2f | %s |\n", name, r.kind, r.arrivals,
				v.profile, v.seen.waits.latency, v.seen.waits.beside.p90, v.seen.waits.beside.p99, predicted, v.seen.waits.throughput, v.seen.waits.load, minutes(v.seen.lateDelay))
		}
	}

	b.WriteString("\n")
}
