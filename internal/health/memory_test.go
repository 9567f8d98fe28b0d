package health

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// restarted returns the Tracker of the next process in the same boot.
func restarted(t *testing.T, before *Tracker) *Tracker {
	t.Helper()

	text, err := json.Marshal(before.Memory())
	if err != nil {
		t.Fatal(err)
	}

	var m Memory
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}

	tracker := New(0, start)
	tracker.Recall(m)

	return tracker
}

// judge shows a Tracker GPUs at a time after the start, and returns the verdict of the node.
func judge(t *Tracker, after time.Duration, gpus ...gpu.GPU) string {
	t.Observe(node(after, gpus...))
	return summary(t.Report(start.Add(after)).Verdict) + reasonsOf(t, start.Add(after))
}

func reasonsOf(t *Tracker, at time.Time) (text string) {
	for _, g := range t.Report(at).GPUs {
		text += codes(g.Verdict)
	}

	return text
}

// TestRestart: what a GPU had before a restart of the program stands until it is seen reset, also if
// that was between the two processes.
func TestRestart(t *testing.T) {
	struck := healthyGPU()
	hasXID(119)(&struck)

	for name, test := range map[string]struct {
		struck, first, then func(*gpu.GPU)
		want                string
	}{
		"an XID":                         {want: "unhealthy reset: XIDHardware 119"},
		"a reset between":                {first: energy(100), then: energy(1), want: "healthy none: "},
		"no reset between":               {first: energy(100), then: energy(101), want: "unhealthy reset: XIDHardware 119"},
		"the driver asked, and does not": {first: asks(gpu.RecoveryReset), then: asks(gpu.RecoveryNone), want: "healthy none: "},
		"it wanted a reset, and is well": {first: down(gpu.ErrResetRequired), want: "healthy none: "},
		"it was unbound, and is well":    {first: released(true), want: "healthy none: "},
		"it was lost, and is back":       {first: down(gpu.ErrLost), want: "unhealthy reset: XIDHardware 119"},
		"an application's XID":           {struck: hasXID(31), want: "healthy none: "},
		"one that the catalog lacks":     {struck: hasXID(999), want: "healthy none: "},
		"an event that it is not available": {struck: func(g *gpu.GPU) { g.Totals.Unavailable = gpu.Some(gpu.Counter{Value: 1}) },
			want: "unhealthy reset: GPUUnavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			before := New(0, start)
			before.Observe(node(0, healthyGPU()))

			g := struck
			if test.struck != nil {
				g = healthyGPU()
				test.struck(&g)
			}

			before.Observe(node(time.Second, g))

			if test.first != nil {
				test.first(&g)
				before.Observe(node(2*time.Second, g))
			}

			g = healthyGPU()
			if test.then != nil {
				test.then(&g)
			}

			after := restarted(t, before)
			after.Observe(node(time.Minute, g))
			cmptest.Equal(t, "GPU", summary(after.Report(start).GPUs[0].Verdict), test.want)

			again := restarted(t, after)
			again.Observe(node(2*time.Minute, g))
			cmptest.Equal(t, "after another restart", summary(again.Report(start).GPUs[0].Verdict), test.want)
		})
	}
}

// TestRestartOfInstances: it is not known which instance an earlier process' XID was of.
func TestRestartOfInstances(t *testing.T) {
	g := healthyGPU()
	g.Instances = []gpu.GPUInstance{{ID: 1, Device: gpu.Device{Up: true}}}

	struck := g
	struck.Instances = []gpu.GPUInstance{{ID: 1, Device: gpu.Device{Up: true}, XIDErrors: []gpu.XIDCount{xid(94, 0)}}}
	struck.Totals.XIDErrors = []gpu.XIDCount{xid(94, 0)}

	before := New(0, start)
	before.Observe(node(0, struck))

	after := restarted(t, before)
	after.Observe(node(time.Minute, g))
	cmptest.Equal(t, "instance", summary(after.Report(start).GPUs[0].Instances[0].Verdict), "degraded reset: XIDMemory 94")
}

// TestRestartWithTheKernelsLog: the log has the XID again, without saying whether it is over.
func TestRestartWithTheKernelsLog(t *testing.T) {
	logged := healthyGPU()
	logged.Totals.XIDErrors = []gpu.XIDCount{{XID: 119, Last: start}}

	struck := healthyGPU()
	hasXID(119)(&struck)

	before := New(0, start)
	before.Observe(node(0, struck))
	cmptest.Equal(t, "it stands", judge(restarted(t, before), time.Minute, logged),
		"unhealthy reset: XIDHardware 119")

	energy(100)(&struck)
	before.Observe(node(time.Second, struck))
	energy(1)(&struck)
	before.Observe(node(2*time.Second, struck))
	cmptest.Equal(t, "it is over", judge(restarted(t, before), time.Minute, logged), "healthy none: ")
}

// TestMissing: a GPU that was unhealthy and is not listed any more is no GPU less to judge, before a
// restart or after it. One that was well, or released, may have been taken away on purpose.
func TestMissing(t *testing.T) {
	well := healthyGPU()

	for listed, change := range map[string]func(*gpu.GPU){
		"unhealthy reboot: GPULost":         down(gpu.ErrLost),
		"unhealthy reset: GPUResetRequired": down(gpu.ErrResetRequired),
		"unhealthy reset: GPUHung":          down(gpu.ErrTimeout),
		"unhealthy reboot: XIDNode 79":      hasXID(79),
		"unhealthy reset: XIDHardware 119":  hasXID(119),
	} {
		bad := healthyGPU()
		change(&bad)

		tracker := New(0, start)
		cmptest.Equal(t, "listed", judge(tracker, time.Second, well, bad), listed)
		cmptest.Equal(t, listed+", not listed", judge(tracker, time.Hour, well), "unhealthy reboot: GPUMissing")
		cmptest.Equal(t, listed+", restarted", judge(restarted(t, tracker), 2*time.Hour, well),
			"unhealthy reboot: GPUMissing")
	}

	lost := healthyGPU()
	lost.PCIBusID = "00000000:1B:00.0"
	down(gpu.ErrLost)(&lost)

	unreadable := healthyGPU()
	down(gpu.ErrDriver)(&unreadable)

	tracker := New(0, start)
	tracker.Observe(node(time.Second, well, lost))
	judge(tracker, time.Minute, well, unreadable) // it may still be lost
	cmptest.Equal(t, "not listed", judge(tracker, time.Hour, well), "unhealthy reboot: GPUMissing")
	cmptest.Equal(t, "message", tracker.Report(start.Add(time.Hour)).Message, "GPU 1 (GPU-1) at 00000000:1B:00.0 "+
		"was unhealthy (the GPU is lost: it has fallen off the bus, or cannot be reached), "+
		"and the driver does not list it any more")
	cmptest.Equal(t, "back", judge(tracker, 2*time.Hour, well, well), "healthy none: ")
	cmptest.Equal(t, "taken away when well", judge(tracker, 3*time.Hour, well), "healthy none: ")

	tracker = New(0, start)
	tracker.Observe(node(0, well, lost))

	replacement := healthyGPU()
	replacement.UUID = "GPU-new"
	replacement.PCIBusID = lost.PCIBusID
	replaced := node(time.Hour, well)
	replaced.GPUs = append(replaced.GPUs, replacement)
	tracker.Observe(replaced)
	cmptest.Equal(t, "replaced", summary(tracker.Report(start.Add(time.Hour)).Verdict), "healthy none: ")

	released := healthyGPU()
	hasXID(79)(&released)
	tracker.Observe(node(4*time.Hour, well, released))

	released.Released = gpu.Some(gpu.Release{Since: start, Cause: gpu.ReleasedByOperator})
	released.Up = false

	tracker.Observe(node(5*time.Hour, well, released))
	cmptest.Equal(t, "taken away after a release", judge(tracker, 6*time.Hour, well), "healthy none: ")
}

// TestRestartWhileGPUsAreUnread: a GPU whose first reading has not ended keeps its past.
func TestRestartWhileGPUsAreUnread(t *testing.T) {
	struck := healthyGPU()
	hasXID(119)(&struck)

	before := New(0, start)
	before.Observe(node(0, struck))

	tracker := restarted(t, before)
	unread := node(time.Minute)
	unread.Unread = []int{0}
	tracker.Observe(unread)
	cmptest.Equal(t, "unread", summary(tracker.Report(start).Verdict), "unknown none: FirstReading")
	cmptest.Equal(t, "kept for the next", len(tracker.Memory().GPUs), 1)
	cmptest.Equal(t, "read", judge(tracker, 2*time.Minute, healthyGPU()), "unhealthy reset: XIDHardware 119")
}

// TestRestartWithoutAHandle: a GPU that the driver gives no access to yet may be any of those that
// are not listed.
func TestRestartWithoutAHandle(t *testing.T) {
	struck := healthyGPU()
	hasXID(74)(&struck)

	before := New(0, start)
	before.Observe(node(0, struck))

	hidden := healthyGPU()
	down(gpu.ErrTimeout)(&hidden)
	hidden.UUID = ""

	tracker := restarted(t, before)
	cmptest.Equal(t, "without a handle", judge(tracker, time.Minute, hidden), "unhealthy reset: GPUHung")
	cmptest.Equal(t, "kept for the next", len(tracker.Memory().GPUs), 1)
	cmptest.Equal(t, "with one", judge(tracker, 2*time.Minute, healthyGPU()), "unhealthy reset: XIDHardware 74")
}

// TestMemoryChanges: what each reading changes is no news.
func TestMemoryChanges(t *testing.T) {
	g := healthyGPU()
	energy(1)(&g)

	tracker := New(0, start)
	tracker.Observe(node(0, g))
	cmptest.Equal(t, "a GPU without a past", len(tracker.Memory().GPUs), 0)

	hasXID(119)(&g)
	tracker.Observe(node(time.Second, g))

	before := tracker.Memory()

	energy(2)(&g)
	tracker.Observe(node(2*time.Second, g))
	cmptest.Equal(t, "the same", tracker.Memory().IsSame(before), true)

	g.Totals.XIDErrors = []gpu.XIDCount{xid(119, time.Minute)}
	tracker.Observe(node(time.Minute, g))
	cmptest.Equal(t, "the same after another XID", tracker.Memory().IsSame(before), false)
}

// TestNoMemory: without a memory, the document says from when on XIDs are known, unless the driver
// says what is to be done, or the kernel's log does.
func TestNoMemory(t *testing.T) {
	tracker := New(0, start)
	cmptest.Equal(t, "healthy", judge(tracker, time.Minute, healthyGPU()), "healthy none: ")

	const partly = "nothing is known to be wrong; XIDs from before 2023-11-14T22:13:20Z are not known"

	cmptest.Equal(t, "message of the GPU", tracker.Report(start).GPUs[0].Message, partly)
	cmptest.Equal(t, "message of the node", tracker.Report(start).Message, partly)

	g := healthyGPU()
	asks(gpu.RecoveryNone)(&g)
	tracker.Observe(node(time.Minute, g))
	cmptest.Equal(t, "with the driver's word", tracker.Report(start).Message, healthyMessage)

	s := node(time.Minute, healthyGPU())
	s.Sources = append(s.Sources, gpu.SourceState{Name: gpu.SourceKernelLog, Up: true})
	tracker.Observe(s)
	cmptest.Equal(t, "with the kernel's log", tracker.Report(start).Message, healthyMessage)

	tracker = restarted(t, New(0, start))
	tracker.Observe(node(time.Minute, healthyGPU()))
	cmptest.Equal(t, "with a memory", tracker.Report(start).Message, healthyMessage)
}

// TestNodeBefore: what the Node said of a process before is unknown until all GPUs say that nothing
// is to be done, or were seen reset.
func TestNodeBefore(t *testing.T) {
	well := healthyGPU()
	tracker := New(0, start)
	tracker.Observe(node(0, well, well))
	tracker.RecallNode(start, "GPU 1: XID 119")
	cmptest.Equal(t, "no word", judge(tracker, time.Minute, well, well), "unknown none: XIDBeforeStart")
	cmptest.Equal(t, "message", tracker.Report(start).Message, "whether this is over is not known: GPU 1: XID 119")

	none := well
	asks(gpu.RecoveryNone)(&none)
	cmptest.Equal(t, "one says", judge(tracker, time.Minute, well, none), "unknown none: XIDBeforeStart")
	cmptest.Equal(t, "both say", judge(tracker, time.Minute, none, none), "healthy none: ")
	cmptest.Equal(t, "no word any more", judge(tracker, time.Minute, well, well), "healthy none: ")

	tracker.RecallNode(start, "GPU 1: XID 119")

	reset := well
	down(gpu.ErrResetRequired)(&reset)
	tracker.Observe(node(time.Hour, reset, reset))
	cmptest.Equal(t, "both were reset", judge(tracker, time.Hour, well, well), "healthy none: ")

	tracker = restarted(t, New(0, start))
	tracker.Observe(node(0, well))
	tracker.RecallNode(start, "GPU 1: XID 119")
	cmptest.Equal(t, "with a memory", judge(tracker, time.Minute, well), "healthy none: ")
}
