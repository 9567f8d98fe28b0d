package sim

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// evaluated has a wide workload that changes its load, requests, and one that runs out of memory,
// all on slices.
const evaluated = `version: 1
node: {hostname: n}
gpus:
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]}
workloads:
  - name: wide
    memory: 4GiB
    phases: [{share: 0.5, width: 120}, {share: 0.5, width: 4}]
    busy: {steps: [{at: 0s, value: 0.2}, {at: 10m, value: 0.8}]}
  - {name: service, memory: 8GiB, width: 60, requests: {rate: {steps: [{at: 0s, value: 2}, {at: 10m, value: 20}]}, gpu: 16ms}}
  - {name: leak, memory: {steps: [{at: 0s, value: 2GiB}, {at: 15m, value: 12GiB}]}, width: 4, busy: 0.5}
pods:
  - {namespace: ml, name: wide-0, owner: Deployment/wide, resource: nvidia.com/mig-3g.40gb, workload: wide}
  - {namespace: ml, name: service-0, resource: nvidia.com/mig-2g.20gb, workload: service}
  - {namespace: ml, name: leak-0, owner: Deployment/leak, resource: nvidia.com/mig-1g.10gb, workload: leak}
`

// TestTally: what is added up over a change of the load is the sum of both, by hand.
func TestTally(t *testing.T) {
	s, err := Parse("evaluated.yaml", []byte(evaluated))
	if err != nil {
		t.Fatal(err)
	}

	n, err := New(s, NewClock(ClockStep))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var tally Tally

	for range 1200 {
		if err := n.Advance(time.Second); err != nil {
			t.Fatal(err)
		}

		tally.Add(n.Now(), n.Truth())
	}

	all := tally.Outcomes()
	cmptest.Equal(t, "outcomes", len(all), 3)
	slices.SortFunc(all, func(a, b Outcome) int { return strings.Compare(b.Workload, a.Workload) })
	wide := all[0]
	service := all[1]
	leak := all[2]

	// On 60 SMs half the kernels take twice as long: 0.2 of the time becomes 0.3, 0.8 becomes 1.2,
	// of which 1 is done.
	work := (599*0.2 + 601*0.8/1.2) / (599*0.2 + 601*0.8)
	about := func(what string, got, want float64) {
		t.Helper()

		if math.Abs(got-want) > 1e-4*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	about("wide: throughput", wide.Throughput, work)
	about("wide: stretch p50", wide.Stretch.P50, 1.5)
	about("wide: stretch p95", wide.Stretch.P95, 1.5)
	about("wide: busy", wide.Busy, (599*0.3+601*1)/1200)
	cmptest.Equal(t, "wide: requests", wide.Requests, nil)
	cmptest.Equal(t, "wide: owner", wide.Owner, "Deployment/wide")
	cmptest.Equal(t, "wide: profile", wide.Profile, "3g.40gb")

	// On 32 SMs a request takes 30 ms. The queue is that of M/D/1: use x service / 2 (1 - use).
	wait := func(rate, service float64) float64 { return rate * service * service / (2 * (1 - rate*service)) }

	q := service.Requests
	if q == nil {
		t.Fatalf("service: no requests in %+v", service)
	}

	served := (599*2. + 601*20) / 1200
	about("service: requests", q.PerSecond, served)
	about("service: requests alone", q.AlonePerSecond, served)
	about("service: throughput", service.Throughput, 1)
	about("service: latency p50", q.Latency.P50, 0.03+wait(20, 0.03)) // 10 of 11 requests come in the second part
	about("service: latency p95", q.Latency.P95, 0.03+wait(20, 0.03))
	about("service: latency alone", q.AloneLatency.P95, 0.016+wait(20, 0.016))

	if leak.Failed == "" {
		t.Error("leak: has not failed")
	}

	cmptest.Equal(t, "leak: time to its failure", leak.FailedAt.Sub(n.Now().Add(-20*time.Minute)), 15*time.Minute)
	cmptest.Equal(t, "leak: pod", leak.Pod, "leak-0")
	about("leak: throughput until then", leak.Throughput, 1)
}

// TestTallyForgets: a process that has ended is not kept, one that comes later begins anew.
func TestTallyForgets(t *testing.T) {
	var tally Tally
	at := StepStart()
	of := func(pid uint32, throughput float64) Truth {
		return Truth{PID: pid, GPU: "GPU-0", Throughput: throughput, Stretch: 1, Alone: Alone{Busy: 1}}
	}
	tally.Add(at, []Truth{of(1, 1), of(2, 0.5)})
	tally.Add(at.Add(time.Hour), []Truth{of(2, 0.5), of(3, 0.25)})
	tally.Add(at.Add(2*time.Hour), []Truth{of(2, 0.5), of(3, 0.75)})
	type summary struct {
		pid        uint32
		throughput float64
	}

	var got []summary
	for _, o := range tally.Outcomes() {
		got = append(got, summary{o.PID, math.Round(o.Throughput*100) / 100})
	}

	cmptest.Equal(t, "processes", got, []summary{{2, 0.5}, {3, 0.75}})
}
