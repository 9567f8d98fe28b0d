package migctl

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// explainDevice shows the answer for a device, the evidence for it, the profiles that were
// considered, and what is expected in the recommended one.
func explainDevice(p *page, report *advise.Report, r *advise.Recommendation) {
	title := gpuTitle(p, r.Index, r.Model, r.GPU)
	if r.Instance.Present() {
		title += "  " + placedProfile(r.Profile, r.Placement)
	}

	p.line(span{title, bold})

	if r.MIGDevice != "" {
		p.line(text("  %s", r.MIGDevice).in(dim))
	}

	writeHolderOf(p, r)

	answer := string(r.Action)
	if r.Recommended != "" {
		answer += ": " + r.Recommended
	}

	if r.Reason != "" {
		answer += " (" + string(r.Reason) + ")"
	}

	p.paragraph("  ", bold, answer)

	if r.Explanation != "" {
		p.paragraph("  ", plain, r.Explanation)
	}

	if r.Provisional {
		p.paragraph("  ", yellow, fmt.Sprintf("provisional: %s (%s)", incomplete, lackOfEvidence(report, r)))
	}

	if r.NotChecked {
		p.paragraph(
			"  ",
			yellow,
			"not checked: the use of media engines cannot be read, and the profile has fewer than "+
				"the device. Make sure that the workload needs no more of them",
		)
	}

	if r.Evidence != nil {
		writeEvidence(p, r)
	}

	if len(r.Considered) > 0 {
		writeConsidered(p, r, report.Strict)
	}

	if r.Predicted != nil {
		writePredicted(p, r, report.WithoutKubernetes)
	}
}

func writeHolderOf(p *page, r *advise.Recommendation) {
	if r.Workload == nil {
		return
	}

	t := strings.TrimPrefix(r.Workload.Namespace+"/", "/") + r.Workload.Owner
	if r.Workload.Shared {
		t += ", shared by several containers"
	}

	if r.Pod != nil {
		t += "; pod " + containerName(r.Pod.Namespace, r.Pod.Name, r.Pod.Container)
		if r.Pod.Resource != "" {
			t += " as " + r.Pod.Resource
		}
	}

	p.paragraph("  ", cyan, t)
}

// Widths in columns: of the name before a fact, and of a bar.
const (
	factColumns = 12
	barColumns  = 14
)

func writeFact(p *page, name, fact string) {
	p.paragraph("  "+p.cell(name, factColumns), plain, fact)
}

func writeEvidence(p *page, r *advise.Recommendation) {
	e := r.Evidence
	p.line()
	writeFact(
		p,
		"observed",
		fmt.Sprintf(
			"%.1f h since %s, %s of the time that it was held; confidence %s%s",
			e.ObservedHours,
			e.Since.UTC().Format(time.RFC3339),
			shareText(e.CoverageRatio),
			shareText(r.Confidence),
			knownText(e.KnownDays),
		),
	)
	writeFact(
		p,
		"busy",
		fmt.Sprintf(
			"%s on average, %s at the median, %s at p99, %s in the busiest 10 minutes",
			shareText(e.BusyMean),
			shareText(e.BusyP50),
			shareText(e.BusyP99),
			shareText(e.Busy10Minutes),
		),
	)
	writeFact(p, "kernels", kernelsText(e))

	writeFact(p, "memory", usedMemoryText(r))

	if r.Predicted != nil {
		if total := e.HeldBytes() + r.Predicted.MemoryFree; total > 0 {
			share := e.HeldBytes() / total
			bar := p.cell("", factColumns) + p.bar(share, 3*barColumns)
			p.line(text("  %s %s of %s", bar, shareText(share), gibText(total)))
		}
	}

	if e.Server != nil {
		writeFact(p, "server", serverText(e.Server))
	}

	writeFact(p, "starts", startsText(e))

	// The power and the traffic of a GPU instance are known in parts at most.
	if isWhole := !r.Instance.Present(); isWhole {
		writeFact(p, "power", shareOrUnread(e.PowerP95, " of the limit above idle at p95"))
		writeFact(p, "PCIe", shareOrUnread(e.PCIeMax, " of the link in the busiest minute"))
	}

	writeFact(p, "media", mediaText(e))

	if e.ThrottledRatio > 0 {
		writeFact(
			p,
			"throttled",
			shareText(e.ThrottledRatio)+" of the time: the figures may be too low",
		)
	}

	p.line()
	hasWidth := e.WidthHistogram != [10]float64{}
	title := "SMs IN USE, share of busy time"

	if !hasWidth {
		title = ""
	}

	p.line(text("  %s  %s", p.cell("BUSY TIME, share of minutes", 36), title).in(dim))

	for i := range e.BusyHistogram {
		width := ""
		if hasWidth {
			width = p.histogramRow(i, e.WidthHistogram[i])
		}

		p.line(text("  %s  %s", p.cell(p.histogramRow(i, e.BusyHistogram[i]), 36), width))
	}
}

// knownText says how rare an event can be for the evidence to show it. It is empty if the server
// sent no number of days, as an older one.
func knownText(days float64) string {
	switch {
	case days == 0:
		return ""
	case days < 1.05: // a day, rounded, is written as hours
		return fmt.Sprintf("; nothing rarer than %.0f hours is known", 24*days)
	}

	return fmt.Sprintf("; nothing rarer than %.3g days is known", days)
}

// kernelsText says what kernels use of the device while they run.
func kernelsText(e *advise.Evidence) string {
	if e.ActivityUnread {
		return "how much of the SMs and the bandwidth they fill was not measured"
	}

	if e.NeverBusy {
		return "none ran"
	}

	t := fmt.Sprintf(
		"%s of the SMs and %s of the bandwidth at the median, %s and %s at p95",
		shareText(e.Median.Width),
		shareText(e.Median.Bandwidth),
		shareText(e.P95.Width),
		shareText(e.P95.Bandwidth),
	)
	if e.ActivityHours > 0 {
		t += fmt.Sprintf(", by a sample of %.1f h", e.ActivityHours)
	}

	return t
}

// shareOrUnread returns a share and what it is of, if it is known.
func shareOrUnread(share gpu.Opt[float64], of string) string {
	if v, ok := share.Get(); ok {
		return shareText(v) + of
	}

	return "unknown: not read, or not all of the time"
}

// usedMemoryText says how much memory the workload of a device used.
func usedMemoryText(r *advise.Recommendation) string {
	e := r.Evidence
	memory := "at most " + gibText(e.MemoryBytes)

	switch {
	case e.MemoryUnread && e.MemoryBytes == 0:
		return "unknown: not read"
	case e.MemoryUnread:
		memory = gibText(e.MemoryBytes) + " or more: not read all of the time"
	}

	if e.MemoryTrend >= leastShownBytes {
		memory += ", growing by " + gibText(e.MemoryTrend) + " a day"
	}

	if r.Predicted != nil {
		memory += fmt.Sprintf("; %s leaves %s free", r.Recommended, gibText(r.Predicted.MemoryFree))
	}

	return memory
}

// mediaText says how much is used of the media engines.
func mediaText(e *advise.Evidence) string {
	var uses []string
	for i := range e.MediaUse {
		uses = append(uses, e.MediaUse[i].String())
	}

	if len(uses) == 0 { // the server knows only which engines were used, not how much
		uses = slices.Clone(e.MediaEngines)
	}

	if e.MediaUnread {
		uses = append(uses, "the use of some cannot be read")
	}

	return cmp.Or(strings.Join(uses, "; "), "not used")
}

// startsText says which starts of the workload were seen, and what they needed.
func startsText(e *advise.Evidence) string {
	switch e.Starts {
	case 0:
		return "none was seen"
	case 1:
		return "1 seen: at most " + gibText(e.StartMemory)
	}

	return fmt.Sprintf("%d seen: at most %s in the last ones", e.Starts, gibText(e.StartMemory))
}

// histogramRow draws one of the 10 rows of a histogram: tenth 3 is the row "30- 40%".
func (p *page) histogramRow(tenth int, share float64) string {
	percent := shareText(share)
	if share > 0 && share < 0.005 {
		percent = "<1%"
	}

	return fmt.Sprintf("%3d-%3d%% %s %s", 10*tenth, 10*tenth+10, p.bar(share, barColumns), percent)
}

// bar draws a share of 0-1 as a bar of a number of columns. A share above 0 fills at least the
// smallest part that can be drawn.
func (p *page) bar(share float64, columns int) string {
	share = min(max(share, 0), 1)
	if !p.utf8 {
		full := int(math.Round(share * float64(columns)))
		if share > 0 {
			full = max(full, 1)
		}

		return strings.Repeat("#", full) + strings.Repeat(".", columns-full)
	}

	eighths := int(math.Round(share * float64(8*columns)))
	if share > 0 {
		eighths = max(eighths, 1)
	}

	drawn := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		drawn += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}

	return p.cell(drawn, columns)
}

// leastShownBytes is the smallest amount that gibText does not round to "0.00 GiB".
const leastShownBytes = 0.005 * (1 << 30)

func gibText(bytes float64) string { return fmt.Sprintf("%.2f GiB", bytes/(1<<30)) }

// writeConsidered lists the smaller profiles, with why each is not recommended.
func writeConsidered(p *page, r *advise.Recommendation, strict bool) {
	p.line()
	p.line(text("  %s %s", p.cell("PROFILE", 15), "STRETCH p95: LOW EXPECTED  HIGH").in(dim))
	passed := false // the recommended profile is written already

	for i := range r.Considered {
		c := &r.Considered[i]

		why := consideredText(c.Reason, strict)
		color := dim

		switch {
		case c.Reason == advise.ReasonNone && r.Reason == advise.ReasonStartUnseen:
			why = "does, unless a start needs more"
		case c.Profile == r.Recommended:
			why = "recommended"
			color = green
			passed = true
		case c.Reason == advise.ReasonNone && (passed || r.Reason == advise.ReasonNoGain):
			why = "does as well"
		case c.Reason == advise.ReasonNone:
			why = "does; recommended once that has held for as long as the first answer needed"
		}

		stretch := fmt.Sprintf("%16s %8s %5s", unknown, unknown, unknown)
		if t := c.StretchP95; t != (advise.Stretch{}) {
			stretch = fmt.Sprintf("%16.2f %8.2f %5.2f", t.Low, t.Expected, t.High)
		}

		p.paragraph(fmt.Sprintf("  %s %s  ", p.cell(c.Profile, 15), stretch), color, why)
	}
}

// consideredText says why a profile is too small, or cannot be judged.
func consideredText(reason advise.Reason, strict bool) string {
	switch reason {
	case advise.ReasonMemory:
		return "too little memory"
	case advise.ReasonMedia:
		return "too few media engines"
	case advise.ReasonStretch:
		if strict {
			return "kernels could take too long"
		}

		return "kernels would take too long"
	case advise.ReasonLatency:
		return "requests would wait too long"
	case advise.ReasonThroughput:
		return "clients that wait for answers, or a job for its steps, would do too little"
	case advise.ReasonBusy:
		return "could not keep up"
	case advise.ReasonNoActivity:
		return "unknown: SM activity was not measured"
	case advise.ReasonNoBusyTime:
		return "unknown: nothing ran"
	}

	return string(reason)
}

// writePredicted writes what is expected in the recommended slice. On a node without Kubernetes it names
// no annotation.
func writePredicted(p *page, r *advise.Recommendation, withoutKubernetes bool) {
	e := r.Predicted
	p.line()
	p.line(text("  EXPECTED IN %s", r.Recommended).in(dim))

	if median, p95 := e.StretchMedian, e.StretchP95; p95 == (advise.Stretch{}) {
		writeFact(p, "kernels", "unknown: nothing ran that could show how long they take")
	} else {
		writeFact(p, "kernels", fmt.Sprintf(
			"%.2f to %.2f times as long at the median (expected %.2f), %.2f to %.2f at p95 (%.2f)",
			median.Low, median.High, median.Expected, p95.Low, p95.High, p95.Expected))

		if e.Latency != (advise.Latency{}) {
			writeFact(p, "requests", describeLatency(e.Latency, withoutKubernetes))
		}

		writeFact(
			p,
			"busy",
			fmt.Sprintf("%s at p99, %s in the busiest 10 minutes; %s of its SMs on average",
				busyText(e.BusyP99), shareText(e.Busy10Minutes), shareText(e.SMActivity)),
		)
		writeFact(p, "throughput", fmt.Sprintf("%s of today's", shareText(e.ThroughputRatio)))
	}

	if len(e.MediaEngines) > 0 {
		writeFact(p, "media", neededEnginesText(e.MediaEngines))
	}

	if e.Server != nil {
		writeFact(p, "server", predictedServerText(e.Server))
	}

	if e.Decided.Figure != "" {
		writeFact(
			p,
			"decided by",
			decidedText(e.Decided)+", the figure that is nearest to its limit",
		)
	}

	writeFact(
		p,
		"set free",
		fmt.Sprintf("%s of the SMs, if something else uses them", shareText(r.Reclaimable)),
	)
}

// describeLatency says what a slice does to the latency of requests. Without the service time there
// is a range of latencies only, and no figure. A pod's annotation names that time.
func describeLatency(l advise.Latency, withoutKubernetes bool) string {
	const unit = "times as long at p95 of the busiest hour, waiting included"
	if l.Figure > 0 {
		return fmt.Sprintf(
			"%.2f %s; %.2f with the kernels of p95, which decides",
			l.Figure,
			unit,
			l.Expected,
		)
	}

	t := fmt.Sprintf("%.2f to %.2f %s (expected %.2f)", l.Low, l.High, unit, l.Expected)
	if l.IsUnbounded() {
		t = fmt.Sprintf("%.2f times or more as long at p95 of the busiest hour, waiting included (expected %.2f)",
			l.Low, l.Expected)
	}

	if !withoutKubernetes {
		t += "; a figure needs their service time, see mig-exporter.io/service-time"
	}

	return t
}

// neededEnginesText says how many media engines are needed of those that a profile has.
func neededEnginesText(engines []advise.PredictedEngines) string {
	var list []string

	for i := range engines {
		e := &engines[i]
		list = append(
			list,
			fmt.Sprintf(
				"needs %.1f of its %d %s",
				e.Needed,
				e.Count,
				advise.EngineName(e.Engine, e.Count),
			),
		)
	}

	return strings.Join(list, "; ")
}
