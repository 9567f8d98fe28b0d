package advise

import (
	"encoding/json"
	"fmt"
	"strings"
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

// TestUnknownGPUsAreNoEmptyNode: before the driver has listed its GPUs, and before they are read, a report says
// so, and its list of devices is empty rather than null.
func TestUnknownGPUsAreNoEmptyNode(t *testing.T) {
	const general = "not seen: "

	for want, s := range map[string]*gpu.Snapshot{
		"it is not known yet which GPUs this node has: no NVIDIA driver": {Time: start(), Sources: []gpu.SourceState{
			{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}}},
		"2 GPUs have not been read yet, and are not judged: index 0, 3": {Time: start(), Unread: []int{0, 3}},
		"1 GPU has not been read yet, and is not judged: index 7":       {Time: start(), Unread: []int{7}},
		general: {Time: start(), Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Up: true, LastSuccess: start()}}},
	} {
		a := New(DefaultOptions())
		a.Observe(s)
		report := a.Recommend(s)
		report.Pack(s)

		if !strings.HasPrefix(report.Notes[0], want) {
			t.Errorf("first note is %q, want %q", report.Notes[0], want)
		}

		document, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.HasTexts(t, string(document), `"devices":[]`)
	}
}
