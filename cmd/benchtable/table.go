package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// line is a line of a table. A target of 0 means that there is none.
type line struct {
	title  string
	metric metric
	target float64
}

// forms lists the forms of a scrape, as the benchmarks name them.
func forms() []string {
	return []string{"text/identity", "text/gzip", "protobuf/identity", "protobuf/gzip"}
}

// millisecond is in nanoseconds, the unit of times.
const millisecond = 1e6

// Targets, as docs/performance.md gives them. A figure must be below its target.
const (
	gpusOfBench = "gpus=8"
	planTarget  = 100 * millisecond
	stepTarget  = 151 // at most 150 driver calls
)

// lines returns the lines of the first table. A lone scrape comes first: most nodes serve only that.
func lines() []line {
	var list []line

	for _, form := range forms() {
		name := "ScrapeLone/" + form
		title := "lone scrape, " + form
		list = append(list,
			line{title + ": p50", metric{name, "p50-ns"}, loneTarget(form, 2*millisecond)},
			line{title + ": p99", metric{name, "p99-ns"}, 0},
			line{title + ": allocations", metric{name, "allocs/op"}, loneTarget(form, 200)},
			line{title + ": body", metric{name, "body-bytes"}, 0})
	}

	for _, form := range forms() {
		name := "ScrapeRepeated/" + form
		title := "repeated scrape of a Snapshot, " + form
		list = append(list,
			line{title + ": p50", metric{name, "p50-ns"}, 0},
			line{title + ": p99", metric{name, "p99-ns"}, 1 * millisecond})
	}

	for _, form := range forms() {
		for _, scrapers := range []string{"1", "8"} {
			name := "Loopback/" + form + "/scrapers=" + scrapers
			title := "over loopback, " + form + ", scrapers: " + scrapers
			list = append(list,
				line{title + ": p50", metric{name, "p50-ns"}, 0},
				line{title + ": p50 of a bare handler", metric{name, "bare-p50-ns"}, 0},
				line{title + ": one by the other", metric{name, "p50-ratio"}, 2})
		}
	}

	list = append(list,
		line{"50 streams of the document, one Snapshot: CPU",
			metric{"Watchers/view=/watchers=50", "cpu-ns"}, 10 * millisecond},
		line{"50 streams of the page, one Snapshot: CPU",
			metric{"Watchers/view=page/watchers=50", "cpu-ns"}, 10 * millisecond},
		line{"lone scrape beside them, by one without them: p50",
			metric{"ScrapeBesideWatchers", "p50-ratio"}, 1.2},
		line{"history, one Snapshot", metric{"History/observe", "ns/op"}, millisecond / 5})

	poll := "Poll/" + gpusOfBench

	return append(
		list,
		line{"poll: CPU", metric{poll, "cpu-ns"}, 5 * millisecond},
		line{"poll: p50", metric{poll, "p50-ns"}, 0},
		line{"poll: p99", metric{poll, "p99-ns"}, 0},
		line{"poll: driver calls, mean over the tiers", metric{poll, "calls"}, 0},
		line{"poll: allocations", metric{poll, "allocs/op"}, 0},
		line{"poll: bytes allocated", metric{poll, "B/op"}, 0},
		line{
			"a step of partition control on one of 8 GPUs: driver calls, at most",
			metric{"Step/" + gpusOfBench, "calls"},
			stepTarget,
		},
		line{
			"planning's worst case, 16 mixed GPUs: CPU",
			metric{"PlanWorst", "cpu-ns"},
			planTarget,
		},
		line{
			"anonymous memory after 1,000 polls (RssAnon)",
			metric{"Resident", "MiB-anon@1000"},
			14,
		},
		line{
			"anonymous memory after 10,000 polls and 1,000 scrapes (RssAnon)",
			metric{"Resident", "MiB-anon@10000"},
			14,
		},
		line{"pages of the program's own file (RssFile)", metric{"Resident", "MiB-of-files"}, 0},
		line{"all of it at most, in between (VmHWM)", metric{"Resident", "MiB-peak"}, 0},
	)
}

// loneTarget returns the target of a lone scrape in a form, 0 for protobuf, which is not rendered
// from templates.
func loneTarget(form string, target float64) float64 {
	if strings.HasPrefix(form, "text/") {
		return target
	}

	return 0
}

// tables returns all tables and lists the benchmarks that are missing.
func tables(found results, machine string) (text string, missing []string) {
	var out strings.Builder
	fmt.Fprintf(
		&out,
		"%s.\n\n| what | best | median | target | |\n|---|--:|--:|--:|---|\n",
		machine,
	)

	for _, l := range lines() {
		values := found[l.metric]
		if len(values) == 0 {
			missing = append(missing, l.metric.benchmark+" "+l.metric.unit)
			continue
		}

		target := ""
		if l.target > 0 {
			target = "< " + format(l.target, l.metric.unit)
		}

		fmt.Fprintf(
			&out,
			"| %s | %s | %s | %s | %s |\n",
			l.title,
			format(
				best(values),
				l.metric.unit,
			),
			format(median(values), l.metric.unit),
			target,
			verdict(values, l.target),
		)
	}

	levels, noLevels := levelTable(found)
	growth, noGrowth := growthTable(found)
	calls, noCalls := callTable(found)

	return out.String() + "\n" + levels + "\n" + growth + "\n" + calls,
		slices.Concat(missing, noLevels, noGrowth, noCalls)
}

// levelTable shows how long it takes to compress a scrape at several levels, and how small it
// becomes, each by the best run.
func levelTable(found results) (text string, missing []string) {
	var out strings.Builder
	out.WriteString("| gzip level | text: p50 | text: packed | protobuf: p50 | protobuf: packed " +
		"|\n|--:|--:|--:|--:|--:|\n")

	for level := 1; level <= 6; level++ {
		fmt.Fprintf(&out, "| %d", level)

		for _, form := range []string{"text", "protobuf"} {
			for _, unit := range []string{"p50-ns", "packed-bytes"} {
				m := metric{fmt.Sprintf("GzipLevel/%s/identity/level=%d", form, level), unit}
				out.WriteString(" | " + cell(found, m, &missing))
			}
		}

		out.WriteString(" |\n")
	}

	return out.String(), missing
}

// cell returns a figure of the best run. Without any run, it returns nothing and appends the figure
// to missing.
func cell(found results, m metric, missing *[]string) string {
	values := found[m]
	if len(values) == 0 {
		*missing = append(*missing, m.benchmark+" "+m.unit)
		return ""
	}

	return format(best(values), m.unit)
}

// growthTable shows the same figures on nodes with 1 to 16 GPUs, each by the best run.
func growthTable(found results) (text string, missing []string) {
	sizes := []string{"1", "2", "4", "8", "16"}
	var out strings.Builder
	fmt.Fprintf(
		&out,
		"| growth, best of the runs; GPUs | %s |\n|---|%s\n",
		strings.Join(sizes, " | "),
		strings.Repeat("--:|", len(sizes)),
	)

	for _, l := range []line{
		{"poll: CPU", metric{"Poll/", "cpu-ns"}, 0},
		{"poll: driver calls", metric{"Poll/", "calls"}, 0},
		{"poll: allocations", metric{"Poll/", "allocs/op"}, 0},
		{"lone scrape, text/gzip: p50", metric{"ScrapeGrowth/lone/", "p50-ns"}, 0},
		{"lone scrape, text/gzip: allocations", metric{"ScrapeGrowth/lone/", "allocs/op"}, 0},
		{"lone scrape, text/gzip: body", metric{"ScrapeGrowth/lone/", "body-bytes"}, 0},
		{"lone scrape, text/identity: p50", metric{"ScrapeGrowth/plain/", "p50-ns"}, 0},
		{"lone scrape, text/identity: body", metric{"ScrapeGrowth/plain/", "body-bytes"}, 0},
	} {
		out.WriteString("| " + l.title)

		for _, size := range sizes {
			out.WriteString(
				" | " + cell(
					found,
					metric{l.metric.benchmark + "gpus=" + size, l.metric.unit},
					&missing,
				),
			)
		}

		out.WriteString(" |\n")
	}

	return out.String(), missing
}

// callTable shows the calls of the driver's library a second, by class and then by function, the
// most frequent first.
func callTable(found results) (text string, missing []string) {
	const benchmark = "DriverCalls"
	// Functions are "nvml...", all other names are classes of calls.
	isClass := func(call string) bool { return !strings.HasPrefix(call, "nvml") }

	rates := map[string]float64{}

	for m, values := range found {
		call, perSecond := strings.CutSuffix(m.unit, "/s")
		if m.benchmark == benchmark && perSecond {
			rates[call] = median(values)
		}
	}

	if len(rates) == 0 {
		return "", []string{benchmark}
	}

	calls := slices.SortedFunc(maps.Keys(rates), func(a, b string) int {
		switch {
		case isClass(a) && !isClass(b):
			return -1
		case isClass(b) && !isClass(a):
			return 1
		}

		return cmp.Or(cmp.Compare(rates[b], rates[a]), cmp.Compare(a, b))
	})

	var out strings.Builder
	out.WriteString("| calls of the driver's library | a second |\n|---|--:|\n")

	for _, call := range calls {
		name := call
		if isClass(call) {
			name = "**" + call + "**"
		}

		fmt.Fprintf(&out, "| %s | %.2f |\n", name, rates[call])
	}

	return out.String(), nil
}

// verdict compares the median of the runs with a target.
func verdict(values []float64, target float64) string {
	switch {
	case target == 0:
		return ""
	case median(values) < target:
		return "met"
	case best(values) < target:
		return "met by the best run only"
	}

	return "missed"
}

// format writes a figure for people: times in µs or ms, sizes in KiB or MiB.
func format(value float64, unit string) string {
	switch {
	case strings.HasSuffix(unit, "-ns") || unit == "ns/op":
		if value < 0.9995*millisecond { // more would be written as 1000 µs or 1e+03 µs
			return fmt.Sprintf("%.3g µs", value/1e3)
		}

		return fmt.Sprintf("%.3g ms", value/millisecond)
	case strings.Contains(unit, "MiB"):
		return fmt.Sprintf("%.1f MiB", value)
	case strings.HasSuffix(unit, "bytes") || unit == "B/op":
		return fmt.Sprintf("%.0f KiB", value/1024)
	case strings.HasSuffix(unit, "ratio"):
		return fmt.Sprintf("%.2f", value)
	}

	return fmt.Sprintf("%.0f", value)
}
