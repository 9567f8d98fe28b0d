package collector

import (
	"bytes"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// templateOf is the template that c keeps for protobuf.
func templateOf(c *Collector) seriesTemplate {
	return c.renderedProtobuf.templates[expfmt.FmtProtoDelim]
}

// What a counter began at is part of the template: it may change while all labels stay.
func TestRenderCreatedTimestamps(t *testing.T) {
	c := mustNew(t, renderOptions())
	render := func(since time.Time, value float64) seriesTemplate {
		t.Helper()
		s := richNode(2, 2)

		s.GPUs[1].Totals.XIDs = gpu.Counter{Value: value, Since: since}
		if err := expectRendered(t, c, s); err != nil {
			t.Fatal(err)
		}

		return templateOf(c)
	}

	first := render(testEpoch(), 1)
	if render(testEpoch().In(time.FixedZone("", 3600)), 2) != first {
		t.Error("another template for the same created timestamps")
	}

	for _, since := range []time.Time{testEpoch().Add(1), {}, time.Unix(0, 0), time.Unix(-1, 5)} {
		if render(since, 3) == first {
			t.Errorf("the template is the same though a counter began at %v", since)
		}
	}
}

// Histograms grow with every Snapshot without a new template. They appear when their reading was
// taken first.
func TestRenderHistograms(t *testing.T) {
	c := mustNew(t, renderOptions())
	templates := map[seriesTemplate]bool{}

	for i := range 6 {
		s := richNode(3, 2)
		for g := range s.GPUs {
			one := &s.GPUs[g]
			one.LastRead = testEpoch().Add(time.Duration(i) * time.Second)

			one.Activity.SM = gpu.Some(0.001 * float64(int(1)<<i))
			for j := range one.Instances {
				one.Instances[j].LastRead = one.LastRead
				one.Instances[j].Memory.Used = gpu.Some(uint64(1) << (20 + 2*i))
			}
		}

		if i > 1 {
			c.Observe(s)
		}

		if err := expectRendered(t, c, s); err != nil {
			t.Fatal(err)
		}

		templates[templateOf(c)] = true
	}

	if len(templates) != 2 {
		t.Errorf("%d templates, want one without histograms and one with", len(templates))
	}
}

// Another scrape of other series has the memory of the metrics moved, which templates must not
// notice.
func TestRenderBetweenLayouts(t *testing.T) {
	c := mustNew(t, renderOptions())
	for i, s := range []*gpu.Snapshot{richNode(2, 2), richNode(2, 2), richNode(9, 7), richNode(2, 2), newNode(),
		richNode(2, 2)} {
		c.Observe(s)

		for g := range s.GPUs {
			s.GPUs[g].Readings.PowerWatts = gpu.Some(float64(100*i + g))
		}

		if err := expectRendered(t, c, s); err != nil {
			t.Fatal(err)
		}
	}
}

// Formats that differ in how they escape names share a template: there is no name to escape.
func TestRenderEscapedProtobuf(t *testing.T) {
	c := mustNew(t, renderOptions())
	s := richNode(2, 2)
	c.Observe(s)

	families, err := c.Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	distinct := map[seriesTemplate]bool{}

	for _, scheme := range []model.EscapingScheme{
		model.NoEscaping, model.UnderscoreEscaping, model.DotsEscaping, model.ValueEncodingEscaping,
	} {
		format := expfmt.FmtProtoDelim.WithEscapingScheme(scheme)

		want, err := encode(families, format)
		if err != nil {
			t.Fatal(err)
		}

		var got bytes.Buffer

		ok, err := c.Render(&got, s, format, nil)
		if !ok || err != nil {
			t.Errorf("%s: rendered %v, %v", format, ok, err)
		}

		if got.String() != want {
			t.Errorf("%s: rendered other bytes than the library's", format)
		}

		distinct[c.renderedProtobuf.templates[format]] = true
	}

	if len(distinct) != 1 {
		t.Errorf("%d templates, want 1", len(distinct))
	}
}
