package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// cueHarness is a loop over one GPU that a kubelet gives out.
type cueHarness struct {
	*harness
	src  *fakeSource
	pods *fakePods
}

func newCueHarness(t *testing.T) *cueHarness {
	t.Helper()
	src := newFakeSource(uuidA)
	pods := &fakePods{}

	h := newHarness(t, src, func(o *Options) { o.Pods = pods })
	runLoop(h)

	return &cueHarness{h, src, pods}
}

// runLoop runs the loop until the test ends.
func runLoop(h *harness) {
	stop := h.startLoop()
	h.t.Cleanup(func() {
		if err := stop(); err != nil {
			h.t.Error(err)
		}
	})
}

// cues polls twice without a change, then once after one, and returns the cues of the reading after that.
func (h *cueHarness) cues(change func()) gpu.ReadCues {
	h.t.Helper()
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	cmptest.Equal(h.t, "cues while nothing changes", h.last(), gpu.ReadCues{MPS: h.last().MPS})

	h.src.set(change)
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)

	return h.last()
}

func (h *cueHarness) last() gpu.ReadCues {
	h.src.mu.Lock()
	defer h.src.mu.Unlock()

	return h.src.cues[len(h.src.cues)-1]
}

// The reading after a change of the holders, or of what is active, gets a cue.
func TestReadingsGetCuesOfChanges(t *testing.T) {
	holder := func(pod string, sharing gpu.Sharing) gpu.Assignment {
		return gpu.Assignment{Device: gpu.DeviceRef{GPU: uuidA},
			Holder: gpu.Holder{Container: gpu.Container{Namespace: "ml", Pod: pod, Name: "main"}, Sharing: sharing}}
	}
	busy := func(h *cueHarness, ratio float64) {
		g := h.src.gpus[uuidA]
		g.Readings.Utilization = gpu.Some(ratio)
		h.src.gpus[uuidA] = g
	}

	h := newCueHarness(t)
	cmptest.Equal(t, "a pod comes", h.cues(func() { h.pods.list.List = []gpu.Assignment{holder("a", gpu.SharingMPS)} }),
		gpu.ReadCues{Changed: true, MPS: true})
	cmptest.Equal(t, "another pod comes", h.cues(func() {
		h.pods.list.List = []gpu.Assignment{holder("b", gpu.SharingTimeSlicing)}
	}), gpu.ReadCues{Changed: true})
	cmptest.Equal(t, "the GPU becomes busy", h.cues(func() { busy(h, 0.5) }), gpu.ReadCues{Changed: true})
	cmptest.Equal(t, "it becomes busier", h.cues(func() { busy(h, 0.9) }), gpu.ReadCues{})
	cmptest.Equal(t, "it becomes idle", h.cues(func() { busy(h, 0) }), gpu.ReadCues{Changed: true})
}

// Without an allocator the processes of a GPU are its only holders, which every reading has to know.
func TestReadingsOfABareServerGetACue(t *testing.T) {
	src := newFakeSource(uuidA)
	h := newHarness(t, src, nil)
	runLoop(h)
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	cmptest.Equal(t, "cues", src.cues[len(src.cues)-1], gpu.ReadCues{NoHolders: true})
}

// A reading that was asked for, as partition control does, looks anew.
func TestReadingsThatAreAskedForLookAnew(t *testing.T) {
	withEvents(t, nil, func(h *eventHarness) {
		if err := h.PollGPUs(h.t.Context(), uuidB); err != nil {
			h.t.Fatal(err)
		}
		cmptest.Equal(h.t, "cues", h.src.cues[len(h.src.cues)-1].Changed, true)
	})
}
