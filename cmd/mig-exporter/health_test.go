package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/health"
)

func (p *program) health() *health.Report {
	p.t.Helper()

	r := p.get("/api/v1/health")
	if r.status != http.StatusOK {
		p.t.Fatalf("GET /api/v1/health: %d %s", r.status, r.body)
	}

	var report health.Report
	if err := json.Unmarshal(r.body, &report); err != nil {
		p.t.Fatal(err)
	}

	return &report
}

// verdicts returns the worst reason of each GPU, or its state if it has none.
func verdicts(r *health.Report) string {
	texts := make([]string, 0, len(r.GPUs))

	for i := range r.GPUs {
		g := &r.GPUs[i]
		text := string(g.State)

		if len(g.Reasons) > 0 {
			text += " " + string(g.Reasons[0].Code)
		}

		texts = append(texts, text)
	}

	return strings.Join(texts, ", ")
}

// TestHealthOfFaults: what befalls a node shows in its health, and ends there.
func TestHealthOfFaults(t *testing.T) {
	p := faultyNode(t, `
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {model: H100-80GB}
faults:
  - {at: 10s, for: 30s, gpu: 0, kind: lost}
  - {at: 10s, gpu: 2, kind: xid, xid: 31}
  - {at: 60s, for: 60s, gpu: 1, kind: xid, xid: 94, gi: 1, ci: 0, recovery: drain_and_reset}
  - {at: 60s, for: 30s, gpu: 2, kind: reset-required}
  - {at: 150s, gpu: 0, kind: xid, xid: 74}
  - {at: 160s, for: 20s, gpu: 0, kind: reset-required}
  - {at: 210s, for: 30s, gpu: 0, kind: no-permission, reading: ecc}
`)

	for _, step := range []struct {
		at   time.Duration
		want string
	}{
		{5 * time.Second, "healthy, healthy, healthy"},
		{15 * time.Second, "unhealthy GPULost, healthy, healthy"},
		{45 * time.Second, "healthy, healthy, healthy"},
		{80 * time.Second, "healthy, unhealthy ECCUncorrectable, unhealthy GPUResetRequired"},
		// The driver asks for nothing any more, but has counted an error of GPU 1.
		{140 * time.Second, "healthy, unhealthy ECCUncorrectable, healthy"},
		{155 * time.Second, "unhealthy XIDHardware, unhealthy ECCUncorrectable, healthy"},
		{170 * time.Second, "unhealthy XIDHardware, unhealthy ECCUncorrectable, healthy"},
		{200 * time.Second, "healthy, unhealthy ECCUncorrectable, healthy"},
		{235 * time.Second, "unknown ECCUnreadable, unhealthy ECCUncorrectable, healthy"},
	} {
		for time.Duration(p.health().Generation) < step.at/time.Second {
			p.advance(time.Second)
		}

		report := p.health()
		cmptest.Equal(t, step.at.String(), verdicts(report), step.want)

		if step.at != 80*time.Second {
			continue
		}

		cmptest.Equal(t, "action of the node", report.Action, health.ActionReset)

		hit := report.GPUs[1].Instances
		cmptest.Equal(t, "reasons of the instances", []int{len(hit[0].Reasons), len(hit[1].Reasons)}, []int{2, 1})
	}
}

// oldDriver is a node whose driver does not say what is to be done.
const oldDriver = `version: 1
node: {hostname: n, driver: "535.104.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: H100-80GB, count: 2}]
faults: [{at: 10s, gpu: 1, kind: xid, xid: 74}, {at: 10m, for: 1m, gpu: 1, kind: reset-required}]
`

// TestHealthAfterRestart: what a process has seen of a GPU stands for the next one, if there is a
// folder that outlives it, whether it was stopped or killed, until the GPU is reset.
func TestHealthAfterRestart(t *testing.T) {
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "node.json"))

	dir := t.TempDir()
	scenario := write(t, "s.yaml", oldDriver)
	start := func() *program {
		return launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario, "--advise.state-dir="+dir)
	}

	p := start()
	p.advance(5 * time.Second)
	cmptest.Equal(t, "first", verdicts(p.health()), "healthy, healthy")
	cmptest.HasTexts(t, p.health().Message, "nothing is known to be wrong; XIDs from before ")
	p.stop()

	p = start()
	p.advance(10 * time.Second)
	cmptest.Equal(t, "struck", verdicts(p.health()), "healthy, unhealthy XIDHardware")
	cmptest.Equal(t, "message", p.health().GPUs[0].Message,
		"nothing is known to be wrong, and all that the hardware reports is read")

	since := p.health().GPUs[1].Reasons[0].Since

	p.stop()

	for range 2 {
		p = start()
		p.advance(time.Second)
		cmptest.Equal(t, "restarted", verdicts(p.health()), "healthy, unhealthy XIDHardware")
		cmptest.Equal(t, "since", p.health().GPUs[1].Reasons[0].Since, since)
		p.signal(syscall.SIGKILL)
		p.exitCode()
	}

	p = start()
	p.advance(10 * time.Minute)
	p.advance(time.Minute)
	cmptest.Equal(t, "reset", verdicts(p.health()), "healthy, healthy")
}

// TestConditionAfterRestart: without such a folder, the Node's own condition keeps an exporter from
// calling a GPU healthy because it was restarted.
func TestConditionAfterRestart(t *testing.T) {
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "node.json"))

	s := startNodeServer(t)
	args := append([]string{"--driver=sim", "--sim.clock=step", "--sim.scenario=" + write(t, "s.yaml", oldDriver)},
		strings.Fields(conditionFlags)...)
	start := func() *program { return launch(t, args...) }

	const ready, layout = "Ready=True KubeletReady, ", ", MIGLayoutApplied=True NoLayoutWanted"

	p := start()
	s.expect(t, p, 20*time.Second, ready+"GPUHealthy=False XIDHardware"+layout)
	p.stop()

	for _, want := range []string{"GPUHealthy=False XIDHardware", "GPUHealthy=Unknown XIDBeforeStart"} {
		p = start()
		s.expect(t, p, 0, ready+want+layout)
		s.expect(t, p, time.Minute, ready+want+layout)
		s.expect(t, p, 6*time.Minute, ready+"GPUHealthy=Unknown XIDBeforeStart"+layout)
		cmptest.Equal(t, "message", p.health().Message,
			"whether this is over is not known: GPU 1: XID 74 (NVLink error): the GPU needs a reset")
		p.stop()
	}
}

// TestHealthIsGuarded: the health is behind the guards of /api/v1/node.
func TestHealthIsGuarded(t *testing.T) {
	p := simulate(t, "a30", "--no-web.state")
	cmptest.Equal(t, "without the state", p.get("/api/v1/health").status, http.StatusNotFound)

	// The hash is of "secret".
	config := write(t, "web.yml", "basic_auth_users:\n"+
		"  monitor: $2y$05$8zc6YY7OaAVnNeR4n7AdE.7bWYvZB0g4RBKsGBJjQkZs3Ua9r3AqW\n")

	p = simulate(t, "a30", "--web.config.file="+config)
	cmptest.Equal(t, "without a password", p.get("/api/v1/health").status, http.StatusUnauthorized)

	p = simulate(t, "a30")
	cmptest.Equal(t, "of this node", p.get("/api/v1/health").status, http.StatusOK)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/api/v1/health", nil)
	if err != nil {
		t.Fatal(err)
	}

	request.Host = "attacker.example"

	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	cmptest.Equal(t, "for a foreign name", answer.StatusCode, http.StatusMisdirectedRequest)
}

// TestHealthWithoutADriver: a node whose driver does not answer is unknown, not healthy.
func TestHealthWithoutADriver(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("NOT TESTED: a node without a driver: this machine has one")
	}

	p := launch(t, "--driver=nvml", "--kubernetes.socket=", "--nvml.library-path=/none/libnvidia-ml.so.1")

	deadline := time.Now().Add(testTimeout)
	for p.health().Generation == 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // the program says nothing when its first poll has ended
	}

	report := p.health()
	cmptest.Equal(t, "state", report.State, health.Unknown)
	cmptest.Equal(t, "reason", report.Reasons[0].Code, health.CodeDriver)
}

// TestNodeProblemDetector runs the script as node-problem-detector's image does, which has no more
// than bash and Debian's essential programs. It calls but these.
func TestNodeProblemDetector(t *testing.T) {
	tools := t.TempDir()

	for _, name := range []string{"bash", "timeout", "head"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("NOT TESTED: the script for node-problem-detector: %v", err)
		}

		if err := os.Symlink(path, filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}

	check := func(address string) (text string, code int) {
		t.Helper()

		command := exec.CommandContext(t.Context(), filepath.Join(tools, "bash"),
			"../../deploy/node-problem-detector/gpu-health.sh", address)
		command.Env = []string{"PATH=" + tools}

		out, err := command.CombinedOutput()

		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}

		return strings.TrimSpace(string(out)), command.ProcessState.ExitCode()
	}

	p := faultyNode(t, `
gpus: [{model: H100-80GB, count: 2}]
faults:
  - {at: 30s, for: 30s, gpu: 1, kind: lost}
  - {at: 90s, for: 30s, gpu: 0, kind: no-permission, reading: ecc}
  - {at: 150s, gpu: 0, kind: xid, xid: 63}
`)
	address := strings.TrimPrefix(p.url, "http://")

	for _, step := range []struct {
		by   time.Duration
		text string
		code int
	}{
		{5 * time.Second, "healthy, to do: none: nothing is known to be wrong", 0},
		{30 * time.Second, "unhealthy, to do: reboot: GPU 1: the GPU is lost", 1},
		{30 * time.Second, "healthy", 0},
		{45 * time.Second, "unknown, to do: none: GPU 0: memory errors cannot be read", 2},
		{60 * time.Second, "degraded, to do: reset: GPU 0: XID 63", 0},
	} {
		for range step.by / time.Second {
			p.advance(time.Second)
		}

		text, code := check(address)
		if !strings.HasPrefix(text, step.text) || code != step.code {
			t.Errorf("%d %s, want %d %s", code, text, step.code, step.text)
		}
	}

	off := simulate(t, "a30", "--no-web.state")
	text, code := check(strings.TrimPrefix(off.url, "http://"))
	cmptest.HasTexts(t, text, "404 Not Found")
	cmptest.Equal(t, "exit code without the state", code, 2)

	text, code = check("127.0.0.1:1")
	cmptest.Equal(t, "text without an exporter", text, "mig-exporter does not answer at 127.0.0.1:1")
	cmptest.Equal(t, "exit code without an exporter", code, 2)

	// A program that accepts and never answers.
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()

	began := time.Now()

	_, code = check(silent.Addr().String())
	cmptest.Equal(t, "exit code without an answer", code, 2)
	cmptest.Equal(t, "in time for its limit of 5 s", time.Since(began) < 5*time.Second, true)
}
