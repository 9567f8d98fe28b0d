package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// activityOf is every ratio of activity and every link rate of a scrape, by series.
func activityOf(t *testing.T, scrape string) map[string]float64 {
	t.Helper()
	series := regexp.MustCompile(`(?m)^(nvidia_\w+(?:activity_ratio|occupancy_ratio|bytes_per_second)\{.*\}) (\S+)$`)
	list := map[string]float64{}

	for _, m := range series.FindAllStringSubmatch(scrape, -1) {
		value, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}

		list[m[1]] = value
	}

	return list
}

// TestSamePictureByGPMAndDCGM: the same instances, the same second, the same values from either.
func TestSamePictureByGPMAndDCGM(t *testing.T) {
	for _, scenario := range []string{"gke-h100-3g", "h100-underused", "h100-56"} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			scrapes := map[string]map[string]float64{}

			for _, source := range []string{"gpm", "dcgm"} {
				p := simulate(t, scenario, "--profiling.source="+source, "--dcgm.address=embedded")
				for range 6 { // DCGM's hierarchy has to settle
					p.advance(time.Second)
				}

				body := string(p.get("/metrics").body)
				if !strings.Contains(body, `source="`+source+`"`) {
					t.Fatalf("nothing comes from %s", source)
				}

				scrapes[source] = activityOf(t, body)
			}

			gpm := scrapes["gpm"]

			dcgm := scrapes["dcgm"]
			if len(gpm) < 50 || len(gpm) != len(dcgm) {
				t.Errorf("%d series by GPM, %d by DCGM", len(gpm), len(dcgm))
			}

			for name, value := range gpm {
				other, ok := dcgm[name]

				within := 1e-6
				if strings.Contains(name, "_bytes_per_second{") {
					within = 1 // DCGM counts whole bytes
				}

				if !ok || math.Abs(value-other) > within {
					t.Errorf("%s is %v by GPM, %v (%v) by DCGM", name, value, other, ok)
				}
			}
		})
	}
}

// TestEachGPUByWhatItHas: on a node whose GPUs differ, auto asks the driver where it has GPM and
// DCGM for the others.
func TestEachGPUByWhatItHas(t *testing.T) {
	scenario := write(t, "mixed.yaml", `version: 1
node: {kubernetes: false}
gpus:
- {model: H100-80GB}
- {model: A100-40GB, mig: true, layout: ["3g.20gb@4"]}
- {model: A100-40GB}
workloads: [{name: w, memory: 1GiB, sm: 21}]
processes: [{device: 0, workload: w}, {device: "1/3g.20gb@4", workload: w}, {device: 2, workload: w}]
`)

	sources := func(args ...string) string {
		p := launch(t, append([]string{"--driver=sim", "--sim.clock=step", "--sim.scenario=" + scenario}, args...)...)
		for range 6 {
			p.advance(time.Second)
		}

		var list []string
		for _, m := range regexp.MustCompile(`nvidia_gpu_activity_source\{gpu="(\d)",rollup="\w+",source="(\w+)"`).
			FindAllStringSubmatch(string(p.get("/metrics").body), -1) {
			list = append(list, m[1]+m[2])
		}

		return strings.Join(list, " ")
	}
	for _, tt := range []struct{ want, args string }{
		{"0gpm 1dcgm 2dcgm", "--dcgm.address=embedded"},
		{"0gpm", ""},
		{"0gpm", "--dcgm.address=embedded --profiling.source=gpm"},
		{"0dcgm 1dcgm 2dcgm", "--dcgm.address=embedded --profiling.source=dcgm"},
		{"", "--dcgm.address=embedded --profiling.source=off"},
	} {
		if got := sources(strings.Fields(tt.args)...); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.args, got, tt.want)
		}
	}
}

// TestWithoutLibdcgm: the line says what is missing, and the rest goes on.
func TestWithoutLibdcgm(t *testing.T) {
	p := simulate(t, "dgx-a100-mixed", "--dcgm.address=127.0.0.1:5555")
	p.advance(time.Second)
	p.advance(time.Second)

	body := string(p.get("/metrics").body)
	if !strings.Contains(body, `mig_exporter_source_up{source="dcgm"} 0`) ||
		!strings.Contains(body, "\nnvidia_gpu_power_watts{") {
		t.Errorf("without libdcgm:\n%s", body)
	}

	if log := p.logText(); !strings.Contains(log, "libdcgm.so.4") || strings.Count(log, "libdcgm.so.4") > 2 {
		t.Errorf("the log does not name the library, or goes on about it:\n%s", log)
	}
}

// TestJobs: a folder that a scheduler's prolog keeps names the jobs of its devices.
func TestJobs(t *testing.T) {
	dir := t.TempDir()
	job := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	job("0", "4711\n")
	job("2.1", "4712\n4713\n")
	p := simulate(t, "dgx-a100-mixed", "--hpc.job-mapping-dir="+dir)
	p.advance(time.Second)

	body := string(p.get("/metrics").body)
	for _, want := range []string{
		`\nnvidia_gpu_container_power_estimate_watts\{[^}]*gpu="0",hpc_job="4711",`,
		`\nnvidia_mig_gpu_instance_hpc_job_info\{[^}]*gpu="2"[^}]*gpu_instance="1"[^}]*hpc_job="4712"`,
		`\nnvidia_mig_gpu_instance_hpc_job_info\{[^}]*gpu="2"[^}]*gpu_instance="1"[^}]*hpc_job="4713"`,
		`\nmig_exporter_source_up\{source="hpc_jobs"\} 1`,
	} {
		if !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("no %s", want)
		}
	}

	job("0", "")
	p.advance(time.Second) // reports its energy once more
	p.advance(time.Second)

	if body = string(p.get("/metrics").body); strings.Contains(body, `"4711"`) {
		t.Error("a job that has ended is still named")
	}
}

// TestCountersFile: rows that are wrong are named with file, line and column.
func TestCountersFile(t *testing.T) {
	file := write(t, "counters.csv",
		"# comment\nDCGM_FI_DEV_GPU_TEMP, gauge, temperature\nDCGM_FI_NOT_THERE, gauge, nothing\n")
	var out, errOut bytes.Buffer

	code := execute(t.Context(), []string{"check-config", "--metrics.names=dcgm", "-f", file}, &out, &errOut)
	if code != exitFailure || !strings.Contains(errOut.String(), file+":3:1: ") {
		t.Errorf("exit code %d:\n%s", code, &errOut)
	}

	file = write(t, "counters.csv", "# comment\nDCGM_FI_DEV_GPU_TEMP, gauge, temperature\n")
	p := simulate(t, "a30", "--metrics.names=dcgm", "-f", file)
	p.advance(time.Second)
	body := string(p.get("/metrics").body)
	cmptest.HasTexts(t, body, "\nDCGM_FI_DEV_GPU_TEMP{")
	cmptest.LacksTexts(t, body, "\nDCGM_FI_DEV_POWER_USAGE{", "\nnvidia_gpu_")
}
