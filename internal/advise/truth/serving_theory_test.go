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
