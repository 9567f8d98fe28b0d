// Package store keeps the documents of partition control in a state folder: that of the operation under way in two
// preallocated slots that are written in turn, and the history in one file that is replaced atomically. A document
// that was saved is on disk, and a crash or a power cut loses at most the one that was being written.
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

// ErrLocked means that another process uses the folder.
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
	tried    fingerprint // of the last attempt to save: after an error it may be on disk
}

// fingerprint identifies the documents that were saved last.
type fingerprint struct {
	used               bool // something was saved or read
	operation, history [sha256.Size]byte
}

// New returns the store of a folder. It does not access the disk: call Open next.
func New(dir string) *Store { return &Store{dir: dir} }

// Open locks the folder, creates missing files and reads the documents. It may be called again after any error; it
// then refuses a folder whose documents are not those that were saved last. Errors are ErrLocked,
// control.ErrStateForeign and those of the file system. After an error nothing can be saved.
func (s *Store) Open() (control.Documents, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.closeFiles() // their content is on disk
	docs, err := s.openFiles()
	if err != nil {
		return control.Documents{}, fmt.Errorf("open state folder: %w", errors.Join(err, s.closeFiles()))
	}
	return docs, nil
}

func (s *Store) openFiles() (control.Documents, error) {
	if err := createDir(s.dir); err != nil {
		return control.Documents{}, err
	}
	if err := s.lockFolder(); err != nil {
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

// readHistory returns the history, or nil if there is none. A damaged one is copied to another file for the operator.
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
		_ = os.WriteFile(path+".damaged", content, 0o600) // the original remains until it is replaced
	}
	return document, !valid, nil
}

// createDir creates the folder durably if it is missing.
func createDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// lockFolder locks the folder until the lock file is closed, also by the end of the process.
func (s *Store) lockFolder() (err error) {
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// readSlots returns the newest valid document. damaged is set if a newer one may have been lost.
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
		damaged = true // it had the previous document or the next one
	}
	return newest, damaged, nil
}

// Reserve allocates disk space for operation documents of up to size bytes, so that saving them allocates none.
func (s *Store) Reserve(size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkFiles(); err != nil {
		return fmt.Errorf("reserve room for an operation: %w", err)
	}
	for _, sl := range s.slots {
		if err := sl.grow(int64(size) + headerSize); err != nil {
			return fmt.Errorf("reserve room for an operation: %w", err)
		}
	}
	return nil
}

// SaveOperation writes the operation's document to the older slot and blocks until it is on disk. After an error the
// last document remains, and the next call tries again. Errors are control.ErrStateReplaced and those of the file
// system.
func (s *Store) SaveOperation(document []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.checkFiles()
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

// SaveHistory replaces the history and blocks until it is on disk. After an error, one of the two remains.
func (s *Store) SaveHistory(document []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.checkFiles()
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

// checkFiles returns control.ErrStateReplaced if the open files are no longer those in the folder.
func (s *Store) checkFiles() error {
	if s.lock == nil {
		return fmt.Errorf("state folder: %w", os.ErrClosed)
	}
	for _, file := range []*os.File{s.lock, s.slots[0].file, s.slots[1].file} {
		opened, err := file.Stat()
		if err != nil {
			return err
		}
		named, err := os.Stat(file.Name())
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(opened, named) {
			return control.ErrStateReplaced
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes and unlocks the folder.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closeFiles()
}

func (s *Store) closeFiles() error {
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
