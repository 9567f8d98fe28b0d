package nvmlsource_test

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// unbindsGPU1 is a fault of a scenario: after a minute a GPU is unbound for a minute.
const unbindsGPU1 = "faults:\n  - {at: 1m, for: 1m, gpu: 1, kind: unbind}\n"

// released lists the GPUs that are released.
func (n *openNode) released() []gpu.ReleasedGPU {
	inventory, _ := n.source.Discover() // of an error, too
	return inventory.Released
}

// TestUnbindEvent: the first poll after a GPU began to be unbound lets go of it, and it comes back
// once it is bound.
func TestUnbindEvent(t *testing.T) {
	n := startOpenNode(t, "", unbindsGPU1)
	ids := n.readAll()
	n.advance(time.Minute)
	cmptest.Equal(t, "GPUs", n.readAll(), []gpu.UUID{ids[0], ids[2]})
	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
	cmptest.Equal(t, "bound GPUs", n.BoundGPUs(), []int{0, 2})

	if list := n.released(); len(list) != 1 || list[0].Cause != gpu.ReleasedByDriver || !list[0].Unbound {
		t.Errorf("released: %+v", list)
	}

	n.advance(time.Minute)
	cmptest.Equal(t, "GPUs", n.readAll(), ids)
	cmptest.Equal(t, "released", len(n.released()), 0)
}

// TestUnbindEventThatMustWait: nothing is released during an operation, and not any more once the
// GPU is bound again.
func TestUnbindEventThatMustWait(t *testing.T) {
	for _, boundAgain := range []bool{false, true} {
		n := startOpenNode(t, "", unbindsGPU1)
		ids := n.readAll()
		n.refuses = errors.New("an operation is under way")
		n.advance(time.Minute)
		cmptest.Equal(t, "GPUs during the operation", n.readAll(), ids)
		n.advance(30 * time.Second)
		cmptest.Equal(t, "GPUs during the operation", n.readAll(), ids)
		cmptest.Equal(t, "shutdowns", n.spy.taken()["Shutdown"], 0)

		if boundAgain {
			n.advance(time.Minute)
			n.readAll()
		}

		n.refuses = nil
		n.advance(20 * time.Second)
		n.readAll()
		want := map[bool]int{false: 1, true: 0}[boundAgain]
		cmptest.Equal(t, "released", len(n.released()), want)
	}
}

// TestUnboundBetweenPolls: a GPU that was unbound and bound again between two polls is opened
// again.
func TestUnboundBetweenPolls(t *testing.T) {
	n := startOpenNode(t, "", unbindsGPU1)
	ids := n.readAll()
	n.advance(time.Minute)

	if _, err := n.source.Discover(); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})

	n.advance(time.Minute)
	cmptest.Equal(t, "GPUs", n.readAll(), ids)
	cmptest.Equal(t, "released", len(n.released()), 0)
}

// TestSystemEventsThatFail are asked for again after a minute.
func TestSystemEventsThatFail(t *testing.T) {
	n := startOpenNode(t, "", "")
	n.readAll()
	n.spy.set("SystemEventSetWait", nvml.ERROR_UNKNOWN)
	n.readAll()
	n.spy.taken()
	n.readAll()
	cmptest.Equal(t, "calls within a minute", n.spy.taken()["SystemEventSetWait"], 0)
	n.advance(time.Minute)
	n.readAll()
	cmptest.Equal(t, "calls after it", n.spy.taken()["SystemEventSetWait"], 1)
}

// TestGPUBoundDuringInit: a GPU that is bound while nvmlInit runs, too late for it, is found by
// another one.
func TestGPUBoundDuringInit(t *testing.T) {
	n := startOpenNode(t, "", "")
	n.spy.do("Init", func() { n.foreign = "0000:fe:00.0" })
	n.readAll()
	n.readAll()
	n.readAll()
	cmptest.Equal(t, "nvmlInit", n.spy.taken()["Init"], 2)
}
