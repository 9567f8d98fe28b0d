package collector

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// encodeFiltered is what the library makes of some collectors' families of a Snapshot.
func encodeFiltered(t *testing.T, c *Collector, families []*dto.MetricFamily, names []string,
	format expfmt.Format) string {
	t.Helper()

	text, err := encode(c.Filter(families, names), format)
	if err != nil {
		t.Fatal(err)
	}

	return text
}

// Every selection is rendered as the library encodes it, and all selections of one collector make
// up everything.
func TestSelections(t *testing.T) {
	for _, names := range []Names{NamesNative, NamesBoth, NamesDCGM} {
		opts := renderOptions()
		opts.Names = names
		c := mustNew(t, opts)
		s := richNode(3, 3)
		c.Observe(s)

		families, err := c.Gather(s)
		if err != nil {
			t.Fatal(err)
		}

		all := encodeFiltered(t, c, families, nil, expfmt.FmtText)
		lines := 0

		selections := [][]string{nil, {"exporter"}, c.enabledNames()}
		for _, name := range c.enabledNames() {
			selections = append(selections, []string{name}, []string{"exporter", name})
			one := encodeFiltered(t, c, families, []string{name}, expfmt.FmtText)

			lines += countSamples(one)
			for _, want := range []string{"mig_exporter_collector_success", "mig_exporter_collector_duration_seconds"} {
				if n := strings.Count(one, "\n"+want+"{"); n != 1 || !strings.Contains(one, want+`{collector="`+name+`"} `) {
					t.Errorf("%s: %d series of %s, want that of the collector", name, n, want)
				}
			}
		}

		if lines != countSamples(all) {
			t.Errorf("%s: the collectors have %d series one by one, %d together", names, lines, countSamples(all))
		}

		for _, selected := range selections {
			for _, format := range rendersIn {
				want := encodeFiltered(t, c, families, selected, format)
				var got bytes.Buffer

				ok, err := c.Render(&got, s, format, selected)
				if !ok || err != nil {
					t.Errorf("%s, %v, %s: rendered %v, %v", names, selected, format, ok, err)
				}

				if got.String() != want {
					t.Errorf("%s, %v, %s: rendered\n%s\nwant\n%s", names, selected, format, got.String(), want)
				}
			}
		}
	}
}

// countSamples counts the lines that are no comments.
func countSamples(text string) int {
	n := 0

	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}

	return n
}

// A selection leaves the families that were gathered for all scrapes as they are.
func TestFilterModifiesNothing(t *testing.T) {
	c := mustNew(t, renderOptions())

	families, err := c.Gather(richNode(2, 2))
	if err != nil {
		t.Fatal(err)
	}

	before := encodeFiltered(t, c, families, nil, expfmt.FmtText)
	encodeFiltered(t, c, families, []string{"memory"}, expfmt.FmtText)

	if after := encodeFiltered(t, c, families, nil, expfmt.FmtText); after != before {
		t.Error("other families than before")
	}
}

// Several selections of a Snapshot are one gathering for text and one for protobuf.
func TestSelectionsGatherOnce(t *testing.T) {
	c := mustNew(t, renderOptions())
	collected := 0
	c.groups = append(c.groups, enabledGroup{name: "counted", collect: func(*metricWriter, *view) { collected++ }})
	s := richNode(2, 2)

	for _, names := range [][]string{nil, {"memory"}, {"power", "up"}} {
		for _, format := range rendersIn {
			if ok, err := c.Render(&bytes.Buffer{}, s, format, names); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}

	if collected != 2 {
		t.Errorf("collected %d times, want 2", collected)
	}
}

// The pair of scrape jobs of the documentation has every collector that is on by default, each
// once: a copy of it loses no family and stores none twice.
func TestDocumentedSelections(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}

	picks := regexp.MustCompile(`collect\[\]: \[(.*)\]`).FindAllStringSubmatch(string(page), -1)
	if len(picks) != 2 {
		t.Fatalf("%d jobs pick collectors, want 2", len(picks))
	}

	got := slices.Concat(strings.Split(picks[0][1], ", "), strings.Split(picks[1][1], ", "))
	want := mustNew(t, Options{}).enabledNames()
	slices.Sort(got)
	slices.Sort(want)

	if !slices.Equal(got, want) {
		t.Errorf("the two jobs scrape %v, on by default are %v", got, want)
	}
}

func TestCheckCollectors(t *testing.T) {
	native := mustNew(t, Options{Disabled: map[string]bool{"ecc": true}})

	dcgm := mustNew(t, Options{Names: NamesDCGM})
	for _, test := range []struct {
		name  string
		c     *Collector
		names []string
		want  []string // parts of the error; nil for none
	}{
		{"known", native, []string{"memory", "up"}, nil},
		{"none", native, nil, nil},
		{"under dcgm-exporter's names", dcgm, []string{"dcgm", "exporter"}, nil},
		{"unknown", native, []string{"memory", "memry"}, []string{`unknown collector "memry"`, "expected one of", "activity",
			"xid"}},
		{"empty", native, []string{""}, []string{`unknown collector ""`}},
		{"another case", native, []string{"Memory"}, []string{`unknown collector "Memory"`}},
		{"switched off", native, []string{"ecc"}, []string{`collector "ecc" is switched off`, "expected one of"}},
		{"not served by default", native, []string{"dcgm"}, []string{`collector "dcgm" is switched off`}},
		{"not served under dcgm-exporter's names", dcgm, []string{"memory"},
			[]string{`collector "memory" is switched off`, "[exporter dcgm]"}},
		{"endless", native, []string{strings.Repeat("x", 10000)}, []string{`unknown collector "xxx`}},
	} {
		err := test.c.CheckCollectors(test.names)
		if (err != nil) != (test.want != nil) {
			t.Errorf("%s: got %v", test.name, err)
			continue
		}

		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in %q", test.name, want, err)
			}
		}

		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: an error of %d bytes", test.name, len(err.Error()))
		}
	}
}
