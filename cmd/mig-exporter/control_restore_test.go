package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const fourGPUs = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus:
- {model: A100-40GB, mig: true}
- {model: A100-40GB, mig: true}
- {model: A100-40GB, mig: true}
- {model: A100-40GB, mig: true, layout: [FOREIGN]}
`

// TestRestoreBesideBadGPUs: after a reboot one GPU refuses a creation, one is lost, and one has an
// instance of another client. The fourth is restored all the same; the others are shown with the
// reason, and restored when that is gone or an operator asks.
func TestRestoreBesideBadGPUs(t *testing.T) {
	t.Parallel()

	healthy := strings.ReplaceAll(fourGPUs, "FOREIGN", "")
	c := controlNode(t, write(t, "healthy.yaml", healthy))
	c.must(0, "apply", "--yes", "--gpus", "all", "--devices", "3g.20gb=2")

	if code := c.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}

	// The start of a simulated node is a boot.
	c = controlNodeIn(t, c.dir, write(t, "bad.yaml", strings.ReplaceAll(fourGPUs, "FOREIGN", `"1g.5gb@0"`)+`faults:
- {gpu: 1, kind: change-fails, on: create-gi, after: 1, times: 99, for: 10m, error: unknown}
- {gpu: 2, kind: lost, for: 10m}
`), "--control.restore")
	c.idle()

	c.advance(time.Second)
	c.expectInstances(map[string]int{"0": 2, "1": 0, "3": 0})

	for _, reason := range []string{"failed", "unreadable", "instances"} {
		c.scrape().expect(t, "not restored", 1, "mig_control_gpu_not_restored", `reason="`+reason+`"`)
	}

	out := strings.Join(strings.Fields(c.must(0, "operations")), " ")
	for _, want := range []string{"that a restore does not destroy: 1g.5gb@0:1; it is not tried again by itself",
		"wanted: 3g.20gb at 0:4, 3g.20gb at 4:4", "cannot be read"} {
		if !strings.Contains(out, want) {
			t.Errorf("migctl operations: no %q in\n%s", want, out)
		}
	}

	// A GPU with other instances is refused, and so is one that still fails. Nothing of what is
	// there is destroyed.
	c.must(1, "restore", "--yes", "3")
	c.must(1, "restore", "--yes", "1")
	c.scrape().expect(t, "refused", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="1g.5gb"`)

	// What fails is tried again by itself.
	c.advance(time.Hour)
	c.until("all but the foreign GPU are restored", func(s series) bool {
		return slices.Equal(s.of("mig_control_gpu_not_restored"), []float64{1})
	})
	c.advance(time.Second)

	c.expectInstances(map[string]int{"0": 2, "1": 2, "2": 2, "3": 0})

	// The operator decides about the last one.
	c.must(0, "apply", "--yes", "--gpus", "3", "--devices", "none")
	c.must(0, "restore")

	c.scrape().expect(t, "in the end", -1, "mig_control_gpu_not_restored")
}

// expectInstances wants a number of 3g.20gb on each of these GPUs.
func (c *controlled) expectInstances(want map[string]int) {
	c.t.Helper()

	for gpu, n := range want {
		list := c.scrape().of("nvidia_mig_gpu_instance_processes", `gpu="`+gpu+`"`, `mig_profile="3g.20gb"`)
		if len(list) != n {
			c.t.Errorf("GPU %s: %d instances, want %d", gpu, len(list), n)
		}
	}
}

// TestForgetLayout: the layout of a GPU that was taken out is asked for in each boot, until it is
// forgotten.
func TestForgetLayout(t *testing.T) {
	t.Parallel()

	two := strings.Join(strings.SplitAfter(strings.ReplaceAll(fourGPUs, "FOREIGN", ""), "\n")[:6], "")
	c := controlNode(t, write(t, "two.yaml", two))
	c.must(0, "apply", "--yes", "--gpus", "all", "--devices", "3g.20gb=2")
	c.stop()

	one := write(t, "one.yaml", strings.Join(strings.SplitAfter(two, "\n")[:5], ""))
	c = controlNodeIn(t, c.dir, one, "--control.restore")
	c.idle()

	gone := ""

	for name := range c.scrape() {
		if _, after, ok := strings.Cut(name, "mig_control_gpu_not_restored{"); ok {
			_, after, _ = strings.Cut(after, `uuid="`)
			gone, _, _ = strings.Cut(after, `"`)
		}
	}

	c.must(1, "restore", "--yes", gone)
	c.must(0, "restore", "--forget", "--yes", gone)
	c.stop()

	c = controlNodeIn(t, c.dir, one, "--control.restore")
	c.idle()
	c.scrape().expect(t, "forgotten", -1, "mig_control_gpu_not_restored")
}

// TestNoDriverIsNoEmptyNode: an exporter that has not reached its driver knows no GPU. Its clients say so, and a
// script that restores layouts at boot learns that nothing was restored.
func TestNoDriverIsNoEmptyNode(t *testing.T) {
	t.Parallel()

	const unknown = "it is not known yet which GPUs this node has: "

	c := controlNode(t, write(t, "none.yaml", "version: 1\nnode: {kubernetes: false}\ngpus: [{model: A100-40GB, mig: true}]\n"+
		"faults: [{kind: no-driver, for: 10m}]\n"))

	for _, command := range []string{"restore", "recommend", "top --once --url=" + c.url} {
		code := 0
		if command == "restore" {
			code = 1
		}

		out := strings.Join(strings.Fields(c.must(code, strings.Fields(command)...)), " ")
		if !strings.Contains(out, unknown) || strings.Contains(out, "Nothing to restore") {
			t.Errorf("migctl %s: no %q in\n%s", command, unknown, out)
		}
	}

	report := string(c.get("/api/v1/recommendations").body)
	if !strings.Contains(report, `"devices":[]`) || !strings.Contains(report, unknown) {
		t.Errorf("recommendations: %s", report)
	}

	c.advance(11 * time.Minute)
	c.until("the GPU is there", func(s series) bool { return len(s.of("nvidia_gpu_up")) == 1 })

	if out := c.must(0, "restore"); !strings.Contains(out, "Nothing to restore") {
		t.Errorf("migctl restore with a driver: %s", out)
	}
}
