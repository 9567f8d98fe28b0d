package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func open(t *testing.T, dir string) *File {
	t.Helper()
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func read(t *testing.T, f *File) []string {
	t.Helper()
	records, err := f.Records()
	if err != nil {
		t.Fatal(err)
	}
	list := make([]string, 0, len(records))
	for _, r := range records {
		list = append(list, string(r))
	}
	return list
}

// written makes a journal with these records and returns its directory.
func written(t *testing.T, records ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	f := open(t, dir)
	for _, r := range records {
		if err := f.Append([]byte(r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRecordsAreThereAfterwards(t *testing.T) {
	dir := written(t, `{"a":1}`, `{"b":"ü"}`)
	f := open(t, dir)
	if got := read(t, f); !slices.Equal(got, []string{`{"a":1}`, `{"b":"ü"}`}) {
		t.Errorf("records %q", got)
	}
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("journal %v, %v: want it private", info, err)
	}
}

// TestTornLastRecord cuts the journal off at every byte of its last record.
func TestTornLastRecord(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(written(t, "first", "second"), name))
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(whole, '\n') + 1
	for size := first; size < len(whole); size++ {
		for _, zeros := range []int{0, 7} {
			dir := written(t)
			if err := os.WriteFile(filepath.Join(dir, name), append(slices.Clone(whole[:size]), make([]byte, zeros)...), 0o600); err != nil {
				t.Fatal(err)
			}
			f := open(t, dir)
			if got := read(t, f); !slices.Equal(got, []string{"first"}) {
				t.Fatalf("cut at %d with %d zeros: records %q", size, zeros, got)
			}
			if err := f.Append([]byte("third")); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if got := read(t, open(t, dir)); !slices.Equal(got, []string{"first", "third"}) {
				t.Fatalf("cut at %d with %d zeros, appended: records %q", size, zeros, got)
			}
		}
	}
}

// TestCorruptRecord flips each byte that was once on disk, the ends of the lines excepted: without the last of them the last
// record is torn, and without another the next line is read as a part of its own.
func TestCorruptRecord(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(written(t, "first", "second", "third"), name))
	if err != nil {
		t.Fatal(err)
	}
	for at := range len(whole) - 1 {
		dir := written(t)
		bad := slices.Clone(whole)
		bad[at] ^= 0x01
		if err := os.WriteFile(filepath.Join(dir, name), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		f := open(t, dir)
		_, err := f.Records()
		want := 1 + bytes.Count(whole[:at], []byte("\n"))
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.Record != want {
			t.Fatalf("byte %d: error %v, want corrupt at record %d", at, err, want)
		}
		if err := f.Append([]byte("more")); !errors.As(err, &corrupt) {
			t.Errorf("append to a corrupt journal: %v", err)
		}
		if err := f.Reset(nil); !errors.As(err, &corrupt) {
			t.Errorf("reset of a corrupt journal: %v", err)
		}
		if after, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(after, bad) {
			t.Errorf("a corrupt journal was changed: %v", err)
		}
	}
}

func TestSecondProcess(t *testing.T) {
	dir := written(t)
	f := open(t, dir)
	if _, err := Open(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("second process: %v, want ErrLocked", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

func TestReset(t *testing.T) {
	dir := written(t, "old", "older")
	f := open(t, dir)
	if err := f.Reset([][]byte{[]byte("new")}); err != nil {
		t.Fatal(err)
	}
	if err := f.Append([]byte("newer")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// A crash before the rename leaves a file beside the journal, which counts for nothing.
	if err := os.WriteFile(filepath.Join(dir, tempName), []byte("half a jour"), 0o600); err != nil {
		t.Fatal(err)
	}
	f = open(t, dir)
	if got := read(t, f); !slices.Equal(got, []string{"new", "newer"}) {
		t.Errorf("records %q", got)
	}
	if err := f.Reset(nil); err != nil {
		t.Errorf("reset over what a crash has left: %v", err)
	}
}

func TestRecordsThatCannotBe(t *testing.T) {
	f := open(t, written(t))
	for _, bad := range [][]byte{nil, []byte("two\nlines"), {'a', 0}, make([]byte, maxRecord+1)} {
		if err := f.Append(bad); err == nil {
			t.Errorf("record of %d bytes was taken", len(bad))
		}
	}
	if err := f.Append([]byte("good")); err != nil {
		t.Error(err)
	}
}

// flawed is a disk that fails.
type flawed struct {
	*os.File
	room     int // bytes that can still be written
	sync     error
	truncate error
}

func (d *flawed) WriteAt(b []byte, at int64) (int, error) {
	if len(b) <= d.room {
		d.room -= len(b)
		return d.File.WriteAt(b, at)
	}
	n, _ := d.File.WriteAt(b[:d.room], at)
	d.room = 0
	return n, errors.New("no space left on device")
}

func (d *flawed) Sync() error { return d.sync }

func (d *flawed) Truncate(size int64) error {
	if d.truncate != nil {
		return d.truncate
	}
	return d.File.Truncate(size)
}

func flaw(t *testing.T, f *File) *flawed {
	t.Helper()
	file, ok := f.disk.(*os.File)
	if !ok {
		t.Fatalf("disk is %T", f.disk)
	}
	d := &flawed{File: file, room: 1 << 20}
	f.disk = d
	return d
}

func TestFullDisk(t *testing.T) {
	for room := range 20 {
		dir := written(t, "first")
		f := open(t, dir)
		d := flaw(t, f)
		d.room = room
		if err := f.Append([]byte("second")); err == nil {
			t.Fatal("a record was taken for which there is no room")
		}
		d.room = 1 << 20
		if err := f.Append([]byte("third")); err != nil {
			t.Fatalf("with room again: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if got := read(t, open(t, dir)); !slices.Equal(got, []string{"first", "third"}) {
			t.Fatalf("records %q", got)
		}
	}
}

func TestFailedSyncIsNotForgotten(t *testing.T) {
	for _, cause := range []string{"sync", "truncate"} {
		t.Run(cause, func(t *testing.T) {
			dir := written(t, "first")
			f := open(t, dir)
			d := flaw(t, f)
			if cause == "sync" {
				d.sync = errors.New("I/O error")
			} else {
				d.room, d.truncate = 3, errors.New("I/O error")
			}
			if err := f.Append([]byte("second")); err == nil {
				t.Fatal("a record was taken that is not on disk")
			}
			d.sync, d.truncate, d.room = nil, nil, 1<<20
			if err := f.Append([]byte("third")); !errors.Is(err, ErrBroken) {
				t.Fatalf("append after it: %v, want ErrBroken", err)
			}
			if err := f.Reset([][]byte{[]byte("anew")}); err != nil {
				t.Fatal(err)
			}
			if err := f.Append([]byte("third")); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if got := read(t, open(t, dir)); !slices.Equal(got, []string{"anew", "third"}) {
				t.Errorf("records %q", got)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	line, err := encode([]byte("first"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add(append(slices.Clone(line), line[:12]...))
	f.Add([]byte("00000000 00000000 \n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		records, size, corrupt := decode(content)
		var again []byte
		for _, r := range records {
			again = append(again, fmt.Sprintf("%s %s ", content[len(again):len(again)+8], content[len(again)+9:len(again)+17])...)
			again = append(append(again, r...), '\n')
		}
		if int64(len(again)) != size || !bytes.Equal(again, content[:size]) {
			t.Fatalf("whole records are %q of %q, size %d, corrupt %v", again, content, size, corrupt)
		}
	})
}
