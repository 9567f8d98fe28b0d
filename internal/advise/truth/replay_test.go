package truth

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/requests"
)

var (
	traceFile   = flag.String("replay", "", "CSV file to replay")
	traceModel  = flag.String("replay-model", "A100-80GB", "model of the GPUs that the workloads of the trace have")
	startsSeen  = flag.Bool("starts-seen", false, "workloads that run at the beginning of the trace were started there")
	serviceTime = flag.Duration("service-time", 0, "of the requests of all workloads, on the whole GPU; 0 if unknown")
)

// TestReplay replays a trace and prints what the advice would have done.
func TestReplay(t *testing.T) {
	if *traceFile == "" {
		t.Skip("needs -replay, a file")
	}

	if err := checkServiceTime(*serviceTime); err != nil {
		t.Fatal(err)
	}

	at := slices.IndexFunc(models(), func(m model) bool { return m.Name == *traceModel })
	if at < 0 {
		var names []string
		for _, m := range models() {
			names = append(names, m.Name)
		}

		t.Fatalf("model %q: expected one of %s", *traceModel, strings.Join(names, ", "))
	}

	f, err := os.Open(*traceFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	list, err := readTrace(f)
	if err != nil {
		t.Fatalf("%s: %v", *traceFile, err)
	}

	r := newReplay(&models()[at], list, *startsSeen, *serviceTime)
	var b strings.Builder
	r.render(&b, true)
	fmt.Print(b.String())
}

// checkServiceTime returns an error if no request can take a time.
func checkServiceTime(service time.Duration) error {
	if service < 0 {
		return fmt.Errorf("-service-time %v: expected a time above 0, or 0 if it is unknown", service)
	}

	return nil
}

func TestNegativeServiceTimeIsRefused(t *testing.T) {
	t.Parallel()

	for service, refused := range map[time.Duration]bool{-time.Second: true, 0: false, time.Second: false} {
		cmptest.Equal(t, service.String(), checkServiceTime(service) != nil, refused)
	}
}

// TestReplayOfWidthAlone: without bandwidth it is not known what kernels use of the GPU, so that nothing
// is advised, and no count rests on the bandwidth that we assume.
func TestReplayOfWidthAlone(t *testing.T) {
	t.Parallel()

	for columns, want := range map[string]string{
		"width":           "| naive rule | 1 | 0 | 1 | – | – |\n",
		"bandwidth":       "| naive rule | 1 | 0 | 1 | – | – |\n",
		"width,bandwidth": "| naive rule | 1 | 0 | 0 | 0 | – |\n",
	} {
		var b strings.Builder
		fmt.Fprintf(&b, "time,workload,memory_mib,busy,%s\n", columns)

		for row := range 12 * 24 * 4 {
			kernels := "0.05"
			if columns == "width,bandwidth" {
				kernels = "0.05,0.05"
			}

			fmt.Fprintf(&b, "%d,a,5000,0.25,%s\n", 1767225600+300*row, kernels)
		}

		r, _ := mustReplay(t, &shape{csv: b.String(), model: "H100-80GB", started: true})
		b.Reset()
		r.renderCounts(&b, "naive rule", func(a *replayed) *moved { return a.naive })
		cmptest.Equal(t, columns, b.String(), want)
	}
}

// TestCountsOfWhatTheTraceLacks: the summary counts a workload whose kernels are not in the trace by the
// same figures as the list marks by "~", in each column.
func TestCountsOfWhatTheTraceLacks(t *testing.T) {
	t.Parallel()

	r := replay{measured: true, answers: []replayed{{naive: &moved{stretch: 2.2, worstHour: 0.5}}}}

	var b strings.Builder
	r.renderCounts(&b, "naive rule", func(a *replayed) *moved { return a.naive })
	cmptest.Equal(t, "counts", b.String(), "| naive rule | 1 | 0 | 1 | 1 | – |\n")
}

// replay shows the first half of a trace to the advisor, and holds its advice against the other
// half.
type replay struct {
	model      *model
	step       time.Duration
	service    time.Duration
	from, half time.Time
	started    bool // what runs at the beginning was started there
	measured   bool // the trace has what kernels use of the GPU, in some lines: width and bandwidth
	answers    []replayed
}

// replayed is a workload of a trace, what is recommended for it at half time, and what came of it.
type replayed struct {
	name           string
	answer         advise.Recommendation
	sampled        bool   // the answer is a slice by a part of the kernels only, which is no advice yet
	advised, naive *moved // nil if it stays on its GPU, or does nothing in the second half
}

// moved is what a slice would have done to a workload in the second half.
type moved struct {
	profile    *gpu.Profile
	memory     float64 // largest, in bytes
	killed     bool
	known      bool // what kernels use of the GPU; figures of time are those of the widest that is possible, if not
	busy       float64
	stretch    float64 // of kernels at p95
	worstHour  float64 // throughput
	waits      float64 // of work in the slice's queue at p95, in seconds
	waitsWhole float64 // on the whole GPU
	latency    float64 // p95 relative to the whole GPU, of simulated requests; 0 if the service time is not known
}

// harmed reports whether a move kills a workload, costs it more than a twentieth of an hour's
// throughput, or stretches its kernels or requests beyond their limit. A stretch counts only if we know
// what kernels use of the GPU.
func (m *moved) harmed() bool {
	return m != nil && (m.killed || m.worstHour < minThroughput || m.known && m.isStretched() || m.isLate())
}

// isStretched reports whether kernels are stretched beyond the limit, by the figure that we show.
func (m *moved) isStretched() bool { return m.stretch > maxStretch*resolution }
func (m *moved) isLate() bool      { return m.latency > maxStretch*resolution }

// newReplay replays a trace.
func newReplay(m *model, list []*traced, started bool, service time.Duration) *replay {
	r := &replay{model: m, step: step(list), service: service, started: started}
	last := list[0].rows[0].time

	r.from = last
	for _, w := range list {
		if first := w.rows[0].time; first.Before(r.from) {
			r.from = first
		}

		if end := w.rows[len(w.rows)-1].time; end.After(last) {
			last = end
		}
	}

	r.half = r.from.Add(last.Sub(r.from) / 2)
	for _, w := range list {
		r.measured = r.measured || slices.ContainsFunc(w.rows, func(row traceRow) bool {
			return row.width.Present() && row.bandwidth.Present()
		})
		r.answers = append(r.answers, r.replay(w))
	}

	return r
}

// gap is the time without a row from which on a pod is taken for ended.
func (r *replay) gap() time.Duration { return 3 * r.step }

// replay shows the first half of a workload to an advisor of its own.
func (r *replay) replay(w *traced) replayed {
	o := advise.DefaultOptions()
	o.MaxGap = max(o.MaxGap, 2*r.step)
	o.MinEvidence = max(time.Minute, min(o.MinEvidence, r.half.Sub(r.from)*9/10))
	a := advise.New(o)
	s := (&node{name: "replay", model: *r.model}).snapshot()
	s.GPUs = s.GPUs[:1]
	half, _ := slices.BinarySearchFunc(w.rows, r.half, func(row traceRow, at time.Time) int { return row.time.Compare(at) })

	if w.rows[0].time.Sub(r.from) > r.gap() || r.started {
		r.leave(s, w.rows[0].time.Add(-time.Second))
		a.Observe(s)
	}

	pod := 0

	for i := range w.rows[:half] {
		if i > 0 && w.rows[i].time.Sub(w.rows[i-1].time) > r.gap() {
			r.leave(s, w.rows[i-1].time.Add(r.step))
			a.Observe(s)
			pod++
		}

		r.hold(s, w, &w.rows[i], pod)
		a.Observe(s)
	}

	result := replayed{name: w.name}
	if half == 0 {
		return result // it came later
	}

	result.answer = a.Recommend(s).Devices[0]

	e := result.answer.Evidence
	result.sampled = result.answer.Action == advise.ActionSlice && e != nil && e.ActivityHours > 0

	rest := w.rows[half:]
	if len(rest) == 0 {
		return result
	}

	if result.answer.Action == advise.ActionSlice && !result.sampled {
		result.advised = r.move(rest, result.answer.Recommended)
	}

	if profile := r.naive(w.rows[:half]); profile != "" {
		result.naive = r.move(rest, profile)
	}

	return result
}

// leave makes a Snapshot one of a free GPU.
func (r *replay) leave(s *gpu.Snapshot, at time.Time) {
	s.Time = at
	n := &node{model: *r.model}
	g := &s.GPUs[0]
	n.work(g, nil, n.hold(g, nil, 0), 0)
}

// hold makes a Snapshot that of a row: what a workload did until the next one.
func (r *replay) hold(s *gpu.Snapshot, w *traced, row *traceRow, pod int) {
	s.Time = row.time.Add(r.step)
	g := &s.GPUs[0]
	g.Allocated = gpu.Some(true)
	g.Holders = []gpu.Holder{{
		Container: gpu.Container{Namespace: "trace", Pod: fmt.Sprintf("%s-%d", w.name, pod), Name: "main"},
		PodUID:    fmt.Sprintf("uid-%s-%d", w.name, pod), Workload: "Deployment/" + w.name,
		Resource: "nvidia.com/gpu", Sharing: gpu.SharingExclusive, Rightsizing: r.hints(),
	}}
	g.Readings.Memory.Used = gpu.Some(uint64(row.memory))

	g.Activity = gpu.Activity{GraphicsEngine: gpu.Some(row.busy)}
	if width, ok := row.width.Get(); ok {
		g.Activity.SM = gpu.Some(width * row.busy)
	}

	if bandwidth, ok := row.bandwidth.Get(); ok {
		g.Activity.DRAM = gpu.Some(bandwidth * row.busy)
	}
}

func (r *replay) hints() gpu.RightsizingHints {
	if r.service == 0 {
		return gpu.RightsizingHints{}
	}

	return gpu.RightsizingHints{ServiceTime: gpu.Some(r.service)}
}

// naive returns the smallest profile with enough memory for a workload that was little used; empty
// if it was not.
func (r *replay) naive(rows []traceRow) string {
	most := 0.

	busy := []float64{}
	for i := range rows {
		most, busy = max(most, rows[i].memory), append(busy, rows[i].busy)
	}

	if quantile(busy, 0.95) >= 0.3 {
		return ""
	}

	var found *gpu.Profile

	for i := range r.model.Profiles {
		p := &r.model.Profiles[i]
		if p.MemorySlices < r.model.AxisUnits && most <= float64(p.MemoryBytes) &&
			(found == nil || cmp.Or(cmp.Compare(p.MemorySlices, found.MemorySlices), cmp.Compare(p.SMs, found.SMs),
				cmp.Compare(len(p.Name), len(found.Name))) < 0) {
			found = p
		}
	}

	if found == nil {
		return ""
	}

	return found.Name
}

// device returns a profile as the simulation of requests has it.
func (r *replay) device(p *gpu.Profile) requests.Device {
	return requests.Device{SMs: float64(p.SMs), Bandwidth: float64(p.MemorySlices) / float64(r.model.AxisUnits)}
}

// stretch returns how many times longer the kernels of a row run in a profile; those that are not
// known are taken for the widest.
func (r *replay) stretch(row *traceRow, p *gpu.Profile) float64 {
	on := r.device(p)
	width := row.width.Or(1) * float64(r.model.sms)

	return max(1, width/on.SMs, row.bandwidth.Or(reachableBandwidth)/(reachableBandwidth*on.Bandwidth))
}

const reachableBandwidth = 0.9

// move runs rows in a profile.
func (r *replay) move(rows []traceRow, profile string) *moved {
	at := slices.IndexFunc(r.model.Profiles, func(p gpu.Profile) bool { return p.Name == profile })
	m := &moved{profile: &r.model.Profiles[at], worstHour: 1, known: true}
	var hour, whole, slice, worked, stretches []float64

	began := rows[0].time
	for i := range rows {
		row := &rows[i]

		seconds := r.step.Seconds()
		if i+1 < len(rows) {
			seconds = min(seconds, rows[i+1].time.Sub(row.time).Seconds())
		}

		m.memory = max(m.memory, row.memory)
		m.known = m.known && row.width.Present() && row.bandwidth.Present()
		work := row.busy * seconds
		stretches = append(stretches, r.stretch(row, m.profile))
		stretched := work * stretches[i]
		whole, slice, worked = append(whole, work-seconds), append(slice, stretched-seconds), append(worked, work)
		m.busy += min(stretched, seconds)

		for len(hour) <= int(row.time.Sub(began)/time.Hour) {
			hour = append(hour, 0)
		}

		hour[len(hour)-1] += stretched
	}

	m.killed = m.memory+ownBytes > float64(m.profile.MemoryBytes)

	m.busy /= float64(len(rows)) * r.step.Seconds()
	for _, stretched := range hour {
		m.worstHour = min(m.worstHour, 3600/max(3600, stretched))
	}

	m.stretch = weighted(stretches, worked, 0.95)

	m.waitsWhole, m.waits = weighted(queue(whole), worked, 0.95), weighted(queue(slice), worked, 0.95)
	if r.service > 0 && m.known {
		m.latency = r.latency(rows, m.profile)
	}

	return m
}

// queue returns the work that waits after each of some changes: it cannot be less than none.
func queue(changes []float64) []float64 {
	left := 0.
	all := []float64{}

	for _, change := range changes {
		left = max(0, left+change)
		all = append(all, left)
	}

	return all
}

// weighted returns a quantile of values by their weights.
func weighted(values, weights []float64, q float64) float64 {
	order := make([]int, len(values))
	total := 0.

	for i := range order {
		order[i] = i
		total += weights[i]
	}

	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(values[a], values[b]) })

	sum := 0.
	for _, i := range order {
		if sum += weights[i]; sum >= q*total && sum > 0 {
			return values[i]
		}
	}

	return 0
}

// latency simulates requests that make up the busy time of rows, each of one service time and of
// the kernels of the mean, and returns their p95 in a profile relative to the whole GPU.
func (r *replay) latency(rows []traceRow, p *gpu.Profile) float64 {
	var rates []float64
	var width, bandwidth, busy float64

	for i := range rows {
		row := &rows[i]
		rates = append(rates, row.busy/r.service.Seconds())
		busy += row.busy
		width, bandwidth = width+row.busy*row.width.Or(1), bandwidth+row.busy*row.bandwidth.Or(1)
	}

	if busy == 0 {
		return 1
	}

	load := requests.Load{
		Arrivals: requests.Trace(rates, r.step.Seconds()),
		Kinds: []requests.Kind{{
			Share:   1,
			Phases:  []requests.Phase{{Share: 1, Width: width / busy * float64(r.model.sms), Bandwidth: bandwidth / busy}},
			Service: requests.Service{Mean: r.service.Seconds(), Shape: requests.Exponential},
		}},
	}
	seconds := r.step.Seconds() * float64(len(rows))
	whole := requests.Run(1, load, requests.Device{SMs: float64(r.model.sms), Bandwidth: 1}, seconds, seconds)
	slice := requests.Run(1, load, r.device(p), seconds, seconds)

	if len(whole.Latencies) < minRequests {
		return 0
	}

	return requests.Summarize(slice).P95 / requests.Summarize(whole).P95
}
