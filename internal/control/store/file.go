package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mig-exporter/mig-exporter/internal/privatedir"
)

// WriteFile replaces a file atomically and blocks until it is on disk. It creates the file's folder
// if that is missing. After an error the file has its old content or the new one. WriteFile replaces
// a link at path, and does not follow it.
func WriteFile(path string, content []byte) error {
	dir, name := filepath.Split(path)
	if err := createDir(filepath.Clean(dir)); err != nil {
		return err
	}

	root, err := os.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer root.Close()

	file, err := replaceFile(root, name, content)
	if err != nil {
		return err
	}

	return file.Close()
}

// createDir creates a folder if it is missing, and blocks until its entry in its parent is on disk.
func createDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	return privatedir.Sync(filepath.Dir(dir))
}
