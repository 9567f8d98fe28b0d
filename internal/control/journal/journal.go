// Package journal keeps the records of partition control durably: what was appended is on disk when Append returns, and a
// crash or a power cut loses at most the record that was being written.
package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	name     = "journal"
	lockName = "lock"
	tempName = "journal.new"
)

// ErrLocked says that another process has the journal open.
var ErrLocked = errors.New("state directory is in use by another process")

// ErrBroken says that what is on disk is unknown, because syncing it has failed. Reset mends it.
var ErrBroken = errors.New("journal could not be synced to disk")

// CorruptError says that the journal has a record that was whole once and is not any more. Nothing can be appended to it;
// a person has to look at it.
type CorruptError struct {
	Record int // counted from 1
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal is corrupt at record %d: %s", e.Record, e.Reason)
}

// disk is the part of *os.File that a journal writes through.
type disk interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// File is a journal in a directory of its own, which no other process can open while this one has it. It is safe for
// concurrent use.
type File struct {
	dir  string
	lock *os.File

	mu      sync.Mutex
	disk    disk
	size    int64 // of the whole records
	records [][]byte
	corrupt *CorruptError
	broken  bool
	closed  bool
}

// Open opens the journal of a state directory, and makes both where they are missing. A last record that was not written to
// its end is cut off: nobody was told that it was written. ErrLocked says that another process has it. A corrupt journal
// opens, too: Records and Append tell.
func Open(dir string) (*File, error) {
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	f := &File{dir: dir, lock: lock}
	if err := f.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal: %w", err), lock.Close())
	}
	return f, nil
}

// makeDir makes the directory's entry durable, too, where it is new.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// lockDir holds until the file is closed; a process that dies lets go of it.
func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func (f *File) load() error {
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	f.disk = file
	content, err := io.ReadAll(file)
	if err == nil {
		f.records, f.size, f.corrupt = decode(content)
		if f.corrupt == nil && f.size < int64(len(content)) {
			err = file.Truncate(f.size)
		}
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = syncDir(f.dir)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	return nil
}

// Append returns when the record is on disk. After an error it is not there, and the next one may succeed; but after
// ErrBroken only Reset helps.
func (f *File) Append(record []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.usable(); err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	line, err := encode(record)
	if err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	if _, err := f.disk.WriteAt(line, f.size); err != nil {
		if undo := errors.Join(f.disk.Truncate(f.size), f.disk.Sync()); undo != nil {
			f.broken = true
			err = errors.Join(err, undo)
		}
		return fmt.Errorf("append to journal: %w", err)
	}
	if err := f.disk.Sync(); err != nil {
		// Whether the pages are on disk cannot be found out: a second fsync may say that all is well when they are lost.
		f.broken = true
		return fmt.Errorf("append to journal: %w: %w", ErrBroken, errors.Join(err, f.disk.Truncate(f.size)))
	}
	f.size += int64(len(line))
	return nil
}

func (f *File) usable() error {
	switch {
	case f.closed:
		return os.ErrClosed
	case f.corrupt != nil:
		return f.corrupt
	case f.broken:
		return ErrBroken
	default:
		return nil
	}
}

// Records are those that were there when the journal was opened, in order. Of a corrupt journal they are those before the
// bad one, with a *CorruptError.
func (f *File) Records() ([][]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.corrupt != nil {
		return f.records, f.corrupt
	}
	return f.records, nil
}

// Reset begins a new journal with these records: after a crash there is either the old one or the new one, whole. A corrupt
// journal is not replaced.
func (f *File) Reset(records [][]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.usable(); err != nil && !errors.Is(err, ErrBroken) {
		return fmt.Errorf("reset journal: %w", err)
	}
	var content []byte
	for _, record := range records {
		line, err := encode(record)
		if err != nil {
			return fmt.Errorf("reset journal: %w", err)
		}
		content = append(content, line...)
	}
	if err := f.replace(content); err != nil {
		return fmt.Errorf("reset journal: %w", err)
	}
	return nil
}

func (f *File) replace(content []byte) error {
	temp := filepath.Join(f.dir, tempName)
	file, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(temp, filepath.Join(f.dir, name))
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(temp))
	}
	// From here on the new file is the journal, even if its name should not survive a power cut: then the old one is there.
	closing := f.disk.Close()
	f.disk, f.size, f.broken = file, int64(len(content)), false
	if err := syncDir(f.dir); err != nil {
		f.broken = true
		return errors.Join(fmt.Errorf("%w: %w", ErrBroken, err), closing)
	}
	return nil
}

// Close lets another process have the journal.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	return errors.Join(f.disk.Close(), f.lock.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
