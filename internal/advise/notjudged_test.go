package advise

import (
	"fmt"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestLostGPUIsNamed: a GPU that can't be read has no answer, and the report says so. It doesn't vanish.
func TestLostGPUIsNamed(t *testing.T) {
	a := New(DefaultOptions())
	h := pod("ml", "Deployment/a")
	well := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, h)
	lost := wholeGPU(t, "H100-80GB", 2, load{gib: 4}, pod("ml", "Deployment/b"))
	s := observeFor(a, start(), time.Hour, well, lost)

	cmptest.Equal(t, "all are read", len(recommend(a, s).NotJudged), 0)

	lost.Up = false
	lost.Errors = []gpu.ReadError{{Err: fmt.Errorf("nvmlDeviceGetHandleByUUID: %w", gpu.ErrLost)}}
	s = observeFor(a, s.Time, time.Minute, well, lost)
	report := recommend(a, s)

	cmptest.Equal(t, "answers", len(report.Devices), 1)
	cmptest.Equal(t, "not judged", report.NotJudged, []NotJudged{
		{GPU: lost.UUID, Index: 2, Model: "H100-80GB", Why: "nvmlDeviceGetHandleByUUID: GPU is lost"},
	})
	cmptest.Equal(t, "first note", report.Notes[0],
		"GPU 2 could not be read, and is not judged: nvmlDeviceGetHandleByUUID: GPU is lost")
}
