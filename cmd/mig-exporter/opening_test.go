package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// openBy are the processes that have GPUs open, by minor number.
type openBy struct {
	count map[int]int
	err   error
}

func (o openBy) Open(_ context.Context, g mig.GPULayout) ([]control.Handle, error) {
	return make([]control.Handle, o.count[g.Minor.Or(-1)]), o.err
}

// TestMayOpen: what is unknown is never taken for "another process keeps the GPU open".
func TestMayOpen(t *testing.T) {
	const information = "Model: \t\t NVIDIA H100\nDevice Minor: \t %d\nGPU Excluded:\t No\n"
	yes := gpu.Some(true)
	no := gpu.Some(false)
	unknown := gpu.None[bool]()

	both := openBy{count: map[int]int{0: 1, 3: 2}}
	for name, c := range map[string]struct {
		confidential gpu.Opt[bool]
		guest        string // the device of a confidential guest
		gpus         []string
		open         openBy
		want         string // of the refusal; empty if there is none
	}{
		"an ordinary node":        {confidential: no},
		"an old driver":           {confidential: unknown},
		"kept open":               {confidential: yes, gpus: []string{"0", "3"}, open: both},
		"one not":                 {confidential: yes, gpus: []string{"0", "1"}, open: both, want: "None has /dev/nvidia1 open"},
		"no permission":           {confidential: yes, gpus: []string{"0"}, open: openBy{both.count, gpu.ErrNoPermission}, want: "unknown: "},
		"no list of GPUs":         {confidential: yes, open: both, want: "lists none"},
		"invalid list":            {confidential: yes, gpus: []string{"x"}, open: both, want: "expected a minor number"},
		"a guest, mode unknown":   {confidential: unknown, guest: "tdx_guest", gpus: []string{"1"}, open: both, want: "nvidia1"},
		"an SNP guest, kept open": {confidential: unknown, guest: "sev-guest", gpus: []string{"0"}, open: both},
		"a guest, mode off":       {confidential: no, guest: "sev-guest", gpus: []string{"1"}, open: both},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for i, minor := range c.gpus {
				dir := filepath.Join(root, "driver", "nvidia", "gpus", fmt.Sprintf("0000:%02d:00.0", i))
				writeFile(t, filepath.Join(dir, "information"), strings.Replace(information, "%d", minor, 1))
			}

			if c.guest != "" {
				writeFile(t, filepath.Join(root, "class", "misc", c.guest, "uevent"), "")
			}

			err := openingGuard{proc: root, sys: root, handles: c.open}.mayOpen(c.confidential)
			if (err != nil) != (c.want != "") {
				t.Fatalf("got %v, want %q", err, c.want)
			}

			if err != nil && (!errors.Is(err, errFirstToOpen) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A machine of which we cannot see whether it is a confidential guest may be one.
func TestUnknownGuestCountsAsConfidential(t *testing.T) {
	sys := t.TempDir()
	writeFile(t, filepath.Join(sys, "class", "misc"), "a file, below which nothing can be examined")

	if !(openingGuard{sys: sys}).isConfidential(gpu.None[bool]()) {
		t.Error("a machine whose /sys cannot be examined counts as no confidential guest")
	}

	if (openingGuard{sys: t.TempDir()}).isConfidential(gpu.None[bool]()) {
		t.Error("a machine without the devices of guests counts as confidential")
	}
}

// TestConfidentialNode: the service does not open the GPUs of a confidential node without
// persistence mode, nor does its embedded DCGM, and says why; with it, all is as ever.
func TestConfidentialNode(t *testing.T) {
	for _, persistence := range []bool{false, true} {
		t.Run(fmt.Sprintf("persistence %v", persistence), func(t *testing.T) {
			scenario := filepath.Join(t.TempDir(), "confidential.yaml")
			writeFile(t, scenario, fmt.Sprintf("version: 1\nnode: {confidentialComputing: true, persistenceMode: %v}\n"+
				"gpus: [{model: H100-SXM5-80GB}]\n", persistence))
			p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario, "--dcgm.address=embedded")
			p.advance(1e9)

			text := string(p.get("/metrics").body)

			up := strings.Contains(text, "\nmig_exporter_source_up{source=\"nvml\"} 1\n")
			if up != persistence {
				t.Errorf("the driver is up: %v, want %v", up, persistence)
			}

			if got := strings.Contains(text, "\nnvidia_gpu_persistence_mode{"); got != persistence {
				t.Errorf("the GPU is read: %v, want %v", got, persistence)
			}

			if !persistence && strings.Contains(text, "\nmig_exporter_source_up{source=\"dcgm\"} 1\n") {
				t.Error("DCGM is up: it has opened the GPUs")
			}

			if said := strings.Contains(p.logText(), "refusing to be the first to open the GPUs"); said == persistence {
				t.Errorf("the refusal is in the log: %v, want %v\n%s", said, !persistence, p.logText())
			}
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()

	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
