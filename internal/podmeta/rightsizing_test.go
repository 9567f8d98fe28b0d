package podmeta

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestRightsizingAnnotations(t *testing.T) {
	stretch := func(x float64) gpu.RightsizingHints { return gpu.RightsizingHints{MaxStretch: gpu.Some(x)} }

	server := func(port uint16, path string) gpu.RightsizingHints {
		return gpu.RightsizingHints{Server: gpu.ServerEndpoint{Port: port, Path: path}}
	}
	for _, c := range []struct {
		annotations rightsizingAnnotations
		want        gpu.RightsizingHints
		invalid     []string
	}{
		{rightsizingAnnotations{}, gpu.RightsizingHints{}, nil},
		{rightsizingAnnotations{Rightsizing: new("off"), Strict: new("true"), MaxStretch: new("1.5")},
			gpu.RightsizingHints{OptOut: true, Strict: true, MaxStretch: gpu.Some(1.5)}, nil},
		{rightsizingAnnotations{Rightsizing: new("on"), Strict: new("false"), MaxStretch: new("1")}, stretch(1), nil},
		{rightsizingAnnotations{Rightsizing: new("no"), MaxStretch: new("100")}, stretch(100), []string{"rightsizing"}},
		{rightsizingAnnotations{Strict: new("yes"), MaxStretch: new("0.5")}, gpu.RightsizingHints{}, []string{"strict", "max-stretch"}},
		{rightsizingAnnotations{Rightsizing: new("off"), MaxStretch: new("NaN")}, gpu.RightsizingHints{OptOut: true},
			[]string{"max-stretch"}},
		{rightsizingAnnotations{MaxStretch: new("100.1")}, gpu.RightsizingHints{}, []string{"max-stretch"}},
		{rightsizingAnnotations{MaxStretch: new("2x")}, gpu.RightsizingHints{}, []string{"max-stretch"}},
		{rightsizingAnnotations{ServiceTime: new("120ms"), ModelMemory: new("1.5Gi"), MultiGPU: new("false")}, gpu.RightsizingHints{
			ServiceTime: gpu.Some(120 * time.Millisecond), ModelMemory: gpu.Some[uint64](3 << 29), MultiGPU: gpu.Some(false),
		}, nil},
		{rightsizingAnnotations{ServiceTime: new("none"), ModelMemory: new("800Mi"), MultiGPU: new("true")}, gpu.RightsizingHints{
			Closed: true, ModelMemory: gpu.Some[uint64](800 << 20), MultiGPU: gpu.Some(true),
		}, nil},
		{rightsizingAnnotations{ServiceTime: new("-1s"), ModelMemory: new("NaN"), MultiGPU: new("1")}, gpu.RightsizingHints{},
			[]string{"service-time", "model-memory", "multi-gpu"}},
		{rightsizingAnnotations{ServiceTime: new("61m"), ModelMemory: new("14GB")}, gpu.RightsizingHints{},
			[]string{"service-time", "model-memory"}},
		{rightsizingAnnotations{Server: new(":8000/metrics")}, server(8000, "/metrics"), nil},
		{rightsizingAnnotations{Server: new(":65535/")}, server(65535, "/"), nil},
	} {
		got, invalid, _ := c.annotations.parse()
		cmptest.Equal(t, "hints", got, c.want)
		var names []string

		for _, text := range invalid {
			name, _, _ := strings.Cut(strings.TrimPrefix(text, "mig-exporter.io/"), "=")
			names = append(names, name)
		}

		if !slices.Equal(names, c.invalid) {
			t.Errorf("%+v: invalid are %q, want %q", c.annotations, invalid, c.invalid)
		}
	}
}

// TestFormerDomain: annotations of the domain that they had before count where the present one is
// absent.
func TestFormerDomain(t *testing.T) {
	both := func(present, former string) map[string]string {
		return map[string]string{"mig-exporter.io/max-stretch": present, "mig-exporter.dev/max-stretch": former}
	}
	stretch := func(v float64) gpu.RightsizingHints { return gpu.RightsizingHints{MaxStretch: gpu.Some(v)} }

	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        gpu.RightsizingHints
		invalid     []string
	}{
		{"all former ones", map[string]string{
			"mig-exporter.dev/rightsizing": "off", "mig-exporter.dev/strict": "true", "mig-exporter.dev/max-stretch": "2",
			"mig-exporter.dev/service-time": "1s", "mig-exporter.dev/model-memory": "1Gi",
			"mig-exporter.dev/multi-gpu": "true", "mig-exporter.dev/server-metrics": ":1/m",
		}, gpu.RightsizingHints{OptOut: true, Strict: true, MaxStretch: gpu.Some(2.0),
			ServiceTime: gpu.Some(time.Second), ModelMemory: gpu.Some[uint64](1 << 30), MultiGPU: gpu.Some(true),
			Server: gpu.ServerEndpoint{Port: 1, Path: "/m"}}, nil},
		{"the present one wins", both("2", "3"), stretch(2), nil},
		{"the former one alone", map[string]string{"mig-exporter.dev/max-stretch": "3"}, stretch(3), nil},
		{"the present one is empty", both("", "3"), gpu.RightsizingHints{}, nil},
		{"the present one is invalid", both("x", "3"), gpu.RightsizingHints{},
			[]string{`mig-exporter.io/max-stretch="x": expected a number from 1 to 100`}},
		{"the former one is invalid", map[string]string{"mig-exporter.dev/max-stretch": "x"}, gpu.RightsizingHints{},
			[]string{`mig-exporter.dev/max-stretch="x": expected a number from 1 to 100`}},
	} {
		got, invalid := ParseHints(c.annotations)
		cmptest.Equal(t, c.name, got, c.want)
		cmptest.Equal(t, c.name+": invalid", invalid, c.invalid)
	}
}

// TestServerAnnotationNamesNoHost: a pod can name a port and a path of its own, and nothing else.
func TestServerAnnotationNamesNoHost(t *testing.T) {
	for _, bad := range []string{"8000/metrics", "10.0.0.1:8000/metrics", "http://10.0.0.1:8000/", ":8000", ":0/", ":65536/",
		":-1/", ":8000@10.0.0.1/", ":8000//a?b", ":8000/a#b", ":8000/%2e%2e", ":8000/a b", ":8000/a\r\nX: y", ":http/metrics",
		":8000/" + strings.Repeat("a", 201), ":8000/\x00", ":8000/\u00fc"} {
		a := rightsizingAnnotations{Server: new(bad)}

		got, invalid, _ := a.parse()
		if got != (gpu.RightsizingHints{}) || len(invalid) != 1 || !strings.Contains(invalid[0], `":8000/metrics"`) {
			t.Errorf("%q: %+v, invalid are %q", bad, got, invalid)
		}
	}
}

// TestFormerDomainIsLogged: once, with the first pod that has such annotations.
func TestFormerDomainIsLogged(t *testing.T) {
	const pods = `{"kind": "PartialObjectMetadataList", "items": [
		{"metadata": {"name": "a", "namespace": "ml", "annotations": {"mig-exporter.io/strict": "", "mig-exporter.dev/strict": "true"}}},
		{"metadata": {"name": "b", "namespace": "ml", "annotations": {"mig-exporter.dev/strict": "true", "mig-exporter.dev/max-stretch": "2"}}}]}`

	a, _ := testAPI(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, pods) })
	var lines bytes.Buffer
	p := &Poller{logger: log.NewLogfmtLogger(&lines)}

	for range 2 {
		got, err := a.listPods(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}

		p.logFormer(got.former)
		cmptest.Equal(t, "lines", strings.Count(lines.String(), "\n"), 1)
		cmptest.HasTexts(t, lines.String(), "level=warn", "pods=1 pod=ml/b ", "use=mig-exporter.io",
			"annotations=mig-exporter.dev/strict,mig-exporter.dev/max-stretch")
	}
}

// TestListedHints: annotations and the workload's label come with the list of pods. What is invalid
// is logged once, and again after it was gone.
func TestListedHints(t *testing.T) {
	const pods = `{"kind": "PartialObjectMetadataList", "items": [
		{"metadata": {"name": "a", "namespace": "ml", "labels": {"app": "resnet"}, "annotations": {"mig-exporter.io/rightsizing": "off"}}},
		{"metadata": {"name": "b", "namespace": "ml", "annotations": {"mig-exporter.io/max-stretch": "much", "mig-exporter.io/strict": "true"}}}]}`
	body := pods
	a, _ := testAPI(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	a.workload = "app"
	var lines bytes.Buffer
	p := &Poller{logger: log.NewLogfmtLogger(&lines)}

	for _, c := range []struct {
		body   string
		logged int
	}{{pods, 1}, {pods, 1}, {`{"kind": "PartialObjectMetadataList", "items": []}`, 1}, {pods, 2}} {
		body = c.body

		got, err := a.listPods(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}

		p.logInvalid(got.invalid)

		if n := strings.Count(lines.String(), `pod=ml/b`); n != c.logged || !strings.Contains(lines.String(), "much") {
			t.Errorf("logged %d times, want %d: %s", n, c.logged, lines.String())
		}

		if c.body != pods {
			continue
		}

		cmptest.Equal(t, "of a", got.pods[podName{"ml", "a"}].Rightsizing,
			gpu.RightsizingHints{OptOut: true, Workload: "resnet"})
		cmptest.Equal(t, "of b", got.pods[podName{"ml", "b"}].Rightsizing, gpu.RightsizingHints{Strict: true})
	}
}
