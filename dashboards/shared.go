package dashboards

// This file has what all dashboards share: the data source, the variables, the links between them,
// and the colors.

const (
	tag            = "mig-exporter"
	anything       = ".*" // chooses everything, also if the label is absent
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
	fine           = "#73879c"
	slate          = "#6e7787"
	unknownHue     = "#c7d0d9" // beside slate
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

// choice returns a variable with the values of a label. Its choices are all of them, or one alone.
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

// annotation returns an annotation whose query is evaluated over the time range: it is there while
// the value is above 0.
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

// nodeEvents returns annotations of the events that explain other changes, by node: new layouts and
// XIDs.
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

// dashboardLinks returns links to the other dashboards that keep the data source, the variables and
// the time.
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

// linkTo returns a link from a cell to a dashboard with values of the row as variables, its cluster
// included.
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

// linkCluster is the field that links take the cluster from. Tables have it hidden; it is All where
// series have no cluster.
const linkCluster = "link_cluster"

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

// problemFrom returns the steps for a count of problems: 0 has no color, not green.
func problemFrom(color string) []step { return []step{{1, color}} }

// ofSlices and ofDevices return the colors of panels with few named parts.
func ofSlices() map[string]string {
	return map[string]string{"used": activityHue, "free": slate, "stranded": powerHue}
}

func ofDevices() map[string]string { return map[string]string{"held": activityHue, "free": slate} }
