package collector

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
)

// dcgmDoc is a counter with its cells ready for Markdown.
type dcgmDoc struct {
	Name, Type, Unit, Old                  string
	Ampere, AmpereDCGM, Hopper, HopperDCGM string
	MIG                                    string
}

func docOfDCGM(f *dcgmField) dcgmDoc {
	d := dcgmDoc{Name: f.name, Type: string(f.byDefault), Unit: f.unit, MIG: migCell(f)}
	if f.unit == "" {
		d.Unit = "-"
	}

	switch f.source {
	case fromNowhere:
		d.Ampere = "-"
		d.AmpereDCGM = "-"
		d.Hopper = "-"
		d.HopperDCGM = "-"
	case fromProfiling:
		d.Ampere = "-"
		d.AmpereDCGM = "DCGM"
		d.Hopper = "GPM"
		d.HopperDCGM = "GPM or DCGM"
	case fromCounting:
		const cell = "NVML, counted here"
		d.Ampere = cell
		d.AmpereDCGM = cell
		d.Hopper = cell
		d.HopperDCGM = cell
	default:
		d.Ampere = "NVML"
		d.AmpereDCGM = "NVML"
		d.Hopper = "NVML"
		d.HopperDCGM = "NVML"
	}

	return d
}

func migCell(f *dcgmField) string {
	if f.noMIG {
		return "- (the driver reports none)"
	}

	switch f.value.(type) {
	case nil:
		return "-"
	case ofMemory:
		return "each GPU instance"
	case ofMedia:
		return "each GPU instance, by GPM (Hopper and later)"
	case xidCounter:
		return "the GPU, and each GPU instance"
	case ofActivity:
		if f.name == "DCGM_FI_PROF_DRAM_ACTIVE" {
			return "each GPU instance; never a compute instance"
		}

		return "each GPU instance; each compute instance of a divided one"
	case labelText:
		return "on all series"
	}

	return "once, for the GPU"
}

func dcgmPage(t *testing.T) map[string]any {
	fields := dcgmFields()
	var byDefault, optional, renamed []dcgmDoc
	var labels, silent, newer []string

	for _, f := range dcgmFieldList() {
		doc := docOfDCGM(&f)
		switch {
		case f.newer, strings.Contains(f.name, "_ECC_") && !strings.HasSuffix(f.name, "_TOTAL") && !f.label:
		case f.byDefault != "":
			byDefault = append(byDefault, doc)
		case f.hasNoValue():
			silent = append(silent, f.name)
		case f.label:
			labels = append(labels, f.name)
		default:
			optional = append(optional, doc)
		}
	}

	for _, n := range dcgmFieldsRenamed() {
		newer = append(newer, n.name)
	}

	for _, n := range dcgmFieldsRenamedIn49() {
		doc := dcgmDoc{Name: n.name, Old: n.old, Unit: "as before"}
		if was, is := fields[n.old].unit, fields[n.name].unit; was != is {
			doc.Unit = was + " → " + is
		}

		renamed = append(renamed, doc)
	}

	return map[string]any{"Beside": besideDocs(t), "Default": byDefault, "Optional": optional, "Labels": labels,
		"Silent": silent, "Renamed": renamed, "Newer": newer}
}

// TestDocsDCGM holds docs/dcgm-names.md to the fields that are served. With -update it rewrites the
// page.
func TestDocsDCGM(t *testing.T) {
	page, err := template.ParseFiles(filepath.Join("testdata", "dcgm-names.md.tmpl"))
	if err != nil {
		t.Fatal(err)
	}

	var want bytes.Buffer
	if err := page.Execute(&want, dcgmPage(t)); err != nil {
		t.Fatal(err)
	}

	upToDate(t, filepath.Join("..", "docs", "dcgm-names.md"), want.Bytes())
}

// upToDate compares a generated file with what it should be, or with -update writes it.
func upToDate(t *testing.T, path string, want []byte) {
	t.Helper()

	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(got, want) {
		t.Errorf("%s is out of date: go test ./collector -run TestDocs -update", path)
	}
}

// The pages name no counter and no family of ours that does not exist.
func TestDocsNameWhatDCGMHas(t *testing.T) {
	known := map[string]bool{"nvidia_driver_info": true}
	for _, f := range dcgmFieldList() {
		known[f.name] = true
	}

	for _, f := range Families() {
		known[f.Name] = true
	}

	for _, path := range []string{"dcgm-names.md", "migration.md"} {
		text, err := os.ReadFile(filepath.Join("..", "docs", path))
		if err != nil {
			t.Fatal(err)
		}

		for _, word := range strings.FieldsFunc(string(text), func(r rune) bool {
			return r != '_' && r != '*' && r != '<' && ('a' > r || r > 'z') && ('A' > r || r > 'Z') && ('0' > r || r > '9')
		}) {
			ours := strings.HasPrefix(word, "nvidia_gpu_") || strings.HasPrefix(word, "nvidia_mig_") ||
				strings.HasPrefix(word, "mig_exporter_")

			field := strings.HasPrefix(word, "DCGM_FI_") || strings.HasPrefix(word, "DCGM_EXP_")
			if (ours || field) && !strings.ContainsAny(word, "*<") && !known[word] && !knownToDCGM(word) &&
				word != "nvidia_gpu_exporter" {
				t.Errorf("%s: no family is called %s", path, word)
			}
		}
	}
}
