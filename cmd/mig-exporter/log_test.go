package main

import (
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	sloggokit "github.com/tjhop/slog-gokit"
)

// TestFieldsHaveOneOrder: whichever library logs, the time, the level and the message come first.
func TestFieldsHaveOneOrder(t *testing.T) {
	var out strings.Builder
	logger := newLogger(&out, logOptions{Level: "info", Format: "logfmt"})
	level.Info(logger).Log("msg", "own", "k", 1)
	level.Warn(log.With(logger, "component", "control")).Log("msg", "part", "k", 1)
	slog.New(sloggokit.NewGoKitHandler(logger, slog.LevelDebug)).Error("toolkit", "k", 1)
	level.Debug(logger).Log("msg", "not wanted")

	want := regexp.MustCompile(`^ts=\S+ level=info msg=own k=1
ts=\S+ level=warn msg=part component=control k=1
ts=\S+ level=error msg=toolkit .*k=1
$`)
	if !want.MatchString(out.String()) {
		t.Errorf("log:\n%s", out.String())
	}

	out.Reset()
	newLogger(&out, logOptions{Level: "info", Format: "logfmt"}).Log("msg", "odd", "lone")

	if !strings.Contains(out.String(), "msg=odd") || !strings.Contains(out.String(), "lone") {
		t.Errorf("a key without a value: %s", out.String())
	}
}

// TestLogOfAWholeRun: every line of a run has its fields in one order, and the signal that ends it
// is in the log.
func TestLogOfAWholeRun(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := launch(t, "--driver=nvml", "--nvml.library-path="+filepath.Join(t.TempDir(), "libnvidia-ml.so.1"),
			"--kubernetes.socket="+filepath.Join(t.TempDir(), "kubelet.sock"))
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}

		if code := p.exitCode(); code != exitOK {
			t.Errorf("exit code %d after %s", code, s)
		}

		if want := "level=info msg=stopping signal=" + s.String(); !strings.Contains(p.logText(), want) {
			t.Errorf("the log does not have %q:\n%s", want, p.logText())
		}

		for line := range strings.Lines(p.logText()) {
			if !regexp.MustCompile(`^ts=\S+ level=\w+ msg=`).MatchString(line) {
				t.Errorf("another order of fields: %s", line)
			}
		}
	}
}
