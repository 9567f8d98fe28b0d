// Package store keeps the documents of partition control in a state folder: that of the operation under way in two
// preallocated slots that are written in turn, and the history in one file that is replaced atomically. A document that was
// saved is on disk, and a crash or a power cut loses at most the one that was being written.
package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/mig-exporter/mig-exporter/internal/control"
)

// The files of a state folder.
const (
	lockName    = "lock"
	historyName = "history"
)

// ErrLocked says that another process uses the folder.
var ErrLocked = errors.New("state folder is in use by another process")

var _ control.Store = (*Store)(nil)

// Store is a state folder. While it is open, no other process can open it. It is safe for concurrent use.
type Store struct {
	dir string

	mu       sync.Mutex
	lock     *os.File
	slots    [2]*slot
	sequence uint64 // of the newest operation document
	saved    fingerprint
	tried    fingerprint // what was to be saved last: after an error it may be on disk
}

// fingerprint tells the documents that were saved last from others.
type fingerprint struct {
	used               bool // something was saved or read
	operation, history [sha256.Size]byte
}

// New returns the store of a folder. It does not touch the disk: Open comes next.
func New(dir string) *Store { return &Store{dir: dir} }

// Open takes the folder, makes what is missing and reads its documents. It can be called again after any error; then it refuses
// a folder whose documents are not those saved last. Errors: ErrLocked, control.ErrStateForeign, and those of the file system.
// After an error nothing can be saved.
func (s *Store) Open() (control.Documents, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.release() // what was saved is on disk
	docs, err := s.open()
	if err != nil {
		return control.Documents{}, fmt.Errorf("open state folder: %w", errors.Join(err, s.release()))
	}
	return docs, nil
}

func (s *Store) open() (control.Documents, error) {
	if err := makeDir(s.dir); err != nil {
		return control.Documents{}, err
	}
	if err := s.takeLock(); err != nil {
		return control.Documents{}, err
	}
	for i := range s.slots {
		var err error
		if s.slots[i], err = openSlot(filepath.Join(s.dir, fmt.Sprintf("operation.%d", i))); err != nil {
			return control.Documents{}, err
		}
	}
	if err := syncDir(s.dir); err != nil {
		return control.Documents{}, err
	}
	var docs control.Documents
	var err error
	if docs.Operation, docs.OperationDamaged, err = s.readSlots(); err != nil {
		return control.Documents{}, err
	}
	if docs.History, docs.HistoryDamaged, err = readHistory(filepath.Join(s.dir, historyName)); err != nil {
		return control.Documents{}, err
	}
	found := fingerprint{true, sha256.Sum256(docs.Operation), sha256.Sum256(docs.History)}
	empty := docs.Operation == nil && docs.History == nil && !docs.OperationDamaged && !docs.HistoryDamaged
	own := (found.operation == s.saved.operation || found.operation == s.tried.operation) &&
		(found.history == s.saved.history || found.history == s.tried.history)
	if s.saved.used && !empty && !own {
		return control.Documents{}, control.ErrStateForeign
	}
	s.saved, s.tried = found, found
	return docs, nil
}

// readHistory reads the history, nil if there is none. One that is damaged is copied aside for a person to look at.
func readHistory(path string) (document []byte, damaged bool, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	document, _, valid := decode(content)
	if !valid {
		_ = os.WriteFile(path+".damaged", content, 0o600) // the original stands until it is replaced
	}
	return document, !valid, nil
}

// makeDir makes the folder if it is missing, and its entry durable.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// takeLock locks the folder until the file is closed; a process that dies releases it.
func (s *Store) takeLock() (err error) {
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// readSlots finds the newest document. An invalid slot beside a valid one may be the newer of the two.
func (s *Store) readSlots() (newest []byte, damaged bool, err error) {
	s.sequence = 0
	for i, sl := range s.slots {
		content, sequence, valid, err := sl.read()
		switch {
		case err != nil:
			return nil, false, err
		case !valid || content != nil && sequence%2 != uint64(i):
			damaged = true
		case sequence > s.sequence:
			newest, s.sequence = content, sequence
		}
	}
	if empty := s.slots[(s.sequence+1)%2]; s.sequence > 1 && empty.unused {
		damaged = true // it held the document before, or the one after
	}
	return newest, damaged, nil
}

// Reserve makes room for documents of an operation of up to size bytes, so that saving them allocates nothing on disk.
func (s *Store) Reserve(size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return fmt.Errorf("reserve room for an operation: %w", err)
	}
	for _, sl := range s.slots {
		if err := sl.grow(int64(size) + headerSize); err != nil {
			return fmt.Errorf("reserve room for an operation: %w", err)
		}
	}
	return nil
}

// SaveOperation returns when the document is on disk, in the place of the one before the last. After an error the last one
// still stands, and the next call tries again. Errors: control.ErrStateReplaced, and those of the file system.
func (s *Store) SaveOperation(document []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.check()
	if err == nil {
		s.tried.operation = sha256.Sum256(document)
		err = s.slots[(s.sequence+1)%2].write(s.sequence+1, document)
	}
	if err != nil {
		return fmt.Errorf("save operation: %w", err)
	}
	s.sequence++
	s.saved.used, s.saved.operation = true, sha256.Sum256(document)
	return nil
}

// SaveHistory returns when the document is on disk in the place of the previous one. After an error one of the two stands.
func (s *Store) SaveHistory(document []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.check()
	if err == nil {
		s.tried.history = sha256.Sum256(document)
		var file *os.File
		if file, err = replaceFile(filepath.Join(s.dir, historyName), encode(1, document)); err == nil {
			err = file.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("save history: %w", err)
	}
	s.saved.used, s.saved.history = true, sha256.Sum256(document)
	return nil
}

// check returns control.ErrStateReplaced if the files in use are not those on disk any more.
func (s *Store) check() error {
	if s.lock == nil {
		return fmt.Errorf("state folder: %w", os.ErrClosed)
	}
	for _, file := range []*os.File{s.lock, s.slots[0].file, s.slots[1].file} {
		mine, err := file.Stat()
		if err != nil {
			return err
		}
		there, err := os.Stat(file.Name())
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(mine, there) {
			return control.ErrStateReplaced
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close lets another process use the folder.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.release()
}

func (s *Store) release() error {
	var errs []error
	for i, sl := range s.slots {
		if sl != nil {
			errs = append(errs, sl.file.Close())
		}
		s.slots[i] = nil
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
		s.lock = nil
	}
	return errors.Join(errs...)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
