package dashboards

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
)

// sortedTable has the fields of a table in Grafana's JSON that decide in which order its rows are.
type sortedTable struct {
	Type, Title string
	Panels      []sortedTable // of a row that is collapsed
	Options     struct {
		SortBy []struct{ DisplayName string }
	}
	Transformations []struct {
		ID      string
		Options struct {
			Include      struct{ Names []string }
			RenameByName map[string]string
		}
	}
}

// columns returns the names of a table's columns as they are shown.
func (p *sortedTable) columns() []string {
	var names []string

	for _, t := range p.Transformations {
		names = append(names, t.Options.Include.Names...)

		for i, name := range names {
			if title, renamed := t.Options.RenameByName[name]; renamed {
				names[i] = title
			}
		}
	}

	return names
}

// TestTablesAreSorted: each table of each dashboard has an order, by columns that it has. Grafana
// ignores the others without a word.
func TestTablesAreSorted(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}

	tables := 0

	var check func(name string, panels []sortedTable)

	check = func(name string, panels []sortedTable) {
		for _, p := range panels {
			check(name, p.Panels)

			if p.Type != "table" {
				continue
			}

			tables++

			if len(p.Options.SortBy) == 0 {
				t.Errorf("%s: %q has no order", name, p.Title)
			}

			for _, by := range p.Options.SortBy {
				if !slices.Contains(p.columns(), by.DisplayName) {
					t.Errorf("%s: %q is sorted by %q; it has %q", name, p.Title, by.DisplayName, p.columns())
				}
			}
		}
	}

	for name, file := range files {
		var dashboard struct{ Panels []sortedTable }
		if err := json.Unmarshal(file, &dashboard); err != nil {
			continue // not a dashboard
		}

		check(name, dashboard.Panels)
	}

	if tables < 10 {
		t.Errorf("%d tables, want 10 at least", tables)
	}
}

// TestWorstStatesComeFirst: a table that is sorted by its states has those first for which someone
// must act now, then those to look at, then nodes that have left with nothing on them, and last
// what is fine.
func TestWorstStatesComeFirst(t *testing.T) {
	urgency := []string{red, amber, slate, "transparent"}
	before := 0
	rank := 0

	for _, state := range stateNames() {
		value, err := strconv.Atoi(state.value)
		if err != nil {
			t.Fatal(err)
		}

		if value <= before {
			t.Errorf("%s is %d, not after %d", state.text, value, before)
		}

		now := slices.Index(urgency, state.color)
		if now < rank {
			t.Errorf("%s comes after what is less urgent", state.text)
		}

		before, rank = value, now
	}

	if left := stateNames()[len(stateNames())-2]; left.text != "left" || rank != len(urgency)-1 {
		t.Errorf("%s is the last but one, want left before ok", left.text)
	}
}
