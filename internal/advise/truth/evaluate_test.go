package truth

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// The ways of deciding that are compared.
const (
	byDefault = iota
	strictly
	naively // p95 of utilization under 30 %: the smallest profile with the memory
	ways
)

// size is what profiles of one size have in common, and what they do to a workload.
type size struct {
	on, lossy    kernels.Device
	gib          float64  // of memory
	real, hidden *outcome // what really happens, without and with a hidden loss
	foreseen     foreseen
	expected     []float64 // stretch by state of the workload, from the means that can be observed
	waits        [3]*waits // of requests, by week and loss; nil until asked for
}

// candidate is a profile that is smaller than the GPU.
type candidate struct {
	*size
	profile *gpu.Profile
}

// subject is a workload of a node and all that is measured of it.
type subject struct {
	gpu        int
	work       *workload
	candidates []candidate
	sizes      []*size
	past, next needs
	naive      distribution // of utilization: 1 + busy time
	answers    [ways]*candidate
	report     [2]advise.Recommendation
	flaps      int
	last       [2]string // action and profile of the last hour
	// noticed is the minute of the first advice to grow, by way and with a hidden loss or not; -1
	// if there was none.
	noticed [2][2]int
	judged  [2]*judged // requests before and after the move; nil until asked for
}

// result is what one node gave.
type result struct {
	node     *node
	subjects []*subject
	packing  [2]*advise.Packing
	records  []record
	wrong    []string // what contradicts itself in a report, or packs worse than is possible
	// gainless counts the slices that would do and gain nothing, roomy those that free no GPU and
	// make room, by mode.
	gainless, roomy [2]int
	// smallPackings were compared with an optimum; sharedPackings need fewer GPUs than they hold.
	smallPackings, sharedPackings int
}

// options are the defaults, for Snapshots of a minute.
func options(strict bool) advise.Options {
	o := advise.DefaultOptions()
	o.MaxGap = 2 * time.Minute
	o.Strict = strict

	return o
}

// evaluate observes a node, applies what is recommended, and lets its workloads run on.
func evaluate(n *node) *result {
	res := &result{node: n, subjects: n.subjects()}
	adviser := observe(n, res)

	for _, s := range res.subjects {
		for minute := observedMinutes; minute < observedMinutes+appliedMinutes; minute++ {
			s.apply(n, minute)
		}
	}

	all := func(*subject, *candidate) bool { return true }
	watch(n, res, adviser, byDefault, false, all)
	watch(n, res, adviser, strictly, false, func(s *subject, c *candidate) bool { return s.regrets(n, c.size) })
	watch(n, res, adviser, byDefault, true, func(s *subject, c *candidate) bool {
		return c.hidden.regret(s.work.promised()) || s.waitsOf(n, c.size, afterWithLoss).regret(s.work)
	})

	for _, s := range res.subjects {
		res.records = append(res.records, s.record(n))
	}

	res.subjects = nil // they take a tenth of a megabyte each

	return res
}

// apply runs a minute in a slice of each size.
func (s *subject) apply(n *node, minute int) {
	running, _ := s.work.runs(minute)
	if !running {
		return
	}

	d := s.work.demand(minute)
	whole := kernels.Run(d, n.wholeDevice())
	s.next.add(s.work.needMoved(minute, observedMinutes), s.work.uses(minute))

	for _, size := range s.sizes {
		size.real.add(d, size.on, whole, minute)
		size.hidden.add(d, size.lossy, whole, minute)

		if s.work.says != nil && s.work.isUp(minute, observedMinutes) {
			size.real.cache.add(s.work.lacksCache(minute, size.gib, kernels.Run(d, size.on).Stretch), d.Busy, minute)
			size.hidden.cache.add(s.work.lacksCache(minute, size.gib, kernels.Run(d, size.lossy).Stretch), d.Busy, minute)
		}
	}
}

// subjects returns the workloads of a node with all profiles smaller than its GPUs, the smallest
// first.
func (n *node) subjects() []*subject {
	var list []*subject
	for i, w := range n.gpus {
		if w == nil || slices.ContainsFunc(list, func(s *subject) bool { return s.work == w }) {
			continue
		}

		s := &subject{gpu: i, work: w, noticed: [2][2]int{{-1, -1}, {-1, -1}}}

		for k := range n.model.Profiles {
			if p := &n.model.Profiles[k]; p.MemorySlices < n.model.AxisUnits {
				s.candidates = append(s.candidates, candidate{size: s.sizeOf(n, p), profile: p})
			}
		}

		slices.SortStableFunc(s.candidates, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(a.profile.MemorySlices, b.profile.MemorySlices), cmp.Compare(a.profile.SMs, b.profile.SMs),
				cmp.Compare(len(a.profile.Name), len(b.profile.Name)))
		})
		list = append(list, s)
	}

	return list
}

func (s *subject) sizeOf(n *node, p *gpu.Profile) *size {
	on := n.device(p, 0)

	if at := slices.IndexFunc(s.sizes, func(z *size) bool { return z.on == on }); at >= 0 {
		return s.sizes[at]
	}

	z := &size{on: on, gib: float64(p.MemoryBytes) / gib, lossy: n.device(p, s.work.loss), real: newOutcome(), hidden: newOutcome()}
	for _, phases := range s.work.states {
		var seen advise.Kernels
		for _, p := range phases {
			seen.Width = seen.Width + p.Share*p.Width/float64(n.model.sms)
			seen.Bandwidth = seen.Bandwidth + p.Share*p.Bandwidth
		}

		of := advise.Slice{SMs: on.SMs / float64(n.model.sms), Bandwidth: on.Bandwidth}
		z.expected = append(z.expected, advise.StretchOf(seen, of).Expected)
	}

	s.sizes = append(s.sizes, z)

	return z
}

// observe shows a node to an adviser for two weeks, keeps what it recommends in each mode at the
// end, and returns it.
func observe(n *node, res *result) *advise.Advisor {
	a := advise.New(options(false))
	s := n.snapshot()
	p := &poller{n: n}
	see := func(s *gpu.Snapshot) { a.Observe(s) }

	for minute := range observedMinutes {
		if minute >= polledFrom {
			p.minute(s, minute, see)
		} else {
			n.advance(s, minute)
			a.Observe(s)
		}

		for _, subject := range res.subjects {
			subject.foresee(n, minute)
		}

		if minute%180 == 179 && minute > dayMinutes {
			report := a.Recommend(s)
			res.countFlaps(report)
			res.checkRecommended(report)
		}
	}

	for mode, a := range [2]*advise.Advisor{a, restarted(a, s, true)} {
		report := a.Recommend(s)
		// What a slice does is judged of every one that would be recommended, whether it gains
		// anything here or not.
		for _, subject := range res.subjects {
			r := report.Devices[subject.gpu]

			subject.report[mode] = r
			if r.Candidate() {
				subject.answers[mode] = subject.find(r.Recommended)
			}
		}

		res.checkPacking(report, s.GPUs)
		report.Pack(s)
		res.checkRecommended(report)
		res.checkMeasured(report)
		res.packing[mode] = report.Packing
		res.countGains(mode, report)
	}

	for _, subject := range res.subjects {
		subject.answers[naively] = subject.naiveAnswer()
	}

	return a
}

// restarted returns an adviser with the evidence of another one.
func restarted(from *advise.Advisor, s *gpu.Snapshot, strict bool) *advise.Advisor {
	var saved bytes.Buffer
	a := advise.New(options(strict))

	if err := from.Checkpoint().Write(&saved); err != nil {
		panic(err)
	}

	c, err := advise.ReadCheckpoint(&saved)
	if err != nil {
		panic(err)
	}

	a.Restore(c)
	a.Observe(s)

	return a
}

func (s *subject) foresee(n *node, minute int) {
	running, _ := s.work.runs(minute)
	if !running {
		return
	}

	s.past.add(s.work.observedNeed(minute), s.work.uses(minute))
	d := s.work.demand(minute)
	s.naive.add(1+d.Busy, 1)

	for _, z := range s.sizes {
		stretch := z.expected[s.work.stateAt(minute)]
		z.foreseen.add(d, stretch, z.on.Engines)

		if s.work.says != nil && s.work.isUp(minute, 0) {
			z.foreseen.cache.add(s.work.lacksCache(minute, z.gib, stretch), d.Busy, minute)
		}
	}
}

func (s *subject) find(profile string) *candidate {
	for i := range s.candidates {
		if s.candidates[i].profile.Name == profile {
			return &s.candidates[i]
		}
	}

	return nil
}

// naiveAnswer is what a dashboard leads to: a GPU that is used little gets the smallest slice with
// enough memory.
func (s *subject) naiveAnswer() *candidate {
	if s.naive.quantile(0.95) >= 1.3 {
		return nil
	}

	for i := range s.candidates {
		if c := &s.candidates[i]; max(s.past.gib, s.work.taken)*gib <= float64(c.profile.MemoryBytes) {
			return c
		}
	}

	return nil
}

// countFlaps counts the changes of each answer, the first one excepted.
func (res *result) countFlaps(report *advise.Report) {
	for _, s := range res.subjects {
		r := &report.Devices[s.gpu]
		if r.Action == advise.ActionFree || r.Reason == advise.ReasonLittleEvidence {
			continue
		}

		now := [2]string{string(r.Action), r.Recommended}
		if s.last != [2]string{} && now != s.last {
			s.flaps++
		}

		s.last = now
	}
}

// checkRecommended notes the profiles that are recommended although the report says why they do not
// do.
func (res *result) checkRecommended(report *advise.Report) {
	for i := range report.Devices {
		r := &report.Devices[i]
		for _, c := range r.Considered {
			if c.Profile == r.Recommended && c.Reason != advise.ReasonNone {
				res.wrong = append(res.wrong, fmt.Sprintf("%s GPU %d at %v: %s is recommended, and considered as %s",
					report.Node, r.Index, report.Time, r.Recommended, c.Reason))
			}
		}
	}
}

// countGains counts what a packed node gains, and notes the candidates that gain nothing.
func (res *result) countGains(mode int, report *advise.Report) {
	for i := range report.Devices {
		r := &report.Devices[i]
		if r.Reason == advise.ReasonNoGain {
			res.gainless[mode]++
		}

		if !r.Candidate() {
			continue
		}

		if r.Gain == nil {
			res.wrong = append(res.wrong, fmt.Sprintf("%s GPU %d: a candidate without gain", report.Node, r.Index))
		} else if r.Gain.FreedGPUs == 0 {
			res.roomy[mode]++
		}
	}
}

// cuttable reports whether what a workload does can be done in a slice at all.
func (w *workload) cuttable() bool { return w.pods == 1 && !w.shared }

// best returns the smallest profile of which an oracle says that it does; nil if none does.
func (s *subject) best(n *node, does func(*node, *candidate) bool) *candidate {
	if !s.work.cuttable() {
		return nil
	}

	for i := range s.candidates {
		if does(n, &s.candidates[i]) {
			return &s.candidates[i]
		}
	}

	return nil
}

// harms reports whether a workload dies in a profile or passes a limit.
func (s *subject) harms(n *node, c *candidate) bool { return s.dies(c) || s.regrets(n, c.size) }

// dies reports whether a profile lacks memory or an engine.
func (s *subject) dies(c *candidate) bool {
	return s.next.outOfMemory(c.profile) || lacks(c.profile, s.next.media)
}

// knowsAll is the oracle that knows what will happen.
func (s *subject) knowsAll(n *node, c *candidate) bool { return !s.harms(n, c) }

// knowsPast is the oracle that knows all that could be observed. What memory is used between two
// readings cannot, see needs.foretold; a reservation has nothing there.
func (s *subject) knowsPast(n *node, c *candidate) bool {
	return s.keepsNothing(n, c) &&
		(s.work.says != nil || float64(c.profile.MemoryBytes) >= s.past.foretold(&s.next)*gib)
}

// keepsNothing is an oracle that takes memory for what it was in the past, and keeps none free.
// What a server needs of what it has reserved cannot be observed, unless it says it.
func (s *subject) keepsNothing(n *node, c *candidate) bool {
	return s.work.startSeen() && (s.work.fraction == 0 || s.work.says != nil) && !s.past.outOfMemory(c.profile) &&
		!lacks(c.profile, s.past.media) && s.foreseeably(n, c.size)
}

// watch runs what was recommended in slices, for the same adviser to watch, and keeps when it says
// that one must grow.
func watch(
	n *node, res *result, adviser *advise.Advisor, way int, hidden bool, which func(*subject, *candidate) bool,
) {
	var list []slice
	var of []*subject

	for _, s := range res.subjects {
		if c := s.answers[way]; c != nil && which(s, c) {
			one := slice{index: s.gpu, work: s.work, profile: c.profile, moved: observedMinutes}
			if hidden {
				one.loss = s.work.loss
			}

			list, of = append(list, one), append(of, s)
		}
	}

	if len(list) == 0 {
		return
	}

	before := n.snapshot()
	n.advance(before, observedMinutes-1)
	a := restarted(adviser, before, way == strictly)
	s := n.sliced(list)

	at := 0
	if hidden {
		at = 1
	}

	polled := map[int]bool{}
	p := &poller{n: n}

	for _, s := range of {
		if s.work.serves == nil {
			continue
		}

		for _, hour := range s.judge(n, after).hours {
			polled[hour] = true
		}
	}

	for minute := observedMinutes; minute < observedMinutes+appliedMinutes; minute++ {
		if polled[minute/60] {
			p.minuteIn(s, list, minute, func(s *gpu.Snapshot) { a.Observe(s) })
		} else {
			n.advanceSlices(s, list, minute)
			a.Observe(s)
		}

		if minute%15 != 14 {
			continue
		}

		for _, r := range a.Recommend(s).Devices {
			if r.Action == advise.ActionGrow && of[r.Index].noticed[way][at] < 0 {
				of[r.Index].noticed[way][at] = minute
			}
		}
	}
}

// polledFrom is the minute from which on a node is polled before the advice is taken: until then
// each Snapshot is of a minute. The advisor forgets the queues of hours after twelve days at the
// latest.
const polledFrom = observedMinutes - 12*dayMinutes

// watchedBefore is how much of the time on whole GPUs an adviser of slices has seen.
const watchedBefore = 2 * dayMinutes
