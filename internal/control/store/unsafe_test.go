package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/privatedir"
)

// TestLinksAreNotFollowed: a file of the folder that is a symbolic link is refused or replaced.
// What it leads to keeps its content.
func TestLinksAreNotFollowed(t *testing.T) {
	for _, name := range []string{lockName, "operation.0", "operation.1", historyName} {
		dir := filepath.Join(t.TempDir(), "state")
		target := filepath.Join(t.TempDir(), "secret")
		write(t, target, "keep this")

		if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink(target, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}

		_, err := New(dir).Open()
		if !errors.Is(err, privatedir.ErrUnsafe) || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s is a link: opened with %v, want an error that names it", name, err)
		}

		cmptest.Equal(t, "what "+name+" leads to", read(t, target), "keep this")
	}
}

// TestLinksInTheWayOfNewFiles: the names under which files are created before they are renamed are
// no way out of the folder.
func TestLinksInTheWayOfNewFiles(t *testing.T) {
	s, _ := open(t, filepath.Join(t.TempDir(), "state"))
	target := filepath.Join(t.TempDir(), "secret")
	write(t, target, "keep this")

	for _, name := range []string{"history.new", "operation.0.new", "operation.1.new", "history.damaged.new",
		"history.damaged"} {
		if err := os.Symlink(target, filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}

	for _, sl := range s.slots {
		sl.broken = true
	}

	save(t, s, `{"n":1}`, `{"n":2}`)
	saveHistory(t, s, `{"a":1}`)
	write(t, filepath.Join(s.dir, historyName), "damage")

	if _, docs := restart(t, s); !docs.HistoryDamaged || string(docs.Operation) != `{"n":2}` {
		t.Errorf("%+v", docs)
	}

	cmptest.Equal(t, "what the links lead to", read(t, target), "keep this")
	cmptest.Equal(t, "the copy of the damaged history", read(t, filepath.Join(s.dir, "history.damaged")), "damage")
}

// TestFolderOpenedToOthers: a folder that another user can write by now is not written any more,
// and is usable again once it is the owner's alone.
func TestFolderOpenedToOthers(t *testing.T) {
	s, _ := open(t, filepath.Join(t.TempDir(), "state"))
	save(t, s, `{"n":1}`)

	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}

	if err := s.SaveOperation([]byte(`{"n":2}`)); !errors.Is(err, privatedir.ErrUnsafe) {
		t.Errorf("saved: %v", err)
	}

	if _, err := s.Open(); !errors.Is(err, privatedir.ErrUnsafe) {
		t.Errorf("opened again: %v", err)
	}

	if err := os.Chmod(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}

	if docs, err := s.Open(); err != nil || string(docs.Operation) != `{"n":1}` {
		t.Errorf("opened with its mode restored: %q, %v", docs.Operation, err)
	}
}

// TestLostDocuments: documents that were in the folder once and are gone count as damaged; a folder
// that vanished whole, or was never used, is a first start.
func TestLostDocuments(t *testing.T) {
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()

			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	zero := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()

			for _, name := range names {
				size := len(read(t, filepath.Join(dir, name)))
				write(t, filepath.Join(dir, name), strings.Repeat("\x00", size))
			}
		}
	}

	for name, c := range map[string]struct {
		lose      func(t *testing.T, dir string)
		operation string
		damage    [2]bool // of the operation, of the history
	}{
		"nothing":         {remove(), `{"n":1}`, [2]bool{}},
		"one slot":        {remove("operation.0"), `{"n":1}`, [2]bool{true, false}},
		"one slot zeroed": {zero("operation.1"), `{"n":1}`, [2]bool{true, false}},
		"history":         {remove("history"), `{"n":1}`, [2]bool{false, true}},
		"history, and the slots are zeroed": {func(t *testing.T, dir string) {
			remove("history")(t, dir)
			zero("operation.0", "operation.1")(t, dir)
		}, "", [2]bool{false, true}},
		"history is zeroed": {zero("history"), `{"n":1}`, [2]bool{false, true}},
		"everything":        {func(t *testing.T, dir string) { t.Helper(); remove("state")(t, filepath.Dir(dir)) }, "", [2]bool{}},
		"all files":         {remove("lock", "history", "operation.0", "operation.1"), "", [2]bool{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			s, _ := open(t, dir)
			saveHistory(t, s, `{"a":1}`)
			save(t, s, `{"n":1}`)

			if err := s.Close(); err != nil {
				t.Fatal(err)
			}

			c.lose(t, dir)

			_, docs := open(t, dir)
			cmptest.Equal(t, "operation", string(docs.Operation), c.operation)
			cmptest.Equal(t, "damage", [2]bool{docs.OperationDamaged, docs.HistoryDamaged}, c.damage)
		})
	}
}

// TestCrashInTheFirstSave: only one of the slots has the first document. That may also be a loss.
func TestCrashInTheFirstSave(t *testing.T) {
	s, _ := open(t, filepath.Join(t.TempDir(), "state"))
	saveHistory(t, s, `{"a":1}`)

	if err := s.writeSlot([]byte(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}

	_, docs := restart(t, s)
	cmptest.Equal(t, "documents", docs, control.Documents{Operation: []byte(`{"n":1}`), OperationDamaged: true,
		History: []byte(`{"a":1}`)})
}

func saveHistory(t *testing.T, s *Store, document string) {
	t.Helper()

	if err := s.SaveHistory([]byte(document)); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()

	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()

	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(content)
}
