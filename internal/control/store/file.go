package store

import "path/filepath"

// WriteFile replaces a file atomically and blocks until it is on disk; its folder is created if it is missing. After
// an error the file has its old content or the new one.
func WriteFile(path string, content []byte) error {
	if err := createDir(filepath.Dir(path)); err != nil {
		return err
	}
	file, err := replaceFile(path, content)
	if err != nil {
		return err
	}
	return file.Close()
}
