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

// cues polls twice without a change, then once after one, and returns the cues of the reading after
// that.
func (h *cueHarness) cues(change func()) gpu.ReadCues {
	h.t.Helper()
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	cmptest.Equal(h.t, "changed while nothing changes", h.last().Changed, false)

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

// The reading after a change of the holders, or of what is active, gets a cue. Where holders share
// a device, its memory tells of their processes, some of which may be clients of MPS.
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
	hold := func(h *cueHarness, a gpu.Assignment) { h.pods.list.List = []gpu.Assignment{a} }
	doubtful := holder("d", gpu.SharingExclusive)
	doubtful.Holder.Unconfirmed = "the kubelet lists it no longer"

	h := newCueHarness(t)
	for _, tt := range []struct {
		name   string
		change func()
		want   gpu.ReadCues
	}{
		{"a pod comes", func() { hold(h, holder("a", gpu.SharingMPS)) },
			gpu.ReadCues{Changed: true, MPS: true, FollowMemory: true}},
		{"another pod comes", func() { hold(h, holder("b", gpu.SharingTimeSlicing)) },
			gpu.ReadCues{Changed: true, MPS: true, FollowMemory: true}},
		{"one with a common claim comes", func() { hold(h, holder("c", gpu.SharingClaim)) },
			gpu.ReadCues{Changed: true, FollowMemory: true}},
		{"one with the whole GPU comes", func() { hold(h, holder("d", gpu.SharingExclusive)) },
			gpu.ReadCues{Changed: true}},
		{"it is in doubt", func() { hold(h, doubtful) }, gpu.ReadCues{Changed: true}},
		{"the GPU becomes busy", func() { busy(h, 0.5) }, gpu.ReadCues{Changed: true}},
		{"it becomes busier", func() { busy(h, 0.9) }, gpu.ReadCues{}},
		{"it becomes idle", func() { busy(h, 0) }, gpu.ReadCues{Changed: true}},
		{"there may be other holders", func() { h.pods.list.Incomplete = "the kubelet has restarted" },
			gpu.ReadCues{FollowMemory: true}},
	} {
		cmptest.Equal(t, tt.name, h.cues(tt.change), tt.want)
	}
}

// The memory of containers that hold parts of a GPU instance is that of their processes.
func TestDividedInstances(t *testing.T) {
	held := gpu.ComputeInstance{Device: gpu.Device{Holders: []gpu.Holder{{Container: gpu.Container{Pod: "a"}}}}}
	for _, tt := range []struct {
		computeInstances []gpu.ComputeInstance
		want             bool
	}{
		{[]gpu.ComputeInstance{held}, false},
		{[]gpu.ComputeInstance{{}, {}}, false},
		{[]gpu.ComputeInstance{{}, held}, true},
	} {
		cmptest.Equal(t, "divided", isDivided(gpu.GPUInstance{ComputeInstances: tt.computeInstances}), tt.want)
	}
}

// Without an allocator the processes of a GPU are its only holders, which every reading has to
// know.
func TestReadingsOfABareServerGetACue(t *testing.T) {
	src := newFakeSource(uuidA)
	h := newHarness(t, src, nil)
	runLoop(h)
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	h.pollAfter(time.Second)
	cmptest.Equal(t, "cues", src.cues[len(src.cues)-1], gpu.ReadCues{FollowMemory: true})
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
