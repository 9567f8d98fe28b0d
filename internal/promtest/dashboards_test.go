package promtest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// where names the node on which a panel must have data, for panels that have none on the node of
// their dashboard.
func where(board, title string) string {
	switch title {
	case "Highest SM activity of each device", "Most memory used on each device":
		return "underused" // the only one that is scraped with native histograms
	case "Operations", "State of partition control":
		return "control"
	}

	switch board {
	case "mig-node":
		return "mixed"
	case "mig-node-dcgm":
		return "dcgm"
	}

	return ".*"
}

func fleetView(node string) view {
	end := fleetEnd()
	return view{from: end.Add(-fleetRuns), to: end, step: fleetStep, set: map[string]string{"node": node}}
}

const podsTable = "All pods with a GPU or slice"

// TestDashboards asks every query of every dashboard of a fleet of simulated nodes.
func TestDashboards(t *testing.T) {
	t.Parallel()
	f := runFleet(t, fleetNodes(t))
	boards := loadDashboards(t)
	t.Run("every query answers", func(t *testing.T) { f.everyQueryAnswers(t, boards) })
	t.Run("no data is no zero", func(t *testing.T) { f.noDataIsNoZero(t, boards) })
	t.Run("no two lines have one legend", func(t *testing.T) { f.noLegendTwice(t, boards) })
	t.Run("tables have a value in every row", func(t *testing.T) { f.tablesAreFull(t, boards) })
	t.Run("variables and annotations", func(t *testing.T) { f.variablesAnswer(t, boards) })
	t.Run("nothing is counted twice", func(t *testing.T) { f.sums(t, boards) })
	t.Run("an event counts once", func(t *testing.T) { f.eventsOnce(t, boards) })
	t.Run("states", func(t *testing.T) { f.states(t, boards) })
	t.Run("right-sizing", func(t *testing.T) { f.rightsizing(t, boards) })
	t.Run("links set what they name", func(t *testing.T) { f.linksAreFull(t, boards) })
	t.Run("a gap stays a gap", func(t *testing.T) { f.gaps(t, boards) })
	t.Run("samples of 200 nodes", func(t *testing.T) { f.samplesOf200(t, boards) })
}

// panel returns the panel with a title.
func (d grafanaDashboard) panel(t *testing.T, title string) grafanaPanel {
	t.Helper()

	for _, p := range d.all() {
		if p.Title == title {
			return p
		}
	}

	t.Fatalf("%s has no panel %q", d.UID, title)

	return grafanaPanel{}
}

// query asks one query of a panel.
func (f *fleet) query(t *testing.T, p grafanaPanel, ref string, v view) answer {
	t.Helper()

	for _, target := range p.Targets {
		if target.RefID != ref {
			continue
		}

		a, err := f.ask(target, v)
		if err != nil {
			t.Fatalf("%s: %v", p.Title, err)
		}

		return a
	}

	t.Fatalf("%s has no query %s", p.Title, ref)

	return answer{}
}

func (f *fleet) everyQueryAnswers(t *testing.T, boards map[string]grafanaDashboard) {
	for uid, d := range boards {
		for _, p := range d.all() {
			if p.Title == underusedPanel {
				continue // it is about two days
			}

			for _, target := range p.Targets {
				a := f.query(t, p, target.RefID, fleetView(where(uid, p.Title)))

				known := slices.ContainsFunc(a.series, func(s promqlSeries) bool {
					return slices.ContainsFunc(s.Floats, func(x promqlPoint) bool { return !math.IsNaN(x.F) })
				})
				if !known {
					t.Errorf("%s, %s, %s: no value", uid, p.Title, target.RefID)
				}
			}
		}
	}
}

// noDataIsNoZero: of a node that never was there is nothing, not a 0, and where Prometheus has
// nothing at all.
func (f *fleet) noDataIsNoZero(t *testing.T, boards map[string]grafanaDashboard) {
	empty := &fleet{Prometheus: NewPrometheus(t)}

	for uid, d := range boards {
		for _, p := range d.all() {
			for _, target := range p.Targets {
				for _, in := range []*fleet{f, empty} {
					if a := in.query(t, p, target.RefID, fleetView("no-node")); len(a.series) > 0 {
						t.Errorf("%s, %s, %s: %v of a node that is not there", uid, p.Title, target.RefID, a.series)
					}
				}
			}
		}
	}

	// A node that stopped has no row and no sum.
	for _, title := range []string{"GPUs", "GPUs that do not answer", "Power",
		"GPUs and slices, and the pods that hold them"} {
		p := boards["mig-node"].panel(t, title)
		if a := f.query(t, p, p.Targets[0].RefID, fleetView("gone")); len(a.series) > 0 {
			t.Errorf("%s: %v of a node that is gone", title, a.series)
		}
	}
}

func (f *fleet) noLegendTwice(t *testing.T, boards map[string]grafanaDashboard) {
	for uid, d := range boards {
		for _, p := range d.all() {
			if p.Type == "table" {
				continue
			}

			for _, node := range []string{"mixed", "underused", "full", "shared", "a30", "bare", "sick", "chaos", "gone",
				"dcgm", "foreign", "advised", ".*"} {
				if node == ".*" && strings.HasPrefix(uid, "mig-node") {
					continue // they are of one node
				}

				seen := map[string]bool{}

				for _, target := range p.Targets {
					for _, s := range f.query(t, p, target.RefID, fleetView(node)).series {
						name := legend(target.LegendFormat, s)
						if seen[name] || strings.TrimSpace(name) == "" {
							t.Errorf("%s, %s on %s: %q again: %s", uid, p.Title, node, name, s.Metric)
						}

						seen[name] = true
					}
				}
			}
		}
	}
}

// tablesAreFull: queries of one table have the same rows, so that Grafana can merge them, each
// once. What is said of some rows alone is NaN in the others. Only the table of pods has queries that
// leave rows out; each of these has some row, too.
func (f *fleet) tablesAreFull(t *testing.T, boards map[string]grafanaDashboard) {
	for uid, d := range boards {
		for _, p := range d.all() {
			if p.Type != "table" || len(p.Targets) == 1 {
				continue
			}

			for _, node := range []string{"mixed", "full", "shared", "a30", "bare", "sick", "chaos", "dcgm", "foreign",
				"advised", where(uid, p.Title)} {
				rows := map[string]map[string]int{} // by query
				for _, target := range p.Targets {
					rows[target.RefID] = map[string]int{}
					for _, s := range f.query(t, p, target.RefID, fleetView(node)).series {
						labels := s.Metric.Map()
						for _, extra := range extraColumns(uid) {
							delete(labels, extra)
						}

						rows[target.RefID][fmt.Sprint(labels)]++
					}
				}

				first := rows[p.Targets[0].RefID]
				for ref, of := range rows {
					want := first
					if p.Title == podsTable && len(of) > 0 {
						want = maps.Clone(first)
						maps.DeleteFunc(want, func(row string, _ int) bool { return of[row] == 0 })
					}

					if !maps.Equal(of, want) {
						t.Errorf("%s, %s on %s: the rows of %s are not those of %s:\n%v\n%v", uid, p.Title, node, ref,
							p.Targets[0].RefID, of, want)
					}

					for row, n := range of {
						if n > 1 {
							t.Errorf("%s, %s on %s: %s has %d rows %s", uid, p.Title, node, ref, n, row)
						}
					}
				}
			}
		}
	}
}

// extraColumns are the labels that one query of a table adds to its rows.
func extraColumns(uid string) []string {
	if uid == "mig-workloads" {
		return []string{"link_cluster", "workload"}
	}

	return []string{"holder", "namespace", "pod", "version", "recommended_profile", "reason", "known", "decided"}
}

func (f *fleet) variablesAnswer(t *testing.T, boards map[string]grafanaDashboard) {
	for uid, d := range boards {
		node := where(uid, "")

		for _, v := range d.Templating.List {
			if v.Type != "query" {
				continue
			}

			set, err := f.compute(d.computed(), fleetView(node), v.Definition)
			if err != nil {
				t.Fatal(err)
			}

			if options, err := f.options(v, set); err != nil || len(options) == 0 {
				t.Errorf("%s: variable %s has no values: %v", uid, v.Name, err)
			}
		}

		for _, x := range d.Annotations.List {
			if x.BuiltIn != 0 {
				continue
			}

			a, err := f.ask(grafanaTarget{Expr: x.Expr}, fleetView(node))
			if err != nil || len(a.series) == 0 {
				t.Errorf("%s: annotation %s: none, %v", uid, x.Name, err)
			}

			healthy, err := f.ask(grafanaTarget{Expr: x.Expr}, fleetView("shared"))
			if err != nil || len(healthy.series) != 0 {
				t.Errorf("%s: annotation %s on a node without events: %v, %v", uid, x.Name, healthy.series, err)
			}
		}
	}
}

// gaps: while a node is not scraped there are no points, and afterwards its lines go on.
func (f *fleet) gaps(t *testing.T, boards map[string]grafanaDashboard) {
	p := boards["mig-node"].panel(t, "SM activity of each device")

	a := f.query(t, p, "A", fleetView("full"))
	if len(a.series) != 56 {
		t.Errorf("%d lines, want one for each of 56 slices", len(a.series))
	}

	from := scraped().Add(31 * time.Minute).UnixMilli()
	to := scraped().Add(40 * time.Minute).UnixMilli()

	for _, s := range a.series {
		if inside := slices.ContainsFunc(s.Floats, func(x promqlPoint) bool { return x.T > from && x.T <= to }); inside {
			t.Errorf("%s has points in the gap", s.Metric)
		}

		if last := s.Floats[len(s.Floats)-1].T; last != fleetEnd().UnixMilli() {
			t.Errorf("%s ends at %d", s.Metric, last)
		}
	}
}
