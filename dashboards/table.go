package dashboards

import (
	"maps"
	"slices"
)

// The queries of a table have the same labels, so that Grafana can merge their values into one row
// for each device. Each query has a value for every row, NaN if it is not known, so that no column
// is missing: see onInventory. The table of all pods is too large for that.

// fieldName returns the name that Grafana gives a column before it is renamed to its title: that of a
// label, or "Value #Power" for the values of the query Power.
func (p panel) fieldName(c column) string {
	for _, q := range p.queries {
		if q.ref != c.field {
			continue
		}

		if len(p.queries) == 1 {
			return "Value"
		}

		return "Value #" + q.ref
	}

	return c.field
}

func (p panel) transformations() []object {
	order := object{}
	names := object{}
	keep := []string{}

	for i, c := range p.allColumns() {
		name := p.fieldName(c)
		order[name] = i
		keep = append(keep, name)

		if c.title != "" && !c.hidden {
			names[name] = c.title
		}
	}

	list := []object{}
	if len(p.queries) > 1 {
		list = append(list, object{"id": "merge", "options": object{}})
	}

	list = append(
		list,
		object{"id": "filterFieldsByName", "options": object{"include": object{"names": keep}}},
	)
	if slices.Contains(p.sortBy, "GPU") {
		list = append(list, object{"id": "convertFieldType", "options": object{
			"fields":      object{},
			"conversions": []object{{"targetField": "gpu", "destinationType": "number"}},
		}})
	}

	return append(list, object{"id": "organize", "options": object{
		"excludeByName": object{},
		"includeByName": object{},
		"indexByName":   order,
		"renameByName":  names,
	}})
}

func (p panel) overrides() []object {
	list := []object{}

	for _, c := range p.allColumns() {
		name := c.title
		if c.hidden || name == "" {
			name = p.fieldName(c)
		}

		properties := c.properties()
		if len(properties) == 0 {
			continue
		}

		list = append(
			list,
			object{"matcher": object{"id": "byName", "options": name}, "properties": properties},
		)
	}

	colors := p.lineColors()
	for _, name := range slices.Sorted(maps.Keys(colors)) {
		list = append(list, object{
			"matcher": object{"id": "byRegexp", "options": "/" + name + "$/"},
			"properties": []object{
				{"id": "color", "value": object{"mode": "fixed", "fixedColor": colors[name]}},
			},
		})
	}

	return list
}

func (c column) properties() []object {
	var list []object

	set := func(id string, value any) { list = append(list, object{"id": id, "value": value}) }
	if c.hidden {
		set("custom.hidden", true) // hides it in Grafana up to 12.1; later ones need the next line
		set("custom.hideFrom", object{"viz": true, "legend": false, "tooltip": false})

		return list
	}

	if c.unit != "" {
		set("unit", c.unit)
		set("custom.align", "right")
	}

	if c.width > 0 {
		set("custom.width", c.width)
	}

	if c.max > 0 {
		set("max", c.max)
	}

	if c.hue != "" {
		set("thresholds", thresholds(c.hue, c.steps...))
	}

	if len(c.values) > 0 {
		set("mappings", mappings(c.values...))
		set("custom.cellOptions", object{"type": "color-background", "mode": "basic"})
		set("custom.align", "center")
	}

	if len(c.steps) > 0 {
		set("custom.cellOptions", object{"type": "color-text"})
	}

	if c.gauge {
		// A gauge needs a maximum, see mostWatts.
		set(
			"custom.cellOptions",
			object{"type": "gauge", "mode": "basic", "valueDisplayMode": "text"},
		)
	}

	if c.links != nil {
		set("links", c.links)
	}

	return list
}

// shareColumn returns a column of gauges between 0 and 1.
func shareColumn(field, title, hue string, width int) column {
	return column{
		field: field,
		title: title,
		unit:  "percentunit",
		hue:   hue,
		gauge: true,
		max:   1,
		width: width,
	}
}

func countColumn(field, title string, width int) column {
	return column{field: field, title: title, unit: "none", width: width, hue: fine}
}

// problemColumn returns a column with numbers of problems, which are colored unless they are 0.
func problemColumn(field, title, color string, width int) column {
	c := countColumn(field, title, width)
	c.steps = problemFrom(color)

	return c
}

// nodeColumn, gpuColumn, holderColumn and podColumn return columns with names, whose cells link to
// the dashboard of what they name.
func nodeColumn() column {
	return column{field: "instance", title: "Node", links: []object{linkTo("This node", nodeUID, toNode)}}
}

func gpuColumn(width int, links ...object) column {
	return column{field: "gpu", title: "GPU", width: width, links: links}
}

func holderColumn() column {
	return column{
		field: "holder",
		title: "Held by",
		links: []object{linkTo("Its pods", workloadUID, toNode, toNamespace, toPod)},
	}
}

func podColumn(link string) column {
	return column{
		field: "pod",
		title: "Pod",
		links: []object{linkTo(link, workloadUID, toNamespace, toPod)},
	}
}

// allColumns returns the columns of a table, with the hidden column linkCluster. Other panels have no
// columns.
func (p panel) allColumns() []column {
	if p.kind != table {
		return nil
	}

	return append(slices.Clone(p.columns), column{field: linkCluster, hidden: true})
}
