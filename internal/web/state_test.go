package web

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestStateGolden(t *testing.T) {
	const golden = "testdata/node.golden.json"
	h := testHandler(Options{State: true}, publish(nodeFixture()), nil, prometheus.NewRegistry())

	w := get(h, "/api/v1/node")
	if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != "application/json" {
		t.Fatalf("got %d %q", w.Code, got)
	}

	var got bytes.Buffer
	if err := json.Indent(&got, w.Body.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}

	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the state differs from %s (-update rewrites it):\n%s", golden, got.Bytes())
	}
}

// TestStateAbsent: what was not read has no key, what was read as zero has one.
func TestStateAbsent(t *testing.T) {
	g := gpu.GPU{Facts: gpu.Facts{UUID: "GPU-x", Index: 3}}
	g.Readings.PowerWatts = gpu.Some(0.0)
	g.Readings.TemperatureCelsius = gpu.Some(math.NaN())
	g.Activity = gpu.Activity{SM: gpu.Some(0.0), DRAM: gpu.Some(math.NaN())}
	h := testHandler(Options{State: true}, publish(&gpu.Snapshot{GPUs: []gpu.GPU{g}}), nil, prometheus.NewRegistry())

	var node struct{ GPUs []map[string]any }
	if err := json.Unmarshal(get(h, "/api/v1/node").Body.Bytes(), &node); err != nil {
		t.Fatal(err)
	}

	got, err := json.Marshal(node.GPUs[0])
	if err != nil {
		t.Fatal(err)
	}

	const want = `{"activity":{"smRatio":0},"errors":[],"gpuInstances":[],"holders":[],"index":3,"layoutChanges":0,"layoutGeneration":0,` +
		`"power":{"watts":0},"up":false,"uuid":"GPU-x"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestStateOddities: a GPU without a handle has no UUID, one with MIG off no slices, and a time
// that is no number costs its key and not the answer.
func TestStateOddities(t *testing.T) {
	noHandle := gpu.GPU{Facts: gpu.Facts{Index: 0},
		Device: gpu.Device{Errors: []gpu.ReadError{{Reading: gpu.ReadingDevice, Err: gpu.ErrLost}}}}
	off := gpu.GPU{Facts: gpu.Facts{UUID: "GPU-x", Index: 1}}
	off.Capacity = gpu.Some(gpu.Capacity{Profiles: []gpu.ProfileCapacity{{Name: "1g.5gb", Max: 7}}})
	off.Totals.ClockEvents = []gpu.ReasonSeconds{{Reason: "hw_slowdown", Seconds: gpu.Counter{Value: math.Inf(1)}}}
	h := testHandler(Options{State: true}, publish(&gpu.Snapshot{GPUs: []gpu.GPU{noHandle, off}}), nil,
		prometheus.NewRegistry())
	w := get(h, "/api/v1/node")

	var node struct{ GPUs []map[string]any }
	if err := json.Unmarshal(w.Body.Bytes(), &node); err != nil || len(node.GPUs) != 2 {
		t.Fatalf("%v: %s", err, w.Body)
	}

	if uuid, ok := node.GPUs[0]["uuid"]; ok {
		t.Errorf("without a handle: uuid %q", uuid)
	}

	for _, want := range []string{
		`"capacity":{"profiles":[{"name":"1g.5gb","max":7,"available":0}]}`,
		`"clockEvents":[{"reason":"hw_slowdown","active":false}]`,
		`"errors":[{"reading":"device","reason":"lost","message":"GPU is lost"}]`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in %s", want, w.Body)
		}
	}
}

func TestStateCaching(t *testing.T) {
	snaps := publish(nodeFixture())
	h := testHandler(Options{State: true}, snaps, nil, prometheus.NewRegistry())
	plain := get(h, "/api/v1/node")

	packed := get(h, "/api/v1/node", "Accept-Encoding", "gzip")
	if packed.Header().Get("Content-Encoding") != "gzip" ||
		!bytes.Equal(gunzip(t, packed.Body.Bytes()), plain.Body.Bytes()) {
		t.Error("the gzip coding differs from the plain state")
	}

	for _, w := range []http.Header{plain.Header(), packed.Header()} {
		if w.Get("Vary") != "Accept-Encoding" || w.Get("Cache-Control") != "no-cache" {
			t.Errorf("headers: %v", w)
		}
	}

	etag := plain.Header().Get("ETag")
	if etag == "" || etag != packed.Header().Get("ETag") {
		t.Fatalf("ETag: %q and %q", etag, packed.Header().Get("ETag"))
	}

	for tag, code := range map[string]int{
		etag: 304, strings.TrimPrefix(etag, "W/"): 304, `"other", ` + etag: 304, "*": 304, `"other"`: 200, `W/"42-0"`: 200,
	} {
		w := get(h, "/api/v1/node", "If-None-Match", tag)
		if w.Code != code {
			t.Errorf("If-None-Match %s: got %d, want %d", tag, w.Code, code)
		}

		if got := w.Header().Get("ETag"); code == 304 && (w.Body.Len() > 0 || got != etag) {
			t.Errorf("If-None-Match %s: 304 with %d bytes and ETag %s, want none and %s", tag, w.Body.Len(), got, etag)
		}
	}

	next := nodeFixture()
	next.Generation++
	snaps.Store(next)

	if w := get(h, "/api/v1/node", "If-None-Match", etag); w.Code != http.StatusOK ||
		!strings.Contains(w.Body.String(), `"generation":43,`) {
		t.Errorf("the next Snapshot: got %d", w.Code)
	}
}

func TestStateBeforeFirstSnapshot(t *testing.T) {
	h := testHandler(Options{State: true}, publish(nil), nil, prometheus.NewRegistry())
	w := get(h, "/api/v1/node")
	const want = `{"type":"urn:mig-exporter:problem:no-snapshot","title":"No snapshot yet","status":503,"detail":"the first reading of this node has not ended"}` + "\n"
	type answer struct {
		Status                        int
		ContentType, RetryAfter, Body string
	}
	cmptest.Equal(t, "the answer", answer{w.Code, w.Header().Get("Content-Type"), w.Header().Get("Retry-After"),
		w.Body.String()},
		answer{503, "application/problem+json", "1", want})
}
