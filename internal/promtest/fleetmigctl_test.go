package promtest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// fleetReport is what the tests read of migctl fleet -o json.
type fleetReport struct {
	GPUs           []fleetGPU
	Groups, Totals []fleetGroup
	Fleet          fleetGroup
	Notes          []string
}

type fleetGPU struct {
	UUID, Cluster, Node, Model, Namespace, Action, Reason string
	RecommendedProfile                                    string
	Provisional, MediaNotChecked, Idle                    bool
	ObservedHours, HeldHoursPerWeek, CoverageRatio        float64
	BusyMeanRatio, BusyP99Ratio, BusyMax10MinutesRatio    float64
	KernelsP95                                            *struct{ WidthRatio, BandwidthRatio float64 }
	MemoryMaxBytes                                        float64
	Explanation                                           string
	Server                                                *struct {
		CacheUseMaxRatio, AskedHours, NeedBytes float64
	}
	PredictedServer *struct {
		Flag  string
		Value float64
	}
}

type fleetGroup struct {
	Cluster, Model, Namespace string
	GPUs, Slices, FreedGPUs   int
	GPUHoursPerWeek           float64
	CostPerWeek               *float64
	Reasons                   map[string]int
	Provisional, Share        int
}

// migctlFleet runs migctl fleet and returns what it writes.
func migctlFleet(t *testing.T, url string, args ...string) (stdout, stderr string, err error) {
	t.Helper()

	path, err := programPath(t)
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(path, append([]string{"fleet", "--prometheus.url=" + url}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &errOut
	err = cmd.Run()

	return out.String(), errOut.String(), err
}

const (
	historyNodes   = 10
	historyMinutes = 2 * 24 * 60
)

// fleetHistory returns an engine with two days of ten nodes, and when they end.
func fleetHistory(t *testing.T, n naming) (*Prometheus, []unit, time.Time) {
	t.Helper()
	e := NewPrometheus(t)
	units := unitsOf(historyNodes)
	start := scraped()

	open := func() storage.Appender { return e.db.Appender(t.Context()) }
	if err := appendHistory(open, units, start, 0, historyMinutes, historyMinutes, n); err != nil {
		t.Fatal(err)
	}

	return e, units, start.Add(historyMinutes * time.Minute)
}

// askFleet runs migctl fleet over a history.
func askFleet(t *testing.T, url, window string, end time.Time, args ...string) fleetReport {
	t.Helper()

	out, errOut, err := migctlFleet(t, url,
		append([]string{"--window=" + window, "--time=" + end.Format(time.RFC3339), "-o", "json"}, args...)...)
	if err != nil {
		t.Fatalf("migctl fleet: %v\n%s", err, errOut)
	}

	var r fleetReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}

	return r
}

// expected is what follows from a history, computed from its samples.
type expected struct {
	observed, coverage, mean, p99, most, width, bandwidth, memory float64
}

// weighted is a ratio and what it counts.
type weighted struct{ ratio, weight float64 }

// expectOf computes what we know of a GPU that is held.
func expectOf(u unit, minutes int) expected {
	var e expected
	var busy, widths, bandwidths []weighted
	held := false
	gaps := 0
	run := 0
	before := 0. // busy time of the step before

	for from := 0; from < minutes; from += 5 {
		s := u.step(from, minutes)

		e.memory = max(e.memory, s.memory)
		switch {
		case s.samples == 0:
			run++
			continue
		case !s.held:
			before = 0
			continue
		}

		if held {
			gaps += run // a gap is between two times in which it was held
		}

		held = true
		run = 0
		e.mean += s.busy
		e.most = max(e.most, (before+s.busy)/2)
		before = s.busy
		// what is a week older counts half
		age := math.Exp2(float64(from) / (7 * 24 * 60))

		busy = append(busy, weighted{s.busy, age})
		if s.busy > 0 {
			widths = append(widths, weighted{s.sms / s.busy, s.busy * age})
			bandwidths = append(bandwidths, weighted{s.dram / s.busy, s.busy * age})
		}
	}

	if len(busy) == 0 {
		return e
	}

	e.observed, e.mean = float64(len(busy))/12, e.mean/float64(len(busy))
	e.coverage = float64(len(busy)) / float64(len(busy)+gaps)
	e.p99 = quantileOf(busy, 0.99)
	e.width, e.bandwidth = quantileOf(widths, 0.95), quantileOf(bandwidths, 0.95)

	return e
}

// stepSum is what five minutes of scrapes say of a GPU.
type stepSum struct {
	samples         int
	held            bool
	busy, sms, dram float64 // means
	memory          float64 // largest while it was held
}

func (u unit) step(from, minutes int) stepSum {
	var s stepSum

	for m := from; m < from+5; m++ {
		r := u.at(m, minutes)
		if !r.up {
			continue
		}

		s.samples = s.samples + 1
		s.busy = s.busy + r.busy
		s.sms = s.sms + r.sms

		s.dram = s.dram + r.dram
		if r.held {
			s.held, s.memory = true, max(s.memory, r.memory)
		}
	}

	n := float64(s.samples)
	s.busy = s.busy / n
	s.sms = s.sms / n
	s.dram = s.dram / n

	return s
}

// quantileOf returns the ratio that a share q of the weight does not exceed, rounded up to 0.01
// times a power of 1.0873 but not above the largest one: the buckets of right-sizing's evidence.
func quantileOf(values []weighted, q float64) float64 {
	slices.SortFunc(values, func(a, b weighted) int { return cmp.Compare(a.ratio, b.ratio) })

	total := 0.
	sum := 0.

	for _, v := range values {
		total += v.weight
	}

	for _, v := range values {
		if sum += v.weight; sum >= q*total*(1-1e-6) {
			bound := 0.01
			for v.ratio > bound*(1+1e-9) {
				bound *= 1.0873
			}

			return min(bound, values[len(values)-1].ratio)
		}
	}

	return 0
}

// decisions are what is right for each kind of GPU: action, reason and profile.
func decisions(n naming) map[string]string {
	d := map[string]string{
		"narrow": "slice  1g.20gb", "gaps": "keep low-coverage ", "rare": "share stretch ", "idle": "slice  1g.10gb",
		"preallocated": "keep preallocated ", "free": "free  ", "visitor": "slice  1g.10gb", "large": "keep memory ",
		"training": "keep multi-gpu ",
		"nvlink":   "keep nvlink ", "sliced": "keep mig-mode ", "changed": "keep model-changed ",
	}

	if n.noSMs { // how much of the GPU kernels fill is unknown
		for _, kind := range []string{"narrow", "visitor", "rare", "idle"} {
			d[kind] = "unknown no-activity "
		}
	}

	return d
}

// TestFleet holds the answer of migctl fleet against what the samples say, under the names of both
// exporters.
func TestFleet(t *testing.T) {
	t.Parallel()

	for name, n := range map[string]naming{
		"mig-exporter": {}, "dcgm-exporter": {dcgm: true}, "dcgm-exporter with honor_labels": {dcgm: true, honored: true},
		"dcgm-exporter's default list": {dcgm: true, noSMs: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, units, end := fleetHistory(t, n)
			_, url := serveAPI(t, e)

			r := askFleet(t, url, "2d", end, "--price=H100=2")
			if len(r.GPUs) != len(units) {
				t.Fatalf("%d GPUs, want %d", len(r.GPUs), len(units))
			}

			checkUnits(t, r, units, n, historyMinutes)
			checkGroups(t, r, n)

			if named := strings.Contains(strings.Join(r.Notes, "\n"), "DCGM_FI_PROF_SM_ACTIVE"); named != n.noSMs {
				t.Errorf("what dcgm-exporter does not say by default is in the notes: %v", named)
			}
		})
	}
}

func checkUnits(t *testing.T, r fleetReport, units []unit, n naming, minutes int) {
	t.Helper()

	byUUID := map[string]unit{}
	for _, u := range units {
		byUUID[u.uuid()] = u
	}

	want := decisions(n)

	for i := range r.GPUs {
		g := &r.GPUs[i]

		u := byUUID[g.UUID]
		if got := fmt.Sprintf("%s %s %s", g.Action, g.Reason, g.RecommendedProfile); got != want[u.kind] {
			t.Errorf("%s on node %d: %q, want %q: %+v", u.kind, u.node, got, want[u.kind], *g)
		}

		if u.kind == "sliced" || u.kind == "free" || u.kind == "changed" {
			continue
		}

		e := expectOf(u, minutes)
		near := func(what string, got, want, within float64) {
			if math.Abs(got-want) > within {
				t.Errorf("%s of %s %s: %v, want %v", what, u.kind, u.uuid(), got, want)
			}
		}
		near("observed hours", g.ObservedHours, e.observed, 1e-9)
		near("coverage", g.CoverageRatio, e.coverage, 0.0005001)
		near("busy mean", g.BusyMeanRatio, e.mean, 0.0005001)
		near("busy p99", g.BusyP99Ratio, e.p99, 0.0005001)
		near("busy maximum", g.BusyMax10MinutesRatio, e.most, 0.0005001)
		near("memory", g.MemoryMaxBytes, e.memory, 1)

		if u.kind != "idle" && !n.noSMs {
			near("width", g.KernelsP95.WidthRatio, e.width, 0.0005001)
			near("bandwidth", g.KernelsP95.BandwidthRatio, e.bandwidth, 0.0005001)
		}

		got := [3]string{g.Cluster, g.Node, g.Namespace}
		if want := [3]string{"a", fmt.Sprintf("node-%03d", u.node), u.at(0, minutes).namespace}; got != want {
			t.Errorf("%s is of %q, want %q", u.uuid(), got, want)
		}
	}
}

// checkGroups holds the groups against what was counted by hand. Of the ten nodes' H100 15 do with
// 1g.20gb and 7 with 1g.10gb in serving, 8 with 1g.10gb in research. By two days of history all are
// provisional, so that none counts as freed: TestSumsOfFinalSlices in internal/fleet has final ones.
// If SM activity is unknown, none remains.
func checkGroups(t *testing.T, r fleetReport, n naming) {
	t.Helper()
	type counted struct {
		gpus, slices, freed int
		hours               float64
	}
	want := map[string]counted{"serving": {47, 22, 0, 0}, "research": {8, 8, 0, 0},
		"training": {9, 0, 0, 0}, "": {16, 0, 0, 0}}
	fleet := counted{80, 30, 0, 0}

	if n.noSMs {
		want["serving"], want["research"] = counted{47, 0, 0, 0}, counted{8, 0, 0, 0}
		fleet = counted{80, 0, 0, 0}
	}

	got := map[string]counted{}
	for _, g := range r.Groups {
		sum := got[g.Namespace]
		got[g.Namespace] = counted{sum.gpus + g.GPUs, sum.slices + g.Slices, sum.freed + g.FreedGPUs,
			sum.hours + g.GPUHoursPerWeek}
	}

	for namespace, c := range want {
		if got[namespace] != c {
			t.Errorf("%q: %+v, want %+v", namespace, got[namespace], c)
		}
	}

	f := r.Fleet

	if sum := (counted{f.GPUs, f.Slices, f.FreedGPUs, f.GPUHoursPerWeek}); sum != fleet || f.Provisional != f.Slices {
		t.Errorf("the fleet: %+v, want %+v, all provisional: %d", sum, fleet, f.Provisional)
	}

	share := 8
	if n.noSMs {
		share = 0
	}

	if f.Share != share {
		t.Errorf("%d GPUs could be shared, want %d", f.Share, share)
	}

	if f.CostPerWeek == nil || math.Abs(*f.CostPerWeek-2*f.GPUHoursPerWeek) > 0.01 {
		t.Errorf("the cost of %v hours is %v", f.GPUHoursPerWeek, f.CostPerWeek)
	}
}

// TestFleetIsAskedForInSmallerParts: a server that refuses large queries is asked for fewer nodes
// at once, with the same result.
func TestFleetIsAskedForInSmallerParts(t *testing.T) {
	t.Parallel()
	e, _, end := fleetHistory(t, naming{})
	_, url := serveAPI(t, e)
	whole := askFleet(t, url, "2d", end)
	small, url := serveAPI(t, e)
	small.promql = promql.NewEngine(promql.EngineOpts{
		MaxSamples: 30_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	t.Cleanup(func() { small.promql.Close() })

	parts := askFleet(t, url, "2d", end)
	if small.tooMuch.Load() == 0 {
		t.Error("no query was refused")
	}

	a, errA := json.Marshal(whole)

	b, errB := json.Marshal(parts)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(a, b) {
		t.Errorf("in parts %s, at once %s", b, a)
	}
}
