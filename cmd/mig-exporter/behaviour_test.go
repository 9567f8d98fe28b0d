package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func write(t *testing.T, name, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}

	return path
}

// TestWithoutADriver: --driver=nvml never pretends, and goes on looking.
func TestWithoutADriver(t *testing.T) {
	p := launch(t, "--driver=nvml", "--nvml.library-path="+filepath.Join(t.TempDir(), "libnvidia-ml.so.1"),
		"--poll.interval=50ms", "--kubernetes.socket="+filepath.Join(t.TempDir(), "kubelet.sock"))
	if r := p.get("/-/healthy"); r.status != http.StatusOK {
		t.Errorf("/-/healthy: %d", r.status)
	}

	ready := p.get("/-/ready")
	for strings.Contains(string(ready.body), "first") { // before the first Snapshot it says so instead
		ready = p.get("/-/ready")
	}

	if ready.status != http.StatusServiceUnavailable || !strings.Contains(string(ready.body), "no NVIDIA driver") {
		t.Errorf("/-/ready: %d %s", ready.status, ready.body)
	}

	metrics := string(p.get("/metrics").body)
	if strings.Contains(metrics, "nvidia_gpu_") {
		t.Error("GPU metrics without a driver")
	}

	for _, want := range []string{"mig_exporter_source_up{source=\"nvml\"} 0", "mig_exporter_build_info",
		"go_goroutines"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("%s is missing", want)
		}
	}

	// The collectors have written all that there is: that there is no driver is the source's to
	// say.
	if strings.Count(metrics, "\nmig_exporter_collector_success{") == 0 ||
		regexp.MustCompile(`(?m)^mig_exporter_collector_success\{.*\} 0$`).MatchString(metrics) {
		t.Error("a collector without a driver has failed, or there is none")
	}

	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM, want %d", code, exitOK)
	}

	if !strings.Contains(p.logText(), "no NVIDIA driver") {
		t.Errorf("the log does not say that there is no driver:\n%s", p.logText())
	}
}

func TestExitCodes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { taken.Close() }) // not defer: parallel subtests run after this function
	scenario := "../../testdata/scenarios/a30.yaml"

	tests := []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"unknown flag", []string{"--no-such-flag"}, exitUsage, []string{"no-such-flag", "--help"}},
		{"unknown driver", []string{"--driver=rocm"}, exitUsage, []string{"--driver=rocm", "nvml or sim"}},
		{"no duration", []string{"--poll.timeout=soon"}, exitUsage, []string{"--poll.timeout=soon", "5s"}},
		{"no number", []string{"--control.allow-gid=few"}, exitUsage, []string{"--control.allow-gid=few", "number"}},
		{"no such port", []string{"--web.listen-address=:99999"}, exitUsage, []string{"--web.listen-address=:99999", "65535"}},
		{"no port", []string{"--web.listen-address=localhost"}, exitUsage, []string{"--web.listen-address=localhost", "HOST:PORT"}},
		{"interval too short", []string{"--poll.interval=1us"}, exitUsage, []string{"--poll.interval=1µs", "50ms"}},
		{"scenario without the simulated driver", []string{"--sim.scenario=" + scenario}, exitFailure,
			[]string{"--driver=sim"}},
		{"scenario file missing", []string{"--driver=sim", "--sim.scenario=/no/such.yaml"}, exitFailure,
			[]string{"/no/such.yaml"}},
		{"port in use", []string{"--driver=sim", "--sim.scenario=" + scenario, "--web.listen-address=" + taken.Addr().
			String()},
			exitFailure, []string{taken.Addr().String(), "address already in use"}},
		{"web config missing", []string{"--driver=sim", "--sim.scenario=" + scenario, "--web.listen-address=127.0.0.1:0",
			"--web.config.file=/no/web.yml"},
			exitFailure, []string{"/no/web.yml"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := launchAnyhow(t, tt.args...)
			go func() {
				for range p.lines() {
				}
			}()

			if code := p.exitCode(); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}

			for _, want := range tt.says {
				if !strings.Contains(p.logText(), want) {
					t.Errorf("it does not say %q:\n%s", want, p.logText())
				}
			}
		})
	}
}

func TestCheckConfig(t *testing.T) {
	check := func(args ...string) (int, string) {
		var out, errOut strings.Builder
		code := execute(t.Context(), append([]string{"check-config"}, args...), &out, &errOut)

		return code, out.String() + errOut.String()
	}

	scenarios, err := filepath.Glob("../../testdata/scenarios/*.yaml")
	if err != nil || len(scenarios) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}

	for _, s := range scenarios {
		if code, text := check("--sim.scenario=" + s); code != exitOK {
			t.Errorf("%s: exit code %d: %s", s, code, text)
		}
	}

	for address, want := range map[string]int{
		":0": exitOK, "localhost:9401": exitOK, "[::1]:http": exitOK, "vsock://:9401": exitOK,
		":": exitUsage, "localhost:": exitUsage, "[::1]:": exitUsage, "localhost": exitUsage, ":-1": exitUsage,
		"vsock://:": exitUsage, "vsock://9401": exitUsage, "vsock://:4294967296": exitUsage,
	} {
		code, text := check("--web.listen-address=" + address)
		cmptest.Equal(t, "exit code with the address "+address+": "+text, code, want)

		if want == exitUsage {
			cmptest.HasTexts(t, text, "--web.listen-address="+address+": expected ")
		}
	}

	bad := write(t, "bad.yaml", "version: 1\ngpus:\n  - {model: A100-40GB, cuont: 2}\n")
	code, text := check("--sim.scenario=" + bad)
	cmptest.Equal(t, "exit code with a misspelt key of a scenario", code, exitFailure)
	cmptest.HasTexts(t, text, bad+":3", "cuont")
	web := write(t, "web.yml", "tls_server_config:\n  cert_flie: x\n")
	code, text = check("--web.config.file=" + web)
	cmptest.Equal(t, "exit code with a misspelt key of a web configuration", code, exitFailure)
	cmptest.HasTexts(t, text, web, "cert_flie")
}

// TestFlagsFromTheEnvironment: MIG_EXPORTER_ and the flag's name.
func TestFlagsFromTheEnvironment(t *testing.T) {
	t.Setenv("MIG_EXPORTER_POLL_INTERVAL", "250ms")
	t.Setenv("MIG_EXPORTER_WEB_LISTEN_ADDRESS", "127.0.0.1:0")
	t.Setenv("MIG_EXPORTER_KUBERNETES_LABELS", "info")

	inv, err := parseCommandLine([]string{"--collectors=-ecc"}, os.Environ())
	if err != nil {
		t.Fatal(err)
	}

	c := inv.Config
	cmptest.Equal(t, "command", inv.Command, commandServe)
	cmptest.Equal(t, "poll interval", c.Poll.Interval, 250*time.Millisecond)
	cmptest.Equal(t, "addresses", c.Web.Addresses, []string{"127.0.0.1:0"})
	cmptest.Equal(t, "pod labels", c.Kubernetes.PodLabels, "info")

	for _, g := range collector.Groups() {
		if off, want := c.Metrics.Disabled[g.Name], g.OptIn || g.Name == "ecc"; off != want {
			t.Errorf("collector %s is off: %v, want %v", g.Name, off, want)
		}
	}

	if c.Metrics.servesProcesses() {
		t.Error("single processes are asked for")
	}

	if inv, err = parseCommandLine([]string{"--collectors=+process", "-c", "30000"}, os.Environ()); err != nil ||
		!inv.Config.Metrics.servesProcesses() {
		t.Errorf("--collectors=+process: %v, %v", inv.Config.Metrics.Disabled, err)
	}

	if c := inv.Config; c.Poll.Interval != 30*time.Second || c.Poll.readyMaxAge(1) != 90*time.Second {
		t.Errorf("interval %v of dcgm-exporter's flag, ready for %v; want 30s and three times that", c.Poll.Interval,
			c.Poll.readyMaxAge(1))
	}
}

func TestServesTheSimulatedNode(t *testing.T) {
	p := simulate(t, "dgx-a100-mixed")
	p.advance(time.Second)

	if r := p.get("/-/ready"); r.status != http.StatusOK {
		t.Errorf("/-/ready: %d %s", r.status, r.body)
	}

	if r := p.get("/"); r.status != http.StatusOK || !strings.Contains(string(r.body), "dgx-a100") {
		t.Errorf("landing page: %d", r.status)
	}

	var node struct {
		APIVersion string `json:"apiVersion"`
		Generation uint64 `json:"generation"`
		GPUs       []struct {
			UUID         string           `json:"uuid"`
			GPUInstances []map[string]any `json:"gpuInstances"`
		} `json:"gpus"`
	}
	if err := json.Unmarshal(p.get("/api/v1/node").body, &node); err != nil {
		t.Fatal(err)
	}

	if node.APIVersion != "mig-exporter/v1" || len(node.GPUs) != 8 {
		t.Errorf("state: version %q, %d GPUs", node.APIVersion, len(node.GPUs))
	}

	plain := p.request(http.MethodGet, "/metrics", map[string]string{"Accept-Encoding": "identity"})
	zipped := p.request(http.MethodGet, "/metrics", map[string]string{"Accept-Encoding": "gzip"})

	reader, err := gzip.NewReader(strings.NewReader(string(zipped.body)))
	if err != nil {
		t.Fatalf("gzip: %v", err)
	}

	unzipped, err := io.ReadAll(reader)
	if err != nil {
		t.Fatalf("gzip: %v", err)
	}

	zippedText := strings.Replace(string(keepGolden(t, unzipped)), `{result="served"} 1`, `{result="served"} 0`, 1)
	if plainText := string(keepGolden(t, plain.body)); zippedText != plainText {
		t.Errorf("the compressed exposition differs from the plain one:\n%s", firstDifferences(plainText, zippedText, 10))
	}

	if r := p.request(http.MethodPost, "/-/sim/advance?by=yesterday", nil); r.status != http.StatusBadRequest {
		t.Errorf("advance by yesterday: %d", r.status)
	}

	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestScrapesCallNoDriver: the count of driver calls stands still between polls, however often one
// scrapes.
func TestScrapesCallNoDriver(t *testing.T) {
	p := simulate(t, "h100-underused")
	p.advance(time.Second)
	calls := func() string {
		counts := ""

		for line := range strings.Lines(string(p.get("/metrics").body)) {
			if strings.HasPrefix(line, "mig_exporter_driver_calls_total") {
				counts += line
			}
		}

		return counts
	}

	before := calls()
	if before == "" {
		t.Fatal("mig_exporter_driver_calls_total is missing")
	}

	for range 20 {
		p.get("/api/v1/node")
		p.get("/")

		if after := calls(); after != before {
			t.Fatalf("driver calls went from %s to %s without a poll", before, after)
		}
	}

	p.advance(time.Second)

	if calls() == before {
		t.Error("a poll made no driver call")
	}
}

// TestHostileLabels: what pods and scenarios put into labels reaches a scraper escaped, and parses.
func TestHostileLabels(t *testing.T) {
	scenario := write(t, "hostile.yaml", `version: 1
node: {hostname: "n\"1\\", driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus: [{model: A30, count: 1}]
workloads: [{name: w, memory: 1GiB, sm: 4}]
pods:
  - {namespace: ns, name: p, container: c, labels: {team: "a\"b\nc\\d", bad: "\xE9"}, resource: nvidia.com/gpu, workload: w}
`)
	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario, "--kubernetes.pod-label=team")
	p.advance(time.Second)

	body := string(p.get("/metrics").body)
	if want := `label_team="a\"b\nc\\d"`; !strings.Contains(body, want) {
		t.Errorf("%s is missing", want)
	}

	if strings.Contains(body, "mig_exporter_collector_success{") &&
		strings.Contains(body, "} 0\nmig_exporter_collector_success") {
		t.Error("a collector failed")
	}

	if r := p.get("/"); r.status != http.StatusOK {
		t.Errorf("page: %d", r.status)
	}
}

func TestPollIsReportedAsDown(t *testing.T) {
	scenario := write(t, "lost.yaml", `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: H100-80GB, count: 2}]
faults: [{at: 10s, for: 20s, gpu: 1, kind: lost}]
`)
	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario)
	up := func(index int) string {
		for line := range strings.Lines(string(p.get("/metrics").body)) {
			if strings.HasPrefix(line, fmt.Sprintf(`nvidia_gpu_up{gpu="%d"`, index)) {
				return strings.TrimSpace(line[strings.LastIndex(line, " "):])
			}
		}

		return "missing"
	}
	power := func() int { return strings.Count(string(p.get("/metrics").body), "\nnvidia_gpu_power_watts{") }

	for _, s := range []struct {
		by     time.Duration
		up     [2]string
		powers int
	}{
		{time.Second, [2]string{"1", "1"}, 2},
		{10 * time.Second, [2]string{"1", "0"}, 1},
		{time.Second, [2]string{"1", "0"}, 1},
		{20 * time.Second, [2]string{"1", "1"}, 2},
	} {
		p.advance(s.by)

		if got := [2]string{up(0), up(1)}; got != s.up || power() != s.powers {
			t.Errorf("after %s: up %v with %d powers, want %v with %d", s.by, got, power(), s.up, s.powers)
		}
	}
}

// TestLayoutChangeByAnyone: a layout change by another client shows in the next poll, without a
// restart, and what was there is gone.
func TestLayoutChangeByAnyone(t *testing.T) {
	scenario := write(t, "repartition.yaml", `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: A100-40GB, mig: true, layout: ["1g.5gb@0", "3g.20gb@4"]}]
faults: [{at: 10s, gpu: 0, kind: external-reconfigure, layout: ["4g.20gb@0", "3g.20gb@4"]}]
`)
	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario)
	profiles := func() string {
		var found []string

		for line := range strings.Lines(string(p.get("/metrics").body)) {
			if strings.HasPrefix(line, "nvidia_mig_gpu_instance_info{") {
				_, rest, _ := strings.Cut(line, `mig_profile="`)
				name, _, _ := strings.Cut(rest, `"`)
				found = append(found, name)
			}
		}

		return strings.Join(found, " ")
	}
	changes := func(n int) bool {
		return strings.Contains(string(p.get("/metrics").body), "\nnvidia_gpu_mig_layout_changes_total{") &&
			strings.Contains(string(p.get("/metrics").body), fmt.Sprintf("\"} %d\n# HELP nvidia_gpu_mig_pending", n))
	}
	p.advance(time.Second)

	if got := profiles(); got != "1g.5gb 3g.20gb" || !changes(0) {
		t.Errorf("before: %s, no change counted: %v", got, changes(0))
	}

	p.advance(10 * time.Second)

	if got := profiles(); got != "3g.20gb 4g.20gb" && got != "4g.20gb 3g.20gb" {
		t.Errorf("profiles after the change: %s", got)
	}

	cmptest.Equal(t, "one change counted", changes(1), true)
}
