package main

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// loggedXIDs has XIDs that the driver only prints, XIDs that it sends as well, and one from before
// the start.
const loggedXIDs = `
gpus:
- {model: H100-80GB, count: 2}
- {model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}
- {model: H100-80GB}
workloads: [{name: w, memory: 1GiB, sm: 10}]
processes: [{device: 1, workload: w}, {device: "2/3g.40gb@0", workload: w}]
faults:
- {at: 10s, gpu: 0, kind: xid, xid: 62}
- {at: 20s, gpu: 0, kind: xid, xid: 119}
- {at: 40s, gpu: 0, kind: xid, xid: 79}
- {at: 10s, gpu: 1, kind: xid, xid: 79}
- {at: 10s, gpu: 2, kind: xid, xid: 31, gi: 1, ci: 0}
- {at: 20s, gpu: 2, kind: xid, xid: 119, gi: 1, ci: 0}
- {at: 0s, gpu: 3, kind: xid, xid: 48}
`

// advanceMinute moves the clock of a simulated node by a minute, second by second.
func advanceMinute(p *program) {
	for range 60 {
		p.advance(time.Second)
	}
}

// TestXIDsOfTheKernelLog: every XID counts once, whichever source reports it and however often.
func TestXIDsOfTheKernelLog(t *testing.T) {
	for _, tt := range []struct {
		name            string
		args            []string
		total           [4]float64
		printed, before int // series of what is only in the log, and of what is from before the start
	}{
		{"events alone", nil, [4]float64{0, 1, 1, 0}, 0, 0},
		{"with the log", []string{"--xid.kernel-log"}, [4]float64{3, 1, 2, 0}, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := faultyNode(t, loggedXIDs, tt.args...)
			advanceMinute(p)

			s := p.scrape()
			for i, want := range tt.total {
				s.expect(t, "all XIDs", want, "nvidia_gpu_xids_total", index(i))
			}

			for _, xid := range []string{`xid="62"`, `xid="119"`, `xid="79"`} {
				cmptest.Equal(t, xid, len(s.of("nvidia_gpu_xid_errors_total", index(0), xid)), tt.printed)
			}

			s.expect(t, "79 of a busy GPU", 1, "nvidia_gpu_xid_errors_total", index(1), `xid="79"`)
			s.expect(t, "31 of the instance", 1, "nvidia_mig_gpu_instance_xid_errors_total", index(2), `xid="31"`)
			cmptest.Equal(t, "119 of the instance", len(s.of("nvidia_mig_gpu_instance_xid_errors_total", `xid="119"`)), 0)
			cmptest.Equal(t, "the log as a source", len(s.of("mig_exporter_source_up", `source="kernel_log"`)), tt.printed)

			cmptest.Equal(t, "48 from before", len(s.of("nvidia_gpu_xid_errors_total", index(3), `xid="48"`)), tt.before)

			if tt.before == 1 {
				s.expect(t, "48 from before the start", 0, "nvidia_gpu_xid_errors_total", index(3), `xid="48"`)
				now := s["mig_exporter_snapshot_timestamp_seconds"]
				s.expect(t, "its time", now-60, "nvidia_gpu_xid_last_timestamp_seconds", index(3), `xid="48"`)
			}
		})
	}
}

// TestXIDsWithoutRights: events of a GPU with instances are not delivered then, so that the log
// alone has its XIDs. If that cannot be read, either, it is said once, and nothing is counted.
func TestXIDsWithoutRights(t *testing.T) {
	for _, tt := range []struct {
		name, node string
		up         float64
		counted    int
	}{
		{"with the log", "node: {privileged: false}", 1, 1},
		{"without the log", "node: {privileged: false, kernelLog: false}", 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scenario := write(t, "unprivileged.yaml", "version: 1\n"+tt.node+loggedXIDs)
			p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario, "--kubernetes.socket=",
				"--xid.kernel-log")
			advanceMinute(p)
			s := p.scrape()
			s.expect(t, "the log", tt.up, "mig_exporter_source_up", `source="kernel_log"`)
			cmptest.Equal(t, "all XIDs are known", len(s.of("nvidia_gpu_xids_total", index(2))), tt.counted)
			cmptest.Equal(t, "31 is known", len(s.of("nvidia_gpu_xid_errors_total", index(2), `xid="31"`)), tt.counted)
			s.expect(t, "events are refused", 1, "nvidia_gpu_read_errors_total", index(2), `reading="events"`,
				`reason="no_permission"`)

			if n := p.said("source=kernel_log"); n != int(1-tt.up) {
				t.Errorf("said %d times that the log cannot be read:\n%s", n, p.logText())
			}
		})
	}
}
