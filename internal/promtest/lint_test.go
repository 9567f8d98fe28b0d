package promtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// TestDashboardsAreSound: what a linter of dashboards asks for.
func TestDashboardsAreSound(t *testing.T) {
	boards := loadDashboards(t)
	if len(boards) != 6 {
		t.Errorf("%d dashboards", len(boards))
	}

	for uid, d := range boards {
		if d.SchemaVersion != 39 || d.GraphTooltip != 1 {
			t.Errorf("%s: got schema %d and tooltip %d, want 39 and 1", uid, d.SchemaVersion, d.GraphTooltip)
		}

		if d.Title == "" || d.Description == "" {
			t.Errorf("%s: got title %q and description %q, want both", uid, d.Title, d.Description)
		}

		if !slices.Contains(d.Tags, "mig-exporter") {
			t.Errorf("%s: got the tags %v, want mig-exporter among them", uid, d.Tags)
		}

		if len(d.Annotations.List) != 3 {
			t.Errorf("%s: annotations %v, want layout changes, XIDs and Grafana's own", uid, d.Annotations.List)
		}

		if len(d.Links) != 1 {
			t.Fatalf("%s: got %d links, want 1", uid, len(d.Links))
		}

		if link := d.Links[0]; !link.IncludeVars || !link.KeepTime {
			t.Errorf("%s: the link keeps the variables: %t, the time: %t; want both", uid, link.IncludeVars, link.KeepTime)
		}

		d.lintIDs(t)
		d.lintGrid(t)
		d.lintVariables(t)

		for _, p := range d.all() {
			p.lint(t, uid)
		}
	}
}

// lintIDs: numbers are of one panel each, those of collapsed rows included, and so are titles.
func (d grafanaDashboard) lintIDs(t *testing.T) {
	ids := map[int]bool{}
	titles := map[string]bool{}

	for _, p := range d.Panels {
		for _, p := range append(slices.Clone(p.Panels), p) {
			if p.ID == 0 || ids[p.ID] {
				t.Errorf("%s: %s has the id %d, which is 0 or used twice", d.UID, p.Title, p.ID)
			}

			if titles[p.Title] {
				t.Errorf("%s: two panels have the title %s", d.UID, p.Title)
			}

			ids[p.ID], titles[p.Title] = true, true
		}
	}
}

// lintGrid: no two panels overlap, all are inside, and those of a collapsed row are not beside the
// others.
func (d grafanaDashboard) lintGrid(t *testing.T) {
	check := func(panels []grafanaPanel) {
		for i, a := range panels {
			g := a.GridPos
			if g.W < 1 || g.H < 1 {
				t.Errorf("%s: %s is %d wide and %d high", d.UID, a.Title, g.W, g.H)
			}

			if g.X < 0 || g.X+g.W > 24 {
				t.Errorf("%s: %s reaches from %d to %d, want 0 to 24", d.UID, a.Title, g.X, g.X+g.W)
			}

			for _, b := range panels[:i] {
				o := b.GridPos
				if g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
					t.Errorf("%s: %s and %s overlap", d.UID, a.Title, b.Title)
				}
			}
		}
	}
	check(d.Panels)

	for _, row := range d.Panels {
		check(row.Panels)

		if row.Type == "row" && !row.Collapsed && len(row.Panels) > 0 || row.Collapsed && len(row.Panels) == 0 {
			t.Errorf("%s: row %s: collapsed %v with %d panels, want some only then", d.UID, row.Title, row.Collapsed, len(row.Panels))
		}
	}
}

// lintVariables: all are used, and all that is used is there.
func (d grafanaDashboard) lintVariables(t *testing.T) {
	var queries []string

	for _, p := range d.all() {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}

	for _, x := range d.Annotations.List {
		queries = append(queries, x.Expr)
	}

	for _, x := range d.computed() {
		queries = append(queries, x.Definition)
	}

	names := []string{"__rate_interval", "__range", "1"}
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		// All of a hidden variable are its options.
		if v.Label == "" || v.IncludeAll && v.AllValue != ".*" && v.Hide == 0 {
			t.Errorf("%s: variable %s: label %q, value of all %q; want a label, and .* if it includes all", d.UID, v.Name,
				v.Label, v.AllValue)
		}

		if v.Type == "query" && v.Datasource.UID != "${datasource}" {
			t.Errorf("%s: variable %s asks %v", d.UID, v.Name, v.Datasource)
		}

		used := slices.ContainsFunc(queries, func(q string) bool { return strings.Contains(q, "$"+v.Name) })
		if !used && v.Name != "datasource" {
			t.Errorf("%s: variable %s is not used", d.UID, v.Name)
		}
	}

	for _, q := range queries {
		for _, use := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q, -1) {
			if !slices.Contains(names, use[1]) {
				t.Errorf("%s: $%s is no variable: %s", d.UID, use[1], q)
			}
		}
	}
}

func (p grafanaPanel) lint(t *testing.T, uid string) {
	if !slices.Contains([]string{"timeseries", "stat", "table", "state-timeline", "bargauge"}, p.Type) {
		t.Errorf("%s, %s: a %s", uid, p.Title, p.Type)
	}

	if len(p.Description) < 10 || !strings.HasSuffix(p.Description, ".") {
		t.Errorf("%s, %s: description %q", uid, p.Title, p.Description)
	}

	if p.FieldConfig.Defaults.Unit == "" && p.Type != "table" || p.FieldConfig.Defaults.NoValue != "no data" {
		t.Errorf("%s, a %s, %s: unit %q, want one unless it is a table; without a value %q, want no data", uid, p.Type,
			p.Title, p.FieldConfig.Defaults.Unit, p.FieldConfig.Defaults.NoValue)
	}

	last := p.FieldConfig.Defaults.Mappings[len(p.FieldConfig.Defaults.Mappings)-1].Options
	if last.Match != "null+nan" || last.Result.Text != "n/a" {
		t.Errorf("%s, %s: a missing value is shown as %q, want n/a", uid, p.Title, last.Result.Text)
	}

	if spans := p.FieldConfig.Defaults.Custom.SpanNulls; spans != nil && spans != false {
		t.Errorf("%s, %s: lines are drawn over gaps: %v", uid, p.Title, spans)
	}

	if c := p.FieldConfig.Defaults.Color; slices.Contains([]string{"#d9383a", "#e5a50a"}, c.FixedColor) {
		t.Errorf("%s, %s: lines are drawn as problems, whatever their values: %v", uid, p.Title, c)
	}

	refs := map[string]bool{}

	for _, target := range p.Targets {
		for _, got := range []string{p.Datasource.UID, target.Datasource.UID} {
			if got != "${datasource}" {
				t.Errorf("%s, %s, %s: got the data source %q, want ${datasource}", uid, p.Title, target.RefID, got)
			}
		}

		if refs[target.RefID] {
			t.Errorf("%s, %s: two queries have the name %s", uid, p.Title, target.RefID)
		}

		refs[target.RefID] = true
		if target.LegendFormat == "" && p.Type != "table" || target.Instant == target.Range {
			t.Errorf("%s, a %s, %s: legend %q, want one unless it is a table; instant %v, range %v, want one of both", uid, p.Type,
				p.Title, target.LegendFormat, target.Instant, target.Range)
		}

		lintRates(t, uid+", "+p.Title, target)
	}
}

// lintRates: a rate is over an interval that Grafana fits to the scrapes, or over one of at least
// an hour.
func lintRates(t *testing.T, about string, target grafanaTarget) {
	for _, use := range regexp.MustCompile(`\b(rate|irate|increase|delta)\([^\[\]]*\[([^\]]*)\]`).
		FindAllStringSubmatch(target.Expr, -1) {
		if use[2] != "$__rate_interval" && use[2] != "1h" {
			t.Errorf("%s: %s over %s", about, use[1], use[2])
		}
	}

	v := fleetView("a")
	for _, x := range target.computed {
		v = v.with(x.Name, "a")
	}

	expr, err := v.fill(target.Expr)
	if err == nil {
		_, err = parser.NewParser(parser.Options{}).ParseExpr(expr)
	}

	if err != nil {
		t.Errorf("%s: %v", about, err)
	}
}

// TestLinksLeadToDashboards: each names a dashboard and variables that there are, and keeps data
// source, cluster and time.
func TestLinksLeadToDashboards(t *testing.T) {
	boards := loadDashboards(t)
	found := 0

	for uid, d := range boards {
		for _, p := range d.all() {
			for _, o := range p.FieldConfig.Overrides {
				for _, property := range o.Properties {
					if property.ID != "links" {
						continue
					}

					for _, url := range regexp.MustCompile(`"url":\s*"([^"]*)"`).FindAllStringSubmatch(string(property.Value), -1) {
						found++
						lintLink(t, uid+", "+p.Title, strings.ReplaceAll(url[1], `\u0026`, "&"), boards, p)
					}
				}
			}
		}
	}

	if found < 15 {
		t.Errorf("%d links", found)
	}
}

func lintLink(t *testing.T, about, url string, boards map[string]grafanaDashboard, p grafanaPanel) {
	parts := regexp.MustCompile(`^/d/([\w-]+)\?(.*)$`).FindStringSubmatch(url)
	if parts == nil || boards[parts[1]].UID == "" {
		t.Errorf("%s: link %s leads to no dashboard", about, url)
		return
	}

	for _, keep := range []string{"${datasource:queryparam}", "var-cluster=${__data.fields.link_cluster:percentencode}",
		"${__url_time_range}"} {
		if !strings.Contains(parts[2], keep) {
			t.Errorf("%s: link %s lacks %s", about, url, keep)
		}
	}

	for _, set := range regexp.MustCompile(`var-(\w+)=\$\{__data\.fields\.(\w+):percentencode\}`).
		FindAllStringSubmatch(parts[2], -1) {
		if !slices.ContainsFunc(boards[parts[1]].Templating.List, func(v grafanaVariable) bool { return v.Name == set[1] }) {
			t.Errorf("%s: %s has no variable %s", about, parts[1], set[1])
		}

		if !strings.Contains(p.fields(), `"`+set[2]+`"`) {
			t.Errorf("%s: the table has no field %s", about, set[2])
		}
	}
}
