package privatedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// otherUser is a user as whom no test runs.
const otherUser = 4242

// TestFolders prepares a folder, or what is above it, and opens it.
func TestFolders(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(base string) error // the folder is base/above/state
		refused string                  // what the error names; empty: it is opened
	}{
		"missing":            {func(string) error { return nil }, ""},
		"there":              {func(base string) error { return os.MkdirAll(base+"/above/state", 0o755) }, ""},
		"writable by group":  {makeFolder("/above/state", 0o770, otherUser), "/above/state has the mode 0770"},
		"writable by all":    {makeFolder("/above/state", 0o777, 0), "/above/state has the mode 0777"},
		"sticky":             {makeFolder("/above/state", 0o777|fs.ModeSticky, 0), "/above/state has the mode 0777"},
		"above is writable":  {makeFolder("/above", 0o777, 0), "/above has the mode 0777"},
		"above is a group's": {makeFolder("/above", 0o775, otherUser), "/above has the mode 0775"},
		"above is sticky":    {makeFolder("/above", 0o777|fs.ModeSticky, 0), ""},
		"a link": {func(base string) error {
			return errors.Join(os.MkdirAll(base+"/above", 0o755), os.MkdirAll(base+"/real", 0o700),
				os.Symlink(base+"/real", base+"/above/state"))
		}, "/above/state is a symbolic link"},
		"a dangling link": {func(base string) error {
			return errors.Join(os.MkdirAll(base+"/above", 0o755), os.Symlink(base+"/nowhere", base+"/above/state"))
		}, "/above/state is a symbolic link"},
		"above is a link": {func(base string) error {
			return errors.Join(os.MkdirAll(base+"/real/deep", 0o755), os.Symlink("./real/../real/deep", base+"/above"))
		}, ""},
		"above is a link to a bad folder": {func(base string) error {
			return errors.Join(makeFolder("/real", 0o777, 0)(base), os.Symlink(base+"/real", base+"/above"))
		}, "/real has the mode 0777"},
		"another user's":     {giveAway("/above/state"), "/above/state belongs to user 4242"},
		"above is another's": {giveAway("/above"), "/above belongs to user 4242"},
		"above is another's link": {func(base string) error {
			return errors.Join(os.MkdirAll(base+"/real", 0o755), os.Symlink(base+"/real", base+"/above"),
				os.Lchown(base+"/above", otherUser, otherUser))
		}, "/above belongs to user 4242"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			if err := c.prepare(base); errors.Is(err, fs.ErrPermission) {
				t.Skip("NOT TESTED: only root can give files away")
			} else if err != nil {
				t.Fatal(err)
			}

			d, err := Open(base + "/above/state")
			if err == nil {
				t.Cleanup(func() { _ = d.Close() })
			}

			if c.refused == "" && err != nil {
				t.Errorf("refused: %v", err)
			}

			if c.refused != "" && (!errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), base+c.refused) ||
				!strings.Contains(err.Error(), "expected")) {
				t.Errorf("error %v, want that %s%s and what was expected", err, base, c.refused)
			}
		})
	}
}

// TestFolderAboveAppears: a folder above it that another user creates meanwhile, in a sticky folder
// such as /tmp, is refused as one that was there before.
func TestFolderAboveAppears(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}

	d, err := openWith(base+"/above/state", func(path string, mode fs.FileMode) error {
		return errors.Join(makeFolder("/above", 0o777, 0)(base), os.MkdirAll(path, mode))
	})
	if err == nil {
		defer d.Close()
	}

	if !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "/above has the mode 0777") {
		t.Errorf("error %v, want that %s/above has the mode 0777", err, base)
	}
}

// TestNoFolder: what is no folder, or an endless circle of links, has the system's error.
func TestNoFolder(t *testing.T) {
	base := t.TempDir()
	if err := errors.Join(os.WriteFile(base+"/file", nil, 0o600), os.Symlink(base+"/b", base+"/a"),
		os.Symlink(base+"/a", base+"/b")); err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string]error{
		"/file": syscall.ENOTDIR, "/file/state": syscall.ENOTDIR, "/a/state": syscall.ELOOP,
	} {
		if _, err := Open(base + path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}

// TestFiles prepares a file in a folder and opens it.
func TestFiles(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(path string) error
		refused string
	}{
		"missing": {func(string) error { return nil }, ""},
		"there":   {func(path string) error { return os.WriteFile(path, nil, 0o644) }, ""},
		"a link":  {func(path string) error { return os.Symlink("/dev/null", path) }, "is a symbolic link"},
		"a link within the folder": {func(path string) error {
			return errors.Join(os.WriteFile(path+".other", nil, 0o600), os.Symlink("file.other", path))
		}, "is a symbolic link"},
		"a dangling link": {func(path string) error { return os.Symlink(path+".made", path) }, "is a symbolic link"},
		"a hard link": {func(path string) error {
			return errors.Join(os.WriteFile(path+".other", nil, 0o600), os.Link(path+".other", path))
		}, "has 2 names"},
		"a pipe": {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "is not a regular file"},
		"writable by all": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o666))
		}, "has the mode 0666"},
		"another user's": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, otherUser, otherUser))
		}, "belongs to user 4242"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()

			path := filepath.Join(d.path, "file")
			if err := c.prepare(path); errors.Is(err, fs.ErrPermission) {
				t.Skip("NOT TESTED: only root can give files away")
			} else if err != nil {
				t.Fatal(err)
			}

			file, err := d.OpenFile("file", os.O_RDWR|os.O_CREATE)
			if err == nil {
				_ = file.Close()
			}

			if c.refused == "" && err != nil {
				t.Errorf("refused: %v", err)
			}

			if c.refused != "" && (!errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), path+" "+c.refused)) {
				t.Errorf("error %v, want that %s %s", err, path, c.refused)
			}

			if _, err := os.Lstat(path + ".made"); err == nil {
				t.Error("a file was created through a link")
			}
		})
	}
}

// TestCheck: the open folder must stay the one at its path, and private.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string) error
		want   error
	}{
		"nothing": {func(string) error { return nil }, nil},
		"removed": {os.Remove, ErrReplaced},
		"replaced": {func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Mkdir(path, 0o700))
		}, ErrReplaced},
		"replaced by a link": {func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Symlink(path+".old", path))
		}, ErrUnsafe},
		"opened to others": {func(path string) error { return os.Chmod(path, 0o777) }, ErrUnsafe},
	} {
		path := filepath.Join(t.TempDir(), "state")

		d, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}

		if err := c.change(path); err != nil {
			t.Fatal(err)
		}

		if err := d.Check(); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}

		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// makeFolder returns a function that creates a folder with this mode and group.
func makeFolder(path string, mode fs.FileMode, group int) func(base string) error {
	return func(base string) error {
		if err := os.MkdirAll(base+path, 0o755); err != nil {
			return err
		}

		if group != 0 {
			if err := os.Chown(base+path, -1, group); err != nil {
				return fmt.Errorf("%w: %w", fs.ErrPermission, err)
			}
		}

		return os.Chmod(base+path, mode)
	}
}

// giveAway returns a function that creates a folder of another user.
func giveAway(path string) func(base string) error {
	return func(base string) error {
		return errors.Join(os.MkdirAll(base+path, 0o755), os.Chown(base+path, otherUser, otherUser))
	}
}
