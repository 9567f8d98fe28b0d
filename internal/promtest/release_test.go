package promtest

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRulesOnRelease: a GPU that an operator has released and forgotten is named after an hour, and
// is neither down nor missing.
func TestRulesOnRelease(t *testing.T) {
	t.Parallel()

	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: only root may use the socket on which GPUs are released")
	}

	socket := filepath.Join(t.TempDir(), "release.sock")
	n := startRuledNode(t, `
version: 1
node: {hostname: gpu-node-1}
gpus: [{model: H100-SXM5-80GB, count: 2}]
`, "--release.socket="+socket)

	n.run(5*time.Minute, time.Minute)
	postRelease(t, socket, "gpus/1/release")
	n.run(70*time.Minute, time.Minute)
	postRelease(t, socket, "gpus/1/reacquire")
	n.run(80*time.Minute, time.Minute)

	n.expectStory("GpuReleased")
	n.expectSummary("GpuReleased", "GPU 1 of gpu-node-1:9401 has been released for an hour, and nothing of it is measured.")

	for _, name := range []string{"GpuDown", "GpuMissing"} {
		if n.fired[name] != nil {
			t.Errorf("%s fires for a GPU that is released", name)
		}
	}
}

// postRelease posts to the socket on which GPUs are released.
func postRelease(t *testing.T, socket, path string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://release/api/v1/"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}

	res.Body.Close()

	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, res.Status)
	}
}
