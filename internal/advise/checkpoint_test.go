package advise

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// written returns a Checkpoint as it is read again.
func written(t *testing.T, c *Checkpoint) *Checkpoint {
	t.Helper()

	var saved bytes.Buffer
	if err := c.Write(&saved); err != nil {
		t.Fatal(err)
	}

	read, err := ReadCheckpoint(&saved)
	if err != nil {
		t.Fatal(err)
	}

	return read
}

// restarted returns an Advisor with the evidence that another one saves, which is of the node of
// its last Snapshot, and stays so if nothing is observed after the restart.
func restarted(t *testing.T, before *Advisor, last *gpu.Snapshot) *Advisor {
	t.Helper()

	for range 2 {
		c := written(t, before.Checkpoint())
		cmptest.Equal(t, "dropped", len(c.Dropped()), 0)
		same, known := c.IsOf(last, false)
		cmptest.Equal(t, "evidence of this node", [2]bool{same, known}, [2]bool{true, true})
		cmptest.Equal(t, "name of the node", c.Node, last.Hostname)
		before = New(before.options)
		before.Restore(c)
	}

	return before
}

// TestCheckpointForgetsNothing: an Advisor that was restored half-way recommends what one
// recommends that ran through.
func TestCheckpointForgetsNothing(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.05, dram: 0.1, gib: 12}, pod("ml", "Deployment/a"))
	through := New(fastOptions())
	before := New(fastOptions())
	observeFor(through, start(), 4*24*time.Hour, g)
	after := restarted(t, before, observeFor(before, start(), 4*24*time.Hour, g))
	from := start().Add(4*24*time.Hour + time.Minute)
	want := recommend(through, observeFor(through, from, 4*24*time.Hour, g)).Devices[0]

	got := recommend(after, observeFor(after, from, 4*24*time.Hour, g)).Devices[0]
	if want.Action != ActionSlice || got.Recommended != want.Recommended {
		t.Errorf("%s %s, want %s %s", got.Action, got.Recommended, want.Action, want.Recommended)
	}

	if lost := want.Evidence.ObservedHours - got.Evidence.ObservedHours; lost > 0.1 {
		t.Errorf("%v hours were lost", lost)
	}
}

func TestUnreadableCheckpoints(t *testing.T) {
	a := New(fastOptions())
	observeFor(a, start(), time.Hour, wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a")))

	var saved bytes.Buffer
	if err := a.Checkpoint().Write(&saved); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		about, says string
		data        []byte
	}{
		{"cut off", "unexpected EOF", saved.Bytes()[:saved.Len()/2]},
		{"without its checksum", "unexpected EOF", saved.Bytes()[:saved.Len()-4]},
		{"another version", "version 1", append([]byte("mig-exporter right-sizing evidence, version 7\n"), 1, 2, 3)},
		{"empty", "expected", nil},
	} {
		if _, err := ReadCheckpoint(bytes.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.about, err, c.says)
		}
	}
}

// TestInvalidWorkloadsAreLeftOut: each is named, and all others are kept.
func TestInvalidWorkloadsAreLeftOut(t *testing.T) {
	for about, spoil := range map[string]func(*workload){
		"weight that is no number":  func(w *workload) { w.Busy.Weights[3] = float32(math.NaN()) },
		"negative weight":           func(w *workload) { w.Width.Weights[0] = -1 },
		"infinite memory":           func(w *workload) { w.Days[0].Memory = float32(math.Inf(1)) },
		"negative time":             func(w *workload) { w.Observed = -1 },
		"more starts than can be":   func(w *workload) { w.Starts.Containers.Seen = math.MaxInt32 },
		"starts that are negative":  func(w *workload) { w.Starts.Processes = &lastStarts{Seen: -1} },
		"unread, that is no number": func(w *workload) { w.MediaUnread = float32(math.NaN()) },
	} {
		a := New(fastOptions())

		var gpus []gpu.GPU
		for i := range 3 {
			gpus = append(gpus, wholeGPU(t, "H100-80GB", i, slight(), pod("ml", fmt.Sprintf("Deployment/d-%d", i))))
		}

		s := observeFor(a, start(), 30*time.Hour, gpus...)
		c := a.Checkpoint()
		at := slices.IndexFunc(c.Workloads, func(w workload) bool { return w.Key.Owner == "Deployment/d-1" })
		spoil(&c.Workloads[at])

		read := written(t, c)
		if len(read.Dropped()) != 1 ||
			!strings.Contains(read.Dropped()[0].Error(), `workload "Deployment/d-1" of namespace "ml", container "main"`) {
			t.Errorf("%s: dropped %v", about, read.Dropped())
		}

		after := New(fastOptions())
		after.Restore(read)
		after.Observe(s)

		var got []Action
		for _, d := range recommend(after, s).Devices {
			got = append(got, d.Action)
		}

		cmptest.Equal(t, about, got, []Action{ActionSlice, ActionKeep, ActionSlice})
	}
}

// TestCheckpointOfWhichNode: one of its GPUs shows it, or its name if it is that of a Kubernetes
// node; without a GPU it is not known.
func TestCheckpointOfWhichNode(t *testing.T) {
	nodeOf := func(name string, indices ...int) *gpu.Snapshot {
		s := &gpu.Snapshot{Hostname: name, Time: start()}
		for _, i := range indices {
			s.GPUs = append(s.GPUs, wholeGPU(t, "H100-80GB", i, load{}))
		}

		return s
	}
	a := New(fastOptions())
	a.Observe(nodeOf("exporter-x7k2p", 0, 1))
	a.Observe(nodeOf("exporter-x7k2p")) // the driver is being reloaded

	c := written(t, a.Checkpoint())
	for _, n := range []struct {
		about       string
		node        *gpu.Snapshot
		same, known bool
	}{
		{"another pod on the same node", nodeOf("exporter-9qmzt", 0, 1), true, true},
		{"one GPU was replaced", nodeOf("exporter-9qmzt", 7, 1), true, true},
		{"the same host name, other GPUs", nodeOf("exporter-x7k2p", 7), false, true},
		{"the same name, no GPU yet", nodeOf("exporter-x7k2p"), false, false},
		{"another node", nodeOf("exporter-9qmzt", 8, 9), false, true},
		{"another name, no GPU yet", nodeOf("exporter-9qmzt"), false, false},
		{"another name, a GPU without UUID", &gpu.Snapshot{Hostname: "n", GPUs: make([]gpu.GPU, 1)}, false, false},
	} {
		same, known := c.IsOf(n.node, false)
		cmptest.Equal(t, n.about, [2]bool{same, known}, [2]bool{n.same, n.known})
		same, known = c.IsOf(n.node, true)
		want := n.same || n.known && n.node.Hostname == "exporter-x7k2p" // all GPUs replaced
		cmptest.Equal(t, n.about+", a Kubernetes node", [2]bool{same, known}, [2]bool{want, n.known})
	}
}

// TestRestartIsAGapForEachReplica: the pods of one owner that run on were held meanwhile, each on
// its device; one that came or went meanwhile was not.
func TestRestartIsAGapForEachReplica(t *testing.T) {
	replica := func(index int) gpu.GPU {
		h := pod("ml", "Deployment/a")
		h.Pod, h.PodUID = fmt.Sprintf("a-%d", index), fmt.Sprintf("uid-%d", index)

		return wholeGPU(t, "H100-80GB", index, slight(), h)
	}
	moved := replica(3)

	moved.Holders = replica(9).Holders
	for _, c := range []struct {
		about string
		after []gpu.GPU
		held  float64 // hours
	}{
		{"all run on", []gpu.GPU{replica(0), replica(1), replica(2), replica(3)}, 4*10 + 4*2 + 4*1},
		{"one was replaced", []gpu.GPU{replica(0), replica(1), replica(2), moved}, 4*10 + 3*2 + 4*1},
		{"two have ended", []gpu.GPU{replica(2), replica(3)}, 4*10 + 2*2 + 2*1},
	} {
		a := New(fastOptions())
		s := observeFor(a, start(), 10*time.Hour, replica(0), replica(1), replica(2), replica(3))
		a = restarted(t, a, s)
		s = observeFor(a, s.Time.Add(2*time.Hour), time.Hour, c.after...)
		r := recommend(a, s).Devices[0]

		observed := float64(4*10 + len(c.after))
		if got, want := r.Evidence.CoverageRatio, observed/c.held; math.Abs(got-want) > 0.005 {
			t.Errorf("%s: coverage %.3f, want %.3f", c.about, got, want)
		}
	}
}

// TestLongPause: a GPU that is held is not free in the first report after it, and its pod was held
// all that time, even if it is described only later.
func TestLongPause(t *testing.T) {
	described := pod("ml", "Deployment/a")
	undescribed := described

	undescribed.Workload = ""

	undescribed.Undescribed = true
	for first, h := range map[string]gpu.Holder{"described": described, "undescribed": undescribed} {
		a := New(fastOptions())
		s := observeFor(a, start(), 48*time.Hour, wholeGPU(t, "H100-80GB", 0, slight(), described))
		a = restarted(t, a, s)
		s = observeFor(a, s.Time.Add(60*time.Hour), 0, wholeGPU(t, "H100-80GB", 0, slight(), h))
		at := recommend(a, s).Devices[0]
		cmptest.Equal(t, first+": at first", [2]any{at.Action, at.Workload != nil}, [2]any{ActionKeep, !h.Undescribed})
		s = observeFor(a, s.Time.Add(time.Second), 12*time.Hour, wholeGPU(t, "H100-80GB", 0, slight(), described))
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, first, [2]any{r.Action, r.Reason}, [2]any{ActionKeep, ReasonLowCoverage})

		if c := r.Evidence.CoverageRatio; math.Abs(c-0.5) > 0.005 { // 60 of 120 hours
			t.Errorf("%s: coverage %.3f, want 0.5", first, c)
		}
	}
}

// TestClockThatIsSetDuringARestart: neither way makes evidence up; the answer is a refusal or the
// one before.
func TestClockThatIsSetDuringARestart(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))

	for _, c := range []struct {
		jump time.Duration
		want Action
	}{
		{400 * 24 * time.Hour, ActionKeep}, // the pod was held all that time, and not observed
		{-400 * 24 * time.Hour, ActionSlice}, {-time.Hour, ActionSlice}, {time.Minute, ActionSlice},
	} {
		a := New(fastOptions())
		s := observeFor(a, start(), 48*time.Hour, g)
		a = restarted(t, a, s)
		r := recommend(a, observeFor(a, s.Time.Add(c.jump), 2*time.Hour, g)).Devices[0]
		cmptest.Equal(t, c.jump.String()+": "+r.Explanation, r.Action, c.want)

		if h := r.Evidence.ObservedHours; h > 50.1 || h < 47.9 {
			t.Errorf("%v: observed for %v h, want 48 to 50", c.jump, h)
		}
	}
}

// TestNoHistory: an Advisor that has seen nothing, or one Snapshot, recommends nothing, and calls
// nothing free that is held.
func TestNoHistory(t *testing.T) {
	s := &gpu.Snapshot{Time: start(), Hostname: "node-a", GPUs: []gpu.GPU{
		wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a")), wholeGPU(t, "H100-80GB", 1, load{}),
		slicedGPU(t, "H100-80GB", "1g.10gb", slight(), pod("ml", "Deployment/b")),
	}}
	s.GPUs[2].UUID = "GPU-2"

	for seen, want := range [][]answer{
		{{Action: ActionKeep, Reason: ReasonHoldersUnknown}, {Action: ActionFree},
			{Action: ActionKeep, Reason: ReasonHoldersUnknown}},
		{{Action: ActionKeep, Reason: ReasonLittleEvidence}, {Action: ActionFree},
			{Action: ActionKeep, Reason: ReasonLittleEvidence}},
	} {
		a := New(fastOptions())
		for range seen {
			a.Observe(s)
		}

		report := recommend(a, s)

		var got []answer
		for _, r := range report.Devices {
			got = append(got, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended})
		}

		cmptest.Equal(t, fmt.Sprint(seen, " Snapshots"), got, want)
		cmptest.Equal(t, "packing", report.Packing, nil)
	}

	cmptest.Equal(t, "without a GPU", len(recommend(New(fastOptions()), &gpu.Snapshot{}).Devices), 0)
}

// TestPodsAreForgotten: those of a CronJob do not pile up.
func TestPodsAreForgotten(t *testing.T) {
	a := New(fastOptions())
	at := start()

	for i := range 4000 {
		h := pod("ml", "CronJob/evaluation")
		h.PodUID = fmt.Sprintf("uid-%d", i)
		at = observeFor(a, at, time.Minute, wholeGPU(t, "H100-80GB", 0, slight(), h)).Time.Add(time.Minute)
	}

	for _, w := range a.workloads {
		if n := len(w.Pods); n > maxPods || w.podAt("uid-3999") < 0 {
			t.Errorf("%d pods, the last one at %d", n, w.podAt("uid-3999"))
		}
	}

	s := observeFor(a, at, 26*time.Hour, wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "CronJob/evaluation")))
	for key := range a.workloads {
		cmptest.Equal(t, "pods after "+s.Time.String(), len(a.workloads[key].Pods), 1)
	}
}
