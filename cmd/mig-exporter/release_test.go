package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestOpenMinors: the open files of a process show which GPUs it has open, also those whose device
// nodes are gone.
func TestOpenMinors(t *testing.T) {
	dir := t.TempDir()
	for fd, target := range map[string]string{
		"0": "/dev/null", "3": "/dev/nvidiactl", "4": "/dev/nvidia3", "5": "/host/dev/nvidia0", "6": "/dev/nvidia3",
		"7": "/dev/nvidia11 (deleted)", "8": "/dev/nvidia-uvm", "9": "/dev/nvidia-caps/nvidia-cap1", "10": "socket:[1]",
	} {
		if err := os.Symlink(target, filepath.Join(dir, fd)); err != nil {
			t.Fatal(err)
		}
	}

	got, err := listOpenMinors(dir)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "minor numbers", got, []int{0, 3, 11})

	if _, err := listOpenMinors(filepath.Join(dir, "missing")); err == nil {
		t.Error("expected an error: what cannot be read is not closed")
	}
}

// releaseClient posts to the socket on which GPUs are released.
type releaseClient struct {
	t    *testing.T
	http http.Client
}

// startReleasing runs the program with a socket for releases.
func startReleasing(t *testing.T, flags ...string) (*exporter, *releaseClient) {
	t.Helper()

	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: only root may use the socket on which GPUs are released")
	}

	socket := filepath.Join(t.TempDir(), "release.sock")
	x := startInProcess(t, append([]string{"--release.socket=" + socket, "--sim.clock=step"}, flags...)...)
	pollOnce(t, x)

	c := &releaseClient{t: t}
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case <-x.releases.ready:
		case <-ctx.Done():
		}

		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(c.http.CloseIdleConnections)

	return x, c
}

func (c *releaseClient) post(path string, status int) (answer api.Release) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://release/api/v1/"+path, http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}

	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()

	if res.StatusCode != status {
		c.t.Fatalf("%s: status %s, want %d", path, res.Status, status)
	}

	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		c.t.Fatal(err)
	}

	return answer
}

// TestReleaseBySocket: without partition control a GPU is released, embedded DCGM included, and
// comes back.
func TestReleaseBySocket(t *testing.T) {
	x, c := startReleasing(t, "--sim.scenario=../../testdata/scenarios/dgx-a100-mixed.yaml", "--dcgm.address=embedded")
	advanceBy(t, x, 2*time.Second) // DCGM is asked with the second poll

	if len(simulatedNode(x).OpenGPUs()) != 8 {
		t.Fatalf("open: %v", simulatedNode(x).OpenGPUs())
	}

	if answer := c.post("gpus/3/release", http.StatusOK); !answer.Released || answer.Closed != "" {
		t.Errorf("%+v", answer)
	}

	for range 3 {
		advanceBy(t, x, time.Second)
		cmptest.Equal(t, "open", simulatedNode(x).OpenGPUs(), []int{0, 1, 2, 4, 5, 6, 7})
	}

	for i, g := range x.poller.Current().GPUs {
		if g.Up == (i == 3) || g.Released.Present() != (i == 3) {
			t.Errorf("GPU %d: up %t, released %+v", i, g.Up, g.Released)
		}
	}

	c.post("gpus/3/reacquire", http.StatusOK)
	advanceBy(t, x, time.Second)
	advanceBy(t, x, time.Second)

	if g := &x.poller.Current().GPUs[3]; !g.Up || g.Released.Present() {
		t.Errorf("reacquired: %+v", g)
	}

	c.post("gpus/9/release", http.StatusNotFound)
	c.post("plans", http.StatusNotFound)
}

// TestReleaseDuringOperation: NVML is not shut down while partition control is at work.
func TestReleaseDuringOperation(t *testing.T) {
	x, c := startReleasing(t, "--sim.scenario=../../testdata/scenarios/h100-56.yaml", "--control.enabled",
		"--control.socket="+filepath.Join(t.TempDir(), "c.sock"), "--control.state-dir="+t.TempDir())

	release, err := x.control.engine.HoldOperations(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	c.post("gpus/3/release", http.StatusConflict)

	if len(simulatedNode(x).OpenGPUs()) != 8 {
		t.Errorf("open: %v", simulatedNode(x).OpenGPUs())
	}

	release()
	c.post("gpus/3/release", http.StatusOK)

	if len(simulatedNode(x).OpenGPUs()) != 7 {
		t.Errorf("open: %v", simulatedNode(x).OpenGPUs())
	}
}

// TestUnbindReleases: a GPU that the kernel driver begins to unbind is released by itself, embedded
// DCGM included, and comes back once it is bound.
func TestUnbindReleases(t *testing.T) {
	scenario := filepath.Join(t.TempDir(), "unbind.yaml")

	text := "version: 1\nnode: {hostname: n1}\ngpus:\n  - {model: H100-80GB, count: 2}\n" +
		"faults:\n  - {at: 1m, for: 1m, gpu: 1, kind: unbind}\n"
	if err := os.WriteFile(scenario, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	x := startInProcess(t, "--release.socket=", "--sim.clock=step", "--sim.scenario="+scenario, "--dcgm.address=embedded")
	pollOnce(t, x)
	advanceBy(t, x, 30*time.Second)
	cmptest.Equal(t, "open", simulatedNode(x).OpenGPUs(), []int{0, 1})

	advanceBy(t, x, 40*time.Second)
	cmptest.Equal(t, "open", simulatedNode(x).OpenGPUs(), []int{0})

	g := &x.poller.Current().GPUs[1]
	if r, ok := g.Released.Get(); !ok || r.Cause != gpu.ReleasedByDriver || g.Up {
		t.Errorf("up %t, released %+v", g.Up, g.Released)
	}

	advanceBy(t, x, time.Minute)
	advanceBy(t, x, time.Second)

	if g := &x.poller.Current().GPUs[1]; !g.Up || g.Released.Present() {
		t.Errorf("bound again: %+v", g)
	}
}
