package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// TestProcessDetail: processes are listed by default if each listener is on loopback or clients
// authenticate, and what the flag or the variable says is done.
func TestProcessDetail(t *testing.T) {
	password := write(t, "password.yml", "basic_auth_users:\n  prometheus: $2y$10$abc\n")
	headers := write(t, "headers.yml", "http_server_config:\n  headers:\n    X-Frame-Options: deny\n")

	for _, test := range []struct {
		args, env string
		want      gpu.ProcessDetail
	}{
		{"", "", "off"},
		{"--web.listen-address=0.0.0.0:9401", "", "off"},
		{"--web.listen-address=127.0.0.1:9401", "", "names"},
		{"--web.listen-address=localhost:9401 --web.listen-address=[::1]:9401", "", "names"},
		{"--web.listen-address=localhost:9401 --web.listen-address=:9402", "", "off"},
		{"--web.listen-address=localhost:9401 --web.systemd-socket", "", "off"},
		{"--web.config.file=" + password, "", "names"},
		{"--web.config.file=" + password + " --web.systemd-socket", "", "names"},
		{"--web.config.file=" + headers, "", "off"},
		{"--web.config.file=missing.yml", "", "off"},
		{"--web.processes=users", "", "users"},
		{"--web.processes=names", "", "names"},
		{"--web.processes=off --web.listen-address=localhost:9401", "", "off"},
		{"", "MIG_EXPORTER_WEB_PROCESSES=users", "users"},
	} {
		t.Run(test.args+test.env, func(t *testing.T) {
			if name, value, ok := strings.Cut(test.env, "="); ok {
				t.Setenv(name, value)
			}

			inv, err := parseCommandLine(strings.Fields(test.args), os.Environ())
			if err != nil {
				t.Fatal(err)
			}

			cmptest.Equal(t, "processes", inv.Config.Web.processDetail(), test.want)
		})
	}

	if _, err := parseCommandLine([]string{"--web.processes=all"}, nil); err == nil ||
		!strings.Contains(err.Error(), "auto, off, names or users") {
		t.Errorf("--web.processes=all: %v", err)
	}
}

// jobNode is a node without Kubernetes with one process.
const jobNode = `version: 1
node: {hostname: n, kubernetes: false}
gpus: [{model: A100-40GB}]
workloads: [{name: train, memory: 20GiB, width: 60, busy: 0.9}]
processes: [{device: "0", workload: train}]
`

// TestProcessesOfJobs: a process of the node has its batch job, and the id of a user without a
// name, as far as the flag says.
func TestProcessesOfJobs(t *testing.T) {
	jobs := t.TempDir()
	if err := os.WriteFile(jobs+"/0", []byte("90210\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, detail := range []gpu.ProcessDetail{gpu.ProcessesOff, gpu.ProcessNames, gpu.ProcessUsers} {
		p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+write(t, "jobs.yaml", jobNode),
			"--hpc.job-mapping-dir="+jobs, "--collectors=+process_info", "--web.processes="+string(detail))
		p.advance(time.Second)
		p.advance(time.Second)

		var doc nodedoc.Document
		if err := json.Unmarshal(p.get("/api/v1/node").body, &doc); err != nil {
			t.Fatal(err)
		}

		series := p.scrape().of("nvidia_gpu_process_info")
		list := doc.GPUs[0].ProcessList

		if detail == gpu.ProcessesOff {
			cmptest.Equal(t, "series and processes", [2]int{len(series), len(list)}, [2]int{})
			cmptest.Equal(t, "warnings", p.said("collector has no series"), 1)

			continue
		}

		if len(list) != 1 || len(series) != 1 {
			t.Fatalf("%s: %d series, processes %+v; want one of each", detail, len(series), list)
		}

		user := ""
		if detail == gpu.ProcessUsers {
			user = "1000"
		}

		list[0].PID = 0
		cmptest.Equal(t, string(detail), list[0], nodedoc.Process{Type: "compute", Name: "python3", User: user,
			MemoryUsedBytes: list[0].MemoryUsedBytes, Job: "90210"})
	}
}
