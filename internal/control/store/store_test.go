package store

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
)

// open opens the store of a folder; it is closed with the test.
func open(t *testing.T, dir string) (*Store, control.Documents) {
	t.Helper()
	s := New(dir)

	docs, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = s.Close() })

	return s, docs
}

// restart closes a store and opens its folder as the next process does.
func restart(t *testing.T, s *Store) (*Store, control.Documents) {
	t.Helper()

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	return open(t, s.dir)
}

func save(t *testing.T, s *Store, operations ...string) {
	t.Helper()

	for _, document := range operations {
		if err := s.SaveOperation([]byte(document)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDocumentsOutliveTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	s, docs := open(t, dir)
	cmptest.Equal(t, "documents of a new folder", docs, control.Documents{})

	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v", info, err)
	}

	last := ""
	for n := range 5 { // shorter ones after longer ones, and the other way round
		last = fmt.Sprintf(`{"n":%d,"text":%q}`, n, strings.Repeat("x", 100*(n%3)))
		save(t, s, last)

		history := fmt.Sprintf(`{"a":"<&>","n":%d}`, n)
		if err := s.SaveHistory([]byte(history)); err != nil {
			t.Fatal(err)
		}

		s, docs = restart(t, s)
		cmptest.Equal(t, fmt.Sprintf("documents after save %d", n), docs,
			control.Documents{Operation: []byte(last), History: []byte(history)})
	}
}

func TestOneProcessAtATime(t *testing.T) {
	s, _ := open(t, t.TempDir())

	other := New(s.dir)
	if _, err := other.Open(); !errors.Is(err, ErrLocked) {
		t.Errorf("a second process: %v", err)
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	if _, err := other.Open(); err != nil {
		t.Errorf("after the first has closed: %v", err)
	}

	defer other.Close()

	for _, err := range []error{s.SaveOperation([]byte("{}")), s.SaveHistory([]byte("{}")), s.Reserve(1)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("use of a closed store: %v", err)
		}
	}
}

// TestSlotDamagedAtEveryByte tears the newest document at every byte, cuts the file off there, and
// flips every byte: what is read is the document before, and that there may be a newer one. The
// next save makes the folder good.
func TestSlotDamagedAtEveryByte(t *testing.T) {
	s, _ := open(t, t.TempDir())
	if err := s.Reserve(200); err != nil {
		t.Fatal(err)
	}

	const newest = `{"n":3,"text":"newest"}`
	save(t, s, `{"n":1}`, `{"n":2}`, newest)
	path := s.slots[s.sequence%2].file.Name()

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for at := range headerSize + len(newest) {
		flipped := bytes.Clone(whole)

		flipped[at] ^= 0x20
		for name, content := range map[string][]byte{
			"torn": append(bytes.Clone(whole[:at]), make([]byte, len(whole)-at)...), "short": whole[:at], "flipped": flipped,
		} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}

			next, docs := restart(t, s)
			if string(docs.Operation) != `{"n":2}` || !docs.OperationDamaged {
				t.Fatalf("%s at byte %d: %q, damaged %t", name, at, docs.Operation, docs.OperationDamaged)
			}

			if s = next; at%20 == 0 {
				save(t, s, `{"n":4}`)

				if s, docs = restart(t, s); string(docs.Operation) != `{"n":4}` || docs.OperationDamaged {
					t.Fatalf("%s at byte %d, then saved: %q, damaged %t", name, at, docs.Operation, docs.OperationDamaged)
				}
			}
		}
	}
}

func TestBothSlotsDamaged(t *testing.T) {
	s, _ := open(t, t.TempDir())
	save(t, s, `{"n":1}`, `{"n":2}`)

	for _, sl := range s.slots {
		if err := os.WriteFile(sl.file.Name(), []byte("garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	s, docs := restart(t, s)
	if docs.Operation != nil || !docs.OperationDamaged {
		t.Errorf("%+v", docs)
	}

	save(t, s, `{"n":3}`, `{"n":4}`)

	if _, docs = restart(t, s); string(docs.Operation) != `{"n":4}` || docs.OperationDamaged {
		t.Errorf("after two saves: %+v", docs)
	}
}

// TestSwappedSlots: files that were copied to each other's names are no proof of anything.
func TestSwappedSlots(t *testing.T) {
	s, _ := open(t, t.TempDir())
	save(t, s, `{"n":1}`, `{"n":2}`)

	a := s.slots[0].file.Name()

	b := s.slots[1].file.Name()
	if err := errors.Join(os.Rename(a, a+"x"), os.Rename(b, a), os.Rename(a+"x", b)); err != nil {
		t.Fatal(err)
	}

	if _, docs := restart(t, s); docs.Operation != nil || !docs.OperationDamaged {
		t.Errorf("%+v", docs)
	}
}

func TestHistoryDamagedAtEveryByte(t *testing.T) {
	s, _ := open(t, t.TempDir())
	if err := s.SaveHistory([]byte(`{"operations":[]}`)); err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(s.dir, historyName)

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for at := range whole {
		flipped := bytes.Clone(whole)

		flipped[at] ^= 0x11
		for name, content := range map[string][]byte{"short": whole[:at], "flipped": flipped} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}

			var docs control.Documents
			if s, docs = restart(t, s); !docs.HistoryDamaged {
				t.Errorf("%s at byte %d (%q): read as %q", name, at, content, docs.History)
			}

			if kept, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(kept, content) {
				t.Errorf("%s at byte %d: %q is kept, %v", name, at, kept, err)
			}
		}
	}
}

// TestFolderReplaced deletes, replaces or moves what the store uses: nothing is saved into files
// that are not read again, and Open takes up what is there now.
func TestFolderReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		replace func(dir string) error
		foreign bool
	}{
		"folder deleted": {os.RemoveAll, false},
		"folder deleted and made": {func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
			false},
		"folder moved away": {func(dir string) error { return os.Rename(dir, dir+".old") }, false},
		"lock deleted":      {func(dir string) error { return os.Remove(filepath.Join(dir, lockName)) }, false},
		"slot deleted":      {func(dir string) error { return os.Remove(filepath.Join(dir, "operation.1")) }, true},
		"used by another": {func(dir string) error {
			other := New(dir)
			if err := os.RemoveAll(dir); err != nil {
				return err
			}

			_, err := other.Open()

			return errors.Join(err, other.SaveOperation([]byte(`{"theirs":1}`)), other.Close())
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t, filepath.Join(t.TempDir(), "state"))
			save(t, s, `{"n":1}`, `{"n":2}`)

			if err := c.replace(s.dir); err != nil {
				t.Fatal(err)
			}

			for _, err := range []error{s.SaveOperation([]byte(`{"n":3}`)), s.SaveHistory([]byte("{}")), s.Reserve(1)} {
				if !errors.Is(err, control.ErrStateReplaced) {
					t.Errorf("use of it: %v", err)
				}
			}

			_, err := s.Open()
			if c.foreign {
				if saved := s.SaveOperation([]byte(`{"n":3}`)); !errors.Is(err, control.ErrStateForeign) ||
					!errors.Is(saved, os.ErrClosed) {
					t.Errorf("opened again: %v; saved: %v", err, saved)
				}

				return
			}

			if err != nil {
				t.Fatal(err)
			}

			save(t, s, `{"n":3}`)

			if _, docs := restart(t, s); string(docs.Operation) != `{"n":3}` {
				t.Errorf("after it: %q", docs.Operation)
			}
		})
	}
}

// TestOwnDocumentsAreNotForeign: what this program has saved in a new folder, or may have saved
// before an error, is its own.
func TestOwnDocumentsAreNotForeign(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, s *Store){
		"a new folder": func(t *testing.T, s *Store) {
			if err := os.RemoveAll(s.dir); err != nil {
				t.Fatal(err)
			}

			if _, err := s.Open(); err != nil {
				t.Fatal(err)
			}

			if err := s.SaveHistory([]byte(`{"a":2}`)); err != nil {
				t.Fatal(err)
			}
		},
		"a slot whose sync has failed": func(t *testing.T, s *Store) {
			content := encode(s.sequence+1, []byte(`{"n":3}`))

			next := s.slots[(s.sequence+1)%2]
			if _, err := next.file.WriteAt(content, 0); err != nil {
				t.Fatal(err)
			}

			s.tried.operation = sha256.Sum256([]byte(`{"n":3}`))
			next.broken = true
		},
		"a history whose folder was not synced": func(t *testing.T, s *Store) {
			file, err := replaceFile(s.folder.Root, historyName, encode(1, []byte(`{"a":2}`)))
			if err != nil {
				t.Fatal(err)
			}

			_ = file.Close()
			s.tried.history = sha256.Sum256([]byte(`{"a":2}`))
		},
	} {
		s, _ := open(t, filepath.Join(t.TempDir(), "state"))
		save(t, s, `{"n":1}`, `{"n":2}`)

		if err := s.SaveHistory([]byte(`{"a":1}`)); err != nil {
			t.Fatal(err)
		}

		change(t, s)

		if _, err := s.Open(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLockTakenMeanwhile: the lock was removed, and another process has the folder now.
func TestLockTakenMeanwhile(t *testing.T) {
	s, _ := open(t, t.TempDir())
	save(t, s, `{"n":1}`)

	if err := os.Remove(filepath.Join(s.dir, lockName)); err != nil {
		t.Fatal(err)
	}

	other, _ := open(t, s.dir)
	if err := s.SaveOperation([]byte(`{"n":2}`)); !errors.Is(err, control.ErrStateReplaced) {
		t.Errorf("saved: %v", err)
	}

	if _, err := s.Open(); !errors.Is(err, ErrLocked) {
		t.Errorf("opened again: %v", err)
	}

	save(t, other, `{"theirs":1}`)
}

// TestFullDisk: what was reserved is written without a new block, and a history for which there is
// no room leaves the old one.
func TestFullDisk(t *testing.T) {
	s, _ := open(t, t.TempDir())
	if err := s.Reserve(10_000); err != nil {
		t.Fatal(err)
	}

	if err := s.SaveHistory([]byte(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}

	blocks := func() (list []int64) {
		for _, sl := range s.slots {
			var stat syscall.Stat_t
			if err := syscall.Stat(sl.file.Name(), &stat); err != nil {
				t.Fatal(err)
			}

			list = append(list, stat.Blocks, stat.Size, int64(stat.Ino))
		}

		return list
	}
	reserved := blocks()

	last := ""
	for n := range 10 {
		last = fmt.Sprintf(`{"n":%d}`, n) + strings.Repeat(" ", 1000*n)
		save(t, s, last)
	}

	if now := blocks(); !slices.Equal(now, reserved) || now[0] == 0 {
		t.Errorf("blocks, sizes and inodes of the slots are %d, and were %d when they were reserved", now, reserved)
	}

	// No file can be created under the name under which a history is written.
	blocked := filepath.Join(s.dir, historyName+".new")
	if err := os.MkdirAll(filepath.Join(blocked, "full"), 0o700); err != nil {
		t.Fatal(err)
	}

	if err := s.SaveHistory([]byte(`{"n":2}`)); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("history for which no file can be created: %v", err)
	}

	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}

	s, docs := restart(t, s)
	if string(docs.Operation) != last || string(docs.History) != `{"n":1}` {
		t.Errorf("%q, %q", docs.Operation, docs.History)
	}

	if err := s.SaveHistory([]byte(`{"n":2}`)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestUnwritableFolder: the error says what is wrong, and Open succeeds once it is mended.
func TestUnwritableFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}

	s := New(dir)
	if _, err := s.Open(); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("opened: %v", err)
	}

	if err := s.SaveOperation([]byte("{}")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("saved: %v", err)
	}

	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}

	if _, err := s.Open(); err != nil {
		t.Error(err)
	}

	_ = s.Close()
}

// TestBrokenSlotIsMadeAnew: after a failed write nothing is known of the file, and the next save
// replaces it.
func TestBrokenSlotIsMadeAnew(t *testing.T) {
	s, _ := open(t, t.TempDir())
	save(t, s, `{"n":1}`, `{"n":2}`)
	sl := s.slots[(s.sequence+1)%2]
	path := sl.file.Name()

	readable, err := os.Open(path) // a descriptor that cannot be written
	if err != nil {
		t.Fatal(err)
	}

	writable := sl.file

	sl.file = readable
	if err := s.SaveOperation([]byte(`{"n":3}`)); err == nil || !sl.broken {
		t.Fatalf("saved: %v", err)
	}

	_ = writable.Close()
	save(t, s, `{"n":3}`, `{"n":4}`, `{"n":5}`)

	if _, docs := restart(t, s); string(docs.Operation) != `{"n":5}` || docs.OperationDamaged {
		t.Errorf("%q, %+v", docs.Operation, docs)
	}
}

// TestCloseBesideHang: a call that hangs on the disk does not keep the program from ending.
func TestCloseBesideHang(t *testing.T) {
	s, _ := open(t, filepath.Join(t.TempDir(), "state"))

	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.Close(); err == nil {
		t.Error("a folder that is in use was closed")
	}
}
