package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
)

// parts are what an answer of the fixture can have.
var parts = []string{"test_generation", "test_energy_joules", nativePart, "fresh_gathers"}

// nativePart is a native histogram, which text formats do not have.
const nativePart = "test_memory_distribution"

// TestSelections: the collectors that are asked for, and nothing else, in every form and however
// they are asked for.
func TestSelections(t *testing.T) {
	h := testHandler(Options{FreshCollector: "own"}, publish(nodeFixture()), newRegistry(t), freshRegistry())

	for _, test := range []struct {
		query string
		want  []string
	}{
		{"", parts},
		{"?", parts},
		{"?other=1", parts},
		{"?collect[]=test_generation", parts[:1]},
		{"?collect%5B%5D=test_generation", parts[:1]},
		{"?collect[]=test_energy_joules_total&other=1&collect[]=test_generation", parts[:2]},
		{"?collect[]=test_generation&collect[]=test_energy_joules_total&collect[]=test_generation", parts[:2]},
		{"?collect[]=own", parts[3:]},
		{"?collect[]=own&collect[]=" + nativePart, parts[2:]},
		{"?collect[]=test_of_nothing", nil},
	} {
		for _, accept := range []string{"", openMetricsAccept, protobufAccept} {
			for _, coding := range []string{"", "gzip"} {
				w := get(h, "/metrics"+test.query, "Accept", accept, "Accept-Encoding", coding)

				body := w.Body.Bytes()
				if coding == "gzip" {
					body = gunzip(t, body)
				}

				if w.Code != http.StatusOK || w.Header().Get("Content-Length") != itoa(w.Body.Len()) {
					t.Fatalf("%s: got %d, %q", test.query, w.Code, body)
				}

				if accept == openMetricsAccept && !strings.HasSuffix(string(body), "# EOF\n") {
					t.Errorf("%s: no end marker", test.query)
				}

				for _, name := range parts {
					want := slices.Contains(test.want, name) && (accept == protobufAccept || name != nativePart)
					if got := strings.Contains(string(body), name); got != want {
						t.Errorf("%s, %s, %s: %s is there: %v, want %v\n%s", test.query, accept, coding, name, got, want, body)
					}
				}

				if accept == protobufAccept {
					if n := len(decode(t, expfmt.Format(w.Header().Get("Content-Type")), body)); n != len(test.want) {
						t.Errorf("%s: %d families, want %q", test.query, n, test.want)
					}
				}
			}
		}
	}
}

func TestWrongSelections(t *testing.T) {
	h := testHandler(Options{MaxScrapes: 1}, publish(nodeFixture()), newRegistry(t), freshRegistry())
	for query, want := range map[string]string{
		"collect[]=bad": `query parameter "collect[]": unknown collector "bad"`,
		"collect[]=":    `query parameter "collect[]": unknown collector ""`,
		"collect[]":     `query parameter "collect[]": unknown collector ""`,
		"collect[]=test_generation&collect[]=bad": `unknown collector "bad"`,
		"collect[]=test_generation,own":           "",
		"collect=test_generation":                 `query parameter "collect" is not supported, expected "collect[]"`,
		"exclude[]=test_generation":               `query parameter "exclude[]" is not supported, expected "collect[]"`,
		"collect[]=own;collect[]=test_generation": "invalid semicolon separator",
		"collect[]=%zz":                           "invalid URL escape",
	} {
		w := get(h, "/metrics?"+query, "Accept-Encoding", "gzip")
		if want == "" { // the fixture has any name that begins like this
			if w.Code != http.StatusOK {
				t.Errorf("%s: got %d", query, w.Code)
			}

			continue
		}

		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d %q, want 400 with %q", query, w.Code, w.Body, want)
		}

		if got := w.Header().Get("Content-Encoding"); got != "" {
			t.Errorf("%s: the error has the encoding %q", query, got)
		}
	}

	if w := get(h, "/metrics"); w.Code != http.StatusOK {
		t.Errorf("after wrong queries: got %d", w.Code)
	}
}

// TestSelectionsOverHTTP: GET and HEAD agree.
func TestSelectionsOverHTTP(t *testing.T) {
	h := testHandler(Options{FreshCollector: "own"}, publish(nodeFixture()), newRegistry(t), freshRegistry())
	server := httptest.NewServer(h)
	defer server.Close()

	for query, status := range map[string]int{"?collect[]=test_generation": http.StatusOK,
		"?collect[]=bad": http.StatusBadRequest} {
		lengths := map[string]int64{}

		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/metrics"+query, nil)
			if err != nil {
				t.Fatal(err)
			}

			r.Header.Set("Accept-Encoding", "identity")

			resp, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}

			resp.Body.Close()

			if resp.StatusCode != status {
				t.Errorf("%s %s: got %d, want %d", method, query, resp.StatusCode, status)
			}

			lengths[method] = resp.ContentLength
		}

		if status == http.StatusOK && (lengths[http.MethodGet] != lengths[http.MethodHead] || lengths[http.MethodGet] <= 0) {
			t.Errorf("%s: lengths %v, want the same, above 0", query, lengths)
		}
	}
}

// TestSelectionsAreKept: the encodings of a Snapshot that were asked for last, not more of them.
func TestSelectionsAreKept(t *testing.T) {
	metrics := newRegistry(t)
	e := newExposition(nodeFixture(), metrics, new(buffers), func(err error) { t.Error(err) })
	text := outputForm{format: expfmt.FmtText, coding: codingIdentity}
	first := func(i int) *byte {
		name := fmt.Sprintf("collect[]=test_generation&collect[]=test_%d", i)

		s, err := parseSelection(name, metrics)
		if err != nil {
			t.Fatal(err)
		}

		prefix, err := e.prefix(text, s)
		if err != nil || prefix.size == 0 {
			t.Fatal(prefix.size, err)
		}

		return &prefix.bytes[0]
	}
	all, _ := e.prefix(text, selection{})

	made := map[int]*byte{}
	for i := range maxSelections {
		made[i] = first(i)
	}

	for i := range maxSelections {
		if first(i) != made[i] {
			t.Errorf("selection %d of %d was encoded anew", i, maxSelections)
		}
	}

	first(0)             // the last one to be dropped
	first(maxSelections) // drops 1

	if first(0) != made[0] || first(2) != made[2] {
		t.Error("another selection was dropped than that which was asked for longest ago")
	}

	if first(1) == made[1] {
		t.Error("more selections are kept than were to be")
	}

	for i := range 1000 {
		first(i)
	}

	if n := len(e.selected.entries); n != maxSelections {
		t.Errorf("%d selections are kept", n)
	}

	if again, _ := e.prefix(text, selection{}); &again.bytes[0] != &all.bytes[0] {
		t.Error("selections displaced the whole exposition")
	}

	if calls := metrics.calls.Load(); calls != 1 {
		t.Errorf("gathered %d times for one Snapshot", calls)
	}
}

// TestManySelectionsLeaveLittle: what a client can make the process keep does not grow with its
// imagination.
func TestManySelectionsLeaveLittle(t *testing.T) {
	e := &trailerCache{fresh: freshRegistry(), keep: time.Hour, pool: new(buffers), report: func(error) {},
		cached: map[trailerForm]*cachedTrailer{}}
	h := &scrapeHandler{metrics: failing{}, trailers: e, freshCollector: "own",
		formats:     expfmt.DefaultOpenMetricsAcceptedFormats(),
		expositions: snapshotCache[*exposition]{snaps: publish(nil)}}

	for i := range 100 {
		for _, query := range []string{"collect[]=own&collect[]=test_%d", "collect[]=test_%d"} {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics?"+fmt.Sprintf(query, i), nil))
		}
	}

	if n := len(e.cached); n != 2 {
		t.Errorf("%d trailers are kept, want those with and without the families", n)
	}
}

// TestSelectionsConcurrently: many selections at once, while Snapshots change.
func TestSelectionsConcurrently(t *testing.T) {
	snaps := publish(nodeFixture())
	h := testHandler(Options{FreshCollector: "own", MaxScrapes: 4}, snaps, newRegistry(t), freshRegistry())

	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 30 {
				if i == 0 {
					snaps.Store(nodeFixture())
				}

				name := fmt.Sprintf("test_%d", (i+j)%12)

				w := get(h, "/metrics?collect[]=test_generation&collect[]="+name, "Accept-Encoding", "gzip")
				if w.Code == http.StatusServiceUnavailable {
					continue
				}

				if text := string(gunzip(t, w.Body.Bytes())); w.Code != http.StatusOK || strings.Count(text, "\n") != 3 {
					t.Errorf("got %d %q", w.Code, text)
				}
			}
		})
	}

	all.Wait()
}
