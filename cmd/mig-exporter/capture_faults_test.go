package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// lockedScenario: the driver answers for itself, no GPU does.
const lockedScenario = `version: 1
node: {hostname: prod-17, driver: "580.95.05", cuda: "13.0", kubernetes: false}
gpus: [{model: H100-80GB, count: 2}]
faults: [{kind: driver-lock, at: 0s}]
`

// captureProgram is the built program that captures a node in a folder of its own.
func captureProgram(t *testing.T, scenario string, args ...string) (p *program, dir string) {
	t.Helper()
	dir = t.TempDir()
	p = launchAnyhow(t, append([]string{
		"capture", "--driver=sim", "--sim.scenario=" + write(t, "node.yaml", scenario),
		"--output=" + filepath.Join(dir, "captured.yaml"),
	}, args...)...)

	return p, dir
}

func left(t *testing.T, dir string) []string {
	t.Helper()

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}

	return names
}

// TestCaptureOfADriverThatHangs: it ends by itself, soon, and the file says so.
func TestCaptureOfADriverThatHangs(t *testing.T) {
	t.Parallel()
	p, dir := captureProgram(t, lockedScenario, "--poll.interval=50ms")
	begin := time.Now()

	for range p.lines() {
	}

	if code := p.exitCode(); code != exitOK {
		t.Fatalf("exit code %d:\n%s", code, p.logText())
	}

	if took := time.Since(begin); took > stopsWithin {
		t.Errorf("it took %s", took)
	}

	text := readText(t, filepath.Join(dir, "captured.yaml"))
	for _, want := range []string{"nvmlDeviceGetHandleByIndex(0): {hangs: ever}", "nvmlDeviceGetCount: 2",
		"polls: [0s, "} {
		if !strings.Contains(text, want) {
			t.Errorf("the capture does not say %q:\n%s", want, text)
		}
	}
}

// TestCaptureIsWholeOrNotThere: neither a signal nor a disk that is full leaves a part of it.
func TestCaptureIsWholeOrNotThere(t *testing.T) {
	t.Run("signal", func(t *testing.T) {
		t.Parallel()
		p, dir := captureProgram(t, hungScenario, "--poll.interval=50ms", "--capture.polls=1000")

		signalled := false // a second one would not wait
		for line := range p.lines() {
			if !signalled && strings.Contains(line, "found GPU") {
				p.signal(syscall.SIGTERM)
				signalled = true
			}
		}

		if code := p.exitCode(); code != exitFailure || len(left(t, dir)) != 0 {
			t.Errorf("exit code %d, left behind: %v\n%s", code, left(t, dir), p.logText())
		}
	})
	t.Run("full disk", func(t *testing.T) {
		t.Parallel()
		p, dir := captureProgram(t, faultyScenario, "--sim.clock=step")

		shell, err := exec.LookPath("sh")
		if err != nil {
			t.Fatal(err)
		}

		p.cmd.Path = shell // files may have a block or two, less than a capture needs

		p.cmd.Args = append([]string{"sh", "-c", `ulimit -f 2; exec "$0" "$@"`, binary}, p.cmd.Args[1:]...)
		for range p.lines() {
		}

		cmptest.Equal(t, "exit code", p.exitCode(), exitFailure)
		cmptest.HasTexts(t, p.logText(), "file too large")
		cmptest.Equal(t, "files left behind", len(left(t, dir)), 0)
	})
}
