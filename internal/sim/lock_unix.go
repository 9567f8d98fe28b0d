//go:build unix

package sim

import (
	"errors"
	"os"
	"syscall"
)

// tryLockFile locks a file against other processes. It does not wait.
func tryLockFile(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// isLocked reports whether tryLockFile can succeed if it is called again: another process holds the
// lock, or a signal interrupted the call.
func isLocked(err error) bool {
	return errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR)
}

func unlockFile(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
