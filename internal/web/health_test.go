package web

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestReady(t *testing.T) {
	up := gpu.SourceState{Name: gpu.SourceNVML, Up: true}

	at := func(age time.Duration, sources ...gpu.SourceState) *gpu.Snapshot {
		return &gpu.Snapshot{Time: fixtureTime.Add(-age), Sources: sources}
	}
	for _, test := range []struct {
		name string
		snap *gpu.Snapshot
		code int
		want string
	}{
		{"before the first snapshot", nil, 503, "not ready: no snapshot yet, the first reading of this node has not ended\n"},
		{"fresh", at(0, up), 200, "ready\n"},
		{"at the limit", at(15*time.Second, up), 200, "ready\n"},
		{"too old", at(16*time.Second, up), 503, "not ready: the last snapshot is 16s old, more than 15s\n"},
		{"no driver",
			at(0, gpu.SourceState{Name: gpu.SourceNVML, Err: fmt.Errorf("%w: libnvidia-ml.so.1 not found", gpu.ErrNoDriver)}),
			503,
			"not ready: no NVIDIA driver: libnvidia-ml.so.1 not found\n"},
		{"driver down without a reason", at(0, gpu.SourceState{Name: gpu.SourceNVML}), 503,
			"not ready: nvml does not answer\n"},
		{"driver not asked", at(0), 503, "not ready: nvml has not been asked yet\n"},
		{"old and no driver", at(time.Minute, gpu.SourceState{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}), 503,
			"not ready: the last snapshot is 1m0s old, more than 15s; no NVIDIA driver\n"},
		{"kubelet down", at(0, up, gpu.SourceState{Name: gpu.SourceKubelet, Stale: true, Err: gpu.ErrUnavailable}), 200,
			"ready\nkubelet: unavailable (what it said last is still in use)\n"},
		{"no kubelet configured",
			at(0, up, gpu.SourceState{Name: gpu.SourceKubelet, Err: fmt.Errorf("%w: set a flag", gpu.ErrNotConfigured)}), 200,
			"ready\nkubelet: not-configured: set a flag\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			opts := Options{ReadyMaxAge: 15 * time.Second, Now: func() time.Time { return fixtureTime }}

			h := testHandler(opts, publish(test.snap), nil, prometheus.NewRegistry())
			if w := get(h, "/-/ready"); w.Code != test.code || w.Body.String() != test.want {
				t.Errorf("got %d %q, want %d %q", w.Code, w.Body, test.code, test.want)
			}

			if w := get(h, "/-/healthy"); w.Code != http.StatusOK {
				t.Errorf("not healthy: %d %q", w.Code, w.Body)
			}
		})
	}
}
