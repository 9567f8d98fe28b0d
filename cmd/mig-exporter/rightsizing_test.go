package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/rightsizing"
)

// recommendations reads the report that a program serves.
func (p *program) recommendations(query string) *advise.Report {
	p.t.Helper()
	r := p.get("/api/v1/recommendations" + query)

	var report advise.Report
	if err := json.Unmarshal(r.body, &report); err != nil || r.status != http.StatusOK {
		p.t.Fatalf("recommendations: %d %s: %v", r.status, r.body, err)
	}

	return &report
}

// observedMinutes returns how long the first GPU's workload has been observed.
func (p *program) observedMinutes() float64 {
	p.t.Helper()

	e := p.recommendations("?gpu=0").Devices[0].Evidence
	if e == nil {
		p.t.Fatal("there is no evidence on GPU 0")
	}

	return e.ObservedHours * 60
}

// TestRightsizing follows the underused node for a week: metrics and report agree on which GPUs
// should be slices, and say nothing of the free one.
func TestRightsizing(t *testing.T) {
	t.Parallel()
	p := simulate(t, "h100-underused", "--poll.interval=1h")
	cmptest.LacksTexts(t, string(p.get("/metrics").body), "nvidia_gpu_rightsizing_")
	cmptest.HasTexts(t, p.logText(), "a restart loses it")

	for range 25 {
		p.advance(time.Hour) // that the notebook takes a context alone is seen after a day, the starts of the others earlier
	}

	for range 23 {
		p.advance(6 * time.Hour) // of which an hour counts
	}

	before := string(p.get("/metrics").body)
	cmptest.HasTexts(t, before, `nvidia_gpu_rightsizing_rejected{gpu="5",reason="provisional"`)
	cmptest.LacksTexts(t, before, "nvidia_gpu_rightsizing_candidate{")
	p.advance(6 * time.Hour)
	p.advance(time.Hour)
	text := string(p.get("/metrics").body)
	cmptest.HasTexts(t, text, `nvidia_gpu_rightsizing_candidate{container="jupyter",gpu="5",namespace="ml",pod="notebook-ben",`+
		`recommended_profile="1g.10gb",`)

	report := p.recommendations("")
	if report.Packing == nil || len(report.Packing.FreedGPUs) == 0 {
		t.Errorf("packing is %+v, want freed GPUs", report.Packing)
	}

	for i := range report.Devices {
		d := &report.Devices[i]
		has := func(family, label string) bool {
			return regexp.MustCompile(fmt.Sprintf(`(?m)^%s\{.*gpu="%d",.*%s`, family, d.Index, label)).MatchString(text)
		}
		candidate := has("nvidia_gpu_rightsizing_candidate", `recommended_profile="`+regexp.QuoteMeta(d.Recommended)+`"`)
		cmptest.Equal(t, fmt.Sprintf("GPU %d is a candidate", d.Index), candidate, d.Candidate())
		cmptest.Equal(t, fmt.Sprintf("GPU %d is rejected", d.Index), has("nvidia_gpu_rightsizing_rejected", ""),
			!d.Candidate() && d.Action != advise.ActionFree)
		cmptest.Equal(t, fmt.Sprintf("GPU %d has a stretch", d.Index), has("nvidia_gpu_rightsizing_stretch_ratio", ""),
			d.Candidate() && !d.Evidence.NeverBusy)
		cmptest.Equal(t, fmt.Sprintf("GPU %d has a latency", d.Index), has("nvidia_gpu_rightsizing_latency_ratio", ""),
			d.Candidate() && d.Predicted.Latency != (advise.Latency{}))
		cmptest.Equal(t, fmt.Sprintf("GPU %d has a part to reclaim", d.Index),
			has("nvidia_gpu_rightsizing_reclaimable_ratio", ""), d.Candidate())
	}

	cmptest.Equal(t, "devices of one GPU", len(p.recommendations("?gpu=5").Devices), 1)
	cmptest.Equal(t, "of a GPU that does not exist", p.get("/api/v1/recommendations?gpu=8").status, http.StatusNotFound)
}

func TestRightsizingIsOff(t *testing.T) {
	p := simulate(t, "h100-underused", "--no-advise.enabled")
	cmptest.Equal(t, "recommendations", p.get("/api/v1/recommendations").status, http.StatusNotFound)
	cmptest.LacksTexts(t, string(p.get("/metrics").body), "nvidia_gpu_rightsizing_")
}

// TestEvidenceOutlivesTheProcess: killed at any moment, the program loses at most what came since
// it saved the evidence last; ended by a signal, nothing. A file that it cannot read is set aside
// and begins anew.
func TestEvidenceOutlivesTheProcess(t *testing.T) {
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "node.json")) // the simulated node and its clock outlive it, too
	dir := filepath.Join(t.TempDir(), "state")
	start := func() *program {
		return simulate(t, "h100-underused", "--poll.interval=1m", "--advise.min-evidence=10m", "--advise.state-dir="+dir)
	}

	p := start()
	for range 19 { // the evidence of the first ten minutes is saved
		p.advance(time.Minute)
	}

	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	p.exitCode()

	p = start()
	p.advance(time.Minute)
	p.advance(time.Minute)
	cmptest.HasTexts(t, p.logText(), "restored the evidence")

	restored := p.observedMinutes()
	if restored < 9 || restored > 12 {
		t.Errorf("observed for %v minutes, want the ten that were saved and up to two", restored)
	}

	cmptest.Equal(t, "exit code", p.stop(), exitOK)

	p = start()
	p.advance(time.Minute)

	if got := p.observedMinutes(); got < restored {
		t.Errorf("observed for %v minutes after a restart, %v before", got, restored)
	}

	p.stop()

	path := filepath.Join(dir, rightsizing.FileName)
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}

	p = start()
	cmptest.HasTexts(t, p.logText(), "renamed its file", "garbage")
	p.advance(time.Minute)
	p.advance(time.Minute)

	if got := p.observedMinutes(); got > 2 {
		t.Errorf("observed for %v minutes without evidence from before", got)
	}

	cmptest.Equal(t, "exit code", p.stop(), exitOK)

	aside, err := os.ReadFile(path + ".unusable-1")
	if err != nil || string(aside) != "garbage" {
		t.Errorf("set aside is %q: %v", aside, err)
	}

	cmptest.HasTexts(t, readText(t, path), "right-sizing evidence, version 1")
}

func TestAdviseFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "",
		"--advise.max-stretch=0.9":    "--advise.max-stretch=0.9: expected 1 to 100",
		"--advise.max-stretch=+Inf":   "--advise.max-stretch=+Inf: expected 1 to 100",
		"--advise.min-evidence=721h":  "--advise.min-evidence=721h0m0s: expected 1m to 720h",
		"--advise.min-evidence=1s":    "--advise.min-evidence=1s: expected 1m to 720h",
		"--advise.strategy=none":      "--advise.strategy=none: expected mixed or single",
		"--advise.workload-label=app": "--advise.workload-label: expected --kubernetes.node-name too",
		"--advise.server-metrics":     "--advise.server-metrics: expected --kubernetes.node-name too",
		"--advise.server-metrics --kubernetes.node-name=n":                           "",
		"--advise.workload-label=app --kubernetes.node-name=n":                       "",
		"--advise.workload-label=app.kubernetes.io/part_of --kubernetes.node-name=n": "",
		"--advise.workload-label=my*label --kubernetes.node-name=n":                  `"my*label": expected the key`,
		"--advise.workload-label=a/b/c --kubernetes.node-name=n":                     `"a/b/c": expected the key`,
		"--advise.workload-label=/app --kubernetes.node-name=n":                      `"/app": expected the key`,
		"--advise.workload-label=App.io/x --kubernetes.node-name=n":                  `"App.io/x": expected the key`,
	} {
		_, err := parseCommandLine(strings.Fields(args), []string{""})
		expectError(t, args, err, want)
	}

	t.Setenv("MIG_EXPORTER_ADVISE_MAX_STRETCH", "1.5")
	inv, err := parseCommandLine(strings.Fields("--advise.strict --advise.strategy=single --poll.interval=10s"),
		os.Environ())
	expectError(t, "environment", err, "")
	want := advise.DefaultOptions()
	want.MaxStretch = 1.5
	want.Strict = true
	want.SingleStrategy = true
	want.MaxGap = 30 * time.Second
	cmptest.Equal(t, "options", inv.Config.Advise.options(inv.Config.Poll.Interval), want)
	inv, err = parseCommandLine(strings.Fields("--no-advise.enabled --advise.strict"), []string{""})
	expectError(t, "off", err, "")
	cmptest.HasTexts(t, fmt.Sprint(inv.Warnings), "--advise.strict", "needs --advise.enabled")
}

// TestMediaForRightSizing: right-sizing goes by the media engines of GPUs and of GPU instances,
// whatever is served.
func TestMediaForRightSizing(t *testing.T) {
	c, err := collector.New(collector.Options{})
	if err != nil {
		t.Fatal(err)
	}

	for _, advises := range []bool{false, true} {
		cmptest.Equal(t, "extra readings", neededExtras(advises, c), gpu.Extras{Media: advises})
	}
}

// TestMetricsHaveTheReasonOfTheRule: metrics give a slice that is not final the reason of
// advise.WhyNotFinal, as migctl recommend does.
func TestMetricsHaveTheReasonOfTheRule(t *testing.T) {
	for _, d := range []advise.Recommendation{{Provisional: true}, {NotChecked: true}, {Provisional: true, NotChecked: true}} {
		d.GPU = "GPU-0"
		d.Action = advise.ActionSlice
		served := adviceOf(&advise.Report{Devices: []advise.Recommendation{d}})
		cmptest.Equal(t, "series", len(served), 1)
		cmptest.Equal(t, "reason", served[0].Rejected, string(d.WhyNotFinal()))
	}
}
