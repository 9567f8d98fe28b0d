package collector

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gatherAndEncode is what the library makes of a Snapshot.
func gatherAndEncode(t testing.TB, c *Collector, s *gpu.Snapshot, format expfmt.Format) (string, error) {
	t.Helper()
	families, err := c.Gather(s)
	text, encodeErr := encode(families, format)

	return text, errors.Join(err, encodeErr)
}

// encode is what the library makes of families. Histograms are native ones, which text does not
// have.
func encode(families []*dto.MetricFamily, format expfmt.Format) (string, error) {
	var out bytes.Buffer
	var errs []error

	encoder := expfmt.NewEncoder(&out, format)
	for _, f := range families {
		if f.GetType() != dto.MetricType_HISTOGRAM || !isText(format) {
			errs = append(errs, encoder.Encode(f))
		}
	}

	return out.String(), errors.Join(errs...)
}

var rendersIn = []expfmt.Format{expfmt.FmtText, expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtProtoDelim}

// expectRendered compares both ways, and returns the error of Render. The clock of c must stand
// still.
func expectRendered(t testing.TB, c *Collector, s *gpu.Snapshot) error {
	t.Helper()
	var last error

	for _, format := range rendersIn {
		want, wantErr := gatherAndEncode(t, c, s, format)
		var got bytes.Buffer

		ok, err := c.Render(&got, s, format, nil)
		if !ok {
			t.Fatalf("%s: not rendered, %v", format, wantErr)
		}

		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("%s: error %v, want %v", format, err, wantErr)
		}

		if got.String() != want {
			t.Fatalf("%s: got\n%s\nwant\n%s", format, got.String(), want)
		}

		last = err
	}

	return last
}

func renderOptions() Options {
	opts := allOptions()
	opts.Now = testEpoch
	opts.PodLabelNames = []string{"app.kubernetes.io/name"}

	return opts
}

// Layouts, holders, values and optional readings change at random; whole nodes come and go.
func TestRenderUnderChurn(t *testing.T) {
	for _, names := range []Names{NamesNative, NamesBoth} {
		opts := renderOptions()
		opts.Names = names
		c := mustNew(t, opts)
		r := rand.New(rand.NewPCG(1, 2))
		values := []float64{0, math.Copysign(0, -1), 1, -1, 2, 0.1, 1e6, 1e21, 123456789, 1.5e-9, math.MaxFloat64, 5e-324}

		for i := range 60 {
			s := richNode(r.IntN(4), 1+r.IntN(3))

			s.Generation = uint64(i)
			for g := range s.GPUs {
				one := &s.GPUs[g]
				one.Readings.PowerWatts = gpu.Some(values[r.IntN(len(values))])

				one.Readings.TemperatureCelsius = gpu.Some(values[r.IntN(len(values))])
				if i%2 == 1 { // else the labels may stay while this changes
					one.Totals.XIDs.Since = testEpoch().Add(time.Duration(r.IntN(3)) * time.Hour)
				}

				one.LastRead = testEpoch().Add(time.Duration(i) * time.Second)
				if r.IntN(4) == 0 {
					one.Totals.XIDErrors = append(one.Totals.XIDErrors,
						gpu.XIDCount{XID: 79, Counter: newCounter(2), Last: testEpoch()})
				}

				if r.IntN(4) == 0 {
					one.Jobs = nil
				}

				for j := range one.Instances {
					if r.IntN(3) == 0 {
						one.Instances[j].Holders = []gpu.Holder{exclusiveHolder(`odd "\` + "\n\xff#" + fmt.Sprint(i))}
					}
				}
			}

			c.Observe(s)

			if err := expectRendered(t, c, s); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A group that fails or panics leaves out what it could not write, and says so, in both ways.
func TestRenderWithFailures(t *testing.T) {
	c := mustNew(t, renderOptions())

	s := richNode(2, 2)
	if err := expectRendered(t, c, s); err != nil {
		t.Error(err)
	}

	invalid := richNode(2, 2)

	invalid.GPUs[1].Readings.PowerWatts = gpu.Some(math.NaN())
	if err := expectRendered(t, c, invalid); err == nil {
		t.Error("no error with a value that cannot be served")
	}

	c.groups = append(c.groups, enabledGroup{name: "bad", collect: func(*metricWriter, *view) { panic("bad") }})
	var out bytes.Buffer
	ok, err := c.Render(&out, richNode(2, 2), expfmt.FmtText, nil)
	cmptest.Equal(t, "rendered after a panic", ok, true)

	if err == nil {
		t.Error("no error after a panic")
	}

	if want := `{collector="bad"} 0`; !strings.Contains(out.String(), want) {
		t.Errorf("no series with %s", want)
	}
}

// What the registry refuses is not rendered: Gather names its collector.
func TestRenderRefuses(t *testing.T) {
	c := mustNew(t, renderOptions())
	good := richNode(2, 2)
	twice := richNode(2, 2)
	twice.GPUs[1].UUID, twice.GPUs[1].Index = twice.GPUs[0].UUID, twice.GPUs[0].Index

	for range 2 {
		for _, format := range rendersIn {
			var out bytes.Buffer
			if ok, _ := c.Render(&out, twice, format, nil); ok || out.Len() != 0 {
				t.Errorf("%s: duplicate series were rendered", format)
			}
		}

		if _, err := c.Gather(twice); err == nil {
			t.Error("no error about duplicate series")
		}

		if err := expectRendered(t, c, good); err != nil {
			t.Error(err)
		}
	}

	for _, format := range []expfmt.Format{expfmt.FmtProtoText, expfmt.FmtProtoCompact, expfmt.FmtOpenMetrics_2_0_0} {
		if ok, err := c.Render(&bytes.Buffer{}, good, format, nil); ok || err != nil {
			t.Errorf("%s: rendered %v, %v", format, ok, err)
		}
	}

	if err := expectRendered(t, c, newNode()); err != nil {
		t.Errorf("empty Snapshot: %v", err)
	}

	if err := expectRendered(t, mustNew(t, Options{Now: testEpoch, Disabled: onlyGroups("")}), newNode()); err != nil {
		t.Errorf("no collectors: %v", err)
	}
}

// While the series are the same a Snapshot costs few allocations, whatever their number, and what a
// Collector keeps does not grow with the labels that it has seen.
func TestRenderKeepsLittle(t *testing.T) {
	c := mustNew(t, Options{})
	var out bytes.Buffer
	snaps := []*gpu.Snapshot{richNode(9, 7), richNode(9, 7)}
	next := 0
	render := func() {
		out.Reset()

		next++
		if ok, err := c.Render(&out, snaps[next%2], expfmt.FmtText, nil); !ok || err != nil {
			t.Fatalf("rendered %v, %v", ok, err)
		}
	}
	render()

	if allocations := testing.AllocsPerRun(10, render); allocations > 100 {
		t.Errorf("%v allocations", allocations)
	}

	count := func() int { return countLabelSets(&c.rootLabels) }
	before := count()

	for i := range 50 {
		s := richNode(9, 7)
		s.GPUs[1].Instances[0].Holders = []gpu.Holder{exclusiveHolder(fmt.Sprint("churn-", i))}
		snaps[0], snaps[1] = s, s
		render()
	}

	if after := count(); after > before+10 {
		t.Errorf("%d sets of labels, then %d", before, after)
	}

	if n := len(c.renderedText.templates); n != 1 {
		t.Errorf("%d templates", n)
	}
}

func countLabelSets(l labels) int {
	n := 1
	for _, child := range l.children {
		n += countLabelSets(child)
	}

	return n
}

// Several scrapers ask for several Snapshots in several formats at once.
func TestRenderConcurrently(t *testing.T) {
	opts := renderOptions()
	c := mustNew(t, opts)
	snaps := []*gpu.Snapshot{richNode(2, 2), richNode(2, 3), richNode(3, 1)}

	want := map[*gpu.Snapshot]map[expfmt.Format]string{}
	for _, s := range snaps {
		want[s] = map[expfmt.Format]string{}
		for _, format := range rendersIn {
			want[s][format], _ = gatherAndEncode(t, c, s, format)
		}
	}

	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for round := range 10 {
				s := snaps[(i+round)%len(snaps)]
				format := rendersIn[i%len(rendersIn)]
				var out bytes.Buffer

				ok, err := c.Render(&out, s, format, nil)
				if !ok || err != nil {
					t.Errorf("rendered %v, %v", ok, err)
				}

				if out.String() != want[s][format] {
					t.Error("rendered other text than alone")
				}

				if got, err := gatherAndEncode(t, c, s, format); err != nil || got != want[s][format] {
					t.Errorf("%v, or encoded other text than alone", err)
				}
			}
		})
	}

	all.Wait()
}

// BenchmarkRender is the exposition of a new Snapshot whose series are those of the last one.
func BenchmarkRender(b *testing.B) {
	for name, format := range map[string]expfmt.Format{"text": expfmt.FmtText, "protobuf": expfmt.FmtProtoDelim} {
		b.Run(name, func(b *testing.B) {
			c := mustNew(b, allOptions())
			snaps := []*gpu.Snapshot{richNode(9, 7), richNode(9, 7)}
			c.Observe(snaps[0])
			var out bytes.Buffer
			b.ReportAllocs()

			for i := 0; b.Loop(); i++ {
				out.Reset()

				if ok, err := c.Render(&out, snaps[i%2], format, nil); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
