package web

import (
	"html/template"
	"strings"
	"sync"
)

// fragments keeps rendered parts of the page, so that each is rendered once for each value: a bar of
// 51 % looks the same on all slices. It is for templates that have few different values. It is safe
// for concurrent use.
type fragments struct {
	template *template.Template

	mu   sync.Mutex
	kept map[fragment]template.HTML
}

// fragment is a template and the value that it is rendered with, which must be comparable.
type fragment struct {
	name  string
	value any
}

// maxFragments bounds the memory of what is kept. A fragment takes a few hundred bytes.
const maxFragments = 2048

// parsePage returns the template of the page. In its text {{fragment NAME VALUE}} stands for
// {{template NAME VALUE}}.
func parsePage(text string) *template.Template {
	return template.Must(newFragments().template.Parse(text))
}

func newFragments() *fragments {
	f := &fragments{kept: make(map[fragment]template.HTML)}
	f.template = template.New("page").Funcs(template.FuncMap{"fragment": f.render})

	return f
}

func (f *fragments) render(name string, value any) (template.HTML, error) {
	key := fragment{name, value}

	f.mu.Lock()
	defer f.mu.Unlock()

	if html, ok := f.kept[key]; ok {
		return html, nil
	}

	var text strings.Builder
	if err := f.template.ExecuteTemplate(&text, name, value); err != nil {
		return "", err
	}

	if len(f.kept) == maxFragments {
		clear(f.kept) // those in use are soon rendered again
	}

	html := template.HTML(text.String())
	f.kept[key] = html

	return html, nil
}
