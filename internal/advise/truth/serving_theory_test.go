package truth

import (
	"math"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
	"github.com/mig-exporter/mig-exporter/internal/sim/requests"
)

// servingNode returns a node of H100s, one of which answers requests of 50 ms that come at random,
// with kernels of a width that keep it busy for a share of the time.
func servingNode(width, busy float64, clients int) *node {
	n := &node{name: "serving"}
	all := models()
	n.model = all[slices.IndexFunc(all, func(m model) bool { return m.Name == "H100-80GB" })]
	n.gpus[0] = &workload{
		kind: "daily", mix: mixAlike, seed: 5, pods: 1, needGiB: steady(2), busy: steady(busy),
		start:   starting{name: startPlain, peak: 1, began: 1},
		states:  [][]kernels.Phase{{{Share: 1, Width: width, Bandwidth: 0.02}}},
		stateAt: func(int) int { return 0 },
		serves: &serving{
			arrivals: arrivePoisson, known: true, clients: clients, spread: func(int) float64 { return 1 },
			service: requests.Service{Mean: 0.05, Shape: requests.Exponential},
		},
	}

	return n
}

// TestRequestsAreJudged: in a slice that stretches kernels by k, the p95 of latency of an M/M/1
// queue is stretched by k (1-rho)/(1-k rho); a regret from 2 on, if no client waits for the answer.
func TestRequestsAreJudged(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		width, busy float64
		profile     string
		clients     int
		regret      bool
	}{
		{20, 0.5, "3g.40gb", 0, false}, {100, 0.3, "3g.40gb", 0, true}, {75, 0.2, "3g.40gb", 0, false},
		{84, 0.5, "3g.40gb", 0, true}, {40, 0.1, "1g.10gb", 0, true}, {75, 0.2, "3g.40gb", 40, false},
		{100, 0.8, "3g.40gb", 8, true},
	} {
		n := servingNode(c.width, c.busy, c.clients)
		s := n.subjects()[0]

		v := s.waitsOf(n, s.find(c.profile).size, after)
		if !v.known || v.regret(s.work) != c.regret || (v.bad >= 0) != c.regret {
			t.Errorf("%+v: %+v", c, v)
		}

		k := max(1, c.width/float64(s.find(c.profile).profile.SMs))
		if want := k * (1 - c.busy) / (1 - k*c.busy); c.clients == 0 && math.Abs(v.latency/want-1) > 0.1 {
			t.Errorf("%+v: p95 of latency is stretched by %.2f, want %.2f", c, v.latency, want)
		}

		if whole := s.waitsOf(n, s.find(c.profile).size, before); whole == v {
			t.Error("the week before the move is the one after it")
		}
	}
}

// TestPollsShowRequests: what polls show over an hour is the work of the requests, on the whole GPU
// and in a slice.
func TestPollsShowRequests(t *testing.T) {
	t.Parallel()
	n := servingNode(75, 0.4, 0)
	on := slice{index: 0, work: n.gpus[0], profile: n.subjects()[0].find("3g.40gb").profile, moved: observedMinutes}
	p := &poller{n: n}
	inSlice := &poller{n: n}
	whole := n.snapshot()
	sliced := n.sliced([]slice{on})
	var busy, sms, differing float64

	for minute := observedMinutes + 60; minute < observedMinutes+120; minute++ {
		p.minute(whole, minute, func(s *gpu.Snapshot) {
			a := &s.GPUs[0].Activity
			busy, sms = busy+a.GraphicsEngine.Or(0)/(60*polls), sms+a.SM.Or(0)*132/(60*polls)
			differing = max(differing, math.Abs(a.GraphicsEngine.Or(0)-0.4))
		})
		inSlice.minuteIn(sliced, []slice{on}, minute, func(s *gpu.Snapshot) {
			busy -= s.GPUs[0].Instances[0].Activity.GraphicsEngine.Or(0) / (60 * polls) * 60 / 75
		})
	}

	if math.Abs(busy) > 0.005 || math.Abs(sms/(0.4*75)-1) > 0.05 || differing < 0.05 {
		t.Errorf("busy time differs by %v from that in the slice, %v SMs at work, polls differ by %v", busy, sms, differing)
	}
}

// TestLateRequestsAreNoticed: requests that wait too long in a slice lead to the advice to grow
// within an hour.
func TestLateRequestsAreNoticed(t *testing.T) {
	t.Parallel()
	n := servingNode(100, 0.5, 0)
	s := n.subjects()[0]
	on := []slice{{index: 0, work: s.work, profile: s.find("3g.40gb").profile, moved: observedMinutes}}
	a := advise.New(options(false))
	p := &poller{n: n}
	before := n.snapshot()
	sliced := n.sliced(on)

	see := func(s *gpu.Snapshot) { a.Observe(s) }
	for minute := observedMinutes - dayMinutes; minute < observedMinutes; minute++ {
		p.minute(before, minute, see)
	}

	p = &poller{n: n}
	for minute := observedMinutes; minute < observedMinutes+noticeWithin; minute++ {
		p.minuteIn(sliced, on, minute, see)

		if a.Recommend(sliced).Devices[0].Action == advise.ActionGrow {
			return
		}
	}

	t.Errorf("not advised to grow: %+v", a.Recommend(sliced).Devices[0])
}

// TestPollsDoNotShowBetweenWhichRequestsP95Lies: three workloads keep a GPU busy for the same time with
// kernels of the same width, and so they do a slice. A quarter of that time is of long requests, which
// take 1.6 times as long in the slice. If one request of 19 is long, p95 of latency is that of long
// ones, there as here. If it is one of 37, p95 was that of short ones, and the waiting in the slice
// makes it that of long ones. If it is one of 121, it stays that of short ones. No advice that is made
// of busy time and width is right for all three.
func TestPollsDoNotShowBetweenWhichRequestsP95Lies(t *testing.T) {
	t.Parallel()

	var first onPolls

	for i, c := range []struct {
		long   float64 // how many times as long as the others
		regret bool
	}{{6, false}, {12, true}, {40, false}} {
		n := servingNode(0, 0.05, 0)
		w := n.gpus[0]
		w.kind = "mixture"
		w.states = [][]kernels.Phase{{
			{Share: 0.25, Width: 26, Bandwidth: 0.02},
			{Share: 0.75, Width: 7, Bandwidth: 0.02},
		}}
		w.serves = &serving{
			arrivals: arriveBursty,
			burst:    requests.Burst{Factor: 7, Within: 30, Between: 60},
			each:     true,
			service:  requests.Service{Mean: 0.01},
			spread:   func(phase int) float64 { return [2]float64{c.long, 1}[phase] },
		}

		s := n.subjects()[0]
		size := s.find("1g.10gb").size

		v := s.waitsOf(n, size, after)
		if v.regret(w) != c.regret || v.passesAtP95Alone(w) != c.regret {
			t.Errorf("%+v: regret %v, at p95 alone %v: %+v", c, v.regret(w), v.passesAtP95Alone(w), v)
		}

		var seen onPolls

		for _, hour := range s.judge(n, after).hours {
			seen.whole.add(w.serve(hour, requestsDevice(n.wholeDevice())))
			seen.slice.add(w.serve(hour, requestsDevice(size.on)))
		}

		if i == 0 {
			first = seen
		}

		if !seen.isLike(&first) {
			t.Errorf("%+v: polls show %+v, and %+v of the first workload", c, seen, first)
		}
	}
}

// onPolls is what polls see of a workload on its whole GPU and in a slice.
type onPolls struct{ whole, slice sums }

// sums are of all polls: busy seconds, and SMs that are active.
type sums struct{ busy, active float64 }

func (s *sums) add(h *servedHour) {
	for i := range h.polls {
		s.busy += h.polls[i].Busy
		s.active += h.polls[i].SMs
	}
}

// isLike reports whether busy time and width are the same but for a fiftieth.
func (p *onPolls) isLike(other *onPolls) bool {
	like := func(a, b float64) bool { return math.Abs(a/b-1) < 0.02 }

	return like(p.whole.busy, other.whole.busy) && like(p.whole.active, other.whole.active) &&
		like(p.slice.busy, other.slice.busy) && like(p.slice.active, other.slice.active)
}
