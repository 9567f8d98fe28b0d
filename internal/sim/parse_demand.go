package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// checkDemand checks the keys by which a workload asks for SMs and memory bandwidth. They have one of
// two forms: {sm: 20, dram: 0.5} is a width that is always busy; the other is width (or phases) with
// busy or requests.
func (e *workloadEntry) checkDemand(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	has := func(name string) bool { return strictyaml.HasKey(n, name) }
	// conflicts reports whether a key is given together with one of the others, which is an error.
	conflicts := func(name, expected string, others ...string) bool {
		i := slices.IndexFunc(others, has)
		if i < 0 || !has(name) {
			return false
		}

		r.FailAt(n, key, name, "is set together with %s; expected %s", others[i], expected)

		return true
	}
	longForm := []string{"width", "phases", "busy", "requests", "bandwidth"}

	given := strings.Join(
		slices.DeleteFunc(slices.Clone(longForm), func(name string) bool { return !has(name) }),
		" and ",
	)
	switch {
	case conflicts("sm", "sm alone, which is always busy, or width with busy or requests", longForm...),
		conflicts("dram", "bandwidth, or dram with sm", longForm...),
		conflicts("phases", "the widths of the phases, or one width", "width", "bandwidth"),
		conflicts("requests", "either, as requests give the busy time", "busy"):
		// The error is reported.
	case given == "":
		e.Width = e.SM
		e.Busy.Signal = Constant(1)
		e.ofDevice = true
	case !has("width") && !has("phases"):
		r.Fail(n, key, "has %s without a width; expected width or phases", given)
	case !has("busy") && !has("requests"):
		r.Fail(n, key, "has %s without a time; expected busy or requests", given)
	}
}

// phaseList is the phases of a workload: its kinds of kernels.
type phaseList []kernels.Phase

// phaseEntry is one phase in a scenario file.
type phaseEntry struct {
	Share     share
	Width     smCount
	Bandwidth reachableShare `yaml:",omitempty"`
}

// DecodeYAML reads the list. The shares of the busy time must add up to 1.
func (l *phaseList) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	var entries []phaseEntry
	if !r.Decode(n, key, &entries) {
		return
	}

	total := 0.0
	for _, p := range entries {
		total += float64(p.Share)
		*l = append(
			*l,
			kernels.Phase{
				Share:     float64(p.Share),
				Width:     float64(p.Width),
				Bandwidth: float64(p.Bandwidth),
			},
		)
	}

	if math.Abs(total-1) > 1e-6 {
		r.Fail(n, key, "has shares that add up to %g; expected 1", total)
	}
}

// FinishYAML checks the two forms: {concurrency: 2, gpu: 24ms, host: 2ms} and {rate: 5, gpu: 24ms}.
func (q *Requests) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if strictyaml.HasKey(n, "concurrency") == strictyaml.HasKey(n, "rate") {
		r.Fail(
			n,
			key,
			"expected either concurrency, of clients that wait for each answer, or rate, per second",
		)
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
