// Package store keeps the documents of partition control in a state folder. For the operation under
// way it has two slots, which are files with reserved space that it overwrites in turn. The history
// is one file, which it replaces atomically. A document that was saved is on disk. A crash or a
// power cut loses at most the document that was being written.
package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/privatedir"
)

// The files of a state folder.
const (
	lockName    = "lock"
	historyName = "history"
)

// ErrLocked means that another process uses the folder.
var ErrLocked = errors.New("state folder is in use by another process")

var _ control.Store = (*Store)(nil)

// Store is a state folder. While it is open, no other process can open it. It is safe for
// concurrent use.
type Store struct {
	dir string

	mu       sync.Mutex
	folder   *privatedir.Dir // nil while the store is closed, as are lock and the slots
	lock     *os.File
	slots    [2]*slot    // a document with an even sequence number goes to slots[0]
	sequence uint64      // number of the newest document in the slots; 0 if there is none
	saved    fingerprint // of the documents that were saved or read last
	tried    fingerprint // of the last attempts to save, which may be on disk in spite of an error
}

// fingerprint identifies the documents in a folder by their hashes.
type fingerprint struct {
	used               bool // something was saved or read
	operation, history [sha256.Size]byte
}

// New returns the store of a folder. It does not access the disk: call Open next.
func New(dir string) *Store { return &Store{dir: dir} }

// Open locks the folder, creates missing files and reads the documents. It may be called again
// after any error; it then refuses a folder whose documents are not those that were saved last.
// Errors are ErrLocked, control.ErrStateForeign, privatedir.ErrUnsafe if another user may have
// written the folder or a file in it, or still can, and errors of the file system. After an error
// nothing can be saved.
func (s *Store) Open() (control.Documents, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	_ = s.closeFiles() // nothing is lost: each save has synced

	docs, err := s.openFiles()
	if err != nil {
		return control.Documents{}, fmt.Errorf(
			"open state folder: %w",
			errors.Join(err, s.closeFiles()),
		)
	}

	return docs, nil
}

func (s *Store) openFiles() (control.Documents, error) {
	var err error

	if s.folder, err = privatedir.Open(s.dir); err != nil {
		return control.Documents{}, err
	}

	if err := s.lockFolder(); err != nil {
		return control.Documents{}, err
	}

	for i := range s.slots {
		if s.slots[i], err = openSlot(s.folder, fmt.Sprintf("operation.%d", i)); err != nil {
			return control.Documents{}, err
		}
	}

	if err := s.folder.Sync(); err != nil {
		return control.Documents{}, err
	}

	docs, err := s.readDocuments()
	if err != nil {
		return control.Documents{}, err
	}

	// If we have used the folder before, it must have our last documents, or none.
	found := fingerprint{true, sha256.Sum256(docs.Operation), sha256.Sum256(docs.History)}
	empty := docs.Operation == nil && docs.History == nil && !docs.OperationDamaged &&
		!docs.HistoryDamaged
	own := (found.operation == s.saved.operation || found.operation == s.tried.operation) &&
		(found.history == s.saved.history || found.history == s.tried.history)

	if s.saved.used && !empty && !own {
		return control.Documents{}, control.ErrStateForeign
	}

	s.saved = found
	s.tried = found

	return docs, nil
}

// readDocuments reads the slots and the history. We write a history before we first make room in
// the slots: if they have room and there is no history, it was lost.
func (s *Store) readDocuments() (docs control.Documents, err error) {
	if docs.Operation, docs.OperationDamaged, err = s.readSlots(); err != nil {
		return docs, err
	}

	if docs.History, docs.HistoryDamaged, err = s.readHistory(); err != nil {
		return docs, err
	}

	if docs.History == nil && s.slots[0].size+s.slots[1].size > 0 {
		docs.HistoryDamaged = true
	}

	return docs, nil
}

// readHistory returns the history, or nil if there is none. It copies a damaged one to another file,
// where the operator can look at it after the next SaveHistory.
func (s *Store) readHistory() (document []byte, damaged bool, err error) {
	file, err := s.folder.OpenFile(historyName, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}

	if err != nil {
		return nil, false, err
	}

	content, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, false, err
	}

	document, _, valid := decode(content)
	if !valid {
		if copied, err := replaceFile(s.folder.Root, historyName+".damaged", content); err == nil {
			_ = copied.Close()
		}
	}

	return document, !valid, nil
}

// lockFolder locks the folder until the lock file is closed or the process ends.
func (s *Store) lockFolder() (err error) {
	if s.lock, err = s.folder.OpenFile(lockName, os.O_RDWR|os.O_CREATE); err != nil {
		return err
	}

	err = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
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
		case !valid || content != nil && sequence%2 != uint64(i): // it is the other slot's
			damaged = true
		case sequence > s.sequence:
			newest = content
			s.sequence = sequence
		}
	}

	// The first save writes both slots. So if one is unused, it has lost the previous document or
	// the next one. It may also be that the first save crashed in between. Then nothing was lost,
	// and to report damage does no harm: nothing was done yet, so the GPUs are as the document says.
	if other := s.slots[(s.sequence+1)%2]; s.sequence > 0 && other.unused {
		damaged = true
	}

	return newest, damaged, nil
}

// Reserve allocates disk space for operation documents of up to size bytes, so that saving them
// allocates none.
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

// SaveOperation writes the operation's document to the older slot and blocks until it is on disk. It
// writes the first document of a folder to both slots: from then on, a slot without a document must
// have lost it. After an error the last document is still there, and the next call tries again.
// Errors are control.ErrStateReplaced and errors of the file system.
func (s *Store) SaveOperation(document []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	err := s.checkFiles()
	if err == nil {
		s.tried.operation = sha256.Sum256(document)
		err = s.writeSlot(document)
	}

	if err == nil && s.sequence == 1 {
		err = s.writeSlot(document)
	}

	if err != nil {
		return fmt.Errorf("save operation: %w", err)
	}

	s.saved.used = true
	s.saved.operation = sha256.Sum256(document)

	return nil
}

// writeSlot writes a document to the older slot.
func (s *Store) writeSlot(document []byte) error {
	if err := s.slots[(s.sequence+1)%2].write(s.sequence+1, document); err != nil {
		return err
	}

	s.sequence++

	return nil
}

// SaveHistory replaces the history and blocks until it is on disk. After an error, the old one or
// the new one is there.
func (s *Store) SaveHistory(document []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	err := s.checkFiles()
	if err == nil {
		s.tried.history = sha256.Sum256(document)

		var file *os.File
		if file, err = replaceFile(s.folder.Root, historyName, encode(1, document)); err == nil {
			err = file.Close()
		}
	}

	if err != nil {
		return fmt.Errorf("save history: %w", err)
	}

	s.saved.used = true
	s.saved.history = sha256.Sum256(document)

	return nil
}

// checkFiles returns control.ErrStateReplaced if the open folder or files are no longer those at
// their paths, and privatedir.ErrUnsafe if another user can write the folder by now.
func (s *Store) checkFiles() error {
	if s.lock == nil {
		return fmt.Errorf("state folder: %w", os.ErrClosed)
	}

	err := s.folder.Check()
	if errors.Is(err, privatedir.ErrReplaced) {
		return control.ErrStateReplaced
	}

	if err != nil {
		return err
	}

	for _, file := range []*os.File{s.lock, s.slots[0].file, s.slots[1].file} {
		opened, err := file.Stat()
		if err != nil {
			return err
		}

		named, err := s.folder.Lstat(filepath.Base(file.Name()))
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(opened, named) {
			return control.ErrStateReplaced
		}

		if err != nil {
			return err
		}
	}

	return nil
}

// Close closes and unlocks the folder. While another call hangs on the disk, Close returns an
// error: the folder is then unlocked when the process ends.
func (s *Store) Close() error {
	if !s.mu.TryLock() {
		return errors.New("close state folder: a call has not returned from its disk")
	}

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

	if s.folder != nil {
		errs = append(errs, s.folder.Close())
		s.folder = nil
	}

	return errors.Join(errs...)
}
