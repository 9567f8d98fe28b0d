package promtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// hostileNames are names that queries, legends and links could take for something else.
func hostileNames() []string {
	return []string{
		`a"b`, `x{{gpu}}$node`, "new\nline", `$1 back\slash`, `.*`, `pod false`, `<b>bold</b>`, "Köln", `${node}`, `$__all`,
		`50% & more?x=1#y`, `{{pod}}`, `\`,
		strings.Repeat("long-", 50) + "end",
	}
}

// hostileNode serves a GPU for each name: its pod, its namespace and its container have it. The
// first is not confirmed.
func hostileNode(time.Duration) string {
	text := ""

	for i, name := range hostileNames() {
		label := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(name)
		on := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, i, i)
		pod := fmt.Sprintf(`%s,namespace="of %s",pod="%s",container="%s",sharing="exclusive"`, on, label, label, label)
		text += fmt.Sprintf("nvidia_gpu_up%[1]s} 1\nnvidia_gpu_allocated%[1]s} 1\nnvidia_gpu_sm_activity_ratio%[1]s} "+
			"0\nnvidia_gpu_graphics_engine_activity_ratio%[1]s} 0\nnvidia_gpu_row_remap_failure%[1]s} 1\n"+
			"nvidia_gpu_container_memory_used_bytes%[2]s} 5\nnvidia_gpu_container_sm_activity_ratio%[2]s} "+
			"0\nnvidia_gpu_container_power_estimate_watts%[2]s} 60\n"+
			"nvidia_gpu_pod_info%[2]s,confirmed=\"%[3]v\"} "+
			"1\nnvidia_gpu_rightsizing_candidate%[2]s,recommended_profile=\"1g.10gb\"} 1\n"+
			"DCGM_FI_DEV_GPU_TEMP{gpu=\"%[5]d\",UUID=\"GPU-%[5]d\"} 40\n"+
			"DCGM_FI_DEV_FB_USED{gpu=\"%[5]d\",UUID=\"GPU-%[5]d\",namespace=\"of "+
			"%[4]s\",pod=\"%[4]s\",container=\"%[4]s\"} 5\n", on, pod, i != 0, label, i)
	}

	return text
}

// deniedNode serves two GPUs with a slice each, of which no compute instance is known: those of the
// second are denied.
func deniedNode(time.Duration) string {
	text := ""

	for i, denied := range []int{0, 1} {
		on := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, i, i)
		slice := on + `,gpu_instance="1",mig_profile="3g.40gb"`
		text += fmt.Sprintf("nvidia_gpu_up%[1]s} 1\nnvidia_gpu_mig_enabled%[1]s} 1\n"+
			"nvidia_mig_gpu_instance_info%[2]s,placement=\"0:4\"} 1\nnvidia_mig_gpu_instance_up%[2]s} 1\n"+
			"nvidia_gpu_read_errors_total%[1]s,reading=\"mig\",reason=\"no_permission\"} %[3]d\n", on, slice, denied)
	}

	return text
}

// TestDeniedComputeInstances: a slice whose MIG devices the driver denies is not called one without
// a compute instance, which the operator is asked to delete.
func TestDeniedComputeInstances(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	v := loadBad(t, f, "denied", deniedNode)
	table := loadDashboards(t)["mig-node"].panel(t, "GPUs and slices, and the pods that hold them")
	states := map[string]float64{}

	for _, s := range f.query(t, table, "State", v).series {
		if s.Metric.Get("slice") == "3g.40gb@0:4" {
			states[s.Metric.Get("gpu")] = s.Floats[0].F
		}
	}

	if states["0"] != 7 || states["1"] != 11 || len(states) != 2 {
		t.Errorf("states %v, want no compute instance (7) of GPU 0 and ok (11) of GPU 1", states)
	}
}

// TestHostileNames: names of pods reach legends, cells and links as they are, and are no patterns.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	names := hostileNames()
	v := loadBad(t, f, "hostile", hostileNode)
	f.recordAll(t, time.Minute, v.to)
	boards := loadDashboards(t)
	// Each has a line or a row for each name, whose legend or cells have it.
	for _, c := range []struct{ board, title, ref, text string }{
		{"mig-node", "GPUs and slices, and the pods that hold them", "Holder", "{{holder}}"},
		{"mig-node-dcgm", "GPUs and slices, and the pods that hold them", "Holder", "{{holder}}"},
		{"mig-fleet", "Problems and affected pods", "State", "{{holder}}"},
		{"mig-fleet", "Idle devices and their pods", "Busy", "{{namespace}}/{{pod}}"},
		{"mig-workloads", "All pods with a GPU or slice", "State", "{{namespace}}/{{pod}}"},
		{"mig-rightsizing", "Whole GPUs that should be slices", "Holder", "{{holder}}"},
		{"mig-node", "Pods by device", "A", ""},
		{"mig-node-dcgm", "Pods by device", "A", ""},
		{"mig-workloads", "SM activity of each pod", "A", ""},
		{"mig-workloads", "Memory used by each pod", "A", ""},
		{"mig-workloads", "Power of each pod", "A", ""},
		{"mig-workloads", "Devices held, by namespace", "A", "{{namespace}}/{{namespace}}"},
		{"mig-workloads", "Power, by namespace", "A", "{{namespace}}/{{namespace}}"},
		{"mig-workloads", "Energy in the time range, by namespace", "A", "{{namespace}}/{{namespace}}"},
	} {
		p := boards[c.board].panel(t, c.title)
		if c.text == "" {
			c.text = p.Targets[0].LegendFormat
		}

		var said []string
		for _, s := range f.query(t, p, c.ref, v).series {
			said = append(said, legend(c.text, s))
			if i, err := strconv.Atoi(s.Metric.Get("gpu")); err == nil &&
				!strings.Contains(said[len(said)-1], "of "+names[i]+"/"+names[i]) {
				t.Errorf("%s, %s: GPU %d, of %q, says %q", c.board, c.title, i, names[i], said[len(said)-1])
			}
		}

		names := names
		if c.title == "Idle devices and their pods" {
			names = names[1:] // confirmed holders alone
		}

		for _, name := range names {
			if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "of "+name) }) {
				t.Errorf("%s, %s: nothing about %q: %q", c.board, c.title, name, said)
			}
		}

		if len(said) != len(names) {
			t.Errorf("%s, %s: %d for %d names: %q", c.board, c.title, len(said), len(names), said)
		}
	}

	for _, d := range boards {
		for _, p := range d.all() {
			f.linksOf(t, d.UID, p, v)
		}
	}
}

// linksAreFull: no cell of any table leads to a dashboard that is filtered by nothing or by a name
// that was not replaced.
func (f *fleet) linksAreFull(t *testing.T, boards map[string]grafanaDashboard) {
	followed := 0

	for uid, d := range boards {
		for _, p := range d.all() {
			for _, node := range []string{"mixed", "shared", "bare", "sick|gone", "dcgm", "advised", where(uid, p.Title)} {
				followed += f.linksOf(t, uid, p, fleetView(node))
			}
		}
	}

	if followed < 250 {
		t.Errorf("%d links", followed)
	}
}

// linksOf follows the links of a table's cells, and returns how many there are.
func (f *fleet) linksOf(t *testing.T, uid string, p grafanaPanel, v view) int {
	t.Helper()

	if p.Type != "table" {
		return 0
	}

	links := p.links(t)
	followed := 0

	for _, row := range f.rows(t, p, v) {
		for field, link := range links {
			if row[field] == "" {
				continue
			}

			followed++
			filled := regexp.MustCompile(`\$\{__data\.fields\.(\w+):percentencode\}`).
				ReplaceAllStringFunc(link, func(use string) string {
					name := strings.TrimSuffix(strings.TrimPrefix(use, "${__data.fields."), ":percentencode}")
					if row[name] == "" {
						t.Errorf("%s, %s: the link of %s needs %s, which %v has not", uid, p.Title, field, name, row)
					}

					return strings.ReplaceAll(url.QueryEscape(row[name]), "+", "%20") // as encodeURIComponent does
				})
			_, query, _ := strings.Cut(filled, "?")

			values, err := url.ParseQuery(strings.ReplaceAll(query, "&${__url_time_range}", ""))
			if err != nil {
				t.Errorf("%s, %s: %s: %v", uid, p.Title, filled, err)
			}

			for _, of := range []string{"pod", "namespace"} {
				if got := values.Get("var-" + of); values.Has("var-"+of) && got != row[of] {
					t.Errorf("%s, %s: %s leads to %s %q", uid, p.Title, row[of], of, got)
				}
			}
		}
	}

	return followed
}

// rows are the rows of a table as Grafana merges them: by the labels that all its queries have.
func (f *fleet) rows(t *testing.T, p grafanaPanel, v view) []map[string]string {
	t.Helper()

	var answers []answer

	found := map[string]int{} // in how many queries, by label

	for _, target := range p.Targets {
		a := f.query(t, p, target.RefID, v)
		if len(a.series) == 0 {
			continue
		}

		answers = append(answers, a)

		names := map[string]bool{}

		for _, s := range a.series {
			s.Metric.Range(func(l labels.Label) { names[l.Name] = true })
		}

		for name := range names {
			found[name]++
		}
	}

	maps.DeleteFunc(found, func(_ string, n int) bool { return n < len(answers) })
	common := slices.Sorted(maps.Keys(found))
	rows := map[string]map[string]string{}

	for _, a := range answers {
		for _, s := range a.series {
			key := strings.Join(labelValues(s.Metric, common), "\x00")
			if rows[key] == nil {
				rows[key] = map[string]string{}
			}

			maps.Copy(rows[key], s.Metric.Map())
		}
	}

	return slices.Collect(maps.Values(rows))
}

// links returns the links of a table's cells by the label that is in the cell.
func (p grafanaPanel) links(t *testing.T) map[string]string {
	t.Helper()
	field := map[string]string{}
	links := map[string]string{}

	for _, x := range p.Transformations {
		var organize struct{ RenameByName map[string]string }
		if err := json.Unmarshal(x.Options, &organize); err != nil {
			t.Fatal(err)
		}

		for name, title := range organize.RenameByName {
			field[title] = name
		}
	}

	for _, o := range p.FieldConfig.Overrides {
		for _, property := range o.Properties {
			var list []grafanaLink
			if property.ID == "links" && json.Unmarshal(property.Value, &list) == nil {
				links[field[o.Matcher.Options]] = list[0].URL
			}
		}
	}

	return links
}
