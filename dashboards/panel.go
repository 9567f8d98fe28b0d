package dashboards

// kind is the type of a panel, by Grafana's name.
type kind string

const (
	timeSeries    kind = "timeseries"
	stat          kind = "stat"
	table         kind = "table"
	stateTimeline kind = "state-timeline"
	barGauge      kind = "bargauge"
)

// panel is one panel before it is placed.
type panel struct {
	kind               kind
	title, description string
	unit, hue          string
	w, h               int
	queries            []query
	columns            []column // of a table, in this order
	sortBy             []string // titles of columns of a table
	descending         bool     // the first column of sortBy is in descending order
	firstHasAll        bool     // the first query of a table has all rows, others may leave some out
	stacked            bool     // lines are on top of each other
	events             bool     // values are drawn as bars
	max                float64  // of the axis; 0 lets Grafana choose
	decimals           int
	steps              []step            // colors of values from thresholds on; below them the color is hue
	values             []valueMap        // texts for values
	colors             map[string]string // colors of lines, by a pattern of how their legend ends
	links              []object
	// points limits how many points a line has; 0 is one for each pixel. Panels with a line for each
	// GPU or pod of a fleet have a limit: the more points, the longer their queries take.
	points int
}

// fewPoints is the limit of points for panels with a line for each GPU or pod of a fleet.
const fewPoints = 300

// column is a column of a table: the value of a query, or a label of it.
type column struct {
	field, title string // field is the label, or the query's ref
	unit, hue    string
	gauge        bool
	max          float64
	width        int
	hidden       bool
	steps        []step
	values       []valueMap
	links        []object
}

// figure returns a panel that shows the value of a query as a number.
func figure(title, unit, hue string, w int, description, expr, legend string) panel {
	return panel{
		kind:        stat,
		title:       title,
		unit:        unit,
		hue:         hue,
		w:           w,
		h:           4,
		description: description,
		queries:     []query{{expr: expr, legend: legend}},
	}
}

// problems returns a panel that shows a number of problems, which is colored unless it is 0.
func problems(title, color string, w int, description, expr, legend string) panel {
	p := figure(title, "none", fine, w, description, expr, legend)
	p.steps = problemFrom(color)

	return p
}

// lines returns a panel with a line for each device or GPU.
func lines(title, unit, hue, description, expr, legend string) panel {
	return panel{
		kind:        timeSeries,
		title:       title,
		unit:        unit,
		hue:         hue,
		description: description,
		w:           12,
		h:           8,
		queries:     []query{{expr: expr, legend: legend}},
	}
}

// ratios returns a panel with lines between 0 and 1.
func ratios(title, hue, description, expr, legend string) panel {
	p := lines(title, "percentunit", hue, description, expr, legend)
	p.max = 1

	return p
}

// counts returns a panel of events in each interval, as bars, so that a single event is visible.
func counts(title, hue, description, expr, legend string) panel {
	p := lines(title, "none", hue, description, expr, legend)
	p.events = true

	return p
}

// and returns the panel with one more query.
func (p panel) and(expr, legend string) panel {
	p.queries = append(p.queries, query{expr: expr, legend: legend})

	return p
}

func (p panel) object(id, x, y int) object {
	o := object{
		"id":          id,
		"type":        string(p.kind),
		"title":       p.title,
		"description": p.description,
		"datasource":  prometheus(),
		"gridPos": object{
			"x": x,
			"y": y,
			"w": p.w,
			"h": p.h,
		},
		"targets":       p.targets(),
		"pluginVersion": "11.0.0",
		"fieldConfig": object{
			"defaults":  p.defaults(),
			"overrides": p.overrides(),
		},
		"options": p.options(),
	}
	if p.points > 0 {
		o["maxDataPoints"] = p.points
	}

	if p.kind == table {
		o["transformations"] = p.transformations()
	}

	return o
}

func (p panel) targets() []object {
	list := []object{}

	for i, q := range p.queries {
		if q.ref == "" {
			q.ref = string(rune('A' + i))
		}

		format := "time_series"
		instant := q.instant || p.kind == stat || p.kind == barGauge

		if p.kind == table {
			format = "table"
			instant = true

			if i == 0 || !p.firstHasAll {
				q.expr = withCluster(q.expr)
			}
		}

		list = append(list, object{
			"refId":        q.ref,
			"datasource":   prometheus(),
			"editorMode":   "code",
			"expr":         q.expr,
			"legendFormat": q.legend,
			"format":       format,
			"instant":      instant,
			"range":        !instant,
		})
	}

	return list
}

func (p panel) defaults() object {
	o := object{
		"unit":       p.unit,
		"mappings":   mappings(p.values...),
		"noValue":    "no data",
		"links":      p.links,
		"min":        0,
		"thresholds": thresholds(p.hue, p.steps...),
		"color":      object{"mode": "thresholds"},
	}
	if p.links == nil {
		o["links"] = []object{}
	}

	if p.max > 0 {
		o["max"] = p.max
	}

	if p.decimals > 0 || p.unit == "short" || p.unit == "none" {
		o["decimals"] = p.decimals
	}

	switch p.kind {
	case timeSeries:
		o["color"] = object{"mode": "shades", "fixedColor": p.hue}
		if p.hue == red || p.hue == amber { // only lines that are above 0 at some time have the color
			o["color"] = object{"mode": "thresholds", "seriesBy": "max"}
			o["thresholds"] = thresholds(fine, step{0.001, p.hue})
		}

		o["custom"] = p.drawing()
	case stateTimeline:
		o["custom"] = object{
			"fillOpacity": 70,
			"lineWidth":   0,
			"spanNulls":   false,
			"insertNulls": false,
		}
	case table:
		o["custom"] = object{
			"align":       "auto",
			"filterable":  true,
			"cellOptions": object{"type": "auto"},
		}
	case stat, barGauge:
	}

	return o
}

// drawing returns how lines are drawn. Gaps remain: a GPU that does not report has no value.
func (p panel) drawing() object {
	fill := 0
	stacking := "none"
	style := "line"

	if p.events {
		fill = 60
		style = "bars"
	}

	if p.stacked {
		fill = 45
		stacking = "normal"
	}

	return object{
		"drawStyle":   style,
		"lineWidth":   1,
		"fillOpacity": fill,
		"showPoints":  "auto",
		"pointSize":   4,
		"spanNulls":   false,
		"stacking": object{
			"mode":  stacking,
			"group": "A",
		},
		"thresholdsStyle":   object{"mode": p.thresholdStyle()},
		"axisPlacement":     "auto",
		"axisBorderShow":    false,
		"lineInterpolation": "linear",
		"insertNulls":       false,
	}
}

func (p panel) thresholdStyle() string {
	if len(p.steps) > 0 {
		return "dashed"
	}

	return "off"
}

func (p panel) options() object {
	legend := object{"showLegend": true, "displayMode": "table", "placement": "right",
		"calcs": []string{"lastNotNull", "max"}, "width": 320}
	tooltip := object{"mode": "multi", "sort": "desc"}
	last := object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}

	switch p.kind {
	case stat:
		return object{
			"colorMode":         "value",
			"graphMode":         "none",
			"justifyMode":       "center",
			"orientation":       "vertical",
			"textMode":          "value_and_name",
			"wideLayout":        true,
			"showPercentChange": false,
			"reduceOptions":     last,
		}
	case barGauge:
		return object{
			"displayMode":   "basic",
			"orientation":   "horizontal",
			"valueMode":     "color",
			"showUnfilled":  true,
			"minVizHeight":  16,
			"minVizWidth":   8,
			"maxVizHeight":  30,
			"namePlacement": "left",
			"sizing":        "auto",
			"reduceOptions": last,
			"legend": object{
				"showLegend":  false,
				"displayMode": "list",
				"placement":   "bottom",
				"calcs":       []string{},
			},
		}
	case stateTimeline:
		return object{
			"mergeValues": true,
			"showValue":   "auto",
			"alignValue":  "left",
			"rowHeight":   0.85,
			"perPage":     30,
			"tooltip":     tooltip,
			"legend": object{
				"showLegend":  len(p.values) > 0,
				"displayMode": "list",
				"placement":   "bottom",
			},
		}
	case table:
		sorting := []object{}
		for i, by := range p.sortBy {
			sorting = append(sorting, object{"displayName": by, "desc": p.descending && i == 0})
		}

		return object{
			"showHeader": true,
			"cellHeight": "sm",
			"footer": object{
				"show":      false,
				"reducer":   []string{},
				"countRows": false,
				"fields":    "",
			},
			"sortBy": sorting,
		}
	case timeSeries:
		if p.w > columns/2 {
			legend["width"] = 640
		}

		return object{"legend": legend, "tooltip": tooltip}
	}

	return object{}
}
