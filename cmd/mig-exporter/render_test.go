package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// TestRenderIsWhatTheLibraryEncodes holds the quick way of a scrape to the bytes of the library's
// registry and encoders: in every scenario and golden, at every poll, in all formats that are
// negotiated but those for people.
func TestRenderIsWhatTheLibraryEncodes(t *testing.T) {
	cases := slices.Clone(goldens)
	cases = append(cases, goldens[0], goldens[0])
	cases[len(cases)-1].name, cases[len(cases)-1].scenario, cases[len(cases)-1].args = "h100-56", "h100-56",
		[]string{"--collectors=+process"}

	cases[len(cases)-2].name, cases[len(cases)-2].args = "both", []string{"--dcgm.address=embedded", "--metrics.names=both",
		"--kubernetes.labels=off"}
	for _, g := range cases {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()

			x := runInProcess(t, append([]string{"--sim.scenario=../../testdata/scenarios/" + g.scenario + ".yaml"},
				g.args...)...)
			for _, by := range slices.Concat(goldenSteps, g.steps, []time.Duration{time.Second, time.Second, time.Minute}) {
				advanceBy(t, x, by)
				compareRendered(t, x, []expfmt.Format{expfmt.FmtText, expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtProtoDelim})
			}

			compareRendered(t, x, renderedFormats())
		})
	}
}

// compareRendered compares the current Snapshot of x in some formats.
func compareRendered(t *testing.T, x *exporter, formats []expfmt.Format) {
	t.Helper()
	snap := x.poller.Current()

	families, err := x.metrics.Gather(snap)
	if err != nil {
		t.Fatal(err)
	}

	for _, format := range formats {
		var got, want bytes.Buffer
		if ok, err := x.metrics.Render(&got, snap, format, nil); !ok || err != nil {
			t.Fatalf("%s: rendered %v, %v", format, ok, err)
		}

		encoder := expfmt.NewEncoder(&want, format)
		for _, f := range families {
			if f.GetType() == dto.MetricType_HISTOGRAM && format.FormatType() != expfmt.TypeProtoDelim { // a native one
				continue
			}

			if err := encoder.Encode(f); err != nil {
				t.Fatal(err)
			}
		}

		if format.FormatType() == expfmt.TypeProtoDelim {
			compareProtobuf(t, splitProtobuf(t, want.Bytes()), splitProtobuf(t, got.Bytes()))
			continue
		}

		if a, b := withoutDurations(want.String()), withoutDurations(got.String()); a != b {
			t.Fatalf("generation %d, %s (- encoded, + rendered):\n%s", snap.Generation, format, firstDifferences(a, b, 10))
		}
	}
}

// compareProtobuf compares encoded families.
func compareProtobuf(t *testing.T, want, got [][]byte) {
	t.Helper()

	if len(want) != len(got) {
		t.Fatalf("%d families rendered, want %d", len(got), len(want))
	}

	for i := range want {
		if !bytes.Equal(want[i], got[i]) {
			t.Fatalf("family %d: rendered\n%q\nwant\n%q", i, got[i], want[i])
		}
	}
}

// splitProtobuf returns the families of delimited protobuf, encoded as they were but for the values
// of the durations.
func splitProtobuf(t *testing.T, encoded []byte) [][]byte {
	t.Helper()
	var families [][]byte

	for len(encoded) > 0 {
		one, n := protowire.ConsumeBytes(encoded)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}

		encoded = encoded[n:]

		if bytes.Contains(one, []byte("mig_exporter_collector_duration_seconds")) {
			var family dto.MetricFamily
			if err := proto.Unmarshal(one, &family); err != nil {
				t.Fatal(err)
			}

			for _, m := range family.Metric {
				m.Gauge.Value = nil
			}

			var err error
			if one, err = proto.Marshal(&family); err != nil {
				t.Fatal(err)
			}
		}

		families = append(families, one)
	}

	return families
}

func renderedFormats() []expfmt.Format {
	var list []expfmt.Format
	for _, format := range []expfmt.Format{expfmt.FmtText, expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1,
		expfmt.FmtProtoDelim} {
		list = append(list, format)
		for _, scheme := range []model.EscapingScheme{
			model.NoEscaping, model.UnderscoreEscaping, model.DotsEscaping, model.ValueEncodingEscaping,
		} {
			list = append(list, format.WithEscapingScheme(scheme))
		}
	}

	return list
}

// withoutDurations drops the values of mig_exporter_collector_duration_seconds, which differ
// between two collections.
func withoutDurations(text string) string {
	var kept strings.Builder

	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "mig_exporter_collector_duration_seconds{") {
			line = line[:strings.LastIndexByte(line, ' ')] + "\n"
		}

		kept.WriteString(line)
	}

	return kept.String()
}
