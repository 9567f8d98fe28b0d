package server

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-kit/log"
)

// tearing writes half of its second line.
type tearing struct {
	lines int
	text  string
}

func (w *tearing) Write(b []byte) (int, error) {
	if w.lines++; w.lines == 2 {
		w.text += string(b[:len(b)/2])
		return len(b) / 2, syscall.ENOSPC
	}

	w.text += string(b)

	return len(b), nil
}

// What could not be written whole does not spoil the line that comes after it.
func TestAuditAfterATornLine(t *testing.T) {
	w := &tearing{}

	a := &auditLog{w: w}
	for i, want := range []error{nil, syscall.ENOSPC, nil, nil} {
		if err := a.write(auditEntry{Phase: "end", Status: 200 + i}, true); !errors.Is(err, want) {
			t.Errorf("line %d: %v", i, err)
		}
	}

	lines := strings.Split(strings.TrimSuffix(w.text, "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%q", lines)
	}

	for _, i := range []int{0, 2, 3} {
		if e := (auditEntry{}); json.Unmarshal([]byte(lines[i]), &e) != nil || e.Status != 200+i {
			t.Errorf("line %d: %q", i, lines[i])
		}
	}
}

func TestAuditFileIsReopenedWhenMoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a := NewAudit(path, log.NewNopLogger())
	defer a.Close()
	write := func(s string) {
		t.Helper()

		if _, err := a.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	write("1\n")

	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}

	write("2\n")

	for name, want := range map[string]string{path + ".1": "1\n", path: "2\n"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}

		if info.Mode() != 0o600 {
			t.Errorf("%s has the mode %v, want 0600", name, info.Mode())
		}

		if b, _ := os.ReadFile(name); string(b) != want {
			t.Errorf("%s has %q, want %q", name, b, want)
		}
	}
}

// auditLines writes the numbers from one on, a line each, and reads them back from all files.
type auditLines struct {
	*AuditFile
	t   *testing.T
	n   int
	at  time.Time
	log strings.Builder
}

func newAuditLines(t *testing.T) *auditLines {
	t.Helper()
	l := &auditLines{t: t, at: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)}
	l.AuditFile = NewAudit(filepath.Join(t.TempDir(), "audit.jsonl"), log.NewLogfmtLogger(&l.log))
	t.Cleanup(func() { _ = l.Close() })
	l.now = func() time.Time { return l.at }
	l.maxBytes = 64
	l.kept = 3

	return l
}

func (l *auditLines) add(lines int) {
	l.t.Helper()

	for range lines {
		l.n++

		line, err := json.Marshal(auditEntry{Time: l.at, Status: l.n})
		if err != nil {
			l.t.Fatal(err)
		}

		if _, err := l.Write(append(line, '\n')); err != nil {
			l.t.Errorf("line %d: %v", l.n, err)
		}
	}
}

// want checks the numbers of the lines in each file, the newest file first.
func (l *auditLines) want(files ...string) {
	l.t.Helper()

	for i, want := range files {
		name := l.path
		if i > 0 {
			name = l.numbered(i)
		}

		text, err := os.ReadFile(name)
		if err != nil {
			l.t.Error(err)
		}

		var got []string

		for line := range strings.Lines(string(text)) {
			var e auditEntry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				l.t.Errorf("%s: %q: %v", name, line, err)
			}

			got = append(got, strconv.Itoa(e.Status))
		}

		if strings.Join(got, " ") != want {
			l.t.Errorf("%s has the lines %v, want %s", filepath.Base(name), got, want)
		}
	}
}

func TestAuditRotatesBySize(t *testing.T) {
	l := newAuditLines(t)
	l.maxBytes = 150 // two lines
	l.add(5)
	l.want("5", "3 4", "1 2")
	l.add(4)
	l.want("9", "7 8", "5 6", "3 4")

	if left, err := filepath.Glob(l.path + "*"); err != nil || len(left) != 4 {
		t.Errorf("%v, %v: want the file and three rotated ones", left, err)
	}

	info, err := os.Stat(l.path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestAuditRotatesByAge(t *testing.T) {
	l := newAuditLines(t)
	l.maxBytes = maxAuditBytes
	l.add(1)
	l.at = l.at.Add(maxAuditAge - 1)
	l.add(1)
	l.want("1 2")
	l.at = l.at.Add(1)
	l.add(1)
	l.want("3", "1 2")
	// The age counts from the first line, also after a restart.
	if err := l.reopen(); err != nil {
		t.Fatal(err)
	}

	l.at = l.at.Add(maxAuditAge)
	l.add(1)
	l.want("4", "3", "1 2")
}

// No line is lost when a rotation fails, no rotated file is pushed out, and the log says it once.
func TestAuditRotationFails(t *testing.T) {
	l := newAuditLines(t)

	l.kept = 1
	if err := os.Mkdir(l.path+".1", 0o700); err != nil {
		t.Fatal(err)
	}

	l.add(4)
	l.want("1 2 3 4")

	if n := strings.Count(l.log.String(), "cannot rotate"); n != 1 {
		t.Errorf("the log says it %d times: %s", n, &l.log)
	}

	if err := os.Remove(l.path + ".1"); err != nil {
		t.Fatal(err)
	}

	l.add(1)
	l.want("5", "1 2 3 4")

	if !strings.Contains(l.log.String(), "rotated again") {
		t.Errorf("the log: %s", &l.log)
	}
}

func TestAuditFileIsDeletedOrInTheWay(t *testing.T) {
	l := newAuditLines(t)
	l.maxBytes = maxAuditBytes
	l.add(1)

	if err := os.Remove(l.path); err != nil {
		t.Fatal(err)
	}

	l.add(1)
	l.want("2")
	// It was moved, and no new one can be made: lines go on where the file is now.
	if err := errors.Join(os.Rename(l.path, l.path+".1"), os.Mkdir(l.path, 0o700)); err != nil {
		t.Fatal(err)
	}

	l.add(1)

	if text, err := os.ReadFile(l.path + ".1"); err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("got %q, %v, want two lines", text, err)
	}

	if !strings.Contains(l.log.String(), "cannot rotate") {
		t.Errorf("the log does not say that the file cannot be rotated: %s", &l.log)
	}

	// It was deleted, and no new one can be made: the line would be lost, and the caller is
	// informed.
	if err := os.Remove(l.path + ".1"); err != nil {
		t.Fatal(err)
	}

	if _, err := l.Write([]byte("{}\n")); err == nil {
		t.Error("a line without a file: no error")
	}
}
