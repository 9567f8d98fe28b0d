package web

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// freshGathers is the value of fresh_gathers in an answer.
func freshGathers(t *testing.T, body string) string {
	t.Helper()

	_, rest, found := strings.Cut(body, "\nfresh_gathers ")
	if !found {
		t.Fatalf("no fresh_gathers in\n%s", body)
	}

	value, _, _ := strings.Cut(rest, "\n")

	return value
}

// TestScrapersAtTheSameMomentShareTheFreshPart: for FreshFor, and no longer.
func TestScrapersAtTheSameMomentShareTheFreshPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHandler(Options{FreshFor: time.Second}, publish(nodeFixture()), newRegistry(t), freshRegistry())
		first := freshGathers(t, get(h, "/metrics").Body.String())
		time.Sleep(time.Second - 1)

		if again := freshGathers(t, get(h, "/metrics").Body.String()); again != first {
			t.Errorf("gathered again within FreshFor: %s, then %s", first, again)
		}

		time.Sleep(time.Nanosecond)

		if later := freshGathers(t, get(h, "/metrics").Body.String()); later == first {
			t.Error("not gathered again after FreshFor")
		}
	})
}

// TestTrailersFitTheirPrefixes: what is kept for one Snapshot must not end the body of another,
// whose checksum differs.
func TestTrailersFitTheirPrefixes(t *testing.T) {
	for _, accept := range []string{"", openMetricsAccept, protobufAccept} {
		snaps := publish(nil)
		h := testHandler(Options{FreshFor: time.Hour}, snaps, newRegistry(t), freshRegistry())

		for generation := range 3 {
			if generation > 0 {
				next := nodeFixture()
				next.Generation = uint64(generation)
				snaps.Store(next)
			}

			for range 2 {
				plain := get(h, "/metrics", "Accept", accept)

				packed := get(h, "/metrics", "Accept", accept, "Accept-Encoding", "gzip")
				if plain.Code != http.StatusOK || packed.Code != http.StatusOK {
					t.Fatalf("status %d, %d", plain.Code, packed.Code)
				}

				if text := gunzip(t, packed.Body.Bytes()); !strings.Contains(string(text), "fresh_gathers") {
					t.Errorf("generation %d, Accept %q: no fresh part under gzip", generation, accept)
				}
			}
		}
	}
}

// TestSharedFailureIsReportedOnce: scrapers that share what is missing do not each report it.
func TestSharedFailureIsReportedOnce(t *testing.T) {
	reports := 0

	e := &trailerCache{
		fresh: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("no /proc") }),
		keep:  time.Hour, pool: new(buffers), report: func(error) { reports++ }, cached: map[trailerForm]*cachedTrailer{},
	}
	for range 3 {
		if got := e.get(outputForm{format: expfmt.FmtText, coding: codingIdentity}, nil, false); got.err == nil || !got.empty {
			t.Errorf("got %+v, want an error and nothing", got)
		}
	}

	if reports != 1 {
		t.Errorf("reported %d times", reports)
	}
}
