package history

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

var start = time.Unix(1_700_000_000, 0).UTC() // a multiple of Step

// snapshot is one GPU that draws watts, with some instances, at a time after the start.
func snapshot(after time.Duration, watts gpu.Opt[float64], instances ...gpu.GPUInstance) *gpu.Snapshot {
	g := gpu.GPU{Facts: gpu.Facts{UUID: "GPU-a"}, Instances: instances}
	g.Readings.PowerWatts = watts

	return &gpu.Snapshot{Time: start.Add(after), GPUs: []gpu.GPU{g}}
}

func text(t *testing.T, v any) string {
	t.Helper()

	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}

// TestSeries: a point is the mean of its readings; one without a reading is null, as is an absent
// reading.
func TestSeries(t *testing.T) {
	h := New(Step)
	cmptest.Equal(t, "before the first Snapshot", text(t, h.Document()),
		`{"apiVersion":"mig-exporter/v1","stepSeconds":5,"devices":[],"marks":[]}`)

	h.Observe(snapshot(0, gpu.Some(100.0)))
	h.Observe(snapshot(time.Second, gpu.Some(110.0)))
	h.Observe(snapshot(2*time.Second, gpu.None[float64]()))
	h.Observe(snapshot(5*time.Second, gpu.None[float64]()))
	h.Observe(snapshot(17*time.Second, gpu.Some(1234.56)))

	doc := h.Document()
	cmptest.Equal(t, "since", doc.Since, start)
	cmptest.Equal(t, "until", doc.Until, start.Add(15*time.Second))
	cmptest.Equal(t, "devices", text(t, doc.Devices),
		`[{"index":0,"uuid":"GPU-a","powerWatts":[105,null,null,1234]}]`)
}

// TestSlowPolls: where we read less often than points come, the later reading stands for the time
// between two; it does not for the time before a device existed, nor for a longer pause.
func TestSlowPolls(t *testing.T) {
	h := New(20 * time.Second)
	h.Observe(snapshot(0, gpu.Some(1.0)))
	h.Observe(snapshot(10*time.Second, gpu.Some(2.0)))
	h.Observe(snapshot(30*time.Second, gpu.Some(3.0), newInstance(1, 1)))
	h.Observe(snapshot(55*time.Second, gpu.Some(4.0), newInstance(1, 1)))

	devices := h.Document().Devices
	cmptest.Equal(t, "watts", text(t, devices[0].PowerWatts), "[1,2,2,3,3,3,3,null,null,null,null,4]")
	cmptest.Equal(t, "activity of an instance", text(t, devices[1].SMActivityRatio),
		"[null,null,null,null,null,null,0.512,null,null,null,null,0.512]")
}

// TestSpan: what is older than the span is gone, and the memory is used again.
func TestSpan(t *testing.T) {
	h := New(time.Minute)
	for s := range 2000 {
		h.Observe(snapshot(time.Duration(s)*time.Second, gpu.Some(float64(s))))
	}

	watts := h.Document().Devices[0].PowerWatts
	cmptest.Equal(t, "points", len(watts), 180)
	cmptest.Equal(t, "oldest", watts[0], float32(1100+2))
	cmptest.Equal(t, "newest", watts[179], float32(1995+2))
}

func newInstance(id int, generation uint64) gpu.GPUInstance {
	return gpu.GPUInstance{ID: gpu.InstanceID(id), Generation: generation, Profile: "1g.10gb",
		Memory: gpu.Memory{Used: gpu.Some(uint64(1 << 30))}, Device: gpu.Device{Activity: gpu.Activity{SM: gpu.Some(0.51234)}}}
}

// TestInstances: an id that is used again is another device; the former one is kept until the span
// has passed.
func TestInstances(t *testing.T) {
	h := New(time.Minute)
	h.Observe(snapshot(0, gpu.Some(1.0), newInstance(1, 1), newInstance(2, 1)))
	h.Observe(snapshot(5*time.Second, gpu.Some(1.0), newInstance(1, 2)))

	var got []string
	for _, d := range h.Document().Devices[1:] {
		got = append(got, fmt.Sprintf("%d %d %t %s %s", d.GPUInstance.Or(99), d.Generation, d.Gone,
			text(t, d.MemoryUsedBytes), text(t, d.SMActivityRatio)))
	}

	cmptest.Equal(t, "instances", got, []string{
		"1 1 true [1073741824,null] [0.512,null]",
		"1 2 false [null,1073741824] [null,0.512]",
		"2 1 true [1073741824,null] [0.512,null]",
	})

	h.Observe(snapshot(Span, gpu.Some(1.0), newInstance(1, 2)))
	cmptest.Equal(t, "devices after the span", len(h.Document().Devices), 2)
}

// TestClockBack: what was read before the clock was set back lies in the future. We keep none of
// it, and say so.
func TestClockBack(t *testing.T) {
	h := New(time.Minute)
	h.Observe(snapshot(time.Hour, gpu.Some(1.0)))
	h.Observe(snapshot(0, gpu.Some(2.0)))

	doc := h.Document()
	cmptest.Equal(t, "since", doc.Since, start)
	cmptest.Equal(t, "watts", text(t, doc.Devices[0].PowerWatts), "[2]")
}

// TestClockSlewed: a step back of milliseconds over the edge of a point loses nothing.
func TestClockSlewed(t *testing.T) {
	h := New(time.Minute)
	h.Observe(snapshot(0, gpu.Some(1.0)))
	h.Observe(snapshot(5*time.Second, gpu.Some(2.0)))
	h.Observe(snapshot(5*time.Second-50*time.Millisecond, gpu.Some(4.0)))

	cmptest.Equal(t, "watts", text(t, h.Document().Devices[0].PowerWatts), "[1,3]")
}

// TestReleasedGPU: while we have let go of a GPU we do not see its instances. They are not gone for
// that, and their XIDs are not new when it is back.
func TestReleasedGPU(t *testing.T) {
	h := New(time.Minute)
	released := snapshot(10*time.Second, gpu.None[float64]())
	released.GPUs[0].Released = gpu.Some(gpu.Release{})

	h.Observe(snapshot(0, gpu.Some(1.0), newInstance(1, 1)))
	h.Observe(snapshot(5*time.Second, gpu.Some(1.0), withXIDs(newInstance(1, 1), 1, 4*time.Second)))
	h.Observe(released)
	cmptest.Equal(t, "gone", h.Document().Devices[1].Gone, false)

	h.Observe(snapshot(15*time.Second, gpu.Some(1.0), withXIDs(newInstance(1, 1), 1, 4*time.Second)))
	cmptest.Equal(t, "marks", len(h.Document().Marks), 1)
}

// TestMovedXID: an XID that the kernel's log gives to an instance later is one event.
func TestMovedXID(t *testing.T) {
	h := New(time.Minute)
	ofGPU := snapshot(5*time.Second, gpu.Some(1.0), newInstance(1, 1))
	ofGPU.GPUs[0].Totals.GPUXIDs = withXIDs(newInstance(1, 1), 1, 4*time.Second).XIDErrors

	h.Observe(snapshot(0, gpu.Some(1.0), newInstance(1, 1)))
	h.Observe(ofGPU)
	h.Observe(snapshot(10*time.Second, gpu.Some(1.0), withXIDs(newInstance(1, 1), 1, 4*time.Second)))

	marks := h.Document().Marks
	cmptest.Equal(t, "marks", len(marks), 1)
	cmptest.Equal(t, "instance", marks[0].GPUInstance, gpu.Some(gpu.InstanceID(1)))
}

func withXIDs(i gpu.GPUInstance, count float64, last time.Duration) gpu.GPUInstance {
	i.XIDErrors = []gpu.XIDCount{{XID: 94, Counter: gpu.Counter{Value: count}, Last: start.Add(last)}}
	return i
}

// TestMarks: XIDs are marked when they occurred, layout changes when they were seen; what was
// counted before the first Snapshot is not marked, nor is what an instance had whose id another one
// has now.
func TestMarks(t *testing.T) {
	h := New(time.Minute)
	changed := func(s *gpu.Snapshot, changes float64, xids ...gpu.XIDCount) *gpu.Snapshot {
		s.GPUs[0].Totals.LayoutChanges.Value = changes
		s.GPUs[0].Totals.GPUXIDs = xids

		return s
	}
	lost := gpu.XIDCount{XID: 79, Counter: gpu.Counter{Value: 2}, Last: start.Add(9 * time.Second)}

	h.Observe(changed(snapshot(0, gpu.Some(1.0), withXIDs(newInstance(1, 1), 3, 0)), 1))
	h.Observe(changed(snapshot(5*time.Second, gpu.Some(1.0), withXIDs(newInstance(1, 1), 4, 4*time.Second)), 1))
	h.Observe(changed(snapshot(10*time.Second, gpu.Some(1.0), withXIDs(newInstance(1, 2), 1, 9*time.Second)), 2, lost))
	h.Observe(changed(snapshot(11*time.Second, gpu.Some(1.0), withXIDs(newInstance(1, 2), 1, 9*time.Second)), 2, lost))

	var got []string
	for _, m := range h.Document().Marks {
		got = append(got, fmt.Sprintf("%v %s %v.%d %d x %d %s", m.Time.Sub(start), m.Kind, m.GPUInstance.Or(99), m.Generation,
			m.Count, m.XID, m.Name))
	}

	cmptest.Equal(t, "marks", got, []string{
		"4s xid 1.1 1 x 94 Contained memory error",
		"10s layout-change 99.0 0 x 0 ",
		"9s xid 99.0 2 x 79 GPU has fallen off the bus",
		"9s xid 1.2 1 x 94 Contained memory error",
	})

	h.Observe(snapshot(Span+11*time.Second, gpu.Some(1.0)))
	cmptest.Equal(t, "marks after the span", len(h.Document().Marks), 0)
}

// churn is a node of 8 GPUs in 7 instances each, at a second, whose instances are new every five
// seconds.
func churn(second int) *gpu.Snapshot {
	s := &gpu.Snapshot{Time: start.Add(time.Duration(second) * time.Second)}

	for g := range 8 {
		one := gpu.GPU{Facts: gpu.Facts{UUID: gpu.UUID(fmt.Sprint("GPU-", g)), Index: g}}
		one.Totals.LayoutChanges.Value = float64(second / 5)

		for i := range 7 {
			one.Instances = append(one.Instances, newInstance(i, uint64(second/5+1)))
		}

		s.GPUs = append(s.GPUs, one)
	}

	return s
}

// TestMemoryIsBounded: layouts that change all the time take no more than 2 MiB, and no device that
// exists is left out.
func TestMemoryIsBounded(t *testing.T) {
	var before, after runtime.MemStats

	runtime.GC()
	runtime.ReadMemStats(&before)

	h := New(time.Minute)
	for second := range 3600 {
		h.Observe(churn(second))
	}

	runtime.GC()
	runtime.ReadMemStats(&after)

	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 2<<20 {
		t.Errorf("the history takes %d bytes, want at most %d", used, 2<<20)
	}

	doc := h.Document()
	present := slices.DeleteFunc(doc.Devices, func(d Device) bool { return d.Gone })
	cmptest.Equal(t, "devices that exist", len(present), 64)
	cmptest.Equal(t, "marks", len(doc.Marks), maxMarks)
}

// TestObserveAllocatesNothing: a Snapshot of a node that does not change costs no memory.
func TestObserveAllocatesNothing(t *testing.T) {
	h := New(time.Minute)
	snapshots := []*gpu.Snapshot{churn(0), churn(1), churn(2), churn(3)}
	h.Observe(snapshots[0])

	next := 0
	got := testing.AllocsPerRun(3, func() {
		next++
		h.Observe(snapshots[next%4])
	})
	cmptest.Equal(t, "allocations", got, 0.0)
}

func BenchmarkObserve(b *testing.B) {
	h := New(time.Minute)
	s := churn(0)
	b.ReportAllocs()

	for b.Loop() {
		s.Time = s.Time.Add(time.Second)
		h.Observe(s)
	}
}

// TestSeriesInJSON: clients read the absent values that the exporter writes.
func TestSeriesInJSON(t *testing.T) {
	absent := float32(math.NaN())

	data, err := json.Marshal(Series{absent, 0, 0.25, absent, 2048})
	if err != nil {
		t.Fatal(err)
	}

	var got Series
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "series", got, Series{absent, 0, 0.25, absent, 2048}, cmpopts.EquateNaNs())
}
