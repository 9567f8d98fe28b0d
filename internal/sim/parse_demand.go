package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// demandEntry is what a workload asks of the SMs, in one of two forms: sm and dram, a width that is always busy; or
// width (or phases) with busy or requests.
type demandEntry struct {
	SM        signalEntry[smCount]        `yaml:"sm,omitempty"`
	DRAM      signalEntry[share]          `yaml:"dram,omitempty"`
	Width     signalEntry[smCount]        `yaml:",omitempty"`
	Bandwidth signalEntry[reachableShare] `yaml:",omitempty"`
	Busy      signalEntry[share]          `yaml:",omitempty"`
	Phases    phaseEntries                `yaml:",omitempty"`
	Requests  *requestsEntry              `yaml:",omitempty"`
	Loss      share                       `yaml:",omitempty"`
}

// demand returns what the workload of a mapping asks for, and reports keys that contradict each other.
func (e *demandEntry) demand(r *strictyaml.Reader, n *strictyaml.Node, key string) Demand {
	has := func(name string) bool { return strictyaml.HasKey(n, name) }
	beside := func(name, expected string, others ...string) bool {
		for _, other := range others {
			if has(name) && has(other) {
				r.FailAt(n, key, name, "is set together with %s; expected %s", other, expected)
				return true
			}
		}
		return false
	}
	d := Demand{Loss: float64(e.Loss)}
	newer := []string{"width", "phases", "busy", "requests", "bandwidth"}
	switch {
	case beside("sm", "sm alone, which is always busy, or width with busy or requests", newer...),
		beside("dram", "bandwidth, or dram with sm", newer...),
		beside("phases", "the widths of the phases, or one width", "width", "bandwidth"),
		beside("requests", "either, as requests give the busy time", "busy"):
		return d
	}
	given := strings.Join(slices.DeleteFunc(newer, func(name string) bool { return !has(name) }), " and ")
	switch {
	case given == "":
		d.Width, d.Busy, d.ofDevice = e.SM.Signal, Constant(1), true
		return d
	case !has("width") && !has("phases"):
		r.Fail(n, key, "has %s without a width; expected width or phases", given)
	case !has("busy") && !has("requests"):
		r.Fail(n, key, "has %s without a time; expected busy or requests", given)
	}
	d.Width, d.Bandwidth, d.Phases, d.Busy = e.Width.Signal, e.Bandwidth.Signal, e.Phases, e.Busy.Signal
	if q := e.Requests; q != nil {
		d.Requests = &Requests{Concurrency: q.Concurrency, Rate: q.Rate.Signal, GPU: q.GPU, Host: q.Host}
	}
	return d
}

// phaseEntries are kinds of kernels.
type phaseEntries []kernels.Phase

// phaseEntry is one of them.
type phaseEntry struct {
	Share     share
	Width     smCount
	Bandwidth reachableShare `yaml:",omitempty"`
}

// DecodeYAML reads the list. The shares of the busy time must add up to 1.
func (e *phaseEntries) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	var entries []phaseEntry
	if !r.Decode(n, key, &entries) {
		return
	}
	total := 0.0
	*e = phaseEntries{}
	for _, p := range entries {
		total += float64(p.Share)
		*e = append(*e, kernels.Phase{Share: float64(p.Share), Width: float64(p.Width), Bandwidth: float64(p.Bandwidth)})
	}
	if math.Abs(total-1) > 1e-6 {
		r.Fail(n, key, "has shares that add up to %g; expected 1", total)
	}
}

// requestsEntry is a load in requests.
type requestsEntry struct {
	Concurrency int                         `yaml:",omitempty" range:"1..65536"`
	Rate        signalEntry[requestsPerSec] `yaml:",omitempty"`
	GPU         time.Duration               `yaml:"gpu" expected:"the time on the GPU that a request takes, such as 24ms"`
	Host        time.Duration               `yaml:",omitempty"`
}

// DecodeYAML reads the two forms: {concurrency: 2, gpu: 24ms, host: 2ms} and {rate: 5, gpu: 24ms}.
func (e *requestsEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain requestsEntry
	if !r.Decode(n, key, (*plain)(e)) {
		return
	}
	if strictyaml.HasKey(n, "concurrency") == strictyaml.HasKey(n, "rate") {
		r.Fail(n, key, "expected either concurrency, of clients that wait for each answer, or rate, per second")
	}
	if e.GPU == 0 {
		r.FailAt(n, key, "gpu", "expected more than no time")
	}
}

// UnmarshalText reads a share of the memory bandwidth.
func (s *reachableShare) UnmarshalText(text []byte) error {
	if err := parseNumber(text, kernels.Reachable, (*float64)(s)); err != nil {
		return fmt.Errorf("%w, what kernels reach", err)
	}
	return nil
}

// UnmarshalText reads a number of requests per second.
func (s *requestsPerSec) UnmarshalText(text []byte) error {
	return parseNumber(text, 1e6, (*float64)(s))
}
