package main

import (
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// profiledNode is an A100 in two GPU instances, whose first is busy by 20 of its 42 SMs, with the
// given faults.
func profiledNode(t *testing.T, faults string) *program {
	t.Helper()

	return faultyNode(t, `
gpus: [{model: A100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}]
workloads: [{name: w, memory: 1GiB, sm: 20, dram: 0.4, tensor: 0.3}]
processes: [{device: "0/3g.40gb@0", workload: w}]
faults: [`+faults+`]
`, "--dcgm.address=embedded")
}

// seconds lets time pass in polls of a second, and says what is seen after it.
func (p *program) seconds(n int) series {
	p.t.Helper()

	for range n {
		p.advance(time.Second)
	}

	return p.scrape()
}

// expectProfiled holds the activity of the busy GPU instance to a value, -1 to none of anything,
// and what follows from it.
func (s series) expectProfiled(t *testing.T, when string, want float64) {
	t.Helper()
	s.expect(t, when, want, "nvidia_mig_gpu_instance_sm_activity_ratio", `gpu_instance="1"`)

	method := "activity"

	other := "unallocated"
	if want < 0 {
		method, other = other, method

		for key := range s {
			if family, _, _ := strings.Cut(key, "{"); strings.HasSuffix(family, "_activity_ratio") {
				t.Errorf("%s: %s", when, key)
			}
		}
	}

	s.expect(t, when, 1, "nvidia_gpu_power_estimate_method", `method="`+method+`"`)
	s.expect(t, when, -1, "nvidia_gpu_power_estimate_method", `method="`+other+`"`)
	s.expect(t, when, 1, "nvidia_gpu_up")

	if len(s.of("nvidia_gpu_power_watts")) != 1 || len(s.of("nvidia_mig_gpu_instance_memory_used_bytes")) != 2 {
		t.Errorf("%s: power or memory is missing", when)
	}
}

const busy = 0.47619048 // 20 of 42 SMs, as DCGM rounds it

func TestDCGMDoesNotAnswer(t *testing.T) {
	for kind, end := range map[string]string{"dcgm-down": ", for: 10s", "dcgm-restart": ""} {
		t.Run(kind, func(t *testing.T) {
			p := profiledNode(t, "{at: 20s"+end+", kind: "+kind+"}")
			s := p.seconds(19)
			s.expect(t, "before", 1, "mig_exporter_source_up", `source="dcgm"`)
			s.expectProfiled(t, "before", busy)
			s = p.seconds(1)
			s.expect(t, "in it", 0, "mig_exporter_source_up", `source="dcgm"`)
			s.expectProfiled(t, "in it", -1)
			s = p.seconds(90) // longer than the longest pause
			s.expect(t, "after it", 1, "mig_exporter_source_up", `source="dcgm"`)
			s.expectProfiled(t, "after it", busy)

			if p.said(`msg="source answers" source=dcgm`) != 1 {
				t.Errorf("the log:\n%s", p.logText())
			}
		})
	}
}

func TestProfilingByDCGMIsPaused(t *testing.T) {
	p := profiledNode(t, "{at: 20s, for: 10s, kind: dcgm-paused}")
	p.seconds(19).expectProfiled(t, "before", busy)
	s := p.seconds(5)
	s.expectProfiled(t, "paused", -1)
	s.expect(t, "paused", 1, "mig_exporter_source_up", `source="dcgm"`)
	p.seconds(10).expectProfiled(t, "resumed", busy)
}

// TestDCGMWithoutRights: an engine in the process does not start without root while MIG is on. What
// to do is said, and it is not tried for ever.
func TestDCGMWithoutRights(t *testing.T) {
	p := profiledNode(t, "{at: 0s, for: 200s, kind: dcgm-requires-root}")
	s := p.seconds(150)
	s.expectProfiled(t, "without rights", -1)
	s.expect(t, "without rights", 0, "mig_exporter_source_up", `source="dcgm"`)

	if said := p.said("run this program as root, or connect it to an nv-hostengine that runs as root by " +
		"--dcgm.address=HOST:PORT"); said != 2 {
		t.Errorf("said %d times, want two: at first, and that three starts were all:\n%s", said, p.logText())
	}

	calls := s.of("mig_exporter_driver_calls_total", `source="dcgm"`)
	cmptest.Equal(t, "calls of DCGM", calls, []float64{3})
	cmptest.Equal(t, "calls of DCGM later", p.seconds(150).of("mig_exporter_driver_calls_total", `source="dcgm"`),
		[]float64{3})
	p.hangUp("reloaded nothing")
	p.seconds(10).expectProfiled(t, "with rights, after a reload", busy)
}

func TestProfilingCountersThatCannotBe(t *testing.T) {
	for kind, ratio := range map[string]float64{"activity-nan": -1, "activity-above-one": 1 + busy} {
		t.Run(kind, func(t *testing.T) {
			p := profiledNode(t, "{at: 20s, for: 5s, gpu: 0, kind: "+kind+"}")
			p.seconds(19).expectProfiled(t, "before", busy)
			s := p.seconds(3)
			s.expectProfiled(t, "in it", ratio)

			if n := s.of("nvidia_gpu_activity_anomalies_total"); len(n) != 1 || n[0] < 3 {
				t.Errorf("counted are %v", n)
			}

			p.seconds(10).expectProfiled(t, "after it", busy)
		})
	}
}
