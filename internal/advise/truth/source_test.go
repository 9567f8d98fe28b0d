package truth

import (
	"iter"
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fastPath yields the Snapshots of a node on whole GPUs, one for each minute. They share memory:
// each is valid until the next.
func fastPath(n *node, minutes int) iter.Seq[*gpu.Snapshot] {
	return func(yield func(*gpu.Snapshot) bool) {
		s := n.snapshot()
		for minute := range minutes {
			n.advance(s, minute)

			if !yield(s) {
				return
			}
		}
	}
}

// slicedPath yields the Snapshots of slices from a minute on, as fastPath does.
func slicedPath(n *node, slices []slice, from, minutes int) iter.Seq[*gpu.Snapshot] {
	return func(yield func(*gpu.Snapshot) bool) {
		s := n.sliced(slices)
		for minute := from; minute < from+minutes; minute++ {
			n.advanceSlices(s, slices, minute)

			if !yield(s) {
				return
			}
		}
	}
}

// adviceOn returns what an adviser recommends at the end of a source of Snapshots.
func adviceOn(a *advise.Advisor, source iter.Seq[*gpu.Snapshot]) []advise.Recommendation {
	var last *gpu.Snapshot

	for s := range source {
		a.Observe(s)
		last = s
	}

	if last == nil {
		return nil
	}

	return a.Recommend(last).Devices
}

// compareSources returns in what the advice on two sources of Snapshots of the same node differs.
// It is how the fast path is checked against a source that polls as the exporter does.
func compareSources(one, other iter.Seq[*gpu.Snapshot]) []string {
	var a agreement
	a.compare("", adviceOn(advise.New(options(false)), one), adviceOn(advise.New(options(false)), other))

	return a.found
}

// polled yields six Snapshots for each one of a source: the kernels of a minute run one after the
// other, and polls see either all of the GPU busy or nothing.
func polled(source iter.Seq[*gpu.Snapshot], change func(*gpu.GPU)) iter.Seq[*gpu.Snapshot] {
	const polls = 6

	return func(yield func(*gpu.Snapshot) bool) {
		for s := range source {
			end := s.Time
			minute := make([]gpu.GPU, len(s.GPUs))
			copy(minute, s.GPUs)

			for poll := range polls {
				// A poll of its own middle: all of a minute's polls are in one window, that of the
				// fast path's end.
				s.Time = end.Add(time.Duration(2*poll+1) * time.Minute / (2 * polls))
				for i := range s.GPUs {
					spread(&s.GPUs[i], minute[i].Activity, poll, polls)
					change(&s.GPUs[i])
				}

				if !yield(s) {
					return
				}
			}

			copy(s.GPUs, minute)
		}
	}
}

// spread gives a poll its part of the activity of a minute.
func spread(g *gpu.GPU, minute gpu.Activity, poll, polls int) {
	busy := minute.GraphicsEngine.Or(0)
	part := min(1, max(0, busy*float64(polls)-float64(poll)))

	scale := 0.
	if busy > 0 {
		scale = part / busy
	}

	g.Activity.GraphicsEngine = gpu.Some(part)
	g.Activity.SM, g.Activity.DRAM = gpu.Some(minute.SM.Or(0)*scale), gpu.Some(minute.DRAM.Or(0)*scale)
}

// throughputNode returns a node whose workloads are judged by throughput: the order of busy
// moments, which windows do not have, makes no difference.
func throughputNode(seed uint64, index int) *node {
	n := newNode(seed, index)
	for _, w := range n.gpus {
		if w != nil {
			w.serves = &serving{known: true, clients: 1}
		}
	}

	return n
}

// TestSourcesAgree: polls give the advice that windows give, and the comparison sees a source that
// does something else.
func TestSourcesAgree(t *testing.T) {
	t.Parallel()
	const minutes = 8 * dayMinutes

	for index := range 2 {
		n := throughputNode(3, index)
		if found := compareSources(fastPath(n, minutes), polled(fastPath(n, minutes), func(*gpu.GPU) {})); len(found) > 0 {
			t.Errorf("%s, %s: %q", n.name, n.model.Name, found)
		}
	}

	n := throughputNode(3, 0)
	for about, change := range map[string]func(*gpu.GPU){
		"wider kernels": func(g *gpu.GPU) { g.Activity.SM = gpu.Some(min(1, g.Activity.SM.Or(0)*1.5)) },
		"more memory":   func(g *gpu.GPU) { g.Readings.Memory.Used = gpu.Some(g.Readings.Memory.Used.Or(0) + 2*gib) },
		"a GPU is down": func(g *gpu.GPU) { g.Up = g.Index != 0 },
	} {
		if found := compareSources(fastPath(n, minutes), polled(fastPath(n, minutes), change)); len(found) == 0 {
			t.Errorf("%s: no difference is seen", about)
		}
	}
}

// TestGeneratedMixes: the kernels of a mix add up to their busy time, fit the GPU, and have about
// the mean width that was asked for.
func TestGeneratedMixes(t *testing.T) {
	t.Parallel()
	kindsSeen := map[string]bool{}
	mixes := map[string]float64{}
	count := map[string]float64{}

	for index := range 80 {
		n := newNode(4, index)
		for _, s := range n.subjects() {
			kindsSeen[s.work.kind] = true
			for _, phases := range s.work.states {
				sum := 0.
				for _, p := range phases {
					sum += p.Share
					if p.Share < 0 || p.Width < 1 || p.Width > float64(n.model.sms) || p.Bandwidth < 0 || p.Bandwidth > 0.9 {
						t.Fatalf("%s on %s: %+v, want a share of 0 or more, 1 to %d SMs, and 0 to 0.9 of the bandwidth",
							s.work.mix, n.model.Name, p, n.model.sms)
					}
				}

				if math.Abs(sum-1) > 1e-9 {
					t.Fatalf("%s: shares add up to %v", s.work.mix, sum)
				}

				widest := 0.
				for _, p := range phases {
					widest = max(widest, p.Width)
				}

				mixes[s.work.mix] += widest / float64(n.model.sms)
				count[s.work.mix]++
			}
		}
	}

	for _, k := range kinds() {
		if !kindsSeen[k.name] {
			t.Errorf("no workload is %s", k.name)
		}
	}

	for _, mix := range mixNames() {
		if mix != mixAlike && mixes[mix]/count[mix] < 1.2*mixes[mixAlike]/count[mixAlike] {
			t.Errorf("%s: the widest kernels fill %.2f of the GPU, as if they were alike", mix, mixes[mix]/count[mix])
		}
	}
}
