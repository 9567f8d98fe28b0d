package hpcjobs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()

	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// devicesOf returns GPUs by index and, of the first, GPU instances up to an id.
func devicesOf(gpus, instances int) []gpu.JobDevice {
	var list []gpu.JobDevice
	for i := range gpus {
		list = append(list, gpu.JobDevice{Index: i})
	}

	for id := range instances {
		list = append(list, gpu.JobDevice{Instance: gpu.Some(gpu.InstanceID(id))})
	}

	return list
}

func TestJobsOfAFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "0", "4711\n\n4712\r\n4711\n")
	write(t, dir, "1.7", "4713")
	write(t, dir, "2", "\n \n")
	write(t, dir, "3", "caf\xe9\n")

	for _, name := range []string{"README", "01", "-1", "4.", "4.x", ".4", "0.1.2", "4.-1", "0~"} {
		write(t, dir, name, "unknown\n")
	}

	if err := os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "7")); err != nil {
		t.Fatal(err)
	}

	write(t, dir, "9", "4714\n") // there is no such GPU
	write(t, dir, "1.8", "4714\n")

	got, err := New(dir, log.NewNopLogger()).
		Jobs(append(devicesOf(9, 0), gpu.JobDevice{Index: 1, Instance: gpu.Some(gpu.InstanceID(7))}))
	if err != nil {
		t.Fatal(err)
	}

	want := gpu.Jobs{
		{Index: 0}: {"4711", "4712"},
		{Index: 1, Instance: gpu.Some(gpu.InstanceID(7))}: {"4713"},
		{Index: 3}: {"caf\uFFFD"},
	}
	for _, none := range []int{1, 2, 4, 5, 6, 7, 8} {
		want[gpu.JobDevice{Index: none}] = nil
	}

	if !reflect.DeepEqual(got, want) {
		t.Errorf("jobs %v, want %v", got, want)
	}
}

func TestFolderThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()

	f := New(filepath.Join(dir, "later"), log.NewNopLogger())
	if _, err := f.Jobs(devicesOf(3, 0)); !errors.Is(err, gpu.ErrNotFound) || !strings.Contains(err.Error(), "later") {
		t.Errorf("a folder that is not there: %v", err)
	}

	if err := os.Mkdir(filepath.Join(dir, "later"), 0o700); err != nil {
		t.Fatal(err)
	}

	jobs, err := f.Jobs(devicesOf(1, 0))
	cmptest.Equal(t, "error of an empty folder that came later", err, nil)
	cmptest.Equal(t, "jobs of an empty folder", jobs, gpu.Jobs{{Index: 0}: nil})

	write(t, dir, "0", "1\n")

	if _, err := New(filepath.Join(dir, "0"), log.NewNopLogger()).Jobs(devicesOf(1, 0)); err == nil {
		t.Error("a file in the place of the folder is no error")
	}
}

// TestAFileThatCannotBeUsedCostsItself: the other files' jobs stay, the log says once which file
// and why, and that it is over.
func TestAFileThatCannotBeUsedCostsItself(t *testing.T) {
	lines := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintln(&b, i)
		}

		return b.String()
	}
	for name, tt := range map[string]struct{ text, says string }{
		"a huge file":             {strings.Repeat("\n", maxFile+1), "more than 65536 bytes"},
		"a long line":             {"4711\n" + strings.Repeat("x", maxJob+1), "line 2 has 129 bytes"},
		"too many jobs":           {lines(maxJobs + 1), "more than 64 jobs"},
		"a terminal sequence":     {"\x1b[2J4711\n", `line 1 is`},
		"a NUL":                   {"4711\x00\n", `control characters`},
		"a tab inside":            {"47\t11\n", `control characters`},
		"a carriage return":       {"47\r11\n", `control characters`},
		"text turned around":      {"47\u202e11\n", `control characters`},
		"a line separator inside": {"47\u202811\n", `control characters`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var said strings.Builder
			f := New(dir, log.NewLogfmtLogger(&said))
			write(t, dir, "0", "4711\n")
			write(t, dir, "1", tt.text)

			for range 3 {
				jobs, err := f.Jobs(devicesOf(3, 0))
				cmptest.Equal(t, "error", err, gpu.ErrUnavailable)
				cmptest.HasTexts(t, err.Error(), filepath.Join(dir, "1")+": ", tt.says)
				cmptest.Equal(t, "jobs of the other files", jobs, gpu.Jobs{{Index: 0}: {"4711"}, {Index: 2}: nil})
			}

			cmptest.Equal(t, "logged lines", strings.Count(said.String(), "\n"), 1)

			for _, want := range []string{tt.says, filepath.Join(dir, "1")} {
				if !strings.Contains(said.String(), want) {
					t.Errorf("the log does not have %q:\n%s", want, said.String())
				}
			}

			if strings.ContainsAny(said.String(), "\x1b\x00\u202e") {
				t.Errorf("a control character is in the log: %q", said.String())
			}

			write(t, dir, "1", "4712\n")
			jobs, err := f.Jobs(devicesOf(3, 0))
			cmptest.Equal(t, "error once the file is good", err, nil)
			cmptest.Equal(t, "jobs once the file is good", jobs[gpu.JobDevice{Index: 1}], []string{"4712"})

			if want := "no longer ignored"; !strings.Contains(said.String(), want) {
				t.Errorf("the log does not have %q:\n%s", want, said.String())
			}
		})
	}
}

// TestWhatIsNoFileHasUnknownJobs: a folder or a pipe in the place of a file, which a mistyped mount or another
// user may make, does not say that the device has no jobs.
func TestWhatIsNoFileHasUnknownJobs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "0", "4711\n")

	if err := os.Mkdir(filepath.Join(dir, "1"), 0o700); err != nil {
		t.Fatal(err)
	}

	if err := syscall.Mkfifo(filepath.Join(dir, "2"), 0o600); err != nil { // opening it for reading would not return
		t.Fatal(err)
	}

	if err := os.Symlink(filepath.Join(dir, "1"), filepath.Join(dir, "3")); err != nil {
		t.Fatal(err)
	}

	jobs, err := New(dir, log.NewNopLogger()).Jobs(devicesOf(5, 0))
	cmptest.Equal(t, "jobs", jobs, gpu.Jobs{{Index: 0}: {"4711"}, {Index: 4}: nil})
	cmptest.Equal(t, "error", err, gpu.ErrUnavailable)
	cmptest.HasTexts(t, err.Error(), filepath.Join(dir, "1")+": expected a regular file",
		"files that cannot be used: 3")
}

// TestStrayFilesHideNoJob: neither files that are named as devices that do not exist nor files that
// cannot be used are looked at, and so they are no fault of the folder.
func TestStrayFilesHideNoJob(t *testing.T) {
	dir := t.TempDir()
	for i := range 600 {
		write(t, dir, fmt.Sprintf("0.%d", 100+i), "4711\n")
		write(t, dir, fmt.Sprint(100+i), "\x00")
	}

	write(t, dir, "3", "4712\n")
	write(t, dir, "0.9", "4713\n")
	var said strings.Builder
	jobs, err := New(dir, log.NewLogfmtLogger(&said)).Jobs(devicesOf(4, 10))
	maps.DeleteFunc(jobs, func(_ gpu.JobDevice, list []string) bool { return list == nil })

	want := gpu.Jobs{{Index: 3}: {"4712"}, {Instance: gpu.Some(gpu.InstanceID(9))}: {"4713"}}
	cmptest.Equal(t, "error", err, nil)
	cmptest.Equal(t, "jobs", jobs, want)
	cmptest.Equal(t, "log", said.String(), "")
}

// TestFolderThatMayNotBeSearched is one fault, not one of each device.
func TestFolderThatMayNotBeSearched(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("NOT TESTED: root may search every folder")
	}

	dir := t.TempDir()
	write(t, dir, "0", "4711\n")

	if err := os.Chmod(dir, 0o600); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	var said strings.Builder

	jobs, err := New(dir, log.NewLogfmtLogger(&said)).Jobs(devicesOf(2, 2))
	if err == nil {
		t.Error("no error")
	}

	cmptest.Equal(t, "jobs", jobs, nil)
	cmptest.Equal(t, "log", said.String(), "")
}
