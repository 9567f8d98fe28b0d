package web

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fakeReport is a report about the GPU that was asked for.
type fakeReport struct {
	GPU   gpu.UUID `json:"gpu"`
	Ratio float64  `json:"ratio"`
}

func reportOf(id gpu.UUID) any { return &fakeReport{GPU: id} }

func adviceOf(report func(gpu.UUID) any) http.Handler {
	return testHandler(Options{State: true, Recommendations: report}, publish(nodeFixture()), nil,
		prometheus.NewRegistry())
}

func TestRecommendations(t *testing.T) {
	first := nodeFixture().GPUs[0].UUID
	for path, want := range map[string]gpu.UUID{
		"/api/v1/recommendations": "", "/api/v1/recommendations?gpu=": "", "/api/v1/recommendations?gpu=0": first,
		"/api/v1/recommendations?gpu=" + string(first): first,
	} {
		w := get(adviceOf(reportOf), path)

		var got fakeReport
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%s: %d %q: %v", path, w.Code, w.Body, err)
		}

		cmptest.Equal(t, path, got.GPU, want)
		cmptest.Equal(t, path+": Content-Type", w.Header().Get("Content-Type"), "application/json")
	}
}

// TestRecommendationsAreNew: the text that is kept is that of the last report.
func TestRecommendationsAreNew(t *testing.T) {
	report := &fakeReport{GPU: "a"}
	h := adviceOf(func(gpu.UUID) any { return report })
	before := get(h, "/api/v1/recommendations").Body.String()
	cmptest.Equal(t, "the same report", get(h, "/api/v1/recommendations").Body.String(), before)
	report = &fakeReport{GPU: "b"}
	cmptest.Equal(t, "another one", get(h, "/api/v1/recommendations").Body.String(), `{"gpu":"b","ratio":0}`+"\n")
}

func TestRecommendationsCompressed(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/recommendations", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	adviceOf(reportOf).ServeHTTP(w, r)

	plain, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatalf("%v: %v", w.Header(), err)
	}

	text, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "text", string(text), `{"gpu":"","ratio":0}`+"\n")
}

func TestRecommendationsProblems(t *testing.T) {
	none := func(gpu.UUID) any { return nil }

	unencodable := func(gpu.UUID) any { return &fakeReport{Ratio: math.NaN()} }
	for _, c := range []struct {
		what, path string
		report     func(gpu.UUID) any
		status     int
		kind       string
	}{
		{"before the first", "", none, http.StatusServiceUnavailable, "no-recommendations"},
		{"before the first, of a GPU", "?gpu=0", none, http.StatusServiceUnavailable, "no-recommendations"},
		{"no such index", "?gpu=99", reportOf, http.StatusNotFound, "not-found"},
		{"no such UUID", "?gpu=GPU-x", reportOf, http.StatusNotFound, "not-found"},
		{"another parameter", "?gpus=1", reportOf, http.StatusBadRequest, "malformed"},
		{"two GPUs", "?gpu=0&gpu=1", reportOf, http.StatusBadRequest, "malformed"},
		{"no query", "?gpu=%zz", reportOf, http.StatusBadRequest, "malformed"},
		{"not encodable", "", unencodable, http.StatusInternalServerError, "encoding"},
	} {
		w := get(adviceOf(c.report), "/api/v1/recommendations"+c.path)

		var p problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatalf("%s: %d %q: %v", c.what, w.Code, w.Body, err)
		}

		if w.Code != c.status || p.Type != "urn:mig-exporter:problem:"+c.kind || p.Detail == "" {
			t.Errorf("%s: %d %+v, want %d %s with a detail", c.what, w.Code, p, c.status, c.kind)
		}

		cmptest.Equal(t, c.what+": Content-Type", w.Header().Get("Content-Type"), "application/problem+json")
	}
}

// TestRecommendationsOff: neither without right-sizing nor with --no-web.state.
func TestRecommendationsOff(t *testing.T) {
	for what, opts := range map[string]Options{
		"no right-sizing": {State: true}, "no state": {Recommendations: reportOf},
	} {
		h := testHandler(opts, publish(nodeFixture()), nil, prometheus.NewRegistry())
		cmptest.Equal(t, what, get(h, "/api/v1/recommendations").Code, http.StatusNotFound)
	}
}
