package web

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
)

// TestHealth: the health is answered before the first reading, too, and never from a cache.
func TestHealth(t *testing.T) {
	snaps := publish(nil)
	h := testHandler(Options{State: true}, snaps, newRegistry(t), freshRegistry())

	states := func() (health.State, []health.State) {
		t.Helper()

		w := get(h, pathHealth)
		cmptest.Equal(t, "status", w.Code, 200)
		cmptest.Equal(t, "type", w.Header().Get("Content-Type"), "application/json")
		cmptest.Equal(t, "caching", w.Header().Get("Cache-Control"), "no-store")

		var report health.Report
		if err := json.NewDecoder(w.Body).Decode(&report); err != nil {
			t.Fatal(err)
		}

		gpus := make([]health.State, 0, len(report.GPUs))
		for i := range report.GPUs {
			gpus = append(gpus, report.GPUs[i].State)
		}

		return report.State, gpus
	}

	node, gpus := states()
	cmptest.Equal(t, "node before the first reading", node, health.Unknown)
	cmptest.Equal(t, "GPUs before the first reading", gpus, []health.State{})

	fixture := nodeFixture()
	fixture.GPUs = []gpu.GPU{freeGPU(1), downGPU(4)}
	snaps.Store(fixture)

	node, gpus = states()
	cmptest.Equal(t, "node", node, health.Unhealthy)
	cmptest.Equal(t, "GPUs", gpus, []health.State{health.Healthy, health.Unhealthy})

	w := get(h, pathHealth, "Accept-Encoding", "gzip")
	cmptest.Equal(t, "coding", w.Header().Get("Content-Encoding"), "gzip")

	unpacked, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}

	text, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.HasTexts(t, string(text), `{"apiVersion":"mig-exporter/v1","state":"unhealthy"`)
}
