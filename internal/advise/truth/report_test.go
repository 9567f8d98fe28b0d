package truth

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// summary is what all nodes gave.
type summary struct {
	nodes   int
	records []record
	// inUse and freed count whole GPUs that moved workloads held, and those of them that are free
	// after packing, by mode.
	inUse, freed [2]int
	// gainless and roomy are those of result.
	gainless, roomy [2]int
	unproven        int
	// smallPackings were compared with the exhaustive optimum; sharedPackings of them need fewer
	// GPUs than they hold.
	smallPackings, sharedPackings int
	full                          *agreement
	used                          time.Duration // of processor time for the nodes, without those of the full simulator
	took                          time.Duration // on the clock, all in all
	replays                       []*replay     // of the shapes with what kernels use of the GPU, and then without
}

func summarize(results []*result) *summary {
	s := &summary{nodes: len(results)}
	for _, r := range results {
		s.records = append(s.records, r.records...)

		s.smallPackings = s.smallPackings + r.smallPackings

		s.sharedPackings = s.sharedPackings + r.sharedPackings
		for mode, p := range r.packing {
			s.gainless[mode] += r.gainless[mode]
			s.roomy[mode] += r.roomy[mode]

			if p == nil {
				continue
			}

			s.inUse[mode], s.freed[mode] = s.inUse[mode]+p.InUse, s.freed[mode]+len(p.FreedGPUs)
			if !p.Proven {
				s.unproven++
			}
		}
	}

	return s
}

// harmed reports whether a workload died or passed a limit.
func (v *verdict) harmed() bool { return v.dies() || v.seen.regret }

// count counts the foreseeable workloads that are recommended a slice and of which something holds.
func (s *summary) count(way int, holds func(*verdict) bool) int {
	n := 0

	for i := range s.records {
		if v := &s.records[i].verdicts[way]; v.given && s.records[i].foreseeable && holds(v) {
			n++
		}
	}

	return n
}

func (s *summary) given(way int) int { return s.count(way, func(*verdict) bool { return true }) }

// render returns the report as markdown. It begins with the result.
func (s *summary) render() string {
	var b strings.Builder

	b.WriteString("# Right-sizing on simulated nodes\n\n")
	s.renderResult(&b)
	fmt.Fprintf(&b, `## How it was measured

`+"`make evaluate`"+` writes this page. **All of it is simulated**: the workload model is the project's own (a roofline of SMs and
bandwidth, consistent with published runs). These figures say whether the advice follows from what was observed, not how real kernels
behave.

%d nodes of eight GPUs (%s), %d workloads. Each is observed on its whole GPU for 14 days at
windows of 60 s. Then what is recommended is applied, and the same workload runs on for 7 days in its slice; it is compared
with the whole GPU minute by minute. The move starts its pod again. Work that a slice has no time for is lost, not queued; so is what its media engines cannot do of a workload that
keeps more of them busy than it has. A regret is a loss of more than
5 %% of throughput over the 7 days, a p95 of stretch above 2, or a p95 of latency more than twice that on the whole GPU, by [requests](#requests).
Workloads that get a new version after the advice, which
nothing foretells, are counted apart.

Inference servers reserve a fraction of their device. About half of them say how much of their cache
is used, as they do with `+"`--advise.server-metrics`"+`, and half of those carry the size of their weights; of the
others a start shows it, if one was observed. In its slice such a server reserves 90 %% of it, or as much as before. It
uses more of its cache there, as its requests take longer; it is a regret if they wait for cache in more than 5 %% of the busy time.

`, s.nodes, strings.Join(s.models(), ", "), len(s.records))
	s.renderWays(&b)
	s.renderOracles(&b)
	s.renderStretch(&b)
	s.renderLatency(&b)
	s.renderRegrets(&b)
	s.renderHidden(&b)
	s.renderStarts(&b)
	s.renderKinds(&b)
	s.full.render(&b)
	s.renderReplays(&b)
	fmt.Fprintf(&b, "\n## Time\n\nAll of it took %v on the clock of a machine with %d processors; the nodes, without the comparison with "+
		"the full simulator, %v of processor time.\n", s.took.Round(time.Minute), runtime.GOMAXPROCS(0), s.used.Round(time.Minute))

	return fillPage(b.String())
}

// renderResult answers the question of the page: how many workloads regret the advice.
func (s *summary) renderResult(b *strings.Builder) {
	fmt.Fprintf(b, "Of %d simulated workloads that were recommended a slice by default, **%d regret it**: they were "+
		"killed in the slice, were too slow, or kept requests waiting. Of %d that were recommended one strictly "+
		"(`--advise.strict`) %d do. The naive rule takes the smallest slice with enough memory if p95 of utilization "+
		"is under 30 %%: %d of its %d regret it.\n\n",
		s.given(byDefault), s.count(byDefault, (*verdict).harmed),
		s.given(strictly), s.count(strictly, (*verdict).harmed),
		s.count(naively, (*verdict).harmed), s.given(naively))
	b.WriteString("| | by default | strictly | naive rule |\n|---|--:|--:|--:|\n")
	s.renderCounts(b, "workloads recommended a slice", func(*verdict) bool { return true })
	s.renderCounts(b, "regret it", (*verdict).harmed)
	b.WriteString("| their share |")

	for way := range ways {
		fmt.Fprintf(b, " %s |", percent(s.count(way, (*verdict).harmed), s.given(way)))
	}

	b.WriteString("\n")
	s.renderCounts(b, "ran out of memory", func(v *verdict) bool { return v.outOfMemory })
	s.renderFreed(b)
	b.WriteString("\n")
}

// renderFreed writes the rows of the GPUs that moved workloads held, and of the free ones.
func (s *summary) renderFreed(b *strings.Builder) {
	fmt.Fprintf(b, "| GPUs of what moves | %d | %d | |\n| of them free after packing | %d | %d | |\n",
		s.inUse[byDefault], s.inUse[strictly], s.freed[byDefault], s.freed[strictly])
}

// renderCounts writes a row of a table: for each way of deciding, of how many workloads something
// holds.
func (s *summary) renderCounts(b *strings.Builder, name string, holds func(*verdict) bool) {
	fmt.Fprintf(b, "| %s | %d | %d | %d |\n",
		name, s.count(byDefault, holds), s.count(strictly, holds), s.count(naively, holds))
}

func (s *summary) models() []string {
	var list []string
	for i := range s.records {
		list = append(list, s.records[i].model)
	}

	slices.Sort(list)

	return slices.Compact(list)
}

// renderWays has what each way of deciding led to, side by side.
func (s *summary) renderWays(b *strings.Builder) {
	b.WriteString(`## What the advice led to

The naive rule is one that dashboards suggest: if p95 of utilization is under 30 %, the smallest slice with enough
memory.

| | by default | strictly | naive rule |
|---|--:|--:|--:|
`)
	row := func(name string, holds func(*verdict) bool) { s.renderCounts(b, name, holds) }
	row("workloads recommended a slice", func(*verdict) bool { return true })
	row("ran out of memory", func(v *verdict) bool { return v.outOfMemory })
	row("lacked a media engine", func(v *verdict) bool { return v.engineMissing })
	row("lost more than 5 % for too few media engines", func(v *verdict) bool {
		return !v.engineMissing && v.seen.engines < minThroughput
	})
	row("lost more than 5 % of throughput", func(v *verdict) bool { return v.seen.throughput < minThroughput })
	row("passed a stretch of 2 at p95", func(v *verdict) bool { return v.seen.stretch > maxStretch })
	row("p95 of latency above 2, or throughput of clients that wait", func(v *verdict) bool { return v.seen.late })
	row("any of these", (*verdict).harmed)
	row("lost more than 5 % in their worst hour", func(v *verdict) bool { return v.seen.worstHour < minThroughput })
	fmt.Fprintf(b, "| not recommended in the end, since it gains nothing on its node | %d | %d | |\n"+
		"| frees no GPU, and makes room | %d | %d | |\n", s.gainless[byDefault], s.gainless[strictly],
		s.roomy[byDefault], s.roomy[strictly])
	s.renderFreed(b)
	b.WriteString("\n")

	strict := s.count(strictly, func(v *verdict) bool { return v.seen.worstHour < minThroughput })
	fmt.Fprintf(b, "Strict promises that no workload falls below 95 %% of its throughput over the 7 days, and holds it; "+
		"it says nothing of single hours: %d of its workloads lost more than 5 %% in their worst one.\n\n", strict)
	fmt.Fprintf(b, "Packings not proven optimal: %d. %d halves of nodes were packed as nodes of %d GPUs, "+
		"%d of them on fewer GPUs than before: each on as few as the best of all assignments. Changes of an answer: %.2f a week and workload.\n\n",
		s.unproven, s.smallPackings, smallNode, s.sharedPackings, s.flapsPerWeek())
}

func (s *summary) flapsPerWeek() float64 {
	n := 0
	for i := range s.records {
		n += s.records[i].flaps
	}

	return float64(n) / max(1, float64(len(s.records))) * weekMinutes / (observedMinutes - dayMinutes)
}

// renderOracles has precision and recall.
func (s *summary) renderOracles(b *strings.Builder) {
	b.WriteString(`## Against oracles

One knows what will happen. The other knows every minute that was observed, decides by the expected stretch, keeps no
reserve of time, and moves nothing of which it saw no start. Both know the latency of requests in
each slice in the busiest hours of their time, whether service times are known or not. What memory is used between two readings
nothing can observe: what was seen has to fit with 15 % more, and 512 MiB at least, as any advice has to keep free. And it has
to fit with its growth, which the days before foretell: that a slice is refused that would kill its workload within the week
is no miss. The last row is of an oracle that asks for neither. Precision: of the slices
recommended, those that the oracle agrees to. Recall: of the workloads that held their GPU when the advice was asked
for, and that the oracle has a slice for, those that were recommended one that it agrees to.

| oracle | workloads with a slice | precision, default | recall, default | precision, strict | recall, strict |
|---|--:|--:|--:|--:|--:|
`)

	for _, o := range []struct {
		name  string
		has   func(*record) bool
		agree func(*verdict) bool
	}{
		{"knows all", func(r *record) bool { return r.all }, func(v *verdict) bool { return v.all }},
		{"knows what can be observed", func(r *record) bool { return r.past }, func(v *verdict) bool { return v.past }},
		{"the same, of memory the largest use that was seen", func(r *record) bool { return r.bare }, func(v *verdict) bool { return v.bare }},
	} {
		total := 0
		found := [2]int{}

		for i := range s.records {
			r := &s.records[i]
			if !r.foreseeable || !r.present || !o.has(r) {
				continue
			}

			total++

			for way := range naively {
				if v := &r.verdicts[way]; v.given && o.agree(v) {
					found[way]++
				}
			}
		}

		fmt.Fprintf(b, "| %s | %d |", o.name, total)

		for way := range naively {
			fmt.Fprintf(b, " %s | %s |", percent(s.count(way, o.agree), s.given(way)), percent(found[way], total))
		}

		b.WriteString("\n")
	}

	b.WriteString("\n")
	s.renderMissed(b)
}

// renderMissed has the reasons for which nothing is recommended by default where the second oracle
// has a slice.
func (s *summary) renderMissed(b *strings.Builder) {
	missed := map[string]int{}

	for i := range s.records {
		r := &s.records[i]
		if r.foreseeable && r.present && r.past && !r.verdicts[byDefault].given {
			missed[r.reason]++
		}
	}

	b.WriteString(`Why nothing is recommended by default where the second oracle has a slice:

| reason | workloads |
|---|--:|
`)

	reasons := slices.SortedFunc(maps.Keys(missed), func(a, b string) int {
		return cmp.Or(missed[b]-missed[a], cmp.Compare(a, b))
	})
	for _, reason := range reasons {
		fmt.Fprintf(b, "| %s | %d |\n", reason, missed[reason])
	}

	b.WriteString("\n")
}

func percent(part, of int) string {
	if of == 0 {
		return "–"
	}

	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(of))
}

// renderStretch has the predictions and what was seen.
func (s *summary) renderStretch(b *strings.Builder) {
	b.WriteString(`## Stretch, predicted and seen

At p95 of the busy time, of the slices recommended by default. The error is that of the prediction relative to what was
seen.

| figure | error, p50 | error, p95 | seen above it |
|---|--:|--:|--:|
`)

	for _, f := range []struct {
		name string
		of   func(*verdict) float64
	}{
		{"low", func(v *verdict) float64 { return v.predicted.Low }},
		{"expected", func(v *verdict) float64 { return v.predicted.Expected }},
		{"high", func(v *verdict) float64 { return v.predicted.High }},
	} {
		var errors []float64
		above := s.count(byDefault, func(v *verdict) bool {
			errors = append(errors, math.Abs(f.of(v)/v.seen.stretch-1))
			return v.seen.stretch > f.of(v)*resolution
		})
		fmt.Fprintf(b, "| %s | %.1f %% | %.1f %% | %s |\n",
			f.name, 100*quantile(errors, 0.5), 100*quantile(errors, 0.95), percent(above, len(errors)))
	}

	below := s.count(byDefault, func(v *verdict) bool { return v.seen.stretch*resolution < v.predicted.Low })
	fmt.Fprintf(b, "\nSeen below *low*: %s. Minutes differ where requests are of several kinds: the p95 of what was observed in them is "+
		"above the mean.\n\n", percent(below, s.given(byDefault)))
}

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}

	slices.Sort(values)

	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// renderRegrets has each regret and when it was noticed.
func (s *summary) renderRegrets(b *strings.Builder) {
	b.WriteString(`## Regrets, and how soon they are noticed

| workload | kind, kernels | slice | throughput | stretch, p95 | predicted | advice to grow after |
|---|---|---|--:|--:|--:|--:|
`)

	for i := range s.records {
		r := &s.records[i]
		for way := range naively {
			v := &r.verdicts[way]
			if !v.given || !r.foreseeable || !v.seen.slow {
				continue
			}

			name := r.model
			if way == strictly {
				name += ", strict"
			}

			fmt.Fprintf(b, "| %s | %s, %s | %s | %.3f | %.2f | %.2f–%.2f | %s |\n", name, r.kind, r.mix, v.profile,
				v.seen.throughput, v.seen.stretch, v.predicted.Low, v.predicted.High, minutes(v.seen.delay))
		}
	}

	alarms := s.count(byDefault, func(v *verdict) bool { return v.seen.grew && !v.seen.regret })
	quiet := s.count(byDefault, func(v *verdict) bool {
		return v.seen.grew && !v.seen.regret && v.seen.worstHour >= minThroughput
	})
	fmt.Fprintf(b,
		"\nAdvice to grow without a regret: %d of %d slices; %d of them lost less than 5 %% even in their worst hour.\n\n",
		alarms, s.given(byDefault), quiet)
}

func minutes(delay int) string {
	if delay < 0 {
		return "never"
	}

	return fmt.Sprintf("%d min", delay)
}

// renderHidden has what no metric can show.
func (s *summary) renderHidden(b *strings.Builder) {
	lost := s.count(byDefault, func(v *verdict) bool { return v.hidden.throughput < minThroughput })
	passed := s.count(byDefault, func(v *verdict) bool { return v.hidden.stretch > maxStretch })
	regrets := s.count(byDefault, func(v *verdict) bool { return v.hidden.regret })
	late := s.count(byDefault, func(v *verdict) bool { return v.hidden.late })
	soon := s.count(byDefault, func(v *verdict) bool { return v.hidden.regret && v.hidden.noticed() })
	fmt.Fprintf(b, `## What cannot be seen

With a hidden loss of 0 to 20 %% in each slice (its share of the L2 cache, clocks), of the %d workloads recommended by default
%d lose more than 5 %% of throughput, %d pass a stretch of 2, and the requests of %d wait too long: %s regret it, and %d of these %d are
advised to grow within an hour.

`, s.given(byDefault), lost, passed, late, percent(regrets, s.given(byDefault)), soon, regrets)
	given := 0
	dead := 0
	bad := 0
	noticed := 0

	for i := range s.records {
		r := &s.records[i]

		v := &r.verdicts[byDefault]
		if r.foreseeable || !v.given {
			continue
		}

		given++

		if v.dies() {
			dead++
		}

		if v.seen.regret {
			bad++

			if v.seen.noticed() {
				noticed++
			}
		}
	}

	fmt.Fprintf(b, `Of %d workloads that get a new version after the move (half as much load again, 30 %% more memory, wider kernels), %d run out
of memory and %d regret it; %d of these are advised to grow within an hour.

`, given, dead, bad, noticed)
}

// renderStarts has the ways in which pods start.
func (s *summary) renderStarts(b *strings.Builder) {
	b.WriteString(`## By kind of start

A move starts the pods again, so each slice has to do for the start. Some starts lie before the time that is observed: nothing is
recommended then.

| start | workloads | recommended: default | strict | naive | killed: default | strict | naive | start not observed | of them recommended |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
`)

	for _, name := range startNames() {
		total := 0
		unseen := 0
		given := [ways]int{}
		killed := [ways]int{}
		blind := 0

		for i := range s.records {
			r := &s.records[i]
			if r.start != name || !r.foreseeable {
				continue
			}

			total++

			if !r.startSeen {
				unseen++
			}

			for way := range ways {
				v := &r.verdicts[way]
				if !v.given {
					continue
				}

				given[way]++
				if v.outOfMemory {
					killed[way]++
				}

				if !r.startSeen && way == byDefault {
					blind++
				}
			}
		}

		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", name, total, given[0], given[1], given[2],
			killed[0], killed[1], killed[2], unseen, blind)
	}

	b.WriteString("\n")
}

// renderKinds has the kinds of workloads.
func (s *summary) renderKinds(b *strings.Builder) {
	b.WriteString(`## By kind of workload

| kind | workloads | recommended: default | strict | naive | harmed: default | strict | naive | often kept for |
|---|--:|--:|--:|--:|--:|--:|--:|---|
`)

	for _, k := range kinds() {
		total := 0
		given := [ways]int{}
		harmed := [ways]int{}
		reasons := map[string]int{}

		for i := range s.records {
			r := &s.records[i]
			if r.kind != k.name {
				continue
			}

			total++

			for way := range ways {
				if v := &r.verdicts[way]; v.given {
					given[way]++
					if v.harmed() {
						harmed[way]++
					}
				} else if way == byDefault {
					reasons[r.reason]++
				}
			}
		}

		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d | %d | %s |\n", k.name, total, given[0], given[1], given[2],
			harmed[0], harmed[1], harmed[2], mostFrequent(reasons))
	}
}

func mostFrequent(counts map[string]int) string {
	var names []string
	for name := range counts {
		names = append(names, name)
	}

	slices.SortFunc(names, func(x, y string) int { return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x, y)) })

	if len(names) == 0 {
		return ""
	}

	return names[0]
}
