package dashboards

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the dashboards in this folder")

// TestDashboardsAreUpToDate: the committed files are those that the code makes.
func TestDashboardsAreUpToDate(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	committed, err := filepath.Glob("*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range committed {
		if _, ok := files[name]; !ok {
			t.Errorf("%s: no code makes it", name)
		}
	}
	for name, want := range files {
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not up to date (%v); run: make dashboards", name, err)
		}
	}
}
