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
		{GPU: lost.UUID, Index: 2, Model: "H100-80GB",
			Why: "it could not be read: nvmlDeviceGetHandleByUUID: GPU is lost"},
	})
	cmptest.Equal(t, "first note", report.Notes[0],
		"GPU 2 is not judged: it could not be read: nvmlDeviceGetHandleByUUID: GPU is lost")
}

// TestUnknownGPUsAreNoEmptyNode: before the driver has listed its GPUs, and before they are read, a report says
// so, for people and for programs, and its list of devices is empty rather than null.
func TestUnknownGPUsAreNoEmptyNode(t *testing.T) {
	nvml := gpu.SourceState{Name: gpu.SourceNVML, Up: true, LastSuccess: start()}
	unread := func(index int) NotJudged { return NotJudged{Index: index, Why: "it has not been read yet"} }

	for about, c := range map[string]struct {
		snap      gpu.Snapshot
		unknown   string
		notJudged []NotJudged
		notes     []string // the first of them
	}{
		"no driver": {
			gpu.Snapshot{Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}}},
			"no NVIDIA driver", nil,
			[]string{"it is not known yet which GPUs this node has: no NVIDIA driver"},
		},
		"not read yet": {
			gpu.Snapshot{Sources: []gpu.SourceState{nvml}, Unread: []int{0, 3}},
			"",
			[]NotJudged{unread(0), unread(3)},
			[]string{"GPU 0 is not judged: it has not been read yet", "GPU 3 is not judged: it has not been read yet"},
		},
		"one is lost, one not read yet": {
			gpu.Snapshot{Sources: []gpu.SourceState{nvml}, Unread: []int{0}, GPUs: []gpu.GPU{{Facts: gpu.Facts{Index: 1}}}},
			"",
			[]NotJudged{unread(0), {Index: 1, Why: "it does not answer"}},
			[]string{"GPU 0 is not judged: it has not been read yet", "GPU 1 is not judged: it does not answer"},
		},
		"none": {gpu.Snapshot{Sources: []gpu.SourceState{nvml}}, "", nil, []string{"not seen: "}},
	} {
		s := &c.snap
		s.Time = start()

		a := New(DefaultOptions())
		a.Observe(s)
		report := a.Recommend(s)
		report.Pack(s)

		cmptest.Equal(t, about+": unknown", report.GPUsUnknown, c.unknown)
		cmptest.Equal(t, about+": not judged", report.NotJudged, c.notJudged)

		for i, want := range c.notes {
			if !strings.HasPrefix(report.Notes[i], want) {
				t.Errorf("%s: note %d is %q, want %q", about, i, report.Notes[i], want)
			}
		}

		document, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.HasTexts(t, string(document), `"devices":[]`)
	}
}
