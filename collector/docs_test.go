package collector

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

// docsLevel is a table of the page.
type docsLevel struct {
	Title    string
	Families []docsRow
}

// docsRow is a family with its cells ready for Markdown.
type docsRow struct {
	FamilyInfo
	Labels, Group string
}

func docsLevels() []docsLevel {
	levels := []docsLevel{{Title: "Per GPU"}, {Title: "Per GPU instance"}, {Title: "Per compute instance"},
		{Title: "The node and the exporter"}}
	at := map[Level]int{LevelGPU: 0, LevelInstance: 1, LevelCompute: 2, LevelNode: 3}
	own := map[Level]int{LevelGPU: 2, LevelInstance: 4, LevelCompute: 6}

	for _, f := range Families() {
		row := docsRow{FamilyInfo: f, Group: "always on"}
		if f.Group != "" {
			row.Group = "`" + f.Group + "`"
		}

		if labels := f.Labels[own[f.Level]:]; len(labels) > 0 {
			row.Labels = "`" + strings.Join(labels, "`, `") + "`"
		}

		level := &levels[at[f.Level]]
		level.Families = append(level.Families, row)
	}

	return levels
}

// TestDocs holds docs/metrics.md to the declarations. With -update it rewrites the page.
func TestDocs(t *testing.T) {
	page, err := template.ParseFiles(filepath.Join("testdata", "metrics.md.tmpl"))
	if err != nil {
		t.Fatal(err)
	}

	series, err := os.ReadFile(filepath.Join("testdata", "series.md")) // cmd/mig-exporter counts them
	if err != nil {
		t.Fatal(err)
	}

	var want bytes.Buffer
	if err := page.Execute(&want,
		map[string]any{"Levels": docsLevels(), "Groups": Groups(), "Series": string(series)}); err != nil {
		t.Fatal(err)
	}

	path := filepath.Join("..", "docs", "metrics.md")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is out of date: go test ./collector -run TestDocs -update", path)
	}
}

// Names in the page's text and in its queries are families that exist.
func TestDocsNameWhatExists(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "metrics.md.tmpl"))
	if err != nil {
		t.Fatal(err)
	}

	known := map[string]bool{"mig_exporter_build_info": true, "mig_exporter_poll_duration_seconds": true,
		"mig_exporter_scrapes_total": true, "mig_exporter_simulated_clock": true,
		"mig_exporter_node_conditions_timestamp_seconds": true}
	for _, f := range Families() {
		known[f.Name] = true
	}

	for _, name := range []string{"operations_total", "operation_duration_seconds", "state",
		"last_error_timestamp_seconds", "unsettled_operations", "api_reads_total", "gpu_not_restored"} {
		known["mig_control_"+name] = true // held by TestControlBeginsAtZero
	}

	words := strings.FieldsFunc(string(text), func(r rune) bool {
		return !(r == '_' || r == '*' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9')
	})
	for _, word := range words {
		if (strings.HasPrefix(word, "nvidia_") || strings.HasPrefix(word, "mig_exporter_") ||
			strings.HasPrefix(word, "mig_control_")) && !strings.Contains(word, "*") && !known[word] {
			t.Errorf("no family is called %s", word)
		}
	}
}

// Every family of a device says what it means under MIG.
func TestHelp(t *testing.T) {
	for _, f := range Families() {
		if f.Help == "" || f.Level != LevelNode && f.MIG == "" {
			t.Errorf("%s: help %q, under MIG %q", f.Name, f.Help, f.MIG)
		}

		for _, text := range []string{f.Help, f.MIG} {
			if strings.ContainsAny(text, "|\n") || text != "" && !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %q is not a sentence that fits a table", f.Name, text)
			}
		}
	}
}
