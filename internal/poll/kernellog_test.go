package poll

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fakeKernelLog has the lines that the test adds before a poll.
type fakeKernelLog struct {
	lines []gpu.LoggedXID
	lost  bool
	err   error
	taken func() // is called by Take
}

func (l *fakeKernelLog) Take() ([]gpu.LoggedXID, bool) {
	if l.taken != nil {
		l.taken()
	}

	lines := l.lines
	lost := l.lost
	l.lines = nil
	l.lost = false

	return lines, lost
}

func (l *fakeKernelLog) State() gpu.SourceState {
	return gpu.SourceState{Name: gpu.SourceKernelLog, Up: l.err == nil, Err: l.err}
}

// loggingNode is a node with a MIG GPU at 0000:1b:00 and one at 0000:43:00 without MIG, whose
// kernel log is read.
type loggingNode struct {
	*harness
	src *fakeSource
	log *fakeKernelLog
	out bytes.Buffer
}

func newLoggingNode(t *testing.T) *loggingNode {
	t.Helper()
	n := &loggingNode{src: newFakeSource(uuidA, uuidB), log: &fakeKernelLog{}}
	split := migGPU()
	split.UUID = uuidA
	split.Index = 0
	split.PCIBusID = "00000000:1b:00.0"
	n.src.gpus[uuidA] = split
	n.src.gpus[uuidB] = gpu.GPU{Facts: gpu.Facts{UUID: uuidB, Index: 1, PCIBusID: "00000000:43:00.0"}}
	n.harness = newHarness(t, n.src, func(o *Options) {
		o.KernelLog, o.Logger = n.log, log.NewLogfmtLogger(&n.out)
	})

	return n
}

// addressA and addressB are the addresses of the GPUs of a loggingNode.
func addressA() gpu.PCIAddress { return gpu.PCIAddress{Bus: 0x1b} }
func addressB() gpu.PCIAddress { return gpu.PCIAddress{Bus: 0x43} }

// logXIDs adds a line for each XID, received now.
func (n *loggingNode) logXIDs(at gpu.PCIAddress, xids ...uint64) {
	for _, xid := range xids {
		n.log.lines = append(n.log.lines, gpu.LoggedXID{PCI: at, XID: xid, Time: n.clock.Now()})
	}
}

// xidsOf returns the counts by XID.
func xidsOf(list []gpu.XIDCount) map[uint64]float64 {
	counts := map[uint64]float64{}
	for _, x := range list {
		counts[x.XID] = x.Value
	}

	return counts
}

// TestXIDsThatTheDriverOnlyPrints: 62, 119, and 79 on an idle GPU have no event.
func TestXIDsThatTheDriverOnlyPrints(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.logXIDs(addressB(), 62, 119, 79)

	if g := findGPU(t, n.pollAfter(0), uuidB); g.Totals.XIDs.Value != 0 {
		t.Errorf("%v XIDs at once, want none before their events can have come", g.Totals.XIDs.Value)
	}

	s := n.pollAfter(logDelay)

	g := findGPU(t, s, uuidB)
	cmptest.Equal(t, "counts", xidsOf(g.Totals.XIDErrors), map[uint64]float64{62: 1, 79: 1, 119: 1})
	cmptest.Equal(t, "time of the last 79", g.Totals.XIDErrors[1].Last, s.Time.Add(-logDelay))
	cmptest.Equal(t, "of the other GPU", len(findGPU(t, s, uuidA).Totals.XIDErrors), 0)
}

// TestOrderOfBothSources: an event that comes after its line gives the XID to the instance that
// only it names.
func TestOrderOfBothSources(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.logXIDs(addressA(), 13)
	n.pollAfter(0)
	n.src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 13, Instance: gpu.Some(gpu.InstanceID(2)),
		Time: n.clock.Now().Add(logDelay / 2)}
	n.pollAfter(logDelay)
	s := n.pollAfter(time.Second)

	g := findGPU(t, s, uuidA)
	cmptest.Equal(t, "of the GPU and its instances", xidsOf(g.Totals.XIDErrors), map[uint64]float64{13: 1})
	cmptest.Equal(t, "of the instance", xidsOf(g.Instances[0].XIDErrors), map[uint64]float64{13: 1})
	cmptest.Equal(t, "of the GPU alone", len(g.Totals.GPUXIDs), 0)
}

// TestLinesDuringReadings wait for their events, too: a line that is printed after a cycle has
// begun is not one from the future.
func TestLinesDuringReadings(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.log.taken = func() {
		n.clock.advance(2 * logDelay)
		n.logXIDs(addressB(), 13)
		n.log.taken = nil
	}
	counted := func(s *gpu.Snapshot) float64 { return findGPU(t, s, uuidB).Totals.XIDs.Value }
	cmptest.Equal(t, "XIDs in the cycle", counted(n.pollAfter(time.Second)), 0)
	cmptest.Equal(t, "XIDs in the next", counted(n.pollAfter(logDelay)), 1)
}

// TestLinesBetweenReadings count while the GPUs are read less often.
func TestLinesBetweenReadings(t *testing.T) {
	n := newLoggingNode(t)
	stop := n.startLoop()
	n.pollAfter(time.Second)

	if err := stop(); err != nil {
		t.Fatal(err)
	}

	n.logXIDs(addressB(), 79)
	n.clock.advance(logDelay)

	if err := n.runCycle(t.Context(), false); err != nil {
		t.Fatal(err)
	}

	g := findGPU(t, n.Current(), uuidB)
	cmptest.Equal(t, "counts", xidsOf(g.Totals.XIDErrors), map[uint64]float64{79: 1})
}

// TestLinesNameInstances: an XID of a program is its instance's, and one of the GPU is not,
// whatever the line says.
func TestLinesNameInstances(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.logXIDs(addressA(), 31, 119)

	for i := range n.log.lines {
		n.log.lines[i].Instance, n.log.lines[i].Compute = gpu.Some(gpu.InstanceID(2)), gpu.Some(gpu.ComputeID(0))
	}

	g := findGPU(t, n.pollAfter(logDelay), uuidA)

	cmptest.Equal(t, "of the instance", xidsOf(g.Instances[0].XIDErrors), map[uint64]float64{31: 1})
	cmptest.Equal(t, "of the GPU alone", xidsOf(g.Totals.GPUXIDs), map[uint64]float64{119: 1})
}

// TestLinesFromBeforeTheStart set the time of the last XID, and count nothing. They are no
// instance's: the layout may have changed.
func TestLinesFromBeforeTheStart(t *testing.T) {
	n := newLoggingNode(t)
	printed := n.clock.Now().Add(-time.Hour)
	n.log.lines = []gpu.LoggedXID{
		{PCI: addressA(), XID: 13, Instance: gpu.Some(gpu.InstanceID(2)), Time: printed, BeforeStart: true},
		{PCI: addressA(), XID: 79, Time: printed, BeforeStart: true},
		{PCI: addressA(), XID: 79, Time: printed.Add(-time.Minute), BeforeStart: true},
	}
	defer n.startLoop()()
	s := n.pollAfter(time.Second)

	g := findGPU(t, s, uuidA)
	cmptest.Equal(t, "all", g.Totals.XIDs.Value, 0)
	cmptest.Equal(t, "counts", xidsOf(g.Totals.XIDErrors), map[uint64]float64{13: 0, 79: 0})
	cmptest.Equal(t, "of the GPU alone", xidsOf(g.Totals.GPUXIDs), map[uint64]float64{79: 0})
	cmptest.Equal(t, "of the instance", len(g.Instances[0].XIDErrors), 0)

	for _, x := range g.Totals.XIDErrors {
		cmptest.Equal(t, "time of the last", x.Last, printed)
		cmptest.Equal(t, "the count is from before the GPU was seen", x.Since.Before(printed.Add(time.Hour)), false)
	}

	n.logXIDs(addressA(), 79)
	s = n.pollAfter(logDelay)
	cmptest.Equal(t, "after another 79", xidsOf(findGPU(t, s, uuidA).Totals.XIDErrors), map[uint64]float64{13: 0, 79: 1})
}

// TestBurstAcrossTheStart: what goes on when the exporter starts is no incident since then.
func TestBurstAcrossTheStart(t *testing.T) {
	n := newLoggingNode(t)
	n.log.lines = []gpu.LoggedXID{{PCI: addressA(), XID: 79, Time: n.clock.Now(), BeforeStart: true}}
	defer n.startLoop()()
	n.pollAfter(0)
	n.pollAfter(0)

	n.src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 79, Time: n.clock.Now().Add(burstGap)}
	s := n.pollAfter(burstGap)
	cmptest.Equal(t, "within the burst", xidsOf(findGPU(t, s, uuidA).Totals.XIDErrors), map[uint64]float64{79: 0})

	n.logXIDs(addressA(), 79)
	n.log.lines[0].Time = n.log.lines[0].Time.Add(burstGap + 1)
	s = n.pollAfter(burstGap + logDelay + 1)
	cmptest.Equal(t, "after it", xidsOf(findGPU(t, s, uuidA).Totals.XIDErrors), map[uint64]float64{79: 1})
}

// TestOldLinesForgetNoIncident: what the log has of an hour ago makes no second incident of a
// report that follows.
func TestOldLinesForgetNoIncident(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)
	n.src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 79, Time: n.clock.Now()}
	n.pollAfter(0)

	n.logXIDs(addressA(), 94, 31)

	for i := range n.log.lines {
		n.log.lines[i].Time, n.log.lines[i].BeforeStart = n.clock.Now().Add(-time.Hour), i == 0
	}

	n.logXIDs(addressA(), 79)
	s := n.pollAfter(logDelay)
	cmptest.Equal(t, "counts", xidsOf(findGPU(t, s, uuidA).Totals.XIDErrors), map[uint64]float64{31: 0, 79: 1, 94: 0})
}

// TestLogThatIsOpenedAgain hours later has lines of XIDs whose events were counted long ago.
func TestLogThatIsOpenedAgain(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)
	n.logXIDs(addressA(), 79)
	late := n.log.lines
	n.log.lines = nil
	n.src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 79, Time: n.clock.Now()}
	n.pollAfter(0)

	n.clock.advance(3 * time.Hour)
	n.log.lines = late
	s := n.pollAfter(0)
	cmptest.Equal(t, "counts", xidsOf(findGPU(t, s, uuidA).Totals.XIDErrors), map[uint64]float64{79: 1})
}

// TestFilteredEventsAndTheLog: XIDs of a GPU whose events are not delivered are known for as long
// as the log is read.
func TestFilteredEventsAndTheLog(t *testing.T) {
	n := newLoggingNode(t)
	for _, id := range []gpu.UUID{uuidA, uuidB} {
		g := n.src.gpus[id]
		g.NoXIDs = true
		n.src.gpus[id] = g
	}

	unknown := n.src.gpus[uuidB]
	unknown.PCIBusID = "" // no line can be about it
	n.src.gpus[uuidB] = unknown
	defer n.startLoop()()

	counted := func(s *gpu.Snapshot, id gpu.UUID) bool { return !findGPU(t, s, id).Totals.XIDs.Since.IsZero() }
	s := n.pollAfter(time.Second)
	cmptest.Equal(t, "XIDs are counted", counted(s, uuidA), true)
	cmptest.Equal(t, "XIDs of a GPU without an address are counted", counted(s, uuidB), false)

	n.log.err = errors.New("no log")
	s = n.pollAfter(time.Second)
	cmptest.Equal(t, "XIDs are counted without the log", counted(s, uuidA), false)
	cmptest.Equal(t, "the log is up", s.Sources[len(s.Sources)-1].Up, false)

	n.log.err = nil
	cmptest.Equal(t, "XIDs are counted again", counted(n.pollAfter(time.Second), uuidA), true)
}

// TestLinesOfAGPUThatIsReadLater: those from after it was first seen count.
func TestLinesOfAGPUThatIsReadLater(t *testing.T) {
	n := newLoggingNode(t)
	n.src.errs[uuidB] = gpu.ErrTimeout
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.logXIDs(addressB(), 119, 62, 119)
	n.logXIDs(gpu.PCIAddress{Domain: 1}, 79)
	n.pollAfter(logDelay)
	n.pollAfter(time.Second)
	cmptest.HasTexts(t, n.out.String(), "pci=0000:43:00", "pci=0001:00:00")

	var unlisted []string
	for _, x := range n.Current().UnlistedXIDs {
		unlisted = append(unlisted, fmt.Sprintf("%s %d", x.PCI, x.XID))
	}

	cmptest.Equal(t, "XIDs of GPUs that were not read", unlisted, []string{"0000:43:00 62", "0000:43:00 119", "0001:00:00 79"})

	n.src.set(func() { n.src.errs[uuidB] = nil })
	s := n.pollAfter(time.Second)
	cmptest.Equal(t, "counts", xidsOf(findGPU(t, s, uuidB).Totals.XIDErrors), map[uint64]float64{62: 1, 119: 1})
	cmptest.Equal(t, "XIDs of GPUs that are still not read", len(s.UnlistedXIDs), 1)
}

// TestLinesThatWaitAreBounded: a GPU that is never listed does not fill the memory, nor take the
// place of others' lines.
func TestLinesThatWaitAreBounded(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.logXIDs(addressB(), 13)

	for range maxWaiting + 10 {
		n.logXIDs(gpu.PCIAddress{Domain: 1}, 79)
	}

	n.logXIDs(addressB(), 31)
	n.pollAfter(0)
	n.pollAfter(time.Minute)
	s := n.pollAfter(time.Second)
	lost := errorCount(findGPU(t, s, uuidB), gpu.ReadingEvents, gpu.ReasonOther)
	cmptest.Equal(t, "losses", lost, 1)

	if waiting := len(n.Poller.log.waiting); waiting > maxWaiting {
		t.Errorf("%d lines wait, want %d at most", waiting, maxWaiting)
	}

	cmptest.Equal(t, "counts", xidsOf(findGPU(t, s, uuidB).Totals.XIDErrors), map[uint64]float64{13: 1, 31: 1})
}

// TestLostLines are counted for each GPU, and said.
func TestLostLines(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.log.lost = true

	s := n.pollAfter(time.Second)
	for _, id := range []gpu.UUID{uuidA, uuidB} {
		cmptest.Equal(t, "errors of "+string(id), errorCount(findGPU(t, s, id), gpu.ReadingEvents, gpu.ReasonOther), 1)
	}

	cmptest.HasTexts(t, n.out.String(), "lost lines of the kernel's log")
}

// TestLinesAfterTheClockWasSetBack: a line from the future is counted at once.
func TestLinesAfterTheClockWasSetBack(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)

	n.logXIDs(addressB(), 79)
	s := n.pollAfter(-time.Hour)
	cmptest.Equal(t, "counts", xidsOf(findGPU(t, s, uuidB).Totals.XIDErrors), map[uint64]float64{79: 1})
}

// TestBurstFromBeforeTheStartIsLocated: an event that names the instance of a burst from before the
// start moves no count.
func TestBurstFromBeforeTheStartIsLocated(t *testing.T) {
	n := newLoggingNode(t)
	n.log.lines = []gpu.LoggedXID{{PCI: addressA(), XID: 94, Time: n.clock.Now(), BeforeStart: true}}
	defer n.startLoop()()
	n.pollAfter(0)

	n.src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 94, Instance: gpu.Some(gpu.InstanceID(2)),
		Time: n.clock.Now().Add(time.Second)}
	g := findGPU(t, n.pollAfter(time.Second), uuidA)
	cmptest.Equal(t, "of the GPU alone", xidsOf(g.Totals.GPUXIDs), map[uint64]float64{94: 0})
	cmptest.Equal(t, "of the instance", len(g.Instances[0].XIDErrors), 0)
}

// TestLinesThatAreOlderThanTheInstance name another one, which had its id: neither the instance nor
// the pod that holds it now is blamed.
func TestLinesThatAreOlderThanTheInstance(t *testing.T) {
	n := newLoggingNode(t)
	defer n.startLoop()()
	n.pollAfter(time.Second)
	n.logXIDs(addressA(), 13)
	n.log.lines[0].Instance = gpu.Some(gpu.InstanceID(2))
	late := n.log.lines
	n.log.lines = nil

	for _, instances := range [][]gpu.GPUInstance{nil, n.src.gpus[uuidA].Instances} {
		n.src.set(func() {
			g := n.src.gpus[uuidA]
			g.Instances = instances
			n.src.gpus[uuidA] = g
		})
		n.pollAfter(time.Second)
	}

	n.log.lines = late
	g := findGPU(t, n.pollAfter(logDelay), uuidA)

	cmptest.Equal(t, "of the GPU and its instances", xidsOf(g.Totals.XIDErrors), map[uint64]float64{13: 1})
	cmptest.Equal(t, "of the GPU alone", xidsOf(g.Totals.GPUXIDs), map[uint64]float64{13: 1})
	cmptest.Equal(t, "of the instance that has the id now", len(g.Instances[0].XIDErrors), 0)
	cmptest.HasTexts(t, n.out.String(), "gpu_instance=2")
}
