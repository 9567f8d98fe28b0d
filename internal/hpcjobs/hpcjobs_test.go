package hpcjobs

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestJobsOfAFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "0", "4711\n\n4712\r\n4711\n")
	write(t, dir, "1.7", "4713")
	write(t, dir, "2", "\n \n")
	write(t, dir, "3", "caf\xe9\n")
	for _, name := range []string{"README", "01", "-1", "4.", "4.x", ".4", "0.1.2", "4.-1", "0~"} {
		write(t, dir, name, "nobody's\n")
	}
	if err := os.Mkdir(filepath.Join(dir, "5"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "6"), 0o600); err != nil { // opening it for reading would not return
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "7")); err != nil {
		t.Fatal(err)
	}
	got, err := New(dir).Jobs()
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Jobs{
		{Index: 0}: {"4711", "4712"},
		{Index: 1, Instance: gpu.Some(gpu.InstanceID(7))}: {"4713"},
		{Index: 3}: {"caf\uFFFD"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("jobs %v, want %v", got, want)
	}
}

func TestFolderThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	f := New(filepath.Join(dir, "later"))
	if _, err := f.Jobs(); !errors.Is(err, gpu.ErrNotFound) || !strings.Contains(err.Error(), "later") {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "later"), 0o700); err != nil {
		t.Fatal(err)
	}
	if jobs, err := f.Jobs(); err != nil || len(jobs) != 0 {
		t.Errorf("an empty folder that came later: %v, %v", jobs, err)
	}
	write(t, dir, "0", "1\n")
	if _, err := New(filepath.Join(dir, "0")).Jobs(); err == nil {
		t.Error("a file in the place of the folder is no error")
	}
	write(t, dir, "1", strings.Repeat("x", maxFile+1))
	if _, err := New(dir).Jobs(); err == nil || !strings.Contains(err.Error(), "job id in each line") {
		t.Errorf("a huge file: %v", err)
	}
}
