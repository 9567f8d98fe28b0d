package browsertest

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// program builds mig-exporter once and returns its path.
var program = sync.OnceValues(func() (string, error) {
	dir, err := testbuild.Programs()

	return filepath.Join(dir, "mig-exporter"), err
})

// node is the program on a simulated node whose clock the test steps.
type node struct {
	t       *testing.T
	url     string
	args    []string
	process *exec.Cmd
	log     bytes.Buffer
}

// startNode starts the program with the file of a scenario, and further flags.
func startNode(t *testing.T, scenario string, args ...string) *node {
	t.Helper()

	n := &node{t: t, url: "http://" + freeAddress(t), args: append(args, "--sim.scenario="+scenario)}
	n.start()
	t.Cleanup(n.stop)

	return n
}

// shipped returns the file of a scenario that the repository has.
func shipped(name string) string {
	return filepath.Join("..", "..", "testdata", "scenarios", name+".yaml")
}

// scenarioFile writes a scenario.
func scenarioFile(t *testing.T, text string) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return file
}

// freeAddress returns an address that is free now: the program must have the same one after a
// restart.
func freeAddress(t *testing.T) string {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	return l.Addr().String()
}

func (n *node) start() {
	n.t.Helper()

	path, err := program()
	if err != nil {
		n.t.Fatal(err)
	}

	n.process = exec.Command(path, append([]string{"--driver=sim", "--sim.clock=step",
		"--web.listen-address=" + n.url[len("http://"):]}, n.args...)...)
	n.process.Stderr = &n.log

	if err := n.process.Start(); err != nil {
		n.t.Fatal(err)
	}

	for begun := time.Now(); time.Since(begun) < pageTimeout; {
		if n.request(http.MethodGet, "/-/ready") == http.StatusOK {
			return
		}

		time.Sleep(20 * time.Millisecond) // another process starts; it was given its port
	}

	n.t.Fatal("the program is not ready")
}

func (n *node) stop() {
	if n.process == nil {
		return
	}

	_ = n.process.Process.Signal(syscall.SIGTERM)
	_ = n.process.Wait()
	n.process = nil

	if n.t.Failed() {
		n.t.Log(n.log.String())
	}
}

// advance lets simulated time pass.
func (n *node) advance(by time.Duration) {
	n.t.Helper()

	if status := n.request(http.MethodPost, "/-/sim/advance?by="+by.String()); status/100 != 2 {
		n.t.Fatalf("advance: status %d", status)
	}
}

// request returns the status of an answer, 0 if there is none.
func (n *node) request(method, path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), pageTimeout)
	defer cancel()

	r, err := http.NewRequestWithContext(ctx, method, n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}

	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()

	return answer.StatusCode
}

// occupyStreams opens as many streams as the program allows.
func (n *node) occupyStreams() {
	n.t.Helper()

	for range 1000 {
		r, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, n.url+"/api/v1/node/stream", nil)
		if err != nil {
			n.t.Fatal(err)
		}

		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			n.t.Fatal(err)
		}

		n.t.Cleanup(func() { _ = answer.Body.Close() })

		if answer.StatusCode == http.StatusServiceUnavailable {
			return
		}
	}

	n.t.Fatal("no stream is refused")
}
