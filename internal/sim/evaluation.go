package sim

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Evaluation compares what the processes on a simulated node achieve with what was predicted for
// them. It is the document of /-/sim/truth.
type Evaluation struct {
	APIVersion string    `json:"apiVersion"`
	Time       time.Time `json:"time"`
	Node       string    `json:"node"`
	// Processes lists running processes by GPU and start, and after them processes that were killed.
	Processes []Outcome `json:"processes"`
}

// Outcome is what one process has achieved on a device since Since, when it was first seen there.
// Ratios are relative to a whole GPU that the process has to itself.
type Outcome struct {
	GPU       gpu.UUID    `json:"gpu"`
	Index     int         `json:"index"`
	MIGDevice gpu.MIGUUID `json:"migDevice,omitempty"`
	Profile   string      `json:"profile,omitempty"` // of the GPU instance; absent for a whole GPU

	// Namespace to Owner are empty for a process of the host.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Owner     string `json:"owner,omitempty"`
	PID       uint32 `json:"pid"`
	Workload  string `json:"workload,omitempty"` // its name in the scenario; absent if the process does nothing

	Since time.Time `json:"since"`
	// Throughput is the work done, and Stretch how many times as long kernels take, with quantiles
	// over the busy time. Both are 1 as long as the process had nothing to do.
	Throughput float64   `json:"throughputRatio"`
	Stretch    Quantiles `json:"stretch"`
	Busy       float64   `json:"busyRatio"` // the share of the time in which its kernels run
	// Requests is absent if the workload answers no requests.
	Requests *RequestOutcome `json:"requests,omitempty"`

	// Failed says why the process was killed, and FailedAt when; absent for one that runs.
	Failed   string    `json:"failed,omitempty"`
	FailedAt time.Time `json:"failedAt,omitzero"`

	// Predicted is what the advisor predicted for the workload when it last recommended a slice;
	// absent if it never did.
	Predicted *Prediction `json:"predicted,omitempty"`
}

// RequestOutcome says how many requests were answered in a second and how long they took, in
// seconds: on the process's device, and alone on a whole GPU.
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

// Prediction is what the advisor predicted for a workload in a profile, at the 95th percentile of
// its busy time.
type Prediction struct {
	Time    time.Time `json:"time"`
	Profile string    `json:"profile"`
	Low     float64   `json:"stretchLow"`
	Middle  float64   `json:"stretchExpected"`
	High    float64   `json:"stretchHigh"`
	// LatencyLow and LatencyHigh bound the latency of requests, as a multiple of their latency on the
	// device that the workload had when it was predicted. LatencyFigure lies between them, if the
	// requests' service time is known. All are 0 if no latency was predicted.
	LatencyLow    float64 `json:"latencyLow,omitzero"`
	LatencyFigure float64 `json:"latencyFigure,omitzero"`
	LatencyHigh   float64 `json:"latencyHigh,omitzero"`
	// Throughput is relative to the device that the workload had when it was predicted.
	Throughput float64 `json:"throughputRatio"`
}

// Tally adds up what processes achieve, from one call of Add to the next. It is not safe for
// concurrent use.
type Tally struct {
	last time.Time       // of the latest call of Add
	runs map[runKey]*run // the processes of the latest call of Add
}

// runKey names a process on a device.
type runKey struct {
	pid uint32
	gpu gpu.UUID
	mig gpu.MIGUUID
}

// run is what a process has achieved on a device since it was first seen there.
type run struct {
	latest  Truth
	since   time.Time
	seconds float64 // for how long we have counted
	// Seconds in which kernels run: alone is how long they would have run alone on a whole GPU, work
	// the part of that whose work got done, busy how long they ran.
	work, alone, busy     float64
	served, wanted        float64 // requests answered, and those that would have been alone
	stretch               spread  // weighted by work
	latency, aloneLatency spread  // weighted by requests
}

// Add adds what all processes achieve at a time. It takes them to have achieved the same since the
// call before.
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

	t.runs = seen // without the processes that have ended
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

// Outcomes returns what was added up for the processes of the latest Add: running processes by GPU
// and start, then killed processes by the time of their end.
func (t *Tally) Outcomes() []Outcome {
	all := slices.Collect(maps.Values(t.runs))
	slices.SortFunc(all, func(a, b *run) int {
		return cmp.Or(
			a.latest.FailedAt.Compare(b.latest.FailedAt),
			cmp.Compare(a.latest.Index, b.latest.Index),
			cmp.Compare(a.latest.MIG, b.latest.MIG),
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

// spread is a histogram of weighted values. Its buckets are half a percent wide, and each knows the
// mean of its values.
type spread struct {
	buckets map[int]bucket // by the logarithm of the value, in units of bucketWidth
}

type bucket struct{ weight, sum float64 } // sum of value times weight

// bucketWidth is the width of a bucket on a logarithmic scale: about half a percent.
const bucketWidth = 0.005

func (s *spread) add(value, weight float64) {
	if !(value > 0 && weight > 0) {
		return
	}

	if s.buckets == nil {
		s.buckets = map[int]bucket{}
	}

	k := int(math.Floor(math.Log(value) / bucketWidth))
	b := s.buckets[k]
	s.buckets[k] = bucket{b.weight + weight, b.sum + value*weight}
}

func (s *spread) quantiles() Quantiles {
	return Quantiles{P50: s.quantile(0.5), P95: s.quantile(0.95)}
}

// quantile returns the mean of the bucket in which the share q of the weight is reached; 0 if
// nothing was added.
func (s *spread) quantile(q float64) float64 {
	total := 0.
	sum := 0.

	keys := slices.Sorted(maps.Keys(s.buckets))
	for _, k := range keys {
		total += s.buckets[k].weight
	}

	for _, k := range keys {
		b := s.buckets[k]
		// The factor forgives what rounding errors take from the sum.
		if sum += b.weight; sum >= q*total*(1-1e-9) {
			return round(b.sum / b.weight)
		}
	}

	return 0
}

// round rounds to six decimals: the digits behind them are noise of the sums.
func round(v float64) float64 { return math.Round(v*1e6) / 1e6 }
