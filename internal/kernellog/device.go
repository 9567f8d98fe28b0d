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
	// Read reads the next record into p. If there is none yet, it waits for one, or returns
	// syscall.EAGAIN unless wait is set. EPIPE: records were overwritten before they were read.
	// EINVAL: the record was longer than p and is skipped.
	Read(p []byte, wait bool) (int, error)
	// Close ends a Read that waits, and makes it and later ones fail.
	Close() error
}

// file is the log of the machine.
type file struct {
	*os.File
	conn syscall.RawConn
}

// OpenFile opens the log of this machine for reading. It wraps gpu.ErrNoPermission if this process
// may not read it, and gpu.ErrNotFound if there is none, or something else in its place: some
// containers link /dev/kmsg to a console.
func OpenFile(path string) (Device, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}

	if err := f.checkKind(path); err != nil {
		_ = f.Close() // it was only opened for reading
		return nil, err
	}

	return f, nil
}

// The number of the device that is the kernel's log (Documentation/admin-guide/devices.txt).
const (
	logMajor = 1
	logMinor = 11
)

// checkKind returns an error unless the file is the kernel's log.
func (f *file) checkKind(path string) error {
	var stat unix.Stat_t
	var failure error

	err := f.conn.Control(func(fd uintptr) { failure = unix.Fstat(int(fd), &stat) })
	if err != nil {
		return err
	}

	if failure != nil {
		return fmt.Errorf("stat %s: %w", path, failure)
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

// openFile opens a file that is read as the log is.
func openFile(path string) (*file, error) {
	// Without O_NONBLOCK a read would block a thread, which Close cannot end. A console must not
	// become ours.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	switch {
	case errors.Is(err, os.ErrPermission): // EPERM without the right to the log, EACCES to the file
		return nil, fmt.Errorf("%w: %w", gpu.ErrNoPermission, err)
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", gpu.ErrNotFound, err)
	case err != nil:
		return nil, err
	}

	conn, err := f.SyscallConn()
	if err != nil {
		_ = f.Close() // it was only opened for reading
		return nil, err
	}

	return &file{File: f, conn: conn}, nil
}

// Read implements Device.
func (f *file) Read(p []byte, wait bool) (n int, err error) {
	failure := f.conn.Read(func(fd uintptr) (done bool) {
		for {
			n, err = syscall.Read(int(fd), p)
			if !errors.Is(err, syscall.EINTR) {
				break
			}
		}

		return !wait || !errors.Is(err, syscall.EAGAIN)
	})
	if failure != nil { // it was closed
		return 0, failure
	}

	return n, err
}

// Uptime returns how long the kernel runs, without the time for which it was suspended. The time of
// a record is by the scheduler's clock, which is that within seconds: it is not corrected for
// drift.
func Uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // Linux has this clock
	}

	return time.Duration(now.Nano())
}
