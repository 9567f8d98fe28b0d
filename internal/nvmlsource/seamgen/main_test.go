package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGeneratedFilesAreCurrent: what is in the tree is what seamgen makes of driver.go.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	const dir = ".."
	files, err := generate(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s is not what seamgen makes of driver.go: run go generate ./internal/nvmlsource", name)
		}
	}
}
