package rightsizing

import (
	"context"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestReportAtAHandover: when another container or job gets a device, and its pod is described, there
// is a report that names it, within the same minute.
func TestReportAtAHandover(t *testing.T) {
	r := New(options("", log.NewNopLogger()))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = r.Run(ctx) }()
	defer func() { cancel(); <-r.stopped }()

	at := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	observe := func(change func(g *gpu.GPU)) *advise.Report {
		at = at.Add(handoverPause)
		s := heldSnapshot("node-a", "GPU-1", "GPU-2")
		s.Time = at
		change(&s.GPUs[1])
		r.Observe(s)
		r.Flush(ctx)

		return r.Last()
	}
	next := func(g *gpu.GPU) { g.Holders[0].Pod, g.Holders[0].PodUID = "a-1", "next" }

	first := observe(func(*gpu.GPU) {})
	if observe(func(*gpu.GPU) {}) != first {
		t.Error("there is a new report, and nothing has changed")
	}

	undescribed := observe(func(g *gpu.GPU) {
		next(g)
		g.Holders[0].Workload, g.Holders[0].Undescribed = "", true
	})
	if undescribed != first {
		t.Error("there is a new report before the pod is described")
	}

	second := observe(next)
	if second == first {
		t.Fatal("there is no report for the next pod within the minute")
	}

	cmptest.Equal(t, "time of the report", second.Time, at)
	cmptest.Equal(t, "pod", second.Devices[1].Pod.Name, "a-1")
	cmptest.Equal(t, "workload", second.Devices[1].Workload.Owner, "Deployment/a")

	if observe(next) != second {
		t.Error("there is a new report, and the pod is the same")
	}

	job := func(name string) *advise.Report {
		return observe(func(g *gpu.GPU) { g.Holders, g.Jobs = nil, []string{name} })
	}
	cmptest.Equal(t, "first job", job("41").Devices[1].Workload.Owner, "batch/41")
	cmptest.Equal(t, "next job", job("42").Devices[1].Workload.Owner, "batch/42")

	// The next one comes a second later, and has to wait.
	at = at.Add(time.Second - handoverPause)
	cmptest.Equal(t, "a second later", job("43").Devices[1].Workload.Owner, "batch/42")

	at = at.Add(-time.Second)
	cmptest.Equal(t, "after the pause", job("43").Devices[1].Workload.Owner, "batch/43")
}
