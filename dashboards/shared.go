package dashboards

// This file has what all dashboards share: the data source, the variables, the links between them,
// and the colors.

const (
	tag            = "mig-exporter"
	anything       = ".*" // matches all series, also those without the label
	datasource     = "${datasource}"
	nodeUID        = "mig-node"
	workloadUID    = "mig-workloads"
	fleetUID       = "mig-fleet"
	healthUID      = "mig-exporter-health"
	dcgmUID        = "mig-node-dcgm"
	rightsizingUID = "mig-rightsizing"
)

// One hue for each kind of metric. Red and amber are for problems alone.
const (
	activityHue    = "blue"
	memoryHue      = "purple"
	powerHue       = "#2a9d8f"
	temperatureHue = "#c27ba0"
	linkHue        = "#5794a6"
	countHue       = "#8ab8ff"
	amber          = "#e5a50a"
	red            = "#d9383a"
	fine           = "#73879c" // no problem
	slate          = "#6e7787" // free, or of no interest
	unknownHue     = "#c7d0d9" // lighter than slate, beside which it stands
)

func prometheus() object { return object{"type": "prometheus", "uid": datasource} }

func datasourceVariable() object {
	return object{
		"name":        "datasource",
		"label":       "Data source",
		"type":        "datasource",
		"query":       "prometheus",
		"regex":       "",
		"refresh":     1,
		"multi":       false,
		"includeAll":  false,
		"hide":        0,
		"current":     object{},
		"options":     []object{},
		"skipUrlSync": false,
	}
}

// choice returns a variable with the values of a label. With one, a single value can be chosen;
// otherwise several or all.
func choice(name, label, values string, one bool) object {
	v := object{
		"name":       name,
		"label":      label,
		"type":       "query",
		"datasource": prometheus(),
		"definition": values,
		"query": object{
			"qryType": 1,
			"query":   values,
			"refId":   "PrometheusVariableQueryEditor-VariableQuery",
		},
		"refresh":     2,
		"sort":        7,
		"regex":       "",
		"hide":        0,
		"options":     []object{},
		"skipUrlSync": false,
		"multi":       !one,
		"includeAll":  !one,
		"current":     object{},
	}
	if !one {
		v["allValue"] = anything
		v["current"] = object{
			"selected": true,
			"text":     []string{"All"},
			"value":    []string{"$__all"},
		}
	}

	return v
}

// annotation returns an annotation that marks the times at which the query has a value above 0.
func annotation(name, color, expr, title, text string) object {
	return object{
		"name":            name,
		"datasource":      prometheus(),
		"enable":          true,
		"hide":            false,
		"iconColor":       color,
		"expr":            expr,
		"titleFormat":     title,
		"textFormat":      text,
		"tagKeys":         "",
		"step":            "",
		"useValueForTime": "",
	}
}

// nodeEvents returns annotations for new layouts and XIDs by node: events that explain other changes.
func nodeEvents() []object {
	rule := func(name string) string { return aggregate("sum", nodeRows, selectFamily(name, inFleet)) + " > 0" }

	return []object{
		annotation("Layout changes", countHue, rule("instance:nvidia_layout_changes:increase5m"),
			"Layout changed", "{{instance}}"),
		annotation("XIDs", red, rule("instance:nvidia_xids:increase5m"), "XID", "{{instance}}"),
	}
}

func grafanaAnnotations() object {
	return object{
		"builtIn":    1,
		"datasource": object{"type": "grafana", "uid": "-- Grafana --"},
		"enable":     true,
		"hide":       true,
		"iconColor":  fine,
		"name":       "Annotations & Alerts",
		"type":       "dashboard",
	}
}

// dashboardLinks returns a menu of links to the other dashboards. They keep the data source, the
// variables and the time range.
func dashboardLinks() []object {
	return []object{
		{
			"asDropdown":  true,
			"icon":        "dashboard",
			"includeVars": true,
			"keepTime":    true,
			"tags":        []string{tag},
			"targetBlank": false,
			"title":       "GPU dashboards",
			"tooltip":     "",
			"type":        "dashboards",
			"url":         "",
		},
	}
}

// linkTo returns a link from a cell to a dashboard. The variables, such as toNode, are set to values
// of the cell's row, and so is the cluster.
func linkTo(title, uid string, variables ...string) object {
	url := "/d/" + uid + "?${datasource:queryparam}&" + toCluster
	for _, v := range variables {
		url += "&" + v
	}

	return object{"title": title, "url": url + "&${__url_time_range}", "targetBlank": false}
}

// The URL parameters that set a variable to the row's value of a field.
const (
	toCluster   = "var-cluster=${__data.fields." + linkCluster + ":percentencode}"
	toNode      = "var-node=${__data.fields.instance:percentencode}"
	toGPU       = "var-gpu=${__data.fields.gpu:percentencode}"
	toNamespace = "var-namespace=${__data.fields.namespace:percentencode}"
	toPod       = "var-pod=${__data.fields.pod:percentencode}"
)

// linkCluster is the hidden field of a table from which links take the cluster. It is All where
// series have no cluster.
const linkCluster = "link_cluster"

// withCluster adds the label linkCluster to an expression.
func withCluster(expr string) string {
	return `label_replace(` + setLabel(expr, linkCluster, "All") + `, "` + linkCluster +
		`", "$1", "cluster", "(.+)")`
}

// valueMap is the text and color that a panel shows for a number.
type valueMap struct {
	value       string
	text, color string
}

func mappings(values ...valueMap) []object {
	named := object{}
	for i, v := range values {
		named[v.value] = object{"text": v.text, "color": v.color, "index": i}
	}

	list := []object{}
	if len(named) > 0 {
		list = append(list, object{"type": "value", "options": named})
	}

	return append(list, object{"type": "special", "options": object{
		"match": "null+nan", "result": object{"text": "n/a", "color": slate, "index": len(values)},
	}})
}

// step is the color of values from a threshold on.
type step struct {
	from  float64
	color string
}

func thresholds(base string, steps ...step) object {
	list := []object{{"color": base, "value": nil}}
	for _, s := range steps {
		list = append(list, object{"color": s.color, "value": s.from})
	}

	return object{"mode": "absolute", "steps": list}
}

// problemFrom returns the steps for a number of problems: from 1 on it has the color.
func problemFrom(color string) []step { return []step{{1, color}} }

// sliceColors and heldColors return the colors of lines by their legend.
func sliceColors() map[string]string {
	return map[string]string{"used": activityHue, "free": slate, "stranded": powerHue}
}

func heldColors() map[string]string { return map[string]string{"held": activityHue, "free": slate} }
