package poll

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// countsOf returns the counts of a list by XID.
func countsOf(list []gpu.XIDCount) map[uint64]float64 {
	counts := map[uint64]float64{}
	for _, x := range list {
		counts[x.XID] = x.Value
	}

	return counts
}

// TestCountMovesToItsInstance: a line of the log that names no instance is followed by the event
// that does.
func TestCountMovesToItsInstance(t *testing.T) {
	tr := newTestGPU()
	tr.recordReading(migGPU(), time.Unix(1000, 0))

	at := time.Unix(1001, 0)
	for _, instance := range []gpu.Opt[gpu.InstanceID]{
		{}, {}, gpu.Some(gpu.InstanceID(1)), // the first line is the event's, the second is one of its own
	} {
		at = at.Add(time.Second)
		tr.countXID(gpu.Event{XID: 31, Instance: instance, Logged: !instance.Present(), Time: at}, at)
	}

	cmptest.Equal(t, "all", countsOf(tr.totals.XIDErrors), map[uint64]float64{31: 2})
	cmptest.Equal(t, "of the GPU alone", countsOf(tr.totals.GPUXIDs), map[uint64]float64{31: 1})
	gi := findInstance(tr.layout.instances, 1)
	cmptest.Equal(t, "of the instance", countsOf(gi.XIDErrors), map[uint64]float64{31: 1})
	cmptest.Equal(t, "its time", gi.XIDErrors[0].Last, at)

	at = at.Add(time.Second)
	tr.countXID(gpu.Event{XID: 31, Instance: gpu.Some(gpu.InstanceID(2)), Time: at}, at)
	cmptest.Equal(t, "of the GPU alone, once both are located", len(tr.totals.GPUXIDs), 0)
	cmptest.Equal(t, "of the other instance", countsOf(findInstance(tr.layout.instances, 2).XIDErrors),
		map[uint64]float64{31: 1})
	cmptest.Equal(t, "all of both", tr.totals.XIDs.Value, 2)
}

// TestIDsOfNoInstance: the driver sends the ids 0 and 0 for an XID without an instance. On a GPU
// that has none with these ids all pods are concerned, and the log names no instance. One that we
// have not seen yet stays in the log.
func TestIDsOfNoInstance(t *testing.T) {
	for _, tc := range []struct {
		name     string
		instance gpu.InstanceID
		layout   []gpu.InstanceID
		logged   bool // the instance is in the log
	}{
		{"no instance has the id", 0, []gpu.InstanceID{1, 2}, false},
		{"an instance has the id", 0, []gpu.InstanceID{0, 2}, true},
		{"an instance that is new", 5, []gpu.InstanceID{1, 2}, true},
	} {
		var out bytes.Buffer
		src := newFakeSource(uuidA)

		g := migGPU()
		for i, id := range tc.layout {
			g.Instances[i].ID = id
		}

		src.gpus[uuidA] = g
		h := newHarness(t, src, func(o *Options) { o.Logger = log.NewLogfmtLogger(&out) })
		stop := h.startLoop()
		h.pollAfter(time.Second)
		src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 48, Instance: gpu.Some(tc.instance),
			Compute: gpu.Some(gpu.ComputeID(0)), Time: h.clock.Now()}
		s := h.pollAfter(time.Second)
		stop()

		cmptest.Equal(t, tc.name+": logged", strings.Contains(out.String(), "gpu_instance="), tc.logged)
		cmptest.Equal(t, tc.name+": XIDs of the GPU", findGPU(t, s, uuidA).Totals.XIDs.Value, 1)
	}
}

// TestHealthEventsAreLoggedOnceAMinute, whatever their number; each is counted.
func TestHealthEventsAreLoggedOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	src := newFakeSource(uuidA)
	g := src.gpus[uuidA]
	g.ReportsUnavailable = true
	src.gpus[uuidA] = g
	h := newHarness(t, src, func(o *Options) { o.Logger = log.NewLogfmtLogger(&out) })
	defer h.startLoop()()
	h.pollAfter(time.Second)
	send := func() *gpu.Snapshot {
		for range 20 {
			src.events <- gpu.Event{Kind: gpu.EventUnavailable, GPU: uuidA, Time: h.clock.Now()}
			src.events <- gpu.Event{Kind: gpu.EventRecoveryAction, GPU: uuidA, Time: h.clock.Now()}
			h.pollAfter(0)
		}

		return h.pollAfter(0)
	}
	lines := func() []int {
		return []int{strings.Count(out.String(), "cannot use the GPU"), strings.Count(out.String(), "recovery action changed")}
	}

	s := send()
	cmptest.Equal(t, "lines", lines(), []int{1, 1})
	cmptest.Equal(t, "counted", findGPU(t, s, uuidA).Totals.Unavailable.Or(gpu.Counter{}).Value, 20)

	h.pollAfter(time.Minute)
	send()
	cmptest.Equal(t, "lines after a minute", lines(), []int{2, 2})
}
