// Package hooks runs the operator's programs after a change of a GPU's partitions, e.g. to restart a device plugin.
package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// searchPath is the PATH that hooks get; of the exporter's own environment, which has credentials of its flags, they
	// get nothing.
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// grace is what a hook has to clean up after SIGTERM, before it is killed; and how long its output is waited for when
	// it has ended and a process that it left behind holds it open.
	grace = 5 * time.Second
	// maxOutput is how much of the end of a hook's output is logged, in bytes.
	maxOutput = 4 << 10
)

// Parse reads a program and its arguments, written as a JSON list of strings: ["systemctl", "restart", "a.service"].
// There is no shell, and nothing in the words is replaced. An error wraps gpu.ErrInvalidArgument.
func Parse(text string, timeout time.Duration) (control.Hook, error) {
	var argv []string
	if err := json.Unmarshal([]byte(text), &argv); err != nil {
		return control.Hook{}, fmt.Errorf(`hook %s: expected a JSON list of strings such as ["systemctl", "restart", "a.service"]: %w: %w`,
			text, err, gpu.ErrInvalidArgument)
	}
	switch {
	case len(argv) == 0 || argv[0] == "":
		return control.Hook{}, fmt.Errorf("hook %s: it names no program: %w", text, gpu.ErrInvalidArgument)
	case slices.ContainsFunc(argv, func(word string) bool { return strings.ContainsRune(word, 0) }):
		return control.Hook{}, fmt.Errorf("hook %s: a word has a zero byte: %w", text, gpu.ErrInvalidArgument)
	case timeout <= 0:
		return control.Hook{}, fmt.Errorf("hook %s: a timeout of %v: %w", text, timeout, gpu.ErrInvalidArgument)
	}
	return control.Hook{Argv: argv, Timeout: timeout}, nil
}

// Runner runs hooks. It may be used by several goroutines.
type Runner struct {
	logger log.Logger
	grace  time.Duration
}

// New logs what hooks write, and how they end.
func New(logger log.Logger) *Runner { return &Runner{logger: logger, grace: grace} }

// Run runs a hook to its end. Its environment is env and a PATH, its input is empty, its folder the root. When its time
// is over or ctx ends, its process group gets SIGTERM, then SIGKILL. The result's exit code is -1 where it has none.
func (r *Runner) Run(ctx context.Context, h control.Hook, env []string) api.HookResult {
	began := time.Now()
	out := &tail{}
	code, err := r.run(ctx, h, env, out)
	result := api.HookResult{Argv: h.Argv, OK: err == nil, Seconds: time.Since(began).Seconds(), ExitCode: code}
	logger := log.With(r.logger, "hook", strings.Join(h.Argv, " "), "seconds", result.Seconds, "output", out.String())
	if err != nil {
		result.Error = err.Error()
		level.Warn(logger).Log("msg", "hook failed", "err", err)
	} else {
		level.Info(logger).Log("msg", "hook is done")
	}
	return result
}

func (r *Runner) run(ctx context.Context, h control.Hook, env []string, out *tail) (code int, err error) {
	if err := ctx.Err(); err != nil {
		return -1, fmt.Errorf("not started: %w", err)
	}
	cmd := exec.Command(h.Argv[0], h.Argv[1:]...)
	cmd.Env = append([]string{searchPath}, env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = r.grace
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("cannot start: %w", reason(err))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	timeout := time.NewTimer(h.Timeout)
	defer timeout.Stop()
	var stopped error
	select {
	case <-ended:
	case <-timeout.C:
		stopped = fmt.Errorf("stopped after %v: %w", h.Timeout, gpu.ErrTimeout)
	case <-ctx.Done():
		stopped = fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	if stopped != nil {
		r.stop(cmd.Process.Pid, ended)
		return -1, stopped
	}
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it ended well; what it left running has its output
	case errors.As(err, &exit):
		err = errors.New(exit.String()) // "exit status 3", "signal: killed"
	}
	return cmd.ProcessState.ExitCode(), err
}

// stop ends the process group of a hook and waits until the hook has ended.
func (r *Runner) stop(group int, ended <-chan struct{}) {
	// The error of an empty group is what is wanted.
	_ = syscall.Kill(-group, syscall.SIGTERM)
	grace := time.NewTimer(r.grace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
	}
	_ = syscall.Kill(-group, syscall.SIGKILL) // also those who outlive the hook
	<-ended
}

// reason is why a program cannot be started, without its path.
func reason(err error) error {
	var path *fs.PathError
	var lookup *exec.Error
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &lookup):
		return lookup.Err
	}
	return err
}

// tail keeps the end of what is written to it. exec writes from one goroutine, which has ended when Wait returns, or
// still writes for a process that was left behind.
type tail struct {
	mu   sync.Mutex
	last []byte
	cut  bool
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p[max(0, len(p)-maxOutput):]...)
	t.cut = t.cut || len(p) > maxOutput
	if over := len(t.last) - maxOutput; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
		t.cut = true
	}
	return len(p), nil
}

// String is the end of the output, with "..." before it where more was written.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.last), "?"))
	if t.cut {
		return "..." + text
	}
	return text
}
