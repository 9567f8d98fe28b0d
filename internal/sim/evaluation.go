package sim

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Evaluation is what really happens on a simulated node, with what was predicted of it. It is the
// document of /-/sim/truth.
type Evaluation struct {
	APIVersion string    `json:"apiVersion"`
	Time       time.Time `json:"time"`
	Node       string    `json:"node"`
	// Processes are those that run, by GPU and start, and after them those that were killed.
	Processes []Outcome `json:"processes"`
}

// Outcome is what one process has achieved on a device since it was first seen there, compared with
// a whole GPU that it has to itself.
type Outcome struct {
	GPU       gpu.UUID    `json:"gpu"`
	Index     int         `json:"index"`
	MIGDevice gpu.MIGUUID `json:"migDevice,omitempty"`
	Profile   string      `json:"profile,omitempty"` // of the GPU instance; absent for a whole GPU

	// Of a process of the host they are empty.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Owner     string `json:"owner,omitempty"`
	PID       uint32 `json:"pid"`
	Workload  string `json:"workload,omitempty"` // its name in the scenario; absent if the process does nothing

	Since time.Time `json:"since"`
	// Throughput is the work done, relative to that GPU. The quantiles of Stretch, how many times
	// as long kernels take, are over its busy time. Both are 1 as long as nothing was to be done.
	Throughput float64   `json:"throughputRatio"`
	Stretch    Quantiles `json:"stretch"`
	Busy       float64   `json:"busyRatio"` // the share of the time in which its kernels run
	// Requests is absent without a load in requests.
	Requests *RequestOutcome `json:"requests,omitempty"`

	// Failed says why the process was killed, and FailedAt when; absent for one that runs.
	Failed   string    `json:"failed,omitempty"`
	FailedAt time.Time `json:"failedAt,omitzero"`

	// Predicted is what the advisor predicted for the workload when it last recommended a slice;
	// absent if it never did.
	Predicted *Prediction `json:"predicted,omitempty"`
}

// RequestOutcome is what has become of requests: those answered in a second, and how long they
// took, in seconds.
type RequestOutcome struct {
	PerSecond      float64   `json:"perSecond"`
	AlonePerSecond float64   `json:"alonePerSecond"`
	Latency        Quantiles `json:"latencySeconds"`
	AloneLatency   Quantiles `json:"aloneLatencySeconds"`
}

// Quantiles are the median and the 95th percentile.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

// Prediction is what was predicted for a workload in a profile, at p95 of its busy time.
type Prediction struct {
	Time    time.Time `json:"time"`
	Profile string    `json:"profile"`
	Low     float64   `json:"stretchLow"`
	Middle  float64   `json:"stretchExpected"`
	High    float64   `json:"stretchHigh"`
	// LatencyLow and LatencyHigh are that of requests, as a multiple of that on the device that the
	// workload had then; LatencyFigure lies between them if their service time is known. 0 if
	// nothing was predicted.
	LatencyLow    float64 `json:"latencyLow,omitzero"`
	LatencyFigure float64 `json:"latencyFigure,omitzero"`
	LatencyHigh   float64 `json:"latencyHigh,omitzero"`
	// Throughput is relative to the device that the workload had then.
	Throughput float64 `json:"throughputRatio"`
}

// Tally adds up what processes achieve, from one look to the next. It is not safe for concurrent
// use.
type Tally struct {
	last time.Time
	runs map[runKey]*run
}

// runKey names a process on a device.
type runKey struct {
	pid uint32
	gpu gpu.UUID
	mig gpu.MIGUUID
}

// run is what a process has achieved on a device.
type run struct {
	latest  Truth
	since   time.Time
	seconds float64
	// seconds of kernels: of the work done as if alone, of all work, and that it took
	work, alone, busy     float64
	served, wanted        float64 // requests
	stretch               spread  // by work
	latency, aloneLatency spread  // by requests
}

// Add looks at what all processes achieve at a time: what they do is taken to have been the same
// since the last look.
func (t *Tally) Add(now time.Time, all []Truth) {
	passed := now.Sub(t.last).Seconds()
	if t.last.IsZero() || passed <= 0 {
		passed = stepLength.Seconds()
	}

	t.last = now
	seen := make(map[runKey]*run, len(all))

	for i := range all {
		truth := &all[i]
		key := runKey{truth.PID, truth.GPU, truth.MIG}

		r := t.runs[key]
		if r == nil {
			r = &run{since: now}
		}

		if truth.Failed == "" {
			r.add(truth, min(passed, max(stepLength.Seconds(), now.Sub(r.since).Seconds())))
		}

		r.latest = *truth
		seen[key] = r
	}

	t.runs = seen // those that have ended are forgotten
}

func (r *run) add(truth *Truth, seconds float64) {
	r.seconds += seconds
	r.busy += truth.Busy * seconds
	work := truth.Alone.Busy * seconds
	r.alone += work
	r.work += work * truth.Throughput
	r.stretch.add(truth.Stretch, work)
	r.served += truth.PerSecond * seconds
	r.wanted += truth.Alone.PerSecond * seconds
	r.latency.add(truth.Latency.Seconds(), truth.PerSecond*seconds)
	r.aloneLatency.add(truth.Alone.Latency.Seconds(), truth.Alone.PerSecond*seconds)
}

// Outcomes returns what was added up of the processes of the last look: those that run by GPU and
// start, and after those the ones that were killed, the first one first.
func (t *Tally) Outcomes() []Outcome {
	all := slices.Collect(maps.Values(t.runs))
	slices.SortFunc(all, func(a, b *run) int {
		return cmp.Or(
			a.latest.FailedAt.Compare(b.latest.FailedAt),
			cmp.Compare(a.latest.Index, b.latest.Index),
			cmp.Compare(
				a.latest.MIG,
				b.latest.MIG,
			),
			a.since.Compare(b.since),
			cmp.Compare(a.latest.PID, b.latest.PID),
		)
	})

	list := make([]Outcome, 0, len(all))
	for _, r := range all {
		list = append(list, r.outcome())
	}

	return list
}

func (r *run) outcome() Outcome {
	l := &r.latest

	o := Outcome{
		GPU:        l.GPU,
		Index:      l.Index,
		MIGDevice:  l.MIG,
		Profile:    l.Profile,
		Namespace:  l.Namespace,
		Pod:        l.Pod,
		Container:  l.Container,
		Owner:      l.Owner,
		PID:        l.PID,
		Workload:   l.Workload,
		Since:      r.since,
		Throughput: 1,
		Stretch:    Quantiles{1, 1},
		Failed:     l.Failed,
		FailedAt:   l.FailedAt,
	}
	if r.seconds > 0 {
		o.Busy = round(r.busy / r.seconds)
	}

	if r.alone > 0 {
		o.Throughput = round(r.work / r.alone)
		o.Stretch = r.stretch.quantiles()
	}

	if r.wanted > 0 {
		o.Requests = &RequestOutcome{
			PerSecond: round(r.served / r.seconds), AlonePerSecond: round(r.wanted / r.seconds),
			Latency: r.latency.quantiles(), AloneLatency: r.aloneLatency.quantiles(),
		}
	}

	return o
}

// spread counts values by weight, in buckets of half a percent, each with the mean of its values.
type spread struct {
	buckets map[int]weighted
}

type weighted struct{ weight, sum float64 }

// spreadStep is the width of a bucket.
const spreadStep = 0.005

func (s *spread) add(value, weight float64) {
	if !(value > 0 && weight > 0) {
		return
	}

	if s.buckets == nil {
		s.buckets = map[int]weighted{}
	}

	at := int(math.Floor(math.Log(value) / spreadStep))
	b := s.buckets[at]
	s.buckets[at] = weighted{b.weight + weight, b.sum + value*weight}
}

func (s *spread) quantiles() Quantiles {
	return Quantiles{P50: s.quantile(0.5), P95: s.quantile(0.95)}
}

// quantile returns the mean of the bucket in which a share of the weight is reached; 0 if nothing
// was added.
func (s *spread) quantile(q float64) float64 {
	total := 0.
	sum := 0.

	order := slices.Sorted(maps.Keys(s.buckets))
	for _, at := range order {
		total += s.buckets[at].weight
	}

	for _, at := range order {
		if sum += s.buckets[at].weight; sum >= q*total*(1-1e-9) {
			return round(s.buckets[at].sum / s.buckets[at].weight)
		}
	}

	return 0
}

// round leaves out digits that tell nothing.
func round(v float64) float64 { return math.Round(v*1e6) / 1e6 }
