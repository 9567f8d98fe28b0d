package promtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// The tests below scrape the built program on a simulated node whose clock they step, as a
// Prometheus does: every 30 s.

const (
	scrapeInterval = 30 * time.Second
	scrapeOffset   = 10 * time.Second // of the first scrape: most of what happens does so at full minutes
	ruleInterval   = 15 * time.Second
)

// program builds mig-exporter once and returns its path. migctl is beside it.
var program = sync.OnceValues(func() (string, error) {
	dir, err := testbuild.Programs()

	return filepath.Join(dir, "mig-exporter"), err
})

// scrapedNode is the program on a simulated node, and the Prometheus that scrapes it.
type scrapedNode struct {
	*Prometheus
	t       testing.TB
	url     string
	elapsed time.Duration
}

// startNode starts the program with a scenario, on a clock that stands still.
func startNode(t testing.TB, scenario string, args ...string) *scrapedNode {
	t.Helper()
	url, _ := launch(t, nil, append([]string{"--sim.scenario=" + scenarioFile(t, scenario)}, args...)...)

	return &scrapedNode{Prometheus: NewPrometheus(t), t: t, url: url}
}

func scenarioFile(t testing.TB, scenario string) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(scenario), 0o600); err != nil {
		t.Fatal(err)
	}

	return file
}

// launch starts the program on a simulated node whose clock stands still. The program ends with
// stop, or with the test.
func launch(t testing.TB, env []string, args ...string) (url string, stop func()) {
	t.Helper()

	path, err := program()
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(path, append([]string{"--driver=sim", "--sim.clock=step", "--web.listen-address=127.0.0.1:0"},
		args...)...)
	cmd.Env = append(os.Environ(), env...)

	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)

	return "http://" + listenAddress(t, stderr), stop
}

// listenAddress reads the log until the program says where it listens, and lets the rest of the log
// go.
func listenAddress(t testing.TB, log io.Reader) string {
	t.Helper()
	listening := regexp.MustCompile(`msg=listening[^\n]*address=(\S+)`)

	said := ""
	for scanner := bufio.NewScanner(log); scanner.Scan(); said += scanner.Text() + "\n" {
		if m := listening.FindStringSubmatch(scanner.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return m[1]
		}
	}

	t.Fatalf("the program does not listen:\n%s", said)

	return ""
}

func (n *scrapedNode) request(method, path string) []byte {
	n.t.Helper()
	return n.ask(method, path, "")
}

// get asks for a page in a format.
func (n *scrapedNode) get(path string, format Format) []byte {
	n.t.Helper()
	return n.ask(http.MethodGet, path, format)
}

func (n *scrapedNode) ask(method, path string, accept Format) []byte {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, method, n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}

	if accept != "" {
		req.Header.Set("Accept", string(accept))
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatalf("after %s: %v", n.elapsed, err)
	}
	defer resp.Body.Close()

	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err); err != nil || resp.StatusCode != http.StatusOK {
		n.t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, body, err)
	}

	return body
}

// run lets the node go on second by second until it has run for that long. It is scraped meanwhile,
// and each, if not nil, is called whenever Prometheus evaluates its rules.
func (n *scrapedNode) run(until time.Duration, each func(at time.Time)) {
	n.t.Helper()

	for n.elapsed < until {
		n.elapsed += time.Second
		n.request(http.MethodPost, "/-/sim/advance?by=1s")

		if n.elapsed%scrapeInterval == scrapeOffset {
			n.AddScrape(n.t, n.now(), Text, n.request(http.MethodGet, "/metrics"))
		}

		if each != nil && n.elapsed%ruleInterval == 0 {
			each(n.now())
		}
	}
}

// now is the time of Prometheus, which knows nothing of the jumps of the node's clock.
func (n *scrapedNode) now() time.Time { return scraped().Add(n.elapsed) }
