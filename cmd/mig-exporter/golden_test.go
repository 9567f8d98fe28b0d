package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protojson"
)

// goldens are the shipped scenarios, each at a stated simulated time, in all label modes that its
// story is about.
var goldens = []struct {
	name     string // of the golden file
	scenario string
	args     []string
	steps    []time.Duration
}{
	{name: "dgx-a100-mixed", scenario: "dgx-a100-mixed"},
	// After an XID, an instance that was killed for lack of memory, and a layout change by another
	// client.
	{name: "dgx-a100-mixed.late", scenario: "dgx-a100-mixed",
		steps: []time.Duration{46 * time.Minute, 5 * time.Minute, time.Second}},
	{name: "dgx-a100-mixed.series", scenario: "dgx-a100-mixed",
		args: []string{"--kubernetes.labels=series", "--dcgm.address=embedded"}},
	{name: "dgx-a100-mixed.info", scenario: "dgx-a100-mixed", args: []string{"--kubernetes.labels=info"}},
	// Activity by DCGM, under native names and under dcgm-exporter's.
	{name: "dgx-a100-mixed.activity", scenario: "dgx-a100-mixed", args: []string{"--dcgm.address=embedded"}},
	{name: "dgx-a100-mixed.dcgm", scenario: "dgx-a100-mixed",
		args: []string{"--dcgm.address=embedded", "--metrics.names=dcgm"}},
	{name: "h100-underused", scenario: "h100-underused"},
	{name: "a30", scenario: "a30"},
	{name: "gke-h100-3g", scenario: "gke-h100-3g"},
	{name: "mps-and-timeslicing", scenario: "mps-and-timeslicing"},
	// A second after a restart of the kubelet, with processes and an init container; and in an
	// outage of the API server.
	{name: "kubelet-outages", scenario: "kubelet-outages"},
	{name: "kubelet-outages.away", scenario: "kubelet-outages",
		steps: []time.Duration{2*time.Minute + 9*time.Second, 6 * time.Second, 70 * time.Second}},
	{name: "dra-monitors", scenario: "dra-monitors"},
	// Power by the energy counter, and no power at all; NVLink 5.
	{name: "b200-power", scenario: "b200-power"},
	{name: "rtx-pro-video", scenario: "rtx-pro-video", args: []string{"--collectors=+media"}},
	// In and after every fault, up to GPU 0's hang. What comes after that depends on when its call
	// returns.
	{name: "chaos", scenario: "chaos", args: []string{"--poll.interval=500ms"}, steps: []time.Duration{
		34 * time.Second, 30 * time.Second, 30 * time.Second, 30 * time.Second, 40 * time.Second, 20 * time.Second,
		30 * time.Second,
		30 * time.Second, 30 * time.Second, 30 * time.Second, 30 * time.Second, 30 * time.Second, 10 * time.Second,
		50 * time.Second,
		20 * time.Second, 10 * time.Second, 30 * time.Second, 3 * time.Second, 57 * time.Second, 20 * time.Second,
		10 * time.Second,
		20 * time.Second, 10 * time.Second, 6 * time.Second,
	}},
}

// goldenSteps are what every golden's clock is advanced by before the scrape, a poll each.
var goldenSteps = []time.Duration{time.Second, time.Second, 28 * time.Second, time.Second, 29 * time.Second,
	time.Second}

// notGolden reports whether a family is left out of the goldens: what depends on the build, the
// process or how long something took.
func notGolden(family string) bool {
	switch family {
	case "mig_exporter_build_info", "mig_exporter_poll_duration_seconds", "mig_exporter_collector_duration_seconds",
		"mig_exporter_driver_seconds_total":
		return true
	}

	return strings.HasPrefix(family, "go_") || strings.HasPrefix(family, "process_")
}

func TestGoldenMetrics(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()

			p := simulate(t, g.scenario, g.args...)
			for _, by := range slices.Concat(goldenSteps, g.steps) {
				p.advance(by)
			}

			r := p.get("/metrics")
			if r.status != http.StatusOK {
				t.Fatalf("GET /metrics: %d", r.status)
			}

			problems, err := promlint.New(bytes.NewReader(r.body)).Lint()
			if err != nil {
				t.Fatal(err)
			}

			for _, problem := range problems {
				if !foreign(problem.Metric) {
					t.Errorf("promlint: %s: %s", problem.Metric, problem.Text)
				}
			}

			compareGolden(t, g.name+".prom", keepGolden(t, r.body), func(b []byte) string { return string(b) })
		})
	}
}

// foreign reports whether a name is that of another program.
func foreign(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "DCGM_")
}

// keepGolden drops the families that are not golden from a text exposition.
func keepGolden(t *testing.T, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	keep := false
	scanner := bufio.NewScanner(bytes.NewReader(body))
	scanner.Buffer(nil, 1<<20)

	for scanner.Scan() {
		line := scanner.Text()
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, _, _ := strings.Cut(rest, " ")
			keep = !notGolden(name)
		}

		if keep {
			out.WriteString(line + "\n")
		}
	}

	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}

	return out.Bytes()
}

// TestGoldenProtobuf holds what only the protobuf format carries: native histograms and created
// timestamps.
func TestGoldenProtobuf(t *testing.T) {
	p := simulate(t, "dgx-a100-mixed")
	for _, by := range goldenSteps {
		p.advance(by)
	}

	r := p.request(http.MethodGet, "/metrics", map[string]string{
		"Accept": "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	})
	var kept bytes.Buffer
	histograms := 0

	for _, f := range decodeFamilies(t, r.body) {
		if notGolden(f.GetName()) {
			continue
		}

		for _, m := range f.Metric {
			if m.GetHistogram().GetSchema() != 0 || len(m.GetHistogram().GetPositiveSpan()) > 0 {
				histograms++
			}
		}

		if _, err := protodelim.MarshalTo(&kept, f); err != nil {
			t.Fatal(err)
		}
	}

	if histograms == 0 {
		t.Error("no native histogram in the protobuf exposition")
	}

	compareGolden(t, "dgx-a100-mixed.pb", kept.Bytes(), func(b []byte) string { return familiesText(t, b) })
}

func decodeFamilies(t *testing.T, body []byte) []*dto.MetricFamily {
	t.Helper()
	dec := expfmt.NewDecoder(bytes.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim))
	var list []*dto.MetricFamily

	for {
		f := &dto.MetricFamily{}

		err := dec.Decode(f)
		if err == io.EOF {
			return list
		}

		if err != nil {
			t.Fatal(err)
		}

		list = append(list, f)
	}
}

// familiesText is a line for each metric, to show a difference.
func familiesText(t *testing.T, body []byte) string {
	var out strings.Builder

	for _, f := range decodeFamilies(t, body) {
		for _, m := range f.Metric {
			text, err := protojson.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}

			out.WriteString(f.GetName() + " " + string(text) + "\n")
		}
	}

	return out.String()
}

// compareGolden compares byte for byte, or rewrites the file with -update.
func compareGolden(t *testing.T, name string, got []byte, text func([]byte) string) {
	t.Helper()

	path := filepath.Join("../../testdata/golden", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}

		return
	}

	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (make golden writes it)", err)
	}

	if bytes.Equal(got, want) {
		return
	}

	t.Errorf("%s differs (make golden rewrites it; - golden, + served):\n%s", path,
		firstDifferences(text(want), text(got), 20))
}

// firstDifferences lists lines that only one of two texts has.
func firstDifferences(want, got string, most int) string {
	count := map[string]int{}

	wantLines := strings.Split(want, "\n")
	gotLines := strings.Split(got, "\n")

	for _, l := range wantLines {
		count[l]++
	}

	for _, l := range gotLines {
		count[l]--
	}

	var out strings.Builder
	shown := 0
	list := func(sign string, lines []string, step int) {
		for _, l := range lines {
			if count[l]*step > 0 && shown < most {
				count[l] -= step
				shown++
				out.WriteString(sign + " " + l + "\n")
			}
		}
	}
	list("-", wantLines, 1)
	list("+", gotLines, -1)

	if shown == 0 {
		return "the same lines in another order"
	}

	return out.String()
}
