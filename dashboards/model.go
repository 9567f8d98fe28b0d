package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// object is an object of a dashboard's JSON. Grafana defines its keys.
type object map[string]any

// dashboard is one dashboard before it is laid out.
type dashboard struct {
	uid, title, description string
	tags                    []string
	from                    string // where the default time range begins: "now-6h"; it ends now
	variables               []object
	annotations             []object
	rows                    []row
}

// row is a group of panels with a heading. Collapsed rows are for families that may be absent, or
// that cost a lot: Grafana does not run the queries of a row until it is opened.
type row struct {
	title     string
	collapsed bool
	panels    []panel
}

// query is one query of a panel. In a table, ref names the column for its values.
type query struct {
	ref, expr, legend string
	instant           bool
}

// allDashboards returns the dashboards in the order of the documentation.
func allDashboards() []dashboard {
	return []dashboard{fleet(), node(), workloads(), rightsizing(), health(), dcgm()}
}

// Files returns the dashboards by the name of their file.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}

	for _, d := range allDashboards() {
		text, err := d.encode()
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", d.uid, err)
		}

		files[d.uid+".json"] = text
	}

	return files, nil
}

func (d dashboard) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d.object())

	return b.Bytes(), err
}

// schemaVersion is that of Grafana 11.0. Later releases migrate a dashboard when they load it.
const schemaVersion = 39

func (d dashboard) object() object {
	return object{
		"uid":           d.uid,
		"title":         d.title,
		"description":   d.description,
		"tags":          append([]string{tag}, d.tags...),
		"schemaVersion": schemaVersion,
		"version":       1,
		"editable":      true,
		"graphTooltip":  1, // a shared crosshair
		"refresh":       "1m",
		"time":          object{"from": d.from, "to": "now"},
		"timepicker":    object{},
		"templating":    object{"list": d.variables},
		"annotations":   object{"list": append([]object{grafanaAnnotations()}, d.annotations...)},
		"links":         dashboardLinks(),
		"panels":        d.layOut(),
	}
}

// Sizes in Grafana's grid.
const (
	columns   = 24
	rowHeight = 1 // of the heading of a row
)

// layOut numbers the panels of each row and places them from left to right. A panel that does not
// fit beside the others begins a new line, below the tallest of them.
func (d dashboard) layOut() []object {
	var all []object
	y := 0
	id := 0
	next := func() int { id++; return id }

	for _, r := range d.rows {
		heading := object{
			"id":        next(),
			"type":      "row",
			"title":     r.title,
			"collapsed": r.collapsed,
			"panels":    []object{},
			"gridPos":   object{"x": 0, "y": y, "w": columns, "h": rowHeight},
		}
		y += rowHeight
		var inside []object

		x := 0
		tallest := 0
		top := y

		for _, p := range r.panels {
			if x+p.w > columns {
				x = 0
				top += tallest
				tallest = 0
			}

			inside = append(inside, p.object(next(), x, top))
			x += p.w
			tallest = max(tallest, p.h)
		}

		if r.collapsed {
			heading["panels"] = inside
			all = append(all, heading)
			continue
		}

		all = append(append(all, heading), inside...)
		y = top + tallest
	}

	return all
}
