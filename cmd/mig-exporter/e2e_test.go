package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// The end-to-end tests start the built binary as a user would and read what it serves.

var update = flag.Bool("update", false, "rewrite the golden files of testdata/golden")

// binary and migctlBinary are the paths of the built programs.
var binary, migctlBinary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	build := testbuild.Programs
	if raceEnabled {
		build = testbuild.RacePrograms
	}

	dir, err := build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	binary = filepath.Join(dir, "mig-exporter")
	migctlBinary = filepath.Join(dir, "migctl")

	return m.Run()
}

// testTimeout bounds what a test waits for an external process; nothing depends on how fast it is.
const testTimeout = 2 * time.Minute

// program is a running mig-exporter.
type program struct {
	t    testing.TB
	cmd  *exec.Cmd
	url  string
	done chan error

	mu    sync.Mutex
	log   bytes.Buffer
	heard chan struct{} // closed and replaced with every line
}

var listening = regexp.MustCompile(`msg=listening[^\n]*address=(\S+)`)

// launch starts the program on a free port and waits until it listens.
func launch(t testing.TB, args ...string) *program {
	t.Helper()
	p := launchAnyhow(t, append([]string{"--web.listen-address=127.0.0.1:0"}, args...)...)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	lines := p.lines()

	for {
		select {
		case line := <-lines:
			if m := listening.FindStringSubmatch(line); m != nil {
				p.url = "http://" + m[1]
				go func() { // the log goes on; the program must not block on it
					for range lines {
					}
				}()

				return p
			}
		case err := <-p.done:
			t.Fatalf("the program ended before it listened: %v\n%s", err, p.logText())
		case <-ctx.Done():
			t.Fatalf("the program does not listen:\n%s", p.logText())
		}
	}
}

// launchAnyhow starts the program, which may end at once.
func launchAnyhow(t testing.TB, args ...string) *program {
	t.Helper()
	p := &program{t: t, done: make(chan error, 1), heard: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	own := t.TempDir() // programs that serve this machine's driver at the same time have a socket each
	p.cmd.Env = append(os.Environ(), "TMPDIR="+own, "MIG_EXPORTER_RELEASE_SOCKET="+filepath.Join(own, "release.sock"))

	return p
}

// lines starts the process and delivers its log line by line.
func (p *program) lines() <-chan string {
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}

	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}

	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(stderr)
		scanner.Buffer(nil, 1<<20)

		for scanner.Scan() {
			p.mu.Lock()
			fmt.Fprintln(&p.log, scanner.Text())
			close(p.heard)
			p.heard = make(chan struct{})
			p.mu.Unlock()
			lines <- scanner.Text()
		}

		p.done <- p.cmd.Wait()
	}()
	p.t.Cleanup(func() {
		p.cmd.Process.Kill()

		if strings.Contains(p.logText(), "DATA RACE") {
			p.t.Errorf("data race in the program:\n%s", p.logText())
		}
	})

	return lines
}

func (p *program) logText() string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.log.String()
}

// waitFor waits until the log says something.
func (p *program) waitFor(what string) {
	p.t.Helper()
	late := time.After(testTimeout)

	for {
		p.mu.Lock()
		said := strings.Contains(p.log.String(), what)
		heard := p.heard
		p.mu.Unlock()

		if said {
			return
		}

		select {
		case <-heard:
		case <-late:
			p.t.Fatalf("the program never says %q:\n%s", what, p.logText())
		}
	}
}

// stopsWithin is the terminationGracePeriodSeconds that docs/faults.md says is enough, whatever the
// driver does.
const stopsWithin = 15 * time.Second

// stop asks the program to stop as an operator does, and returns its exit code.
func (p *program) stop() int {
	p.t.Helper()
	begin := time.Now()

	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}

	code := p.exitCode()
	if took := time.Since(begin); took > stopsWithin {
		p.t.Errorf("the program took %s to end after SIGTERM, more than %s:\n%s", took, stopsWithin, p.logText())
	}

	return code
}

func (p *program) exitCode() int {
	p.t.Helper()

	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(testTimeout):
		p.t.Fatalf("the program does not end:\n%s", p.logText())
		return -1
	}
}

// response is an answer that has been read whole.
type response struct {
	status int
	header http.Header
	body   []byte
}

func (p *program) request(method, path string, header map[string]string) response {
	p.t.Helper()

	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}

	for k, v := range header {
		req.Header.Set(k, v)
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", method, path, err, p.logText())
	}
	defer resp.Body.Close()

	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}

	return response{resp.StatusCode, resp.Header, body}
}

func (p *program) get(path string) response {
	p.t.Helper()
	return p.request(http.MethodGet, path, nil)
}

// advance moves the stepped clock.
func (p *program) advance(by time.Duration) {
	p.t.Helper()

	if r := p.request(http.MethodPost, "/-/sim/advance?by="+by.String(), nil); r.status != http.StatusOK {
		p.t.Fatalf("advance by %s: %d %s", by, r.status, r.body)
	}
}

// simulate launches a shipped scenario on a stepped clock.
func simulate(t *testing.T, scenario string, args ...string) *program {
	t.Helper()

	return launch(t, append([]string{
		"--driver=sim", "--sim.clock=step", "--sim.scenario=" + filepath.Join("../../testdata/scenarios", scenario+".yaml"),
	}, args...)...)
}
