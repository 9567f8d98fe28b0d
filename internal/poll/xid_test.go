package poll

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestXIDsOfALostGPUStay: the driver enumerates the rest of the GPUs anew when one is lost, so that
// another one gets its index. What was counted of the lost one is served for 15 minutes.
func TestXIDsOfALostGPUStay(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	lost := migGPU()
	lost.UUID = uuidA
	lost.Index = 0
	src.gpus[uuidA] = lost
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	h.pollAfter(time.Second)
	src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 79, Time: h.clock.Now()}
	src.set(func() {
		src.inv.GPUs = foundGPUs(uuidB)
		src.gpus[uuidB] = gpu.GPU{Facts: gpu.Facts{UUID: uuidB, Index: 0}}
	})

	left := time.Duration(0)
	for ; left < keepDisplaced; left += 30 * time.Second {
		s := h.pollAfter(30 * time.Second)
		if want := []gpu.UUID{uuidB, uuidA}; !slices.Equal(gpuUUIDs(s), want) {
			t.Fatalf("%v after the loss: %v, want %v", left, gpuUUIDs(s), want)
		}

		g := &s.GPUs[1]
		what := fmt.Sprintf("%v after the loss: ", left)
		cmptest.Equal(t, what+"up", g.Up, false)
		cmptest.Equal(t, what+"all XIDs", g.Totals.XIDs.Value, 1)
		cmptest.Equal(t, what+"number of XIDs", len(g.Totals.XIDErrors), 1)
		cmptest.Equal(t, what+"layout changes are counted", g.Totals.LayoutChanges.Since.IsZero(), false)

		if n := errorCount(g, gpu.ReadingDevice, gpu.ReasonLost); n != 1 {
			t.Errorf("the loss counts %v times, want once", n)
		}
	}

	if s := h.pollAfter(30 * time.Second); len(s.GPUs) != 1 || s.GPUs[0].UUID != uuidB {
		t.Errorf("%v after the loss: %v, want the other GPU alone", left, gpuUUIDs(s))
	}
}

// TestLostGPUComesBack: it is the same GPU then, and another loss is kept for 15 minutes again.
func TestLostGPUComesBack(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	h.pollAfter(time.Second)

	for range 2 {
		src.set(func() { src.inv.GPUs = foundGPUs(uuidB) })
		h.pollAfter(time.Second)

		if s := h.pollAfter(10 * time.Minute); len(s.GPUs) != 2 {
			t.Fatalf("ten minutes after the loss: %v", gpuUUIDs(s))
		}

		src.set(func() { src.inv.GPUs = foundGPUs(uuidA, uuidB) })

		s := h.pollAfter(time.Second)
		if want := []gpu.UUID{uuidA, uuidB}; !slices.Equal(gpuUUIDs(s), want) || !s.GPUs[0].Up {
			t.Fatalf("after it came back: %v, first up %v, want %v", gpuUUIDs(s), s.GPUs[0].Up, want)
		}
	}
}

// TestLayoutOfADownGPUStays: the MIG mode, the instances and the count of changes outlive the
// readings, which are dropped. Without the mode, the GPU would look like one without MIG beside its
// own instances.
func TestLayoutOfADownGPUStays(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	src.gpus[uuidA] = migGPU()
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	h.pollAfter(time.Second)
	src.set(func() { src.errs[uuidA] = gpu.ErrLost })
	h.pollAfter(time.Second)
	s := h.pollAfter(14 * time.Minute)
	g := findGPU(t, s, uuidA)
	cmptest.Equal(t, "MIG mode", g.MIG.Enabled, gpu.Some(true))
	cmptest.Equal(t, "number of instances", len(g.Instances), len(migGPU().Instances))
	cmptest.Equal(t, "layout changes are counted", g.Totals.LayoutChanges.Since.IsZero(), false)

	if g.MIG.Pending.Present() || g.Readings.PowerWatts.Present() {
		t.Errorf("pending MIG mode %v, power %v, want neither", g.MIG.Pending, g.Readings.PowerWatts)
	}

	if plain := findGPU(t, s, uuidB); !plain.Totals.LayoutChanges.Since.IsZero() {
		t.Errorf("a GPU without MIG counts layout changes: %+v", plain.Totals.LayoutChanges)
	}
}

// TestKnownReadErrorsBeginAtZero, so that increase() sees the first.
func TestKnownReadErrorsBeginAtZero(t *testing.T) {
	h := newHarness(t, newFakeSource(uuidA), nil)
	defer h.startLoop()()
	var got []string

	for _, e := range h.pollAfter(time.Second).GPUs[0].Totals.ReadErrors {
		if e.Value != 0 || e.Since.IsZero() {
			t.Errorf("%s, %s: %+v, want 0 since the start", e.Reading, e.Reason, e.Counter)
		}

		got = append(got, fmt.Sprintf("%s/%s", e.Reading, e.Reason))
	}

	if got, want := strings.Join(got, " "), "device/lost device/reset_required device/timeout device/other "+
		"events/other"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestXIDIsLogged with its name and the pod that holds the device, at most once in a minute for
// each GPU and XID.
func TestXIDIsLogged(t *testing.T) {
	var out bytes.Buffer
	src := newFakeSource(uuidA)
	src.gpus[uuidA] = migGPU()
	pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "train-0",
		1)}}}
	h := newHarness(t, src, func(o *Options) { o.Pods, o.Logger = pods, log.NewLogfmtLogger(&out) })
	stop := h.startLoop()
	held := h.pollAfter(time.Second).GPUs[0].Instances[0]
	of := func(xid uint64) gpu.Event {
		return gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: xid, Instance: gpu.Some(held.ID), Time: h.clock.Now()}
	}
	src.events <- of(43)
	pods.list = gpu.Assignments{} // it ends its pod
	h.pollAfter(time.Second)

	for range 58 { // within the minute
		src.events <- of(43)
		h.pollAfter(time.Second)
	}

	src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 9999, Time: h.clock.Now()}
	h.pollAfter(time.Second)
	src.events <- of(43)
	h.pollAfter(2 * time.Second)

	if err := stop(); err != nil {
		t.Fatal(err)
	}

	var lines []string

	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "XID error") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}

	start := `level=warn msg="XID error" gpu=` + string(uuidA) + ` index=0 `

	want := []string{
		start + fmt.Sprintf(`xid=43 name="GPU stopped processing" gpu_instance=%d pod=ns/train-0`, held.ID),
		start + `xid=9999`,
		start + fmt.Sprintf(`xid=43 name="GPU stopped processing" gpu_instance=%d`, held.ID),
	}
	if got, want := strings.Join(lines, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("logged\n%s\nwant\n%s", got, want)
	}
}

// TestXIDOfAnEarlierHolder: a line of the kernel's log from before a pod held the device names it
// not.
func TestXIDOfAnEarlierHolder(t *testing.T) {
	n := newLoggingNode(t)
	heldBy := func(pod string) gpu.Assignments {
		return gpu.Assignments{List: []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, pod, 1)}}
	}
	pods := &fakePods{list: heldBy("train-0"), now: n.clock.Now}
	n.opts.Pods = pods
	defer n.startLoop()()
	n.pollAfter(time.Second)
	n.logXIDs(addressA(), 13)
	n.log.lines[0].Instance = gpu.Some(n.src.gpus[uuidA].Instances[0].ID)
	late := n.log.lines
	n.log.lines = nil

	pods.list = heldBy("train-1")
	n.pollAfter(time.Second)
	n.pollAfter(time.Minute)
	n.log.lines = late
	n.logXIDs(addressA(), 31)
	n.pollAfter(logDelay)

	named := map[string]bool{}

	for line := range strings.Lines(n.out.String()) {
		for _, xid := range []string{"xid=13", "xid=31"} {
			if strings.Contains(line, xid) {
				named[xid] = strings.Contains(line, "pod=ns/train-1")
			}
		}
	}

	cmptest.Equal(t, "lines that name the pod", named, map[string]bool{"xid=13": false, "xid=31": true})
}

// TestEventsOfAnUnknownGPU may be of any: that one is missing is counted for each.
func TestEventsOfAnUnknownGPU(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	for _, kind := range []gpu.EventKind{gpu.EventXID, gpu.EventUnavailable, gpu.EventRecoveryAction} {
		n.src.events <- gpu.Event{Kind: kind, XID: 79, Time: n.clock.Now()}
	}

	s := n.pollAfter(time.Second)
	for _, id := range []gpu.UUID{uuidA, uuidB} {
		g := findGPU(t, s, id)
		cmptest.Equal(t, "XIDs of "+string(id), g.Totals.XIDs.Value, 0)
		cmptest.Equal(t, "losses of "+string(id), errorCount(g, gpu.ReadingEvents, gpu.ReasonOther), 3)
	}
}

func gpuUUIDs(s *gpu.Snapshot) []gpu.UUID {
	var ids []gpu.UUID
	for i := range s.GPUs {
		ids = append(ids, s.GPUs[i].UUID)
	}

	return ids
}

// TestXIDsOfTheGPU: 79, 119 and 120 are the GPU's although events lay them on the instance with the
// ids 0 and 0. All reports of one incident count once, with the time of the last.
func TestXIDsOfTheGPU(t *testing.T) {
	src := newFakeSource(uuidA)
	g := src.gpus[uuidA]
	g.Instances = []gpu.GPUInstance{{ID: 0, Profile: "7g.40gb"}}
	src.gpus[uuidA] = g
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	h.pollAfter(time.Second)
	first := h.clock.Now()

	send := func(xid uint64) {
		src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: xid, Time: h.clock.Now(),
			Instance: gpu.Some(gpu.InstanceID(0)), Compute: gpu.Some(gpu.ComputeID(0))}
	}
	for range 10 {
		send(79)
	}

	h.pollAfter(time.Second)

	for _, xid := range []uint64{79, 119, 120, 13} {
		send(xid)
	}

	s := h.pollAfter(time.Second)

	second := first.Add(time.Second)
	one := func(xid uint64, since time.Time) gpu.XIDCount {
		return gpu.XIDCount{XID: xid, Counter: gpu.Counter{Value: 1, Since: since}, Last: second}
	}
	ofGPU := []gpu.XIDCount{one(79, first), one(119, second), one(120, second)}
	cmptest.Equal(t, "XIDs of the GPU alone", s.GPUs[0].Totals.GPUXIDs, ofGPU)
	cmptest.Equal(t, "XIDs of the instance", s.GPUs[0].Instances[0].XIDErrors, []gpu.XIDCount{one(13, second)})
	cmptest.Equal(t, "all XIDs", s.GPUs[0].Totals.XIDs.Value, 4)
}

// TestALateLineIsNotTheLastXID: a line of the kernel's log that we read late is about an XID before
// the last one, and does not change the time of that. After the clock was set back it is another
// matter: the time of the last XID would lie in the future.
func TestALateLineIsNotTheLastXID(t *testing.T) {
	tr := newTestGPU()
	now := time.Unix(10_000, 0)
	late := now.Add(-time.Minute)
	setBack := now.Add(-time.Hour)

	tr.countXID(gpu.Event{Kind: gpu.EventXID, XID: 79, Time: now}, now)
	tr.countXID(gpu.Event{Kind: gpu.EventXID, XID: 79, Time: late, Logged: true}, now)
	cmptest.Equal(t, "count", tr.totals.XIDErrors[0].Value, 2.0)
	cmptest.Equal(t, "last", tr.totals.XIDErrors[0].Last, now)
	cmptest.Equal(t, "last of the GPU", tr.totals.GPUXIDs[0].Last, now)

	tr.countXID(gpu.Event{Kind: gpu.EventXID, XID: 79, Time: setBack}, setBack)
	cmptest.Equal(t, "count after the clock was set back", tr.totals.XIDErrors[0].Value, 3.0)
	cmptest.Equal(t, "last after the clock was set back", tr.totals.XIDErrors[0].Last, setBack)
}

// TestHealthEventsAreCounted: both begin at 0, and are absent if the driver does not report them.
func TestHealthEventsAreCounted(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	g := src.gpus[uuidA]
	g.ReportsUnavailable = true
	g.ReportsRecovery = true
	src.gpus[uuidA] = g
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	s := h.pollAfter(time.Second)
	cmptest.Equal(t, "at the start", s.GPUs[0].Totals.Unavailable.Or(gpu.Counter{Value: -1}).Value, 0)
	cmptest.Equal(t, "of a driver without them", s.GPUs[1].Totals.Unavailable.Present(), false)

	src.events <- gpu.Event{Kind: gpu.EventUnavailable, GPU: uuidA, Time: h.clock.Now()}
	src.events <- gpu.Event{Kind: gpu.EventRecoveryAction, GPU: uuidA, Time: h.clock.Now()}
	src.events <- gpu.Event{Kind: gpu.EventRecoveryAction, GPU: uuidA, Time: h.clock.Now()}
	s = h.pollAfter(time.Second)
	totals := s.GPUs[0].Totals
	cmptest.Equal(t, "unavailable", totals.Unavailable.Or(gpu.Counter{}).Value, 1)
	cmptest.Equal(t, "recovery actions", totals.RecoveryActions.Or(gpu.Counter{}).Value, 2)
	cmptest.Equal(t, "XIDs", totals.XIDs.Value, 0)
}
