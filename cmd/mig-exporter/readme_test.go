package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestCommandsOfTheReadmeAfterMakeRun: the commands that README prints for the exporter of "make run" need nothing
// that it does not serve.
func TestCommandsOfTheReadmeAfterMakeRun(t *testing.T) {
	t.Parallel()

	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}

	// As in the Makefile, without a driver.
	p := launch(t, "--driver=sim", "--dcgm.address=embedded", "--sim.clock=step")
	p.advance(time.Minute)
	p.until("the advisor has reported", func(series) bool { return p.get("/api/v1/recommendations").status == 200 })

	lines := regexp.MustCompile(`(?m)^bin/migctl ([^#\n]*)`).FindAllStringSubmatch(string(readme), -1)
	if len(lines) < 2 {
		t.Fatalf("README has %d lines of bin/migctl, want those that read the node", len(lines))
	}

	for _, line := range lines {
		if !strings.Contains(line[1], "--url=http://localhost:9401") {
			t.Errorf("%q does not name the listener of make run", line[0])
			continue
		}

		words := strings.Fields(strings.ReplaceAll(line[1], "http://localhost:9401", p.url))
		cmd := exec.CommandContext(t.Context(), migctlBinary, words...)

		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "GPU") {
			t.Errorf("%s: %v\n%s", line[0], err, out)
		}
	}
}
