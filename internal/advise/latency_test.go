package advise

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// stream is a stream of requests: how long each works on the whole GPU, and when it comes, in
// seconds.
type stream struct {
	at, service []float64
}

// poisson returns requests that come at random for a time, with a mean service time and a squared
// coefficient of variation of it that is 0 or 1.
func poisson(r *rand.Rand, load, service, spread, seconds float64) stream {
	var s stream

	for at := r.ExpFloat64() * service / load; at < seconds; at += r.ExpFloat64() * service / load {
		needs := service
		if spread > 0 {
			needs *= r.ExpFloat64()
		}

		s.at, s.service = append(s.at, at), append(s.service, needs)
	}

	return s
}

// inBursts moves a share of all requests to the end of each ten spells, of so many seconds.
func (s stream) inBursts(r *rand.Rand, share, seconds float64) stream {
	for i := range s.at {
		if spell := math.Floor(s.at[i] / seconds); r.Float64() < share {
			s.at[i] += seconds * (math.Ceil((spell+1)/10)*10 - 1 - spell)
		}
	}

	slices.Sort(s.at)

	return s
}

// atRates returns requests whose rate is another one every ten seconds, as in traces.
func atRates(r *rand.Rand, load, service, spread, seconds float64) stream {
	var all stream

	for from := 0.; from < seconds; from += 10 {
		one := poisson(r, load*math.Exp(0.7*r.NormFloat64()-0.245), service, spread, 10)
		for i := range one.at {
			all.at, all.service = append(all.at, from+one.at[i]), append(all.service, one.service[i])
		}
	}

	return all
}

// serve serves requests one after the other, each stretched, and returns the p95 of their latencies
// and how busy each second was.
func (s stream) serve(stretch, seconds float64) (p95 float64, busy []float64) {
	latencies := make([]float64, len(s.at))
	free := 0.
	busy = make([]float64, int(seconds))

	for i, at := range s.at {
		begin := max(at, free)
		free = begin + stretch*s.service[i]

		latencies[i] = free - at
		for t := begin; t < free; {
			next := min(math.Floor(t)+1, free)
			if second := int(t); second < len(busy) {
				busy[second] += next - t
			}

			t = next
		}
	}

	slices.Sort(latencies)

	return latencies[int(0.95*float64(len(latencies)))], busy
}

// predictedFor shows a GPU that serves requests to an Advisor, every second, and returns what is
// predicted for a profile.
func predictedFor(t *testing.T, busy []float64, width float64, service gpu.Opt[time.Duration], profile string) Latency {
	t.Helper()
	a := New(DefaultOptions())
	h := pod("ml", "Deployment/a")
	h.Rightsizing.ServiceTime = service
	g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, h)

	s := &gpu.Snapshot{Time: start(), GPUs: []gpu.GPU{g}}
	for _, share := range busy {
		s.GPUs[0].Activity.GraphicsEngine, s.GPUs[0].Activity.SM = gpu.Some(share), gpu.Some(share*width)
		s.GPUs[0].Activity.DRAM = gpu.Some(0.)
		a.Observe(s)
		s.Time = s.Time.Add(time.Second)
	}

	w := a.devices[gpu.IDOfGPU(g.UUID)].workload
	e := evidenceOf(w, a.now)

	e.requests = requestsOf(w, &e, h.Rightsizing, 1)
	for _, tried := range tryProfiles(&g, &e, wholeCapacity(&g), limits{stretch: 100}, a.options) {
		if tried.profile.Name == profile {
			return tried.latency
		}
	}

	t.Fatalf("no profile %s", profile)

	return Latency{}
}

// queueCase is a load of requests that stretches to a multiple of its latency in a slice of three
// sevenths.
type queueCase struct {
	width, service, load, spread float64
	burst, seconds               float64 // the share of the requests that comes in bursts, and how long those are
	rates                        bool    // another one every ten seconds
}

func (c *queueCase) stream(r *rand.Rand, seconds float64) (s stream, kind int) {
	if c.rates {
		return atRates(r, c.load, c.service, c.spread, seconds), 2
	}

	s = poisson(r, c.load, c.service, c.spread, seconds)
	if c.burst > 0 {
		return s.inBursts(r, c.burst, c.seconds), 1
	}

	return s, 0
}

func queueCases() (cases []queueCase) {
	for _, width := range []float64{0.4, 0.6} {
		for _, service := range []float64{0.005, 0.02, 0.1, 0.5, 2, 5} {
			for _, load := range []float64{0.05, 0.2, 0.4} {
				for _, spread := range []float64{0, 1} {
					for _, burst := range [][2]float64{{0, 1}, {0.15, 10}, {0.5, 10}, {0.15, 60}, {0.4, 60}, {0.15, 300}} {
						cases = append(cases, queueCase{width, service, load, spread, burst[0], burst[1], false})
					}

					cases = append(cases, queueCase{width, service, load, spread, 0, 1, true})
				}
			}
		}
	}

	return cases
}

// TestLatencyOfQueues holds predictions of waiting against requests that are served one by one;
// their kernels are stretched as predicted. Of a burst that keeps the whole GPU busy it cannot be
// seen what waits there.
func TestLatencyOfQueues(t *testing.T) {
	const seconds = 3660
	var contained, known, near [3]int // of requests that come at random, in bursts, and at changing rates
	var all [3]int

	for _, c := range queueCases() {
		r := rand.New(rand.NewPCG(1, 2))
		s, kind := c.stream(r, seconds)
		k := StretchOf(Kernels{Width: c.width}, Slice{SMs: 60. / 132, Bandwidth: 0.5})
		whole, busy := s.serve(1, seconds)
		slice, _ := s.serve(k.likely(), seconds)

		l := predictedFor(t, busy, c.width, gpu.Some(time.Duration(c.service*1e9)), "3g.40gb")
		want := slice / whole

		all[kind]++
		if want >= l.Low && want <= l.High {
			contained[kind]++
		}

		if l.Load <= 0.8 {
			known[kind]++
			if math.Abs(l.Figure/want-1) <= 0.25 {
				near[kind]++
			}
		}
	}

	t.Logf("of %d: %d in the interval, %d of %d figures within a quarter", all, contained, near, known)

	for kind, least := range [3]struct{ contained, near float64 }{{1, 0.95}, {0.95, 0.9}, {0.95, 0.9}} {
		if float64(contained[kind]) < least.contained*float64(all[kind]) ||
			float64(near[kind]) < least.near*float64(known[kind]) {
			t.Errorf("%d of %d in the interval, %d of %d figures within a quarter; expected %.0f and %.0f %%", contained[kind],
				all[kind], near[kind], known[kind], 100*least.contained, 100*least.near)
		}
	}
}

// served returns a GPU that answers requests.
func served(t testing.TB, busy, width float64, change func(*gpu.Holder)) gpu.GPU {
	t.Helper()

	h := pod("ml", "Deployment/a")
	if change != nil {
		change(&h)
	}

	return wholeGPU(t, "H100-80GB", 0, load{busy: busy, sm: busy * width, gib: 25}, h)
}

// TestFigureOfTheBusiestHour: a figure is of the kernels of the busiest hour, whatever those of
// most of the time are.
func TestFigureOfTheBusiestHour(t *testing.T) {
	g := served(t, 0, 0, func(h *gpu.Holder) { h.Rightsizing.ServiceTime = gpu.Some(10 * time.Millisecond) })
	a := New(fastOptions())
	s := show(a, start(), longEnough, g, func(at time.Time, g *gpu.GPU) {
		busy, width := 0.02, 0.2
		if at.Hour() == 12 {
			busy, width = 0.05, 0.6
		}

		g.Activity.GraphicsEngine, g.Activity.SM = gpu.Some(busy), gpu.Some(busy*width)
		g.Activity.DRAM = gpu.Some(0.)
	})
	w := a.devices[gpu.IDOfGPU(g.UUID)].workload
	e := evidenceOf(w, a.now)
	e.requests = requestsOf(w, &e, s.GPUs[0].Holders[0].Rightsizing, 1)

	for _, tried := range tryProfiles(&g, &e, wholeCapacity(&g), limits{stretch: 100}, a.options) {
		k := StretchOf(Kernels{Width: 0.6}, Slice{SMs: 60. / 132, Bandwidth: 0.5}).likely() / figureBias
		if l := tried.latency; tried.profile.Name == "3g.40gb" && l.Figure < k {
			t.Errorf("%+v, want a figure of %.2f or more", l, k)
		}
	}
}

// TestStrictlyTheWidestKernelsCount: a figure follows from the mean of kernels, and some requests
// may have wider ones, for which all others wait. Strictly, the figure of kernels that are
// stretched as far as is possible decides.
func TestStrictlyTheWidestKernelsCount(t *testing.T) {
	const seconds, service = 3660, 0.02
	_, busy := poisson(rand.New(rand.NewPCG(1, 2)), 0.4, service, 1, seconds).serve(1, seconds)
	l := predictedFor(t, busy, 0.3, gpu.Some(time.Duration(service*1e9)), "3g.40gb")
	high := StretchOf(Kernels{Width: 0.3}, Slice{SMs: 60. / 132, Bandwidth: 0.5}).High

	want := high * (1 - 0.4) / (1 - high*0.4) // the stretch of all latencies in such a queue
	if strict, _ := l.deciding(true); strict < 0.95*min(want, l.High) {
		t.Errorf("%+v: strictly %.2f, want %.2f", l, strict, want)
	}
}

// TestSliceWithoutReserve: what is known of a slice that nearly falls behind is the upper end.
func TestSliceWithoutReserve(t *testing.T) {
	const seconds, service = 3660, 0.02

	for load, reserve := range map[float64]bool{0.45: true, 0.63: false} {
		_, busy := poisson(rand.New(rand.NewPCG(1, 2)), load, service, 1, seconds).serve(1, seconds)

		l := predictedFor(t, busy, 0.6, gpu.Opt[time.Duration]{}, "3g.40gb")
		if l.Load >= 1 || (l.Load <= figureLoad) != reserve {
			t.Fatalf("a load of %.2f on the GPU is one of %.2f in the slice", load, l.Load)
		}

		if decides, _ := l.deciding(false); (decides < l.High) != reserve {
			t.Errorf("at a load of %.2f %.2f decides of %.2f to %.2f", l.Load, decides, l.Low, l.High)
		}
	}
}

// TestLatencyDecides: kernels that a slice stretches within the limit make requests wait beyond it,
// unless it is known that none does.
func TestLatencyDecides(t *testing.T) {
	refused := answer{Action: ActionKeep, Reason: ReasonLatency}

	sliced := answer{Action: ActionSlice, Profile: "3g.40gb"}
	for _, c := range []struct {
		about  string
		change func(*gpu.Holder)
		strict bool
		want   answer
		figure string
	}{
		{about: "requests of unknown length", want: refused},
		{about: "strictly", strict: true, want: refused},
		{about: "requests that hardly wait", change: func(h *gpu.Holder) { h.Rightsizing.MaxStretch = gpu.Some(4.) }, want: sliced,
			figure: FigureBusy},
		{about: "a job, whose steps may wait for each other", change: func(h *gpu.Holder) { h.Workload = "Job/a" },
			want: answer{Action: ActionKeep, Reason: ReasonThroughput}},
		{about: "a job, whose steps do not", change: func(h *gpu.Holder) { h.Workload, h.Rightsizing.Closed = "Job/a", true },
			want: sliced, figure: FigureStretch},
		{about: "said to answer none", change: func(h *gpu.Holder) { h.Rightsizing.Closed = true },
			want: sliced, figure: FigureStretch},
	} {
		g := served(t, 0.45, 0.6, c.change)
		o := fastOptions()
		o.Strict = c.strict
		r := recommendFor(o, longEnough, g)
		cmptest.Equal(t, c.about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)

		if r.Predicted != nil {
			cmptest.Equal(t, c.about+": figure", r.Predicted.Decided.Figure, c.figure)
		}
	}
}

// TestLatencyOfAJobIsNotKept: no queue is followed of what ends by itself.
func TestLatencyOfAJobIsNotKept(t *testing.T) {
	for owner, want := range map[string]int{"Job/a": 0, "CronJob/a": 0, "PyTorchJob/a": 0, "Deployment/a": 5} {
		a := New(fastOptions())
		g := served(t, 0.4, 0.6, func(h *gpu.Holder) { h.Workload = owner })
		observeFor(a, start(), 2*time.Hour, g)
		cmptest.Equal(t, owner, len(a.devices[gpu.IDOfGPU(g.UUID)].workload.Queues), want)
	}
}

// TestSlowRequestsInASlice: requests that wait too long show by busy time, though their kernels do
// not.
func TestSlowRequestsInASlice(t *testing.T) {
	for closed, want := range map[bool]answer{
		false: {Action: ActionGrow, Reason: ReasonLatency, Profile: "4g.40gb"},
		true:  {Action: ActionKeep, Reason: ReasonLittleEvidence},
	} {
		a := New(fastOptions())
		change := func(h *gpu.Holder) { h.Rightsizing.Closed = closed }
		s := observeFor(a, start(), 48*time.Hour, served(t, 0.45, 0.6, change))

		h := pod("ml", "Deployment/a")
		change(&h)
		// The kernels take 1.62 times as long, and work on as many SMs together.
		moved := slicedGPU(t, "H100-80GB", "3g.40gb", load{0.73, 0.73 * 0.6 / 1.62 * 132 / 60, 0, 25}, h)
		s = observeFor(a, s.Time.Add(time.Minute), 15*time.Minute, moved)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, want)
	}
}

// TestBusiestHourIsKept: of each span of days the busiest hour stays, by a clock that is set, too,
// until it is too old.
func TestBusiestHourIsKept(t *testing.T) {
	var u queueUse
	day := 24 * time.Hour
	u.add(queueHour{Load: 0.5, Busy: 0.4, Met: 0.4}, start())
	u.add(queueHour{Load: 0.3, Busy: 0.2, Met: 0.2}, start().Add(time.Hour))
	u.add(queueHour{Load: 0.1, Busy: 0.1, Met: 0.9}, start().Add(2*time.Hour)) // few requests, which came at once
	cmptest.Equal(t, "of a day", u.busiest(start()).Load, float32(0.5))
	u.shift(30)
	cmptest.Equal(t, "after the clock was set", u.busiest(start().Add(30*day)).Load, float32(0.5))
	u.add(queueHour{Load: 0.1, Busy: 0.1, Met: 0.1}, start().Add(38*day))
	cmptest.Equal(t, "eight days later", u.busiest(start().Add(38*day)).Load, float32(0.5))
	cmptest.Equal(t, "sixteen days later", u.busiest(start().Add(46*day)).Load, float32(0.1))
	cmptest.Equal(t, "a month later", u.busiest(start().Add(70*day)), queueHour{})
}

// TestPartOfAnHour: requests keep a GPU busy in the first ten minutes of each hour. A pod that goes ten
// minutes later leaves a part of an hour, half of which is busy, which makes it no busier hour. An hour
// of which a part is not read may have been as busy in that part.
func TestPartOfAnHour(t *testing.T) {
	cut := start().Add(5*time.Hour + 21*time.Minute)

	for about, c := range map[string]struct {
		replaced bool
		want     float64 // the busy time of the busiest hour
	}{
		"the pod is replaced":                {true, 10. / 60 * 0.9},
		"nothing is read for the rest of it": {false, 10. / 21 * 0.9},
	} {
		a := New(fastOptions())
		g := served(t, 0, 0, nil)
		show(a, start(), 10*time.Hour, g, func(at time.Time, g *gpu.GPU) {
			setActivity(g, 0, 0, 0)

			if at.Minute() < 10 {
				setActivity(g, 0.9, 0.3, 0)
			}

			switch {
			case at.Before(cut):
			case c.replaced:
				g.Holders = []gpu.Holder{g.Holders[0]}
				g.Holders[0].Pod = "b"
			case at.Hour() == cut.Hour():
				g.Activity = gpu.Activity{}
			}
		})

		queues := a.devices[gpu.IDOfGPU(g.UUID)].workload.Queues
		if len(queues) == 0 {
			t.Fatal("no hour was kept")
		}

		for i := range queues {
			if busy := float64(queues[i].busiest(a.now).Busy); math.Abs(busy/c.want-1) > 0.1 {
				t.Errorf("%s: the busiest hour was busy for %.2f of the time, want %.2f", about, busy, c.want)
			}
		}
	}
}

// TestQueuesTakeLittle: 10,000 workloads that answer requests, each seen for most of an hour, stay
// below 31 MiB. Following their queues allocates nothing.
func TestQueuesTakeLittle(t *testing.T) {
	const atOnce = 64
	gpus := make([]gpu.GPU, atOnce)
	a := New(fastOptions())
	at := start()
	before := heapBytes()

	for hour := range 10_000 / atOnce {
		for i := range gpus {
			owner := fmt.Sprintf("Deployment/model-of-a-candidate-%d", hour*atOnce+i)
			gpus[i] = wholeGPU(t, "H100-80GB", i, load{busy: 0.5, sm: 0.015, gib: 25}, pod("ml", owner))
		}

		observeFor(a, at, 25*time.Minute, gpus...)
		at = at.Add(time.Hour)
	}

	checkHeap(t, a, before, 31<<20)

	following := 0

	for _, w := range a.workloads {
		if len(w.Queues) > 0 {
			following++
		}
	}

	if following < len(a.workloads)-atOnce { // the last hour is open
		t.Errorf("%d of %d workloads have queues", following, len(a.workloads))
	}

	s := &gpu.Snapshot{Time: at, GPUs: []gpu.GPU{served(t, 0.5, 0.6, nil)}}
	for range 3700 {
		s.Time = s.Time.Add(time.Second)
		a.Observe(s)
	}

	if allocs := testing.AllocsPerRun(4000, func() {
		s.Time = s.Time.Add(time.Second)
		a.Observe(s)
	}); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// TestOverloadedSliceIsNoClosedLoop: requests that fill a slice, since it takes longer for each,
// still wait too long.
func TestOverloadedSliceIsNoClosedLoop(t *testing.T) {
	a := New(fastOptions())
	s := observeFor(a, start(), 48*time.Hour, served(t, 0.58, 0.6, nil))
	moved := slicedGPU(t, "H100-80GB", "3g.40gb", load{0.94, 0.94 * 0.6 / 1.62 * 132 / 60, 0, 25}, pod("ml", "Deployment/a"))
	s = observeFor(a, s.Time.Add(time.Minute), 15*time.Minute, moved)
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, r.Explanation, answer{Action: r.Action, Reason: r.Reason}, answer{Action: ActionGrow, Reason: ReasonLatency})
}

// TestHourAfterTheClockWasSet: the open hour ends, whichever way the clock was set; and a gap ends
// its backlog.
func TestHourAfterTheClockWasSet(t *testing.T) {
	a := New(fastOptions())
	g := served(t, 0.9, 0.9, nil) // a slice of three sevenths falls behind
	observeFor(a, start().AddDate(0, 0, 30), 90*time.Minute, g)

	d := a.devices[gpu.IDOfGPU(g.UUID)]
	if d.hour.queues[0].backlog == 0 {
		t.Fatal("there is no backlog")
	}

	s := observeFor(a, start(), 65*time.Minute, g)
	cmptest.Equal(t, "number of the hour", d.hour.number, hourOf(s.Time))

	if d.hour.observed > 10*60 {
		t.Errorf("the hour is %v s old after five minutes", d.hour.observed)
	}

	down := g
	down.Up = false
	observeFor(a, s.Time.Add(time.Minute), 30*time.Minute, down)
	cmptest.Equal(t, "backlog after a gap", d.hour.queues[0].backlog, 0)
}

// TestLatencyIsUnknownAtFirst: evidence of before there were queues gives a provisional answer.
func TestLatencyIsUnknownAtFirst(t *testing.T) {
	a := New(fastOptions())
	g := served(t, 0.3, 0.3, nil)
	s := observeFor(a, start(), longEnough, g)
	cmptest.Equal(t, "with queues", recommend(a, s).Devices[0].Provisional, false)
	a.devices[gpu.IDOfGPU(g.UUID)].workload.Queues = nil
	cmptest.Equal(t, "without", recommend(a, s).Devices[0].Provisional, true)
}
