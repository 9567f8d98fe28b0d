package truth

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// figure is a number that two ways of observing a node must agree on.
type figure struct {
	name string
	of   func(*advise.Recommendation) (float64, bool) // false if the answer has none
	// Differences are tolerated up to absolute, plus so much of the value.
	absolute, relative float64
	reason             string
}

// bucket is how far apart the bounds of two neighbors of the advisor's histograms are.
const bucket = 0.0873

// figures lists them, with the differences that two correct ways can have.
func figures() []figure {
	evidence := func(of func(*advise.Evidence) float64) func(*advise.Recommendation) (float64, bool) {
		return func(r *advise.Recommendation) (float64, bool) {
			if r.Evidence == nil {
				return 0, false
			}

			return of(r.Evidence), true
		}
	}
	optional := func(of func(*advise.Evidence) gpu.Opt[float64]) func(*advise.Recommendation) (float64, bool) {
		return func(r *advise.Recommendation) (float64, bool) {
			if r.Evidence == nil {
				return 0, false
			}

			return of(r.Evidence).Get()
		}
	}
	kernels := func(of func(advise.Kernels) float64) func(*advise.Recommendation) (float64, bool) {
		return optional(func(e *advise.Evidence) gpu.Opt[float64] {
			if e.P95 == (advise.Kernels{}) {
				return gpu.None[float64]()
			}

			return gpu.Some(of(e.P95))
		})
	}
	decoders := func(of func(advise.MediaUse) float64) func(*advise.Recommendation) (float64, bool) {
		return optional(func(e *advise.Evidence) gpu.Opt[float64] {
			if e.MediaUnread {
				return gpu.None[float64]()
			}

			return gpu.Some(of(decodersOf(e)))
		})
	}
	stretch := func(of func(advise.Stretch) float64) func(*advise.Recommendation) (float64, bool) {
		return func(r *advise.Recommendation) (float64, bool) {
			if r.Predicted == nil || r.Predicted.StretchP95 == (advise.Stretch{}) {
				return 0, false
			}

			return of(r.Predicted.StretchP95), true
		}
	}
	const oneBucket = "a value at a bound of the histogram is in the next bucket"
	const firstBucket = oneBucket + "; all up to 0.01 is one bucket"

	return []figure{
		{"memory, GiB", evidence(func(e *advise.Evidence) float64 { return e.MemoryBytes / gib }), 0.04, 0,
			"the memory of the driver (6 MiB) and of an MPS server (30 MiB)"},
		{"busy time, mean", evidence(func(e *advise.Evidence) float64 { return e.BusyMean }), 0.01, 0,
			"the mean of the histogram"},
		{"busy time, p99", evidence(func(e *advise.Evidence) float64 { return e.BusyP99 }), 0.001, bucket, oneBucket},
		{"busiest ten minutes", evidence(func(e *advise.Evidence) float64 { return e.Busy10Minutes }), 0.002, 0,
			"GPM and DCGM round, windows end a millisecond early"},
		{"width, p95", kernels(func(k advise.Kernels) float64 { return k.Width }), 0.01, bucket, firstBucket},
		{"bandwidth, p95", kernels(func(k advise.Kernels) float64 { return k.Bandwidth }), 0.01, bucket, firstBucket},
		{"decoders, p99", decoders(func(u advise.MediaUse) float64 { return u.BusyP99 }), 0.01, bucket,
			"the driver reports whole percents; " + oneBucket},
		{"decoders, busiest minute", decoders(func(u advise.MediaUse) float64 { return u.BusyMaxMinute }), 0.01, 0,
			"the driver reports whole percents"},
		{"dynamic power, p95", optional(func(e *advise.Evidence) gpu.Opt[float64] { return e.PowerP95 }), 0.025, bucket,
			"the idle power of a GPU that was never idle is a default; the full simulator's power ripples by 1 %"},
		{"PCIe traffic", optional(func(e *advise.Evidence) gpu.Opt[float64] { return e.PCIeMax }), 0.002, 0,
			"an idle link moves 8 KiB/s"},
		{"stretch predicted, low", stretch(func(s advise.Stretch) float64 { return s.Low }), 0.001, bucket,
			"that of width and bandwidth"},
		{"stretch predicted, expected", stretch(func(s advise.Stretch) float64 { return s.Expected }), 0.001, bucket,
			"that of width and bandwidth"},
		{"stretch predicted, high", stretch(func(s advise.Stretch) float64 { return s.High }), 0.001, bucket,
			"that of width and bandwidth"},
	}
}

// decodersOf returns what was seen of decoders; nothing if they were not used.
func decodersOf(e *advise.Evidence) advise.MediaUse {
	for _, u := range e.MediaUse {
		if u.Engine == "decoder" {
			return u
		}
	}

	return advise.MediaUse{}
}

// agreement is how far two ways of observing the same nodes agree.
type agreement struct {
	found     []string  // what differs by more than is tolerated
	largest   []float64 // difference of each figure
	answers   int       // that were compared
	slices    int       // of them, those on GPU instances
	differing int       // of them, those that differ
	models    map[string]bool
	nodes     int
	real      realAgreement
}

// compare adds what was recommended on a node by both ways.
func (a *agreement) compare(about string, left, right []advise.Recommendation) {
	if len(left) == 0 || len(left) != len(right) {
		a.found = append(a.found, fmt.Sprintf("%s: %d devices and %d", about, len(left), len(right)))
		return
	}

	for i := range left {
		a.answers++
		if left[i].Instance.Present() {
			a.slices++
		}

		a.compareAnswers(about, &left[i], &right[i])
	}
}

func (a *agreement) compareAnswers(about string, l, r *advise.Recommendation) {
	about = fmt.Sprintf("%s GPU %d", about, l.Index)
	if l.Action != r.Action || l.Reason != r.Reason || l.Recommended != r.Recommended || l.Profile != r.Profile {
		a.differing++
		a.found = append(a.found, fmt.Sprintf("%s: %s %s %s and %s %s %s",
			about, l.Action, l.Reason, l.Recommended, r.Action, r.Reason, r.Recommended))
	}

	if a.largest == nil {
		a.largest = make([]float64, len(figures()))
	}

	for i, f := range figures() {
		left, leftOK := f.of(l)

		right, rightOK := f.of(r)
		if leftOK != rightOK {
			a.found = append(a.found, fmt.Sprintf("%s: only one has %s", about, f.name))
			continue
		}

		difference := math.Abs(left - right)

		a.largest[i] = max(a.largest[i], difference)
		if !(difference <= f.absolute+f.relative*max(left, right)) {
			a.found = append(a.found, fmt.Sprintf("%s: %s %.4f and %.4f", about, f.name, left, right))
		}
	}
}

// TestUnknownFiguresDiffer: a figure that only one way knows is a difference, however small it is.
func TestUnknownFiguresDiffer(t *testing.T) {
	report := func(figure gpu.Opt[float64]) *advise.Recommendation {
		e := &advise.Evidence{PowerP95: figure, PCIeMax: figure, MediaUnread: !figure.Present()}
		e.P95.Width = figure.Or(0)

		return &advise.Recommendation{Evidence: e}
	}
	none := gpu.None[float64]()
	low := gpu.Some(0.001)

	for _, c := range []struct {
		about       string
		left, right gpu.Opt[float64]
		want        []string
	}{
		{"both known", low, low, nil},
		{"both unknown", none, none, nil},
		{"one known", low, none, []string{
			"one known GPU 0: only one has width, p95",
			"one known GPU 0: only one has bandwidth, p95",
			"one known GPU 0: only one has decoders, p99",
			"one known GPU 0: only one has decoders, busiest minute",
			"one known GPU 0: only one has dynamic power, p95",
			"one known GPU 0: only one has PCIe traffic",
		}},
	} {
		var a agreement
		a.compareAnswers(c.about, report(c.left), report(c.right))
		cmptest.Equal(t, c.about, a.found, c.want)
	}
}

// merge adds another agreement.
func (a *agreement) merge(b *agreement) {
	a.found = append(a.found, b.found...)
	if a.largest == nil {
		a.largest = make([]float64, len(figures()))
		a.models = map[string]bool{}
	}

	for i, v := range b.largest {
		a.largest[i] = max(a.largest[i], v)
	}

	for m := range b.models {
		a.models[m] = true
	}

	a.answers = a.answers + b.answers
	a.slices = a.slices + b.slices
	a.differing = a.differing + b.differing
	a.nodes += b.nodes
	a.real.merge(&b.real)
}

// render writes how far the fast path agrees with the full simulator.
func (a *agreement) render(b *strings.Builder) {
	fmt.Fprintf(b, `
## The fast path against the full simulator

The nodes above are not simulated second by second: each minute is one evaluation of the workload model. %d of them, of %d models,
were also run as scenarios of the full simulator (%d h on whole GPUs, then %d h in the slices recommended) and polled every 60 s by the exporter's
own NVML and DCGM sources and poll loop, for the same advisor. The kubelet's socket alone was left out. %d answers were compared, %d of
them on slices: action, reason and profile differ for %d. A difference beyond what is tolerated fails the evaluation.

| figure | largest difference | tolerated | reason |
|---|--:|--:|---|
`, a.nodes, len(a.models), *fullHours, *fullHours/8, a.answers, a.slices, a.differing)

	for i, f := range figures() {
		tolerated := fmt.Sprint(f.absolute)
		if f.relative > 0 {
			tolerated += fmt.Sprintf(" + %.1f %%", 100*f.relative)
		}

		fmt.Fprintf(b, "| %s | %.4f | %s | %s |\n", f.name, a.largest[i], tolerated, f.reason)
	}

	r := &a.real
	fmt.Fprintf(b, `
What really happened in the slices, by the full simulator and by the fast path, in %d minutes with kernels: both by the same workload model: busy
time, throughput and stretch differ by at most %.0g, %.0g and %.0g.
`, r.minutes, r.busy, r.throughput, r.stretch)
}
