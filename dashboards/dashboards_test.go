package dashboards

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"
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

	files["../docs/dashboards.md"] = docs(t)
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

func docs(t *testing.T) []byte {
	t.Helper()

	text, err := os.ReadFile("testdata/dashboards.md.tmpl")
	if err != nil {
		t.Fatal(err)
	}

	page, err := Docs(string(text))
	if err != nil {
		t.Fatal(err)
	}

	return page
}

// TestProvisioning: Grafana's files are valid, and name one provider and one data source.
func TestProvisioning(t *testing.T) {
	for name, key := range map[string]string{"dashboards.yaml": "providers", "datasources.yaml": "datasources"} {
		text, err := os.ReadFile(filepath.Join("provisioning", name))
		if err != nil {
			t.Fatal(err)
		}

		var file map[string]any
		if err := yaml.Unmarshal(text, &file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}

		if list, ok := file[key].([]any); !ok || len(list) != 1 {
			t.Errorf("%s: %s is %v, want a list of one", name, key, file[key])
		}

		if file["apiVersion"] != 1 {
			t.Errorf("%s: apiVersion is %v, want 1", name, file["apiVersion"])
		}
	}
}
