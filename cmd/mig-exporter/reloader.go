package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/sdnotify"
)

// reloader reads files again that can change while the program runs.
type reloader struct {
	files  []*reloadable
	retry  func() // called with every signal
	logger log.Logger
	// manager tells systemd of each reload; may be nil.
	manager *sdnotify.Notifier
}

// applyFunc puts the content of a file in force and returns what has changed. It gives up when its
// context ends.
type applyFunc func(context.Context) ([]string, error)

// reloadable is a file that is read again. It is owned by the reloader's goroutine.
type reloadable struct {
	flag, path string
	// read reads the file and changes nothing. It may block while a file system hangs, so it is
	// called from a goroutine that can be abandoned, never twice at once.
	read    func() (applyFunc, error)
	broken  string       // the log message after an error
	reading *fileReading // the latest; nil before the first
}

// fileReading is a call of read.
type fileReading struct {
	began time.Time
	stale bool          // a signal has come since it began: the file may have changed
	done  chan struct{} // closed once apply and err are set
	apply applyFunc
	err   error
}

// The log messages after most errors.
const (
	keepsOld = "cannot use a file; what was read before stays in force"
	lateRead = "cannot read a file in time; what was read before stays in force"
)

// readTimeout is how long we wait, after a signal, for all files together.
const readTimeout = 10 * time.Second

// errLate is the error of a file that was not read in time.
var errLate = errors.New("its file system does not answer")

func newReloader(x *exporter, manager *sdnotify.Notifier) *reloader {
	return &reloader{files: x.files, retry: x.node.dcgm.retry, logger: x.logger, manager: manager}
}

// run reloads the files with every signal until ctx ends. It does not wait for readings that hang.
func (r *reloader) run(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			r.logAbandoned()
			return nil
		case s := <-signals:
			level.Info(r.logger).Log(
				"msg", "reading files again",
				"signal", s,
				"files", len(r.files),
			)

			done := r.manager.Reloading()
			r.retry()
			r.reloadFiles(ctx)
			done()
		}
	}
}

// reloadFiles reads every file again and logs the results.
func (r *reloader) reloadFiles(ctx context.Context) {
	if len(r.files) == 0 {
		level.Info(r.logger).Log("msg", "reloaded nothing: no flag names a file that is read again")
	}

	inTime, stop := context.WithTimeout(ctx, readTimeout)
	defer stop()

	for _, f := range r.files {
		f.startReading(time.Now())
	}

	for _, f := range r.files {
		changes, err := f.finishReading(ctx, inTime)
		switch {
		case ctx.Err() != nil:
			return // the program stops
		case errors.Is(err, errLate):
			level.Error(r.logger).Log("msg", lateRead, "flag", f.flag, "file", f.path, "err", err)
		case err != nil:
			level.Error(r.logger).Log("msg", f.broken, "flag", f.flag, "file", f.path, "err", err)
		case len(changes) == 0:
			level.Info(r.logger).Log("msg", "file has not changed", "flag", f.flag, "file", f.path)
		default:
			level.Info(r.logger).Log(
				"msg", "reloaded a file",
				"flag", f.flag,
				"file", f.path,
				"changes", strings.Join(changes, ", "),
			)
		}
	}
}

// logAbandoned logs the readings that have not returned.
func (r *reloader) logAbandoned() {
	for _, f := range r.files {
		if f.isReading() {
			level.Warn(r.logger).Log(
				"msg", "abandoned the read of a file: it did not return",
				"flag", f.flag,
				"file", f.path,
			)
		}
	}
}

// isReading reports whether a reading is under way.
func (f *reloadable) isReading() bool {
	if f.reading == nil {
		return false
	}

	select {
	case <-f.reading.done:
		return false
	default:
		return true
	}
}

// startReading begins to read the file, unless an earlier reading has not returned.
func (f *reloadable) startReading(now time.Time) {
	if f.isReading() {
		f.reading.stale = true
		return
	}

	reading := &fileReading{began: now, done: make(chan struct{})}
	f.reading = reading
	go func() {
		defer close(reading.done)
		reading.apply, reading.err = f.read()
	}()
}

// finishReading waits, at most until inTime ends, for a reading that began after the signal, and
// applies it.
func (f *reloadable) finishReading(ctx, inTime context.Context) ([]string, error) {
	for {
		select {
		case <-f.reading.done:
		case <-inTime.Done():
			if f.isReading() {
				return nil, fmt.Errorf(
					"%w: the reading that began at %s has not returned",
					errLate,
					f.reading.began.UTC().
						Format(time.RFC3339),
				)
			}
		}

		if !f.reading.stale {
			break
		}

		f.startReading(time.Now())
	}

	if f.reading.err != nil {
		return nil, f.reading.err
	}

	return f.reading.apply(ctx)
}

// expectRegular returns an error if a path exists and is no regular file. Opening a pipe would
// block until another process writes.
func expectRegular(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().IsRegular() {
		return nil //nolint:nilerr // reading the file returns the error
	}

	return errors.New(path + ": expected a regular file")
}
