package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
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

// TestEveryCallHasAClass: a function of the seam that is in no class of gpu.ClassifiedCalls would be counted as unknown
// without a decision, and what is in a class but not in the seam is a misspelt name.
func TestEveryCallHasAClass(t *testing.T) {
	seam, err := parseSeam("../driver.go")
	if err != nil {
		t.Fatal(err)
	}

	inSeam := map[string]bool{}

	for iface := range seam.interfaces {
		methods, err := seam.methods(iface)
		if err != nil {
			t.Fatal(err)
		}

		for _, m := range methods {
			inSeam[strings.TrimSuffix(nvmlName(iface, m.name), "Of")] = true
		}
	}

	classes := gpu.ClassifiedCalls()
	for function := range inSeam {
		if classes[function] == "" {
			t.Errorf("%s is in no class: say in internal/gpu/call.go which it is, with the source, or that it is unknown", function)
		}
	}

	for function := range classes {
		if !inSeam[function] {
			t.Errorf("internal/gpu/call.go has a class for %s, which is not in driver.go", function)
		}
	}
}
