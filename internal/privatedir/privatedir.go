// Package privatedir opens folders, and files in them, that are safe from other users: no user but
// root and the program's own can have prepared them, for example as a link to another file, or can
// change them. So a program that runs as root does not write to a place that another user chose.
package privatedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

var (
	// ErrUnsafe says that another user can have prepared, or can change, a folder or a file.
	ErrUnsafe = errors.New("not safe to use")
	// ErrReplaced says that an open folder is no longer the one at its path.
	ErrReplaced = errors.New("folder was replaced while it was open")
)

// Dir is an open folder. It finds its files through the open folder, not through its path, so that
// it makes no difference if the path leads elsewhere later.
type Dir struct {
	*os.Root

	path string
}

// Open opens a folder. If it is missing, Open creates it, readable by its owner alone. It returns
// ErrUnsafe if the folder is a symbolic link, belongs to another user than root and the program's
// own, or can be written by others. The folders above it must be safe, too, except that there links
// and sticky folders such as /tmp are allowed.
func Open(path string) (*Dir, error) { return openWith(path, os.MkdirAll) }

// openWith is Open with a replacement for os.MkdirAll, with which a test plays another user who
// creates a folder first.
func openWith(path string, mkdirAll func(string, fs.FileMode) error) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}

	if err := checkAbove(path); err != nil {
		return nil, err
	}

	if err := create(path, mkdirAll); err != nil {
		return nil, err
	}

	// We check again: in a sticky folder such as /tmp, another user can have created a folder of
	// the path after we found it missing. Now all folders above exist, and no other user can change
	// them.
	if err := checkAbove(path); err != nil {
		return nil, err
	}

	checked, err := lstatFolder(path)
	if err != nil {
		return nil, err
	}

	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}

	d := &Dir{Root: root, path: path}

	// OpenRoot follows links: make sure that it has opened the folder that we checked.
	opened, err := root.Stat(".")
	if err == nil && !os.SameFile(checked, opened) {
		err = ErrReplaced
	}

	if err != nil {
		return nil, errors.Join(err, root.Close())
	}

	return d, nil
}

// Check returns ErrReplaced if the folder is no longer the one at its path, and ErrUnsafe if
// another user can write it now. It does not check the folders above it.
func (d *Dir) Check() error {
	atPath, err := lstatFolder(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrReplaced
	}

	if err != nil {
		return err
	}

	opened, err := d.Stat(".")
	if err == nil && !os.SameFile(atPath, opened) {
		err = ErrReplaced
	}

	return err
}

// OpenFile opens a file of the folder. With os.O_CREATE it creates a missing file, readable by its
// owner alone. It returns ErrUnsafe, and does not open the file, if it is a link or not a regular
// file, belongs to another user than root and the program's own, or can be written by others.
func (d *Dir) OpenFile(name string, flag int) (*os.File, error) {
	checked, err := d.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0 {
		return d.Root.OpenFile(name, flag|os.O_EXCL, 0o600) // O_EXCL follows no link
	}

	if err != nil {
		return nil, err
	}

	if err := checkFile(filepath.Join(d.path, name), checked); err != nil {
		return nil, err
	}

	file, err := d.Root.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}

	opened, err := file.Stat()
	if err == nil && !os.SameFile(checked, opened) {
		err = fmt.Errorf("%s: %w", filepath.Join(d.path, name), ErrReplaced)
	}

	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return file, nil
}

// Sync blocks until the folder's entries are on disk.
func (d *Dir) Sync() error {
	dir, err := d.Root.Open(".")
	if err != nil {
		return err
	}

	return errors.Join(dir.Sync(), dir.Close())
}

// Sync blocks until the entries of a folder are on disk.
func Sync(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}

	return errors.Join(dir.Sync(), dir.Close())
}

// create creates the folder if it is missing, so that it is there after a crash of the machine,
// too.
func create(path string, mkdirAll func(string, fs.FileMode) error) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if err := mkdirAll(path, 0o700); err != nil {
		return err
	}

	return Sync(filepath.Dir(path))
}

// maxLinks bounds how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

// checkAbove checks the folders above a path, from the root down, as far as they exist. It follows
// links itself, to check the folders on the way to their targets, too.
func checkAbove(path string) error {
	current := string(filepath.Separator)
	rest := split(filepath.Dir(path)) // the names below current

	for links := 0; ; {
		info, err := os.Lstat(current)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // we will create it, and what is below
		}

		if err != nil {
			return err
		}

		if info.Mode()&fs.ModeSymlink != 0 {
			if links++; links > maxLinks {
				return &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
			}

			target, err := followLink(current, info)
			if err != nil {
				return err
			}

			current = string(filepath.Separator)
			rest = append(split(target), rest...)

			continue
		}

		if err := checkFolder(current, info, true); err != nil {
			return err
		}

		if len(rest) == 0 {
			return nil
		}

		current = filepath.Join(current, rest[0])
		rest = rest[1:]
	}
}

// followLink returns the absolute target of a symbolic link. The link must belong to root or the
// program's user.
func followLink(path string, info fs.FileInfo) (string, error) {
	if err := checkOwner(path, info); err != nil {
		return "", err
	}

	target, err := os.Readlink(path)
	if err == nil && !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}

	return target, err
}

// split returns the names in a path.
func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// lstatFolder returns the FileInfo of the folder at a path, and an error if it is not safe to use.
func lstatFolder(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}

	return info, checkFolder(path, info, false)
}

// checkFolder checks one folder. above says that it is above the folder that we open: then others
// may write it if it is sticky, because they cannot rename what belongs to another user.
func checkFolder(path string, info fs.FileInfo, above bool) error {
	if info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%w: %s is a symbolic link; expected the folder itself", ErrUnsafe, path)
	}

	if !info.IsDir() {
		return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}

	if err := checkOwner(path, info); err != nil {
		return err
	}

	if above && info.Mode()&fs.ModeSticky != 0 {
		return nil
	}

	return checkMode(path, info)
}

// checkFile checks that a file is a regular one that other users cannot have prepared or change.
func checkFile(path string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf(
			"%w: %s is a symbolic link; expected a file that mig-exporter has created",
			ErrUnsafe,
			path,
		)
	}

	if info.IsDir() {
		return &fs.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	}

	if !info.Mode().IsRegular() {
		return fmt.Errorf(
			"%w: %s is not a regular file; expected a file that mig-exporter has created",
			ErrUnsafe,
			path,
		)
	}

	// Another user may have made the file as a hard link to a file elsewhere.
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
		return fmt.Errorf(
			"%w: %s has %d names (hard links); expected a file that mig-exporter has created",
			ErrUnsafe,
			path,
			stat.Nlink,
		)
	}

	if err := checkOwner(path, info); err != nil {
		return err
	}

	return checkMode(path, info)
}

// checkOwner checks that a file or folder belongs to root or the program's user.
func checkOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%w: the owner of %s is not known", ErrUnsafe, path)
	}

	own := os.Geteuid()
	if stat.Uid == 0 || int64(stat.Uid) == int64(own) {
		return nil
	}

	expected := "root"
	if own != 0 {
		expected = fmt.Sprintf("user %d, as whom mig-exporter runs, or root", own)
	}

	return fmt.Errorf("%w: %s belongs to user %d; expected %s", ErrUnsafe, path, stat.Uid, expected)
}

// checkMode checks that only the owner, and root's group 0, may write.
func checkMode(path string, info fs.FileInfo) error {
	writers := info.Mode().Perm() & 0o022
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Gid == 0 {
		writers &^= 0o020
	}

	if writers == 0 {
		return nil
	}

	return fmt.Errorf(
		"%w: %s has the mode %04o, so that other users can write it; expected that only its owner can "+
			"(chmod go-w)",
		ErrUnsafe,
		path,
		info.Mode().Perm(),
	)
}
