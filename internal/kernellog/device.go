package kernellog

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Path is the kernel's log as a device.
const Path = "/dev/kmsg"

// Device is the kernel's log, from the oldest record that it still has.
type Device interface {
	// Read reads the next record into p. If there is none yet, it waits for one if wait is set, and
	// returns syscall.EAGAIN otherwise. It returns EPIPE if records were overwritten before we read
	// them, and EINVAL if it has skipped a record that is longer than p.
	Read(p []byte, wait bool) (int, error)
	// Close makes a Read that waits, and all later ones, fail.
	Close() error
}

// file is the kernel's log of this machine as a Device.
type file struct {
	*os.File
	conn syscall.RawConn
}

// OpenFile opens the log of this machine for reading. An error wraps gpu.ErrNoPermission if this
// process may not read the log, and gpu.ErrNotFound if there is none at path. Something else may be
// there: some containers link /dev/kmsg to a console.
func OpenFile(path string) (Device, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}

	if err := f.checkKind(path); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}

	return f, nil
}

// The device number of the kernel's log (Documentation/admin-guide/devices.txt).
const (
	logMajor = 1
	logMinor = 11
)

// checkKind returns an error unless the file is the kernel's log.
func (f *file) checkKind(path string) error {
	var stat unix.Stat_t
	var statErr error

	err := f.conn.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &stat) })
	if err != nil {
		return err
	}

	if statErr != nil {
		return fmt.Errorf("stat %s: %w", path, statErr)
	}

	major := unix.Major(stat.Rdev)
	minor := unix.Minor(stat.Rdev)

	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFCHR:
		return fmt.Errorf(
			"%w: %s is no character device; want %d:%d",
			gpu.ErrNotFound,
			path,
			logMajor,
			logMinor,
		)
	case major != logMajor || minor != logMinor:
		return fmt.Errorf(
			"%w: %s is the character device %d:%d, want %d:%d",
			gpu.ErrNotFound,
			path,
			major,
			minor,
			logMajor,
			logMinor,
		)
	}

	return nil
}

// openFile opens the file at a path, whatever it is.
func openFile(path string) (*file, error) {
	// Without O_NONBLOCK a read would block a thread, and Close could not end it. O_NOCTTY: if the
	// file is a console, it must not become our controlling terminal.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	switch {
	case errors.Is(err, os.ErrPermission): // EPERM: not to the kernel's log; EACCES: not to the file
		return nil, fmt.Errorf("%w: %w", gpu.ErrNoPermission, err)
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", gpu.ErrNotFound, err)
	case err != nil:
		return nil, err
	}

	conn, err := f.SyscallConn()
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}

	return &file{File: f, conn: conn}, nil
}

// Read implements Device.
func (f *file) Read(p []byte, wait bool) (n int, err error) {
	closedErr := f.conn.Read(func(fd uintptr) (done bool) {
		for {
			n, err = syscall.Read(int(fd), p)
			if !errors.Is(err, syscall.EINTR) {
				break
			}
		}

		return !wait || !errors.Is(err, syscall.EAGAIN)
	})
	if closedErr != nil {
		return 0, closedErr
	}

	return n, err
}

// Uptime returns how long the kernel has run, without times when the machine was suspended. The
// times of records are by another clock, the scheduler's, which is not corrected for drift: the two
// can differ by seconds.
func Uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // Linux has this clock
	}

	return time.Duration(now.Nano())
}
