package web

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestFragments: a fragment is what its template gives, the first time and later, and no more of
// them are kept than the limit says.
func TestFragments(t *testing.T) {
	const one = `{{define "one"}}<b title="{{.}}">{{.}}</b>{{end}}{{range .}}`

	values := []string{`"><script>`, "a", `"><script>`, "a"}
	for i := range maxFragments {
		values = append(values, strings.Repeat("x", i%300)+string(rune('a'+i%26))+strings.Repeat("y", i/300))
	}

	var want, got strings.Builder
	if err := parsePage(one+`{{template "one" .}}{{end}}`).Execute(&want, values); err != nil {
		t.Fatal(err)
	}

	page := parsePage(one + `{{fragment "one" .}}{{end}}`)
	if err := page.Execute(&got, values); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "fragments", got.String(), want.String())

	if err := parsePage(`{{fragment "none" .}}`).Execute(&got, ""); err == nil {
		t.Error("a fragment without a template has no error")
	}
}

func TestFragmentsAreBounded(t *testing.T) {
	f := newFragments()
	if _, err := f.template.Parse(`{{define "one"}}{{.}}{{end}}`); err != nil {
		t.Fatal(err)
	}

	for i := range 3*maxFragments + 1 {
		if _, err := f.render("one", i); err != nil || len(f.kept) > maxFragments {
			t.Fatalf("%d fragments are kept, error %v", len(f.kept), err)
		}
	}
}
