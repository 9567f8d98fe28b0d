package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// journalStream returns the value of JOURNAL_STREAM for a file.
func journalStream(t *testing.T, file *os.File) string {
	t.Helper()

	var stat syscall.Stat_t
	if err := syscall.Fstat(int(file.Fd()), &stat); err != nil {
		t.Fatal(err)
	}

	return fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

func TestIsJournal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	stream := journalStream(t, file)

	for _, tt := range []struct {
		name, stream string
		want         bool
	}{
		{"the journal", stream, true},
		{"no service", "", false},
		{"redirected", "1" + stream, false},
		{"invalid", "journal", false},
	} {
		cmptest.Equal(t, tt.name, isJournal(file, tt.stream), tt.want)
	}

	cmptest.Equal(t, "no file", isJournal(&strings.Builder{}, stream), false)
}

// TestJournalHasPriorities: each line of the log begins with the priority of its level, in both
// formats, so that journalctl -p warning shows warnings and errors.
func TestJournalHasPriorities(t *testing.T) {
	for format, want := range map[string]string{
		"logfmt": `^<7>ts=\S+ level=debug msg=a\n<6>ts=\S+ level=info msg=b\n<4>ts=\S+ level=warn msg=c k=1\n` +
			`<3>ts=\S+ level=error msg=d\nts=\S+ msg=e\n$`,
		"json": `^<7>{.*}\n<6>{.*}\n<4>{"k":1,"level":"warn","msg":"c",.*}\n<3>{.*}\n{.*}\n$`,
	} {
		var out strings.Builder
		logger := newLogger(&out, logOptions{Level: "debug", Format: format, Journal: true})
		level.Debug(logger).Log("msg", "a")
		level.Info(logger).Log("msg", "b")
		level.Warn(logger).Log("msg", "c", "k", 1)
		level.Error(logger).Log("msg", "d")
		logger.Log("msg", "e")

		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%s:\n%s", format, out.String())
		}
	}
}

// TestUsageErrorInTheJournal: an error of several lines has the priority on each.
func TestUsageErrorInTheJournal(t *testing.T) {
	var out strings.Builder
	printError(&out, true, errors.Join(errors.New("a"), errors.New("b")))
	cmptest.Equal(t, "journal", out.String(), "<3>mig-exporter: a\n<3>b\n")
	out.Reset()
	printError(&out, false, errors.New("a"))
	cmptest.Equal(t, "terminal", out.String(), "mig-exporter: a\n")
}

// TestServiceLogsToTheJournal: a process whose standard error is the stream of the journal writes
// priorities.
func TestServiceLogsToTheJournal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	for stream, want := range map[string]string{journalStream(t, file): "<3>mig-exporter: ", "1:1": "mig-exporter: "} {
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}

		p := launchAnyhow(t, "--no-such-flag")
		p.cmd.Env = append(p.cmd.Env, "JOURNAL_STREAM="+stream)
		p.cmd.Stderr = file

		var exit interface{ ExitCode() int }
		if err := p.cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
			t.Fatalf("%v, want exit code %d", err, exitUsage)
		}

		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}

		if got := strings.TrimLeft(string(text), "\x00"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q first", stream, got, want)
		}
	}
}
