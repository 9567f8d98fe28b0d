package main

import (
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// busySlice is an H100 whose 3g.40gb is almost always busy, beside a 1g.10gb on which nothing runs.
const busySlice = `version: 1
node: {hostname: n, kubernetes: false, pidNamespace: container}
gpus: [{model: H100-80GB, mig: true, layout: ["3g.40gb@4", "1g.10gb@0"]}]
workloads: [{name: train, memory: 20GiB, width: 60, busy: 0.98, bandwidth: 0.4, tensor: 0.5}]
processes: [{device: "0/3g.40gb@4", workload: train}]
`

// Log lines of docs/faults.md that belong to a node or a model, which no fault brings about.
const (
	processesHidden = "processes are not known; all else is read"
	powerMissing    = "the driver reports neither power nor energy in MIG mode"
)

// TestPowerMissingUnderMIG: a B200 in MIG mode without energy says once that nothing is estimated
// of it.
func TestPowerMissingUnderMIG(t *testing.T) {
	p := simulate(t, "b200-power")
	for range 20 {
		p.advance(time.Second)
	}

	if n := p.said(powerMissing); n != 1 {
		t.Errorf("said %d times that power is missing:\n%s", n, p.logText())
	}
}

// TestOutsideTheHostsPIDNamespace: the driver lists no process, with success. That nothing runs is
// not concluded from it: neither the power of the busy GPU is taken for that of an idle one, nor is
// it said that no process is there.
func TestOutsideTheHostsPIDNamespace(t *testing.T) {
	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+write(t, "slice.yaml", busySlice),
		"--collectors=+instance_processes,+process,+process_info", "--web.processes=users")
	for range 5 {
		p.advance(time.Second)
	}

	s := p.scrape()

	watts := s.of("nvidia_gpu_power_watts")[0]
	s.expect(t, "the default of the model", 70, "nvidia_gpu_power_idle_watts")
	near := func(what string, want float64, labels ...string) {
		t.Helper()

		if got := s.of("nvidia_mig_gpu_instance_power_estimate_watts", labels...); len(got) != 1 || math.Abs(got[0]-want) > 1 {
			t.Errorf("%s: %v W of %v, want %v", what, got, watts, want)
		}
	}
	near("the busy slice", 70*60.0/132+watts-70, `mig_profile="3g.40gb"`)
	near("the empty slice", 70*16.0/132, `mig_profile="1g.10gb"`)

	for _, family := range []string{"nvidia_gpu_processes", "nvidia_mig_gpu_instance_processes", "nvidia_gpu_process_info",
		"nvidia_gpu_processes_omitted"} {
		if got := s.of(family); len(got) != 0 {
			t.Errorf("%s: %v, want no series", family, got)
		}
	}

	s.expect(t, "why", 1, "nvidia_gpu_read_errors_total", `reading="processes"`, `reason="pid_namespace"`)
	node := string(p.get("/api/v1/node").body)
	cmptest.HasTexts(t, node, `"reason":"pid_namespace"`)
	cmptest.LacksTexts(t, node, `"processes":`, `"processList":`)
	cmptest.HasTexts(t, string(p.get("/").body), "outside of the host&#39;s PID namespace (hostPID)",
		"Processes unknown: another PID namespace")

	if n := p.said(processesHidden); n != 1 {
		t.Errorf("said %d times that processes are not known:\n%s", n, p.logText())
	}
}
