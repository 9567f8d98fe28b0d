package nvmlsource_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// What cannot be known is not answered as a success: an operator would unbind a GPU that this process
// has open.

var errOpenFiles = errors.New("open /proc/self/fd: too many open files")

// failMinorsFrom makes the nth look at what this process has open fail, counted from now, and all
// after it. 0 lets none fail.
func (n *openNode) failMinorsFrom(nth int) {
	looks := 0
	n.minors = func() ([]int, error) {
		if looks++; nth > 0 && looks >= nth {
			return nil, errOpenFiles
		}

		return n.OpenGPUs(), nil
	}
}

// expectStillOpen wants an answer that does not say that the GPU is closed, for a reason.
func expectStillOpen(t *testing.T, r nvmlsource.Released, why string) {
	t.Helper()

	if r.Err != nil || r.StillOpen == nil || !strings.Contains(r.StillOpen.Error(), why) {
		t.Errorf("release: %+v, want still open: %s", r, why)
	}
}

// TestReleaseWhileOpenFilesUnknown: whenever the look at what this process has open fails, the GPU is
// not answered as released; a request after a look that succeeds is.
func TestReleaseWhileOpenFilesUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		options string
		nth     int  // look that fails first
		closed  bool // NVML is closed then
	}{
		"after NVML was shut down":            {"", 1, true},
		"after the others were looked up":     {"", 2, true},
		"before the answer":                   {"", 3, false},
		"after NVML was shut down again":      {", lookupOpens: all", 3, true},
		"when asked again while NVML is open": {"", 4, true},
		"when asked again while it is closed": {", lookupOpens: all", 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := startOpenNode(t, c.options, "")
			ids := n.readAll()
			n.failMinorsFrom(c.nth)

			r := n.release(ids[1])
			if r.StillOpen == nil { // asked again
				r = n.release(ids[1])
			}

			expectStillOpen(t, r, errOpenFiles.Error())
			cmptest.Equal(t, "NVML is closed", errors.Is(r.Closed, gpu.ErrLibraryClosed), c.closed)

			n.failMinorsFrom(0)

			if r := n.release(ids[1]); r.Err != nil || r.StillOpen != nil {
				t.Errorf("release once it is known: %+v", r)
			}

			if open := n.OpenGPUs(); slices.Contains(open, 1) {
				t.Errorf("GPUs %v are open", open)
			}
		})
	}
}

// TestReleaseWithoutDriverUnknown: a driver that was gone has left NVML uninitialised, and no change
// is due when a release is requested again.
func TestReleaseWithoutDriverUnknown(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()

	if r := n.release(ids[1]); r.Err != nil || r.Closed != nil || r.StillOpen != nil {
		t.Fatalf("release: %+v", r)
	}

	n.spy.set("DeviceGetCount", nvml.ERROR_UNINITIALIZED)

	if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrNoDriver) {
		t.Fatal(err)
	}

	n.failMinorsFrom(1)
	n.spy.taken()
	expectStillOpen(t, n.release(ids[1]), errOpenFiles.Error())
	cmptest.Equal(t, "shutdowns", n.spy.taken()["Shutdown"], 0)
}

// TestOpenFilesKnownAgain: NVML that was closed because of a look that failed, before the other GPUs were
// looked up or after it, is opened again by itself, without the GPU, but not tried with every poll.
func TestOpenFilesKnownAgain(t *testing.T) {
	for nth := 1; nth <= 2; nth++ {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		n.failMinorsFrom(nth)
		expectStillOpen(t, n.release(ids[1]), errOpenFiles.Error())
		n.failMinorsFrom(0)
		n.spy.taken()

		if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrLibraryClosed) {
			t.Errorf("look %d, Discover: %v", nth, err)
		}

		cmptest.Equal(t, "calls of nvmlInit", n.spy.taken()["InitNoAttach"], 0)
		n.advance(time.Minute)
		cmptest.Equal(t, "GPUs", n.readAll(), []gpu.UUID{ids[0], ids[2]})
		cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
	}
}

// TestReacquireWhileOpenFilesUnknown: a GPU that is opened again is not concerned by one that may be
// open.
func TestReacquireWhileOpenFilesUnknown(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	n.release(ids[1])
	n.failMinorsFrom(1)

	released := n.source.Release(ids[0], gpu.ReleasedByOperator)

	r := n.result(n.source.Reacquire(ids[1]))
	if r.Err != nil || r.StillOpen != nil || !errors.Is(r.Closed, gpu.ErrLibraryClosed) {
		t.Errorf("reacquire: %+v", r)
	}

	expectStillOpen(t, <-released, errOpenFiles.Error())
}

// failSecondShutdown makes nvmlShutdown succeed once, and then fail.
func (n *openNode) failSecondShutdown() {
	n.spy.do("Shutdown", func() {
		n.spy.do("Shutdown", func() { n.spy.set("Shutdown", nvml.ERROR_UNKNOWN) })
	})
}

// TestReleaseWhenSecondShutdownFails: a lookup opens the released GPU, and NVML cannot be closed
// again. It is tried again until it succeeds.
func TestReleaseWhenSecondShutdownFails(t *testing.T) {
	n := startOpenNode(t, ", lookupOpens: all", "")
	ids := n.readAll()
	n.failSecondShutdown()

	r := n.release(ids[1])
	expectStillOpen(t, r, "nvmlShutdown")
	expectStillOpen(t, r, "/dev/nvidia1")

	if !errors.Is(r.Closed, gpu.ErrLibraryClosed) {
		t.Errorf("the answer does not say that no GPU is read: %+v", r)
	}

	if r := n.release(ids[1]); r.Err == nil && r.StillOpen == nil {
		t.Errorf("release again: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 1, 2})

	n.spy.set("Shutdown", nvml.SUCCESS)
	n.advance(time.Minute)

	if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrLibraryClosed) {
		t.Errorf("Discover: %v", err)
	}

	cmptest.Equal(t, "open GPUs once nvmlShutdown succeeds", len(n.OpenGPUs()), 0)
}

// TestShutdownFailsAfterFailedLook: the GPU is closed, but that could not be seen, and then NVML
// could not be shut down, with or without a driver that answers. It does not stay closed for good, and
// the GPU is not answered as released while NVML may have it.
func TestShutdownFailsAfterFailedLook(t *testing.T) {
	for _, count := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_UNINITIALIZED} {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		n.failMinorsFrom(2)
		n.failSecondShutdown()
		n.spy.set("DeviceGetCount", count)
		expectStillOpen(t, n.release(ids[1]), "nvmlShutdown")

		n.failMinorsFrom(0)

		if r := n.release(ids[1]); r.Err == nil && r.StillOpen == nil {
			t.Errorf("release again: %+v", r)
		}

		n.spy.set("Shutdown", nvml.SUCCESS)
		n.spy.set("DeviceGetCount", nvml.SUCCESS)
		n.advance(time.Minute)
		cmptest.Equal(t, "GPUs", n.readAll(), []gpu.UUID{ids[0], ids[2]})
	}
}
