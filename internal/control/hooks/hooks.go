// Package hooks runs the operator's programs after a change of a GPU's partitions, e.g. to restart
// a device plugin.
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
	// searchPath is the PATH of hooks. They do not inherit the exporter's environment, which may
	// contain credentials.
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// grace is the time between SIGTERM and SIGKILL. It is also how long we go on reading the output
	// of a hook that has ended, if a process that it started keeps the output open.
	grace = 5 * time.Second
	// maxOutput is how much of the end of a hook's output is logged, in bytes.
	maxOutput = 4 << 10
)

// Parse reads a program and its arguments, written as a JSON list of strings: ["systemctl",
// "restart", "a.service"]. There is no shell, and words are passed unchanged. An error wraps
// gpu.ErrInvalidArgument.
func Parse(text string, timeout time.Duration) (control.Hook, error) {
	var argv []string
	if err := json.Unmarshal([]byte(text), &argv); err != nil {
		return control.Hook{},
			fmt.Errorf(
				`hook %s: expected a JSON list of strings such as ["systemctl", "restart", "a.service"]: %w: %w`,
				text,
				err,
				gpu.ErrInvalidArgument,
			)
	}

	switch {
	case len(argv) == 0 || argv[0] == "":
		return control.Hook{}, fmt.Errorf(
			"hook %s: it names no program: %w",
			text,
			gpu.ErrInvalidArgument,
		)
	case slices.ContainsFunc(argv, func(word string) bool { return strings.ContainsRune(word, 0) }):
		return control.Hook{}, fmt.Errorf(
			"hook %s: a word has a zero byte: %w",
			text,
			gpu.ErrInvalidArgument,
		)
	case timeout <= 0:
		return control.Hook{}, fmt.Errorf(
			"hook %s: a timeout of %v: %w",
			text,
			timeout,
			gpu.ErrInvalidArgument,
		)
	}

	return control.Hook{Argv: argv, Timeout: timeout}, nil
}

// Runner runs hooks. It is safe for concurrent use.
type Runner struct {
	logger log.Logger
	grace  time.Duration
}

// New returns a Runner that logs the output of hooks and how they end.
func New(logger log.Logger) *Runner { return &Runner{logger: logger, grace: grace} }

// Run runs a hook and waits until it has ended. Its environment is env and a PATH, its input is
// empty, and its working directory is the root. After its timeout, or when ctx ends, its process
// group gets SIGTERM, then SIGKILL. The result's exit code is -1 if there is none.
func (r *Runner) Run(ctx context.Context, h control.Hook, env []string) api.HookResult {
	began := time.Now()
	out := &tail{}
	code, err := r.runProcess(ctx, h, env, out)
	result := api.HookResult{
		Argv:     h.Argv,
		OK:       err == nil,
		Seconds:  time.Since(began).Seconds(),
		ExitCode: code,
	}

	logger := log.With(
		r.logger,
		"hook", strings.Join(h.Argv, " "),
		"seconds", result.Seconds,
		"output", out.String(),
	)
	if err != nil {
		result.Error = err.Error()
		level.Warn(logger).Log("msg", "hook failed", "err", err)
	} else {
		level.Info(logger).Log("msg", "hook finished")
	}

	return result
}

func (r *Runner) runProcess(
	ctx context.Context,
	h control.Hook,
	env []string,
	out *tail,
) (code int, err error) {
	if err := ctx.Err(); err != nil {
		return -1, fmt.Errorf("not started: %w", err)
	}

	cmd := exec.Command(h.Argv[0], h.Argv[1:]...)
	cmd.Env = append([]string{searchPath}, env...)
	cmd.Dir = "/"
	cmd.Stdout = out
	cmd.Stderr = out
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
		r.stopGroup(cmd.Process.Pid, ended) // Setpgid: the group has the id of its first process
		return -1, stopped
	}

	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // the hook succeeded; a process that it started keeps its output open
	case errors.As(err, &exit):
		err = errors.New(exit.String()) // "exit status 3", "signal: killed"
	}

	return cmd.ProcessState.ExitCode(), err
}

// stopGroup ends the process group of a hook and waits until the hook has ended.
func (r *Runner) stopGroup(group int, ended <-chan struct{}) {
	// If the group is empty, the error is irrelevant.
	_ = syscall.Kill(-group, syscall.SIGTERM)
	grace := time.NewTimer(r.grace)
	defer grace.Stop()

	select {
	case <-ended:
	case <-grace.C:
	}

	_ = syscall.Kill(-group, syscall.SIGKILL) // also processes that outlive the hook
	<-ended
}

// reason returns why a program cannot be started, without its path.
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

// tail keeps the last maxOutput bytes that are written to it. It is safe for concurrent use: exec may
// still write the output of a process that outlives the hook.
type tail struct {
	mu   sync.Mutex
	last []byte
	cut  bool // more was written
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

// String returns the end of the output, with "..." before it if more was written.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()

	text := strings.TrimSpace(strings.ToValidUTF8(string(t.last), "?"))
	if t.cut {
		return "..." + text
	}

	return text
}
