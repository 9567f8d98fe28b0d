package advise

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestNearestFigureDecides: the figure that is shown is the one that more work would pass first.
func TestNearestFigureDecides(t *testing.T) {
	within := trial{
		profile: &gpu.Profile{MemoryBytes: 40 << 30}, p95: Stretch{1.3, 1.4, 1.5}, busyP99: 0.4, busy10: 0.5, kept: 1, waiting: 1,
	}
	server := &ServerEvidence{Need: 20 << 30, Weights: 16 << 30, CacheUse: 0.5, CacheBytes: 36 << 30}

	for about, c := range map[string]struct {
		change func(*trial, *Evidence)
		want   Decided
	}{
		"stretch":      {func(*trial, *Evidence) {}, Decided{FigureStretch, 1.4, 2}},
		"memory":       {func(_ *trial, e *Evidence) { e.MemoryBytes = 32 << 30 }, Decided{FigureMemory, 0.92, 1}},
		"busy minutes": {func(x *trial, _ *Evidence) { x.busyP99 = 0.7 }, Decided{FigureBusy, 0.7, 0.8}},
		"busy minutes, of which a bound is known": {func(x *trial, _ *Evidence) { x.busyP99 = 0.8 }, Decided{FigureStretch, 1.4, 2}},
		"work without time":                       {func(x *trial, _ *Evidence) { x.kept = 0.975 }, Decided{FigureThroughput, 1.026, 1.031}},
		"a client that waits":                     {func(x *trial, _ *Evidence) { x.waiting = 0.925 }, Decided{FigureThroughput, 1.081, 1.087}},
		"a cache with requests":                   {func(x *trial, e *Evidence) { e.Server, x.served = server, 1.05 }, Decided{FigureMemory, 0.873, 0.9}},
	} {
		tried := within
		e := Evidence{MemoryBytes: 4 << 30, BusyMean: 0.2}
		c.change(&tried, &e)
		cmptest.Equal(t, about, tried.decidedBy(&e, limits{stretch: 2}, DefaultOptions()), c.want)
	}
}
