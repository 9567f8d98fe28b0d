package main

import (
	"math"
	"strings"
	"testing"
)

// TestAGPUThatHangsCostsOneGPUByDCGM: a GPU that hangs blocks the whole host engine. Where the
// others have GPM the driver reports their activity until the engine answers again; those without
// have none.
func TestAGPUThatHangsCostsOneGPUByDCGM(t *testing.T) {
	t.Parallel()

	p := faultyNode(t, `
gpus:
- {model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}
- {model: H100-80GB, mig: true, layout: ["3g.40gb@0", {gi: "3g.40gb@4", ci: ["1c", "2c"]}]}
- {model: A100-80GB, mig: true, layout: ["3g.40gb@0"]}
workloads: [{name: w, memory: 1GiB, sm: 20, dram: 0.4, tensor: 0.3}]
processes: [{device: "1/3g.40gb@0", workload: w}, {device: "2/3g.40gb@0", workload: w}]
faults: [{at: 20s, for: 30s, gpu: 0, kind: hang}]
`, "--dcgm.address=embedded", "--profiling.source=dcgm", "--poll.interval=1s")
	expect := func(when string, s series, source string, h100, a100 float64) {
		t.Helper()

		for _, one := range []string{"gpm", "dcgm"} {
			want := -1.0
			if one == source {
				want = 1
			}

			s.expect(t, when, want, "nvidia_gpu_activity_source", `gpu="1"`, `source="`+one+`"`)
		}

		expectAbout(t, when, s, h100, "nvidia_mig_gpu_instance_sm_activity_ratio", `gpu="1"`, `gpu_instance="1"`)
		expectAbout(t, when, s, a100, "nvidia_mig_gpu_instance_sm_activity_ratio", `gpu="2"`, `gpu_instance="1"`)
	}
	const onH100, onA100 = 0.33333333, 0.47619048 // 20 of 60 and of 42 SMs
	s := p.seconds(19)
	expect("before", s, "dcgm", onH100, onA100)
	energy := func(s series) float64 {
		sum := s.of("nvidia_gpu_energy_unallocated_joules_total", `gpu="1"`)[0]
		for _, v := range s.of("nvidia_mig_gpu_instance_energy_estimate_joules_total", `gpu="1"`) {
			sum += v
		}

		return sum - s.of("nvidia_gpu_energy_joules_total", `gpu="1"`)[0]
	}
	before := energy(s)
	s = p.seconds(8)
	s.expect(t, "while GPU 0 hangs", 0, "nvidia_gpu_up", `gpu="0"`)
	s.expect(t, "while GPU 0 hangs", 1, "nvidia_gpu_up", `gpu="1"`)
	s.expect(t, "while GPU 0 hangs", 0, "mig_exporter_source_up", `source="dcgm"`)
	expect("while GPU 0 hangs", s, "gpm", onH100, -1)

	if off := energy(s) - before; off > 1e-3 || off < -1e-3 {
		t.Errorf("while GPU 0 hangs: %v J are counted twice or lost", off)
	}

	s = p.seconds(40)
	s.expect(t, "after it", 1, "nvidia_gpu_up", `gpu="0"`)
	s.expect(t, "after it", 1, "mig_exporter_source_up", `source="dcgm"`)
	expect("after it", s, "dcgm", onH100, onA100)

	if off := energy(s) - before; off > 1e-3 || off < -1e-3 {
		t.Errorf("after it: %v J are counted twice or lost", off)
	}
}

// expectAbout holds a series to a value that two sources round differently, -1 to none.
func expectAbout(t *testing.T, when string, s series, want float64, family string, labels ...string) {
	t.Helper()

	got := s.of(family, labels...)
	if want < 0 && len(got) == 0 || len(got) == 1 && math.Abs(got[0]-want) < 1e-7 {
		return
	}

	t.Errorf("%s: %s%v is %v, want %v", when, family, labels, got, want)
}

// TestWithoutDCGMTheDriverIsAsked: a host engine that is not there at all costs GPUs with GPM
// nothing.
func TestWithoutDCGMTheDriverIsAsked(t *testing.T) {
	p := simulate(t, "gke-h100-3g", "--profiling.source=dcgm", "--dcgm.address=127.0.0.1:5555")
	s := p.seconds(6)
	s.expect(t, "without an engine", 0, "mig_exporter_source_up", `source="dcgm"`)

	if n := len(s.of("nvidia_gpu_activity_source", `source="gpm"`)); n == 0 {
		t.Error("the driver is not asked")
	}
}

// TestPausedDCGMIsLeftAlone: profiling of GPUs with GPM is paused, and the layout changes
// meanwhile.
func TestPausedDCGMIsLeftAlone(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}, {model: H100-80GB}]
faults:
- {at: 20s, for: 60s, kind: dcgm-paused}
- {at: 40s, gpu: 0, kind: external-reconfigure, layout: ["4g.40gb@0"]}
`, "--dcgm.address=embedded", "--profiling.source=dcgm")
	p.seconds(19)

	for second := 20; second < 80; second++ {
		if s := p.seconds(1); len(s.of("nvidia_gpu_activity_source")) != 0 {
			t.Errorf("second %d: activity by %v", second, s.of("nvidia_gpu_activity_source"))
		}
	}

	s := p.seconds(10)
	for _, one := range []string{`gpu="0"`, `gpu="1"`} {
		s.expect(t, "resumed", 1, "nvidia_gpu_activity_source", one, `source="dcgm"`)
	}
}

// TestNoGapWhenDCGMIsBack: second by second, from when the driver is asked in the place of an
// engine that is down.
func TestNoGapWhenDCGMIsBack(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}, {model: H100-80GB}]
workloads: [{name: w, memory: 1GiB, sm: 20}]
processes: [{device: "0/3g.40gb@0", workload: w}]
faults: [{at: 20s, for: 10s, kind: dcgm-down}, {at: 70s, kind: dcgm-restart}]
`, "--dcgm.address=embedded", "--profiling.source=dcgm")
	p.seconds(14)
	sources := ""

	for second := 15; second <= 100; second++ {
		s := p.seconds(1)
		source := "g"

		for _, one := range []string{`gpu="0"`, `gpu="1"`} {
			if len(s.of("nvidia_gpu_activity_source", one, `source="dcgm"`)) == 1 {
				source = "d"
			}

			if gap := second == 20 || second == 70; !gap && len(s.of("nvidia_gpu_sm_activity_ratio", one)) != 1 {
				t.Errorf("second %d: %s has no activity", second, one)
			}
		}

		if !strings.HasSuffix(sources, source) {
			sources += source
		}
	}

	if sources != "dgdgd" {
		t.Errorf("by DCGM and GPM in turn: %q", sources)
	}
}

// TestNoGapWhenDCGMGoesOn: a host engine that is stopped (SIGSTOP) and goes on gives blanks at
// first, which are no pause of profiling. The driver's values are served until the engine reports
// everything again, except in the poll that asks the driver first: its first sample has nothing to
// be compared with. A stop so short that the last values still count costs nothing.
func TestNoGapWhenDCGMGoesOn(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		name, faults, sources string
		gap                   int // the second without activity
		args                  []string
	}{
		{"stopped", "{at: 20s, for: 10s, kind: dcgm-hang}", "dgd", 20, nil},
		{"stopped for a moment", "{at: 20s, for: 5s, kind: dcgm-hang}", "d", 0, []string{"--poll.interval=3s"}},
		{"blocked by a GPU", "{at: 20s, for: 10s, gpu: 2, kind: hang}", "dgd", 20, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			p := faultyNode(t, `
gpus: [{model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}, {model: H100-80GB}, {model: H100-80GB}]
workloads: [{name: w, memory: 1GiB, sm: 20}]
processes: [{device: "0/3g.40gb@0", workload: w}]
faults: [`+tt.faults+`]
`, append([]string{"--dcgm.address=embedded", "--profiling.source=dcgm"}, tt.args...)...)
			p.seconds(14)
			sources := ""

			for second := 15; second <= 50; second++ {
				s := p.seconds(1)
				source := "g"

				for _, one := range []string{`gpu="0"`, `gpu="1"`} {
					if len(s.of("nvidia_gpu_activity_source", one, `source="dcgm"`)) == 1 {
						source = "d"
					}

					if second != tt.gap && len(s.of("nvidia_gpu_sm_activity_ratio", one)) != 1 {
						t.Errorf("second %d: %s has no activity", second, one)
					}
				}

				if !strings.HasSuffix(sources, source) {
					sources += source
				}
			}

			if sources != tt.sources {
				t.Errorf("by DCGM and GPM in turn: %q, want %q", sources, tt.sources)
			}
		})
	}
}
