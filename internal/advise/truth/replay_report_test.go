package truth

import (
	"fmt"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// renderReplays has traces in the shape of published ones.
func (s *summary) renderReplays(b *strings.Builder) {
	b.WriteString(`
## Replayed traces

A replay shows the advisor the first half of a trace and holds its advice against the second. These traces are synthetic, in the shape of
three published ones, which are not shipped: [rightsizing-replay.md](rightsizing-replay.md) says how to run those, or your own. What
kernels use of the GPU is in none of the published ones; it was drawn at random. Without it nothing is advised.

| shape | | moved | killed | lost more than 5 % in an hour | kernels stretched above 2 at p95 | p95 of latency above 2 |
|---|---|--:|--:|--:|--:|--:|
`)

	all := append(shapes(1, true), shapes(1, false)...)
	for i, r := range s.replays {
		about := all[i].name + ", " + all[i].about + ", " + all[i].model
		if !r.measured {
			about += ", without width"
		}

		b.WriteString("| " + about + " ")
		r.renderCounts(b, "advised", func(a *replayed) *moved { return a.advised })
		b.WriteString("| ")
		r.renderCounts(b, "naive rule", func(a *replayed) *moved { return a.naive })
	}
}

// render writes what the advice would have done, with each workload that moves if all are wanted.
func (r *replay) render(b *strings.Builder, all bool) {
	fmt.Fprintf(b, "%d workloads on %s, a row every %v; advised at half time, %s, and judged by the rest.\n\n", len(r.answers),
		r.model.Name, r.step, r.half.UTC().Format(time.RFC3339))
	reasons := map[string]int{}

	for i := range r.answers {
		a := &r.answers[i].answer
		switch {
		case a.Action == "":
			reasons["not there yet"]++
		case r.answers[i].sampled:
			reasons["slice, provisional: the trace has too little of what kernels use of the GPU"]++
		case a.Action == advise.ActionSlice && r.answers[i].advised == nil:
			reasons["slice, and gone by then"]++
		case a.Reason == "":
			reasons[string(a.Action)]++
		default:
			reasons[string(a.Action)+", "+string(a.Reason)]++
		}
	}

	b.WriteString("| answer | workloads |\n|---|--:|\n")

	for len(reasons) > 0 {
		next := mostFrequent(reasons)
		fmt.Fprintf(b, "| %s | %d |\n", next, reasons[next])
		delete(reasons, next)
	}

	if !r.started {
		b.WriteString("\nWhat runs at the beginning of the trace is older: what its start needs is not known " +
			"(`STARTS=seen` takes the beginning for a start).\n")
	}

	b.WriteString("\n| | moved | killed | lost more than 5 % in an hour | kernels stretched above 2 at p95 | " +
		"p95 of latency above 2 |\n|---|--:|--:|--:|--:|--:|\n")
	r.renderCounts(b, "advised", func(a *replayed) *moved { return a.advised })
	r.renderCounts(b, "naive rule", func(a *replayed) *moved { return a.naive })
	b.WriteString("\n")

	if !all {
		return
	}

	b.WriteString("| workload | | slice | memory, GiB | killed | busy | stretch, p95 | worst hour | work that waits, p95 | on the whole GPU | " +
		"latency, p95 |\n|---|---|---|--:|---|--:|--:|--:|--:|--:|--:|\n")

	for i := range r.answers {
		a := &r.answers[i]
		a.advised.render(b, a.name, "advised")
		a.naive.render(b, a.name, "naive")
	}

	b.WriteString("\n`~`: what kernels use of the GPU is not in the trace; busy time, throughput and waiting are those of kernels " +
		"that use all of it. Latency is that of simulated requests, with `SERVICE_TIME`.\n")
}

func (r *replay) renderCounts(b *strings.Builder, name string, of func(*replayed) *moved) {
	given := 0
	killed := 0
	slow := 0
	stretched := 0
	late := 0

	for i := range r.answers {
		m := of(&r.answers[i])
		if m == nil {
			continue
		}

		given++

		if m.killed {
			killed++
		}

		if m.worstHour < minThroughput {
			slow++
		}

		if m.isStretched() {
			stretched++
		}

		if m.isLate() {
			late++
		}
	}

	text := func(count int, known bool) string {
		if !known {
			return "–"
		}

		return fmt.Sprint(count)
	}
	fmt.Fprintf(b, "| %s | %d | %d | %d | %s | %s |\n", name, given, killed, slow, text(stretched, r.measured),
		text(late, r.service > 0 && r.measured))
}

func (m *moved) render(b *strings.Builder, name, by string) {
	if m == nil {
		return
	}

	about := ""
	killed := "no"
	latency := "–"

	if !m.known {
		about = "~"
	}

	if m.killed {
		killed = "yes"
	}

	if m.latency > 0 {
		latency = fmt.Sprintf("%.2f", m.latency)
	}

	fmt.Fprintf(b, "| %s | %s | %s | %.1f | %s | %s%.2f | %s%.2f | %s%.3f | %s%.1f s | %.1f s | %s |\n", name, by,
		m.profile.Name, m.memory/gib, killed, about, m.busy, about, m.stretch, about, m.worstHour, about, m.waits, m.waitsWhole,
		latency)
}
