package truth

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
	"github.com/mig-exporter/mig-exporter/internal/sim/simdcgm"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// fullNode is a node of the full simulator, read as the exporter reads one: NVML and DCGM behind
// their seams, the same sources, the same loop. Only the kubelet is left out, with its socket: the
// loop asks the simulated node itself who holds what.
type fullNode struct {
	t      *testing.T
	node   *sim.Node
	poller *poll.Poller
	answer func(s *gpu.Snapshot, minute int) // adds what inference servers answer in a minute
}

// holders lists the holders of a simulated node's devices, with what annotations say of their
// owners.
type holders struct {
	*sim.Node
	hints map[string]gpu.RightsizingHints
}

// hints returns what the annotations of each owner's pods say.
func (n *node) hints() map[string]gpu.RightsizingHints {
	all := map[string]gpu.RightsizingHints{}

	for i, w := range n.gpus {
		if w != nil {
			h := w.newHolders(i, 0)[0]
			all[h.Workload] = h.Rightsizing
		}
	}

	return all
}

// List implements poll.Pods.
func (h holders) List(context.Context) (gpu.Assignments, error) {
	owner := map[string]sim.Container{}
	for _, c := range h.Running() {
		owner[c.PodUID] = c
	}

	var all gpu.Assignments

	for i, held := range h.Holdings() {
		c := owner[held.PodUID]
		all.List = append(all.List, gpu.Assignment{
			ID: c.Devices[0].IDs[0], FirstListNumber: uint64(i), LastListed: h.Now(),
			Device: gpu.DeviceRef{GPU: held.GPU, MIG: held.MIG},
			Holder: gpu.Holder{
				Container: gpu.Container{Namespace: held.Namespace, Pod: held.Pod, Name: held.Container},
				PodUID:    held.PodUID, Workload: c.Owner, Resource: c.Devices[0].Resource, Sharing: gpu.SharingExclusive,
				Rightsizing: h.hints[c.Owner],
			},
		})
	}

	return all, nil
}

// startFull starts the node of a scenario, and its loop.
func startFull(t *testing.T, scenario *sim.Scenario, hints map[string]gpu.RightsizingHints) *fullNode {
	t.Helper()

	n, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	logger := log.NewNopLogger()
	source := nvmlsource.New(simnvml.New(n), nvmlsource.Options{
		Now: n.Now, GPM: true, Logger: logger,
	})
	profiler := dcgmsource.New(simdcgm.New(n), dcgmsource.Options{
		Mode: dcgmsource.ModeEmbedded, Interval: time.Minute, Now: n.Now, User: func() int { return 0 }, Logger: logger,
	})
	f := &fullNode{t: t, node: n, poller: poll.New(source, poll.Options{
		Hostname: scenario.Node.Hostname, Grace: time.Minute, Timeout: time.Hour, StaleAfter: time.Hour,
		PodsStaleAfter: time.Hour, Now: n.Now, Pods: holders{n, hints}, Profiler: profiler, Logger: logger,
		Extras:  gpu.Extras{Media: true},
		Sources: func() []gpu.SourceState { return []gpu.SourceState{{Name: gpu.SourceKubernetes, Up: true}} },
	})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.poller.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		closing, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()

		for _, err := range []error{<-ended, profiler.Close(closing), source.Close(closing), n.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})

	return f
}

// advance moves the clock and polls.
func (f *fullNode) advance(by time.Duration) *gpu.Snapshot {
	f.t.Helper()

	err := f.poller.Poll(context.Background(), func() error {
		defer f.node.AwaitHandled(context.Background())
		return f.node.Advance(by)
	})
	if err != nil {
		f.t.Fatal(err)
	}

	return f.poller.Current()
}

// snapshots yields a Snapshot of each minute, just before its end: the pods are still those of the
// minute. They tell the time as if the node had begun at another one.
func (f *fullNode) snapshots(began time.Time, minutes int) iter.Seq[*gpu.Snapshot] {
	return func(yield func(*gpu.Snapshot) bool) {
		by := time.Minute - time.Millisecond
		for minute := range minutes {
			s := *f.advance(by)
			later := began.Sub(sim.StepStart())

			s.Time, s.GPUs = s.Time.Add(later), slices.Clone(s.GPUs)
			for i := range s.GPUs {
				s.GPUs[i].LastRead = s.GPUs[i].LastRead.Add(later)
			}

			f.answer(&s, minute)

			if !yield(&s) {
				return
			}

			by = time.Minute
		}
	}
}

// realAgreement is how far what really happens in slices agrees.
type realAgreement struct {
	minutes                   int // in which kernels ran
	busy, throughput, stretch float64
}

func (r *realAgreement) merge(o *realAgreement) {
	r.minutes += o.minutes
	r.busy, r.throughput, r.stretch = max(r.busy, o.busy), max(r.throughput, o.throughput), max(r.stretch, o.stretch)
}

// add compares what the full simulator knows of the workload of a slice with what the workload
// model says.
func (r *realAgreement) add(n *node, s *slice, minute int, truth *sim.Truth) {
	d := s.work.demand(minute)
	whole := kernels.Run(d, n.wholeDevice())
	got := kernels.Run(d, n.device(s.profile, s.loss))
	r.minutes++
	r.busy = max(r.busy, math.Abs(truth.Busy-got.Busy))
	r.throughput = max(r.throughput, math.Abs(truth.Throughput-got.Throughput/whole.Throughput))
	r.stretch = max(r.stretch, math.Abs(truth.Stretch-got.Stretch/whole.Stretch))
}

// skipFirst leaves out the first minute: GPM and DCGM have no activity yet when they are read for
// the first time.
func skipFirst(source iter.Seq[*gpu.Snapshot]) iter.Seq[*gpu.Snapshot] {
	return func(yield func(*gpu.Snapshot) bool) {
		first := true
		for s := range source {
			if !first && !yield(s) {
				return
			}

			first = false
		}
	}
}

// compareNode observes a node on both ways, on whole GPUs and then in what was recommended.
func compareNode(t *testing.T, n *node, minutes, slicedMinutes int) *agreement {
	a := &agreement{nodes: 1, models: map[string]bool{n.model.Name: true}}
	fast := advise.New(options(false))
	full := advise.New(options(false))
	f := startFull(t, wholeScenario(t, n, minutes), n.hints())
	f.answer = n.answer
	advice := adviceOn(fast, skipFirst(fastPath(n, minutes)))
	a.compare(n.name, advice, adviceOn(full, skipFirst(f.snapshots(start(), minutes))))
	a.checkRecords(n, f)

	var list []slice

	for _, s := range n.subjects() {
		if r := &advice[s.gpu]; r.Action == advise.ActionSlice {
			list = append(list, slice{
				index: s.gpu, work: s.work, profile: s.find(r.Recommended).profile, moved: minutes,
			})
		}
	}

	if len(list) == 0 {
		return a
	}

	f = startFull(t, slicedScenario(t, n, list, minutes, slicedMinutes), n.hints())
	f.answer = func(s *gpu.Snapshot, minute int) { n.answerIn(s, list, minutes+minute) }
	after := start().Add(time.Duration(minutes) * time.Minute)
	at := minutes
	seen := func(yield func(*gpu.Snapshot) bool) {
		for s := range f.snapshots(after, slicedMinutes) {
			a.compareReal(n, list, at, f.node.Truth())
			at++

			if !yield(s) {
				return
			}
		}
	}
	inSlices := skipFirst(slicedPath(n, list, minutes, slicedMinutes))
	a.compare(n.name+" in slices", adviceOn(fast, inSlices), adviceOn(full, skipFirst(seen)))
	a.checkRecords(n, f)

	return a
}

// compareReal compares what really happens in the slices in a minute.
func (a *agreement) compareReal(n *node, slices []slice, minute int, truths []sim.Truth) {
	for k := range slices {
		s := &slices[k]
		if running, _ := s.work.runs(minute); !running || s.work.demand(minute).Busy == 0 {
			continue
		}

		load := loadName(s.index, s.work, minute)
		found := false

		for i := range truths {
			if truths[i].Workload == load {
				a.real.add(n, s, minute, &truths[i])
				found = true
			}
		}

		if !found {
			a.found = append(a.found, fmt.Sprintf("%s, minute %d: %s does not run", n.name, minute, load))
		}
	}
}

// checkRecords adds what went wrong in the full simulator.
func (a *agreement) checkRecords(n *node, f *fullNode) {
	for _, r := range f.node.Records() {
		if r.Message != "admitted" && r.Message != "ended" {
			a.found = append(a.found, fmt.Sprintf("%s: %s %s", n.name, r.Pod, r.Message))
		}
	}
}

// realTolerance is for sums of floating point.
const realTolerance = 1e-9

// compareNodes compares nodes on both ways, and reports what differs.
func compareNodes(t *testing.T, seed uint64, count, minutes, slicedMinutes int) *agreement {
	t.Helper()
	results := make([]*agreement, count)
	t.Run("full simulator", func(t *testing.T) {
		for i := range count {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				results[i] = compareNode(t, newNode(seed, i), minutes, slicedMinutes)
			})
		}
	})
	all := &agreement{}

	for _, r := range results {
		if r != nil {
			all.merge(r)
		}
	}

	for _, found := range all.found {
		t.Error(found)
	}

	if all.slices == 0 {
		t.Error("nothing was recommended a slice: no slice was compared")
	}

	if r := &all.real; r.minutes == 0 || max(r.busy, r.throughput, r.stretch) > realTolerance {
		t.Errorf("what really happens in slices, the largest differences: %+v, want up to %v", *r, realTolerance)
	}

	return all
}

// TestFastPathAgrees: the advice on generated nodes is that on the full simulator, polled as the
// exporter polls, and what really happens in slices is the same.
func TestFastPathAgrees(t *testing.T) {
	t.Parallel()

	if *report != "" {
		t.Skip("TestAdviceIsTrue does it for the report")
	}

	compareNodes(t, *seed, *fullNodes, *fullHours*60, *fullHours*60/8)
}
