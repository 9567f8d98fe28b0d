package charttest

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
)

// TestReadme: the chart's page names all values and all files of ready values, and its command sets
// values that exist.
func TestReadme(t *testing.T) {
	loaded := loadChart(t)

	at := slices.IndexFunc(loaded.Files, func(f *chart.File) bool { return f.Name == "README.md" })
	if at < 0 {
		t.Fatal("the chart has no README.md")
	}

	page := string(loaded.Files[at].Data)

	_, table, found := strings.Cut(page, "\n## Values\n")
	if !found {
		t.Fatal("README.md has no section Values")
	}

	for name := range loaded.Values {
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("README.md lacks the value %s", name)
		}
	}

	for _, m := range regexp.MustCompile("`([a-zA-Z]+)`[,|]? ?").FindAllStringSubmatch(table, -1) {
		if _, ok := loaded.Values[m[1]]; !ok {
			t.Errorf("README.md names %s, which is no value", m[1])
		}
	}

	files, err := filepath.Glob(filepath.Join(chartDir, "values", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal("no files of values", err)
	}

	for _, file := range files {
		if name := "`values/" + filepath.Base(file) + "`"; !strings.Contains(page, name) {
			t.Errorf("README.md lacks %s", name)
		}
	}

	for _, m := range regexp.MustCompile(`--set ([a-zA-Z.]+)=`).FindAllStringSubmatch(page, -1) {
		if !hasValue(loaded.Values, strings.Split(m[1], ".")) {
			t.Errorf("README.md sets %s, which is no value", m[1])
		}
	}
}

// hasValue reports whether values have one at a path.
func hasValue(of values, path []string) bool {
	value, ok := of[path[0]]
	if !ok || len(path) == 1 {
		return ok
	}

	below, ok := value.(values)

	return ok && hasValue(below, path[1:])
}

// TestChartNamesItsSources: stores of charts show where it comes from, and its icon. The chart
// carries the icon itself, since no address of it is published.
func TestChartNamesItsSources(t *testing.T) {
	meta := loadChart(t).Metadata
	if meta.Home == "" || !slices.Contains(meta.Sources, meta.Home) {
		t.Errorf("home %q, sources %q", meta.Home, meta.Sources)
	}

	icon, err := os.ReadFile(filepath.Join(root, "docs", "images", "icon.svg"))
	if err != nil {
		t.Fatal(err)
	}

	if want := "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(icon); meta.Icon != want {
		t.Errorf("icon %q, want that of docs/images: %q", meta.Icon, want)
	}
}
