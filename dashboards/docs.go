package dashboards

import (
	"bytes"
	"fmt"
	"text/template"
)

// page is what the documentation says of a dashboard.
type page struct {
	Title, Description string
	Rows               []pageRow
}

type pageRow struct {
	Title     string
	Collapsed bool
	Panels    []pagePanel
}

type pagePanel struct{ Title, Description string }

// Docs fills a template in with what the dashboards say of their panels.
func Docs(text string) ([]byte, error) {
	t, err := template.New("docs").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse the page: %w", err)
	}
	var pages []page
	for _, d := range all() {
		p := page{Title: d.title, Description: d.description}
		for _, r := range d.rows {
			line := pageRow{Title: r.title, Collapsed: r.collapsed}
			for _, q := range r.panels {
				line.Panels = append(line.Panels, pagePanel{q.title, q.description})
			}
			p.Rows = append(p.Rows, line)
		}
		pages = append(pages, p)
	}
	var b bytes.Buffer
	err = t.Execute(&b, pages)
	return b.Bytes(), err
}
