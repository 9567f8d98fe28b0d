package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/privatedir"
)

// When an audit log is rotated, and how many rotated files are kept. With the current file, they
// have at most 110 MiB.
const (
	maxAuditBytes  = 10 << 20
	maxAuditAge    = 30 * 24 * time.Hour
	auditFilesKept = 10
)

// AuditFile is an audit log on disk. Once it has maxAuditBytes, or its first line is maxAuditAge
// old, it is renamed to PATH.1, PATH.1 to PATH.2 and so on, and a new file is created. If that
// fails, an error is logged and lines are appended to the same file: no line is lost and no change
// refused because of a failed rotation. It is safe for concurrent use.
type AuditFile struct {
	path     string
	logger   log.Logger
	now      func() time.Time
	maxBytes int64
	maxAge   time.Duration
	kept     int // rotated files

	mu     sync.Mutex
	file   *os.File  // nil before the first Write
	since  time.Time // time of the file's first line; zero while it has none
	failed bool      // the last rotation failed
}

// NewAudit returns the audit log at path, to which lines are appended; a new file is readable by
// its owner alone. The first Write opens it. If the file is deleted, or moved as logrotate does,
// the next line goes to a new file.
func NewAudit(path string, logger log.Logger) *AuditFile {
	return &AuditFile{
		path:     path,
		logger:   logger,
		now:      time.Now,
		maxBytes: maxAuditBytes,
		maxAge:   maxAuditAge,
		kept:     auditFilesKept,
	}
}

// reopen opens the file at the path, which it creates with its folder if necessary. It refuses a
// folder or a file that another user can have prepared or can change. If it fails, the file that
// was open stays open.
func (a *AuditFile) reopen() error {
	folder, err := privatedir.Open(filepath.Dir(a.path))
	if err != nil {
		return err
	}
	defer folder.Close()

	file, err := folder.OpenFile(filepath.Base(a.path), os.O_APPEND|os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}

	if err := folder.Sync(); err != nil {
		_ = file.Close()
		return err
	}

	if a.file != nil {
		_ = a.file.Close() // all of its lines are written
	}

	a.file = file
	a.since = timeOfFirstLine(file)

	return nil
}

// timeOfFirstLine returns the time of the file's first line, or the file's modification time if the
// line has none. It is zero if the file is empty.
func timeOfFirstLine(file *os.File) time.Time {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return time.Time{}
	}

	var entry auditEntry

	line, err := bufio.NewReaderSize(file, 4096).ReadSlice('\n')
	if err != nil || json.Unmarshal(line, &entry) != nil || entry.Time.IsZero() {
		return info.ModTime()
	}

	return entry.Time
}

// Write appends a line.
func (a *AuditFile) Write(line []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.file == nil {
		if err := a.reopen(); err != nil {
			return 0, err
		}
	}

	info, err := a.file.Stat()
	if err != nil {
		return 0, err
	}

	if named, err := os.Lstat(a.path); err != nil || !os.SameFile(info, named) { // moved or deleted
		err := a.reopen()
		if err != nil && !hasName(info) {
			return 0, err
		}

		a.report(err)
	} else if a.isRotationDue(info.Size() + int64(len(line))) {
		a.report(a.rotate())
	}

	n, err := a.file.Write(line)
	if n > 0 && a.since.IsZero() {
		a.since = a.now()
	}

	return n, err
}

// hasName reports whether an open file still has a name, under which the next lines can be found.
func hasName(info os.FileInfo) bool {
	status, ok := info.Sys().(*syscall.Stat_t)
	return ok && status.Nlink > 0
}

// isRotationDue reports whether the file must be rotated before it grows to size.
func (a *AuditFile) isRotationDue(size int64) bool {
	return !a.since.IsZero() && (size > a.maxBytes || a.now().Sub(a.since) >= a.maxAge)
}

// rotate renames the file to PATH.1 and creates a new one. It makes room by renaming PATH.1 and those
// after it, but only up to the first number that is free: so rotations that fail repeatedly, after
// they have freed PATH.1, drop no file.
func (a *AuditFile) rotate() error {
	if err := a.file.Sync(); err != nil {
		return err
	}

	free := 1
	for free < a.kept {
		if _, err := os.Lstat(a.numbered(free)); errors.Is(err, fs.ErrNotExist) {
			break
		}

		free++
	}

	for n := free; n > 1; n-- {
		if err := os.Rename(a.numbered(n-1), a.numbered(n)); err != nil {
			return err
		}
	}

	if err := os.Rename(a.path, a.numbered(1)); err != nil {
		return err
	}

	return a.reopen()
}

func (a *AuditFile) numbered(n int) string { return fmt.Sprintf("%s.%d", a.path, n) }

// report takes the result of a rotation. It logs when rotation begins to fail, and when it succeeds
// again.
func (a *AuditFile) report(err error) {
	switch {
	case err != nil && !a.failed:
		_ = level.Error(a.logger).Log(
			"msg", "cannot rotate the audit log; appending to the same file",
			"path", a.path,
			"err", err,
		)
	case err == nil && a.failed:
		_ = level.Info(a.logger).Log("msg", "audit log is rotated again", "path", a.path)
	}

	a.failed = err != nil
}

// Sync blocks until all written lines are on disk.
func (a *AuditFile) Sync() error {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.file == nil {
		return nil
	}

	return a.file.Sync()
}

// Close closes the file.
func (a *AuditFile) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.file == nil {
		return nil
	}

	return a.file.Close()
}
