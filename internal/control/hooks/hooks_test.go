package hooks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// roleName is the variable that makes the test's binary a hook.
const roleName = "HOOKS_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleName); role != "" {
		os.Exit(play(role))
	}

	os.Exit(m.Run())
}

// play does what a hook does, and returns its exit code.
func play(role string) int {
	switch role {
	case "show":
		in, _ := io.ReadAll(os.Stdin)
		dir, _ := os.Getwd()
		env := os.Environ()
		slices.Sort(env)
		fmt.Printf("args=%q env=%q in=%q dir=%s", os.Args[1:], env, in, dir)
		fmt.Fprint(os.Stderr, " and errors")

		return 0
	case "fail":
		fmt.Println("it is no use")
		return 3
	case "talk":
		line := strings.Repeat("x", 999) + "\n"
		for range 1000 {
			fmt.Print(line)
		}

		fmt.Print("the end")

		return 0
	case "stubborn": // with a child of the same kind, which says both their ids down the pipe that it is given
		signal.Ignore(syscall.SIGTERM)
		report(os.Args[1])
		child := exec.Command(os.Args[0], os.Args[1])

		child.Env = []string{roleName + "=alone"}
		if err := child.Start(); err != nil {
			return 1
		}

		for {
			_ = syscall.Pause()
		}
	case "alone":
		signal.Ignore(syscall.SIGTERM)
		report(os.Args[1])

		for {
			_ = syscall.Pause()
		}
	case "polite":
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		report(os.Args[1])
		<-term
		fmt.Print("cleaned up")

		return 0
	case "leave": // ends, and its child keeps the output
		child := exec.Command(os.Args[0], os.Args[1])
		child.Env = []string{roleName + "=alone"}

		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			return 1
		}

		return 0
	}

	return 1
}

// report writes the process' id to a pipe and keeps it open, so that its other end shows when all
// who have it are gone.
func report(pipe string) {
	f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err == nil {
		fmt.Fprintln(f, os.Getpid())
		kept = f
	}
}

var kept *os.File // not to be collected

// buffer is a log to read.
type buffer struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.out.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.out.String()
}

func testRunner() (*Runner, *buffer) {
	out := &buffer{}
	r := New(log.NewLogfmtLogger(out))
	r.grace = 200 * time.Millisecond

	return r, out
}

func hook(t *testing.T, args ...string) control.Hook {
	t.Helper()

	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	return control.Hook{Argv: append([]string{exe}, args...), Timeout: time.Minute}
}

func role(name string) []string { return []string{roleName + "=" + name} }

// pipe is a named pipe that hooks report on.
func pipe(t *testing.T) string {
	t.Helper()

	path := t.TempDir() + "/pipe"
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// wantFailure checks the exit code of a hook that has failed, and how its error begins.
func wantFailure(t *testing.T, what string, got api.HookResult, code int, begin string) {
	t.Helper()

	if got.OK || got.ExitCode != code {
		t.Errorf("%s: got OK %t and exit code %d, want a failure with %d", what, got.OK, got.ExitCode, code)
	}

	if !strings.HasPrefix(got.Error, begin) {
		t.Errorf("%s: got the error %q, want %q", what, got.Error, begin)
	}
}

func TestRun(t *testing.T) {
	t.Setenv("SECRET", "of the exporter")
	r, out := testRunner()
	shown := hook(t, "a b", "$HOME", "*")

	got := r.Run(t.Context(), shown, []string{roleName + "=show", "OLD=MIG-1"})
	if got.Seconds <= 0 {
		t.Errorf("it took %v s", got.Seconds)
	}

	cmptest.Equal(t, "the result", got, api.HookResult{OK: true, Argv: shown.Argv, Seconds: got.Seconds})

	for _, want := range []string{`\"a b\" \"$HOME\" \"*\"`, "OLD=MIG-1", "PATH=/usr/local/sbin",
		`in=\"\" dir=/ and errors`, "hook finished"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %s: %s", want, out)
		}
	}

	if strings.Contains(out.String(), "SECRET") {
		t.Errorf("the hook got the exporter's environment: %s", out)
	}
}

func TestRunFails(t *testing.T) {
	r, out := testRunner()
	got := r.Run(t.Context(), hook(t), role("fail"))
	wantFailure(t, "a hook that fails", got, 3, "exit status 3")
	cmptest.Equal(t, "its error", got.Error, "exit status 3")

	if !strings.Contains(out.String(), "it is no use") || !strings.Contains(out.String(), "level=warn") {
		t.Errorf("log: %s", out)
	}

	dir := t.TempDir()
	for _, program := range []string{dir + "/none", "no-such-program-of-mig-exporter", dir} {
		got := r.Run(t.Context(), control.Hook{Argv: []string{program}, Timeout: time.Minute}, nil)
		wantFailure(t, program, got, -1, "cannot start: ")

		if strings.Contains(got.Error, dir) {
			t.Errorf("%s: the error has the folder %s: %s", program, dir, got.Error)
		}
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantFailure(t, "after the end", r.Run(ended, hook(t), role("show")), -1, "not started")
}

func TestRunBoundsTheOutput(t *testing.T) {
	r, out := testRunner()
	if got := r.Run(t.Context(), hook(t), role("talk")); !got.OK {
		t.Errorf("got %+v", got)
	}

	if n := len(out.String()); n > 2*maxOutput {
		t.Errorf("the log has %d bytes, want %d at most", n, 2*maxOutput)
	}

	for _, want := range []string{"the end", "..."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log does not have %q", want)
		}
	}
}

// TestRunEndsTheGroup: a hook that does not heed SIGTERM is killed with the child that it has.
func TestRunEndsTheGroup(t *testing.T) {
	r, _ := testRunner()
	path := pipe(t)
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	reported := make(chan []int)
	gone := make(chan struct{})
	go func() {
		defer close(gone)

		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		lines := bufio.NewScanner(f)

		var pids []int
		for len(pids) < 2 && lines.Scan() {
			pid, _ := strconv.Atoi(lines.Text())
			pids = append(pids, pid)
		}

		reported <- pids

		for lines.Scan() { // to the end, when no process has the pipe open
		}
	}()
	go func() {
		if pids := <-reported; len(pids) != 2 {
			t.Errorf("processes %v, want two", pids)
		}

		cancel()
	}()
	got := r.Run(stop, hook(t, path), role("stubborn"))
	wantFailure(t, "a hook that is stopped", got, -1, "stopped")

	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("a process of the group is still there")
	}
}

func TestRunLetsAHookCleanUp(t *testing.T) {
	r, out := testRunner()
	r.grace = time.Minute
	path := pipe(t)
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		_, _ = bufio.NewReader(f).ReadString('\n')
		cancel()
	}()

	if got := r.Run(stop, hook(t, path), role("polite")); got.OK {
		t.Errorf("got %+v", got)
	}

	if !strings.Contains(out.String(), "cleaned up") {
		t.Errorf("log: %s", out)
	}
}

func TestRunHasATimeout(t *testing.T) {
	r, _ := testRunner()
	h := hook(t, "none")

	h.Timeout = time.Millisecond
	if got := r.Run(t.Context(), h, role("alone")); got.OK || got.Error != "stopped after 1ms: timed out" {
		t.Errorf("got %+v", got)
	}
}

// TestRunDoesNotWaitForWhatAHookLeaves: a hook that starts a service is done when it has ended.
func TestRunDoesNotWaitForWhatAHookLeaves(t *testing.T) {
	r, _ := testRunner()
	path := pipe(t)
	pid := make(chan int, 1)
	go func() {
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		line, _ := bufio.NewReader(f).ReadString('\n')
		n, _ := strconv.Atoi(strings.TrimSpace(line))
		pid <- n
	}()

	if got := r.Run(t.Context(), hook(t, path), role("leave")); !got.OK || got.ExitCode != 0 {
		t.Errorf("got %+v", got)
	}

	if n := <-pid; n <= 1 {
		t.Errorf("process %d was left", n)
	} else if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Errorf("what the hook left was ended with it: %v", err)
	}
}

func TestParse(t *testing.T) {
	got, err := Parse(` ["systemctl", "restart", "a b.service"] `, time.Minute)
	if err != nil {
		t.Error(err)
	}

	cmptest.Equal(t, "the hook", got, control.Hook{Argv: []string{"systemctl", "restart", "a b.service"},
		Timeout: time.Minute})

	for _, text := range []string{"", "systemctl restart a", `"systemctl"`, `[]`, `[""]`, `[1]`, `["a"`, `["a"] b`,
		`["a", "b\u0000c"]`, `{"argv": ["a"]}`} {
		if got, err := Parse(text, time.Minute); !errors.Is(err, gpu.ErrInvalidArgument) {
			t.Errorf("%s: got %+v, %v, want %v", text, got, err, gpu.ErrInvalidArgument)
		}
	}

	if _, err := Parse(`["a"]`, 0); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("no timeout: %v", err)
	}
}
