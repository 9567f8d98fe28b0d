package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// migrationRow is a row of the table of dcgm-exporter's flags in docs/migration.md.
type migrationRow struct {
	flags    []string // with their dashes, the long one last
	variable string
	example  string
	here     string // flags of this program, or accepted, warning or error
	remark   string
}

// migrationTable reads the table.
func migrationTable(t *testing.T) []migrationRow {
	t.Helper()

	page, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}

	const head = "| dcgm-exporter | Variable | For example | Here | |\n|---|---|---|---|---|\n"

	_, table, found := strings.Cut(string(page), head)
	if !found {
		t.Fatalf("docs/migration.md has no %q", head)
	}

	table, _, _ = strings.Cut(table, "\n\n")
	var rows []migrationRow

	for line := range strings.Lines(table) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), "`", ""), "|")
		if len(cells) != 7 {
			t.Fatalf("%d cells: %s", len(cells), line)
		}

		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}

		rows = append(rows, migrationRow{strings.Split(cells[1], ", "), cells[2], cells[3], cells[4], cells[5]})
	}

	return rows
}

// TestMigrationTableHasEveryFlag: the table and the program have the same flags, short forms and variables.
func TestMigrationTableHasEveryFlag(t *testing.T) {
	var table, program []string
	for _, row := range migrationTable(t) {
		table = append(table, strings.Join(row.flags, " ")+" "+row.variable)
	}

	for _, a := range aliases() {
		name := "--" + a.name + " " + a.env
		if a.short != "" {
			name = "-" + a.short + " " + name
		}

		program = append(program, name)
	}

	slices.Sort(table)
	slices.Sort(program)

	if !slices.Equal(table, program) {
		t.Errorf("docs/migration.md has\n%s\nthe program has\n%s", strings.Join(table, "\n"), strings.Join(program, "\n"))
	}
}

// TestMigrationTableIsWhatTheProgramDoes runs each row through the parser: every spelling of its flag, and its
// variable.
func TestMigrationTableIsWhatTheProgramDoes(t *testing.T) {
	for _, row := range migrationTable(t) {
		for _, flag := range row.flags {
			lines := [][]string{{flag + "=" + row.example}}
			if a := findAlias(aliases(), flag); a != nil && a.switches && row.example == "true" {
				lines = append(lines, []string{flag})
			} else if a != nil && !a.switches {
				lines = append(lines, []string{flag, row.example})
			}

			for _, line := range lines {
				checkMigration(t, row, flag, line, nil)
			}
		}

		checkMigration(t, row, row.variable, nil, []string{row.variable + "=" + row.example})
	}
}

// checkMigration compares what the parser makes of a command line and environment with a row; name is what a message
// calls it.
func checkMigration(t *testing.T, row migrationRow, name string, line, environ []string) {
	t.Helper()
	needed := []string{"--metrics.names=both"} // or -f and -n have no effect
	inv, err := parseCommandLine(append(line, needed...), environ)

	if row.here == "error" {
		for _, part := range []string{name + "=" + row.example, row.remark, "docs/migration.md"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %v, want %q in it", name, err, part)
			}
		}

		return
	}

	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}

	var flags []string
	warnings := ""

	switch row.here {
	case "accepted":
	case "warning":
		warnings = row.remark
	default:
		flags = strings.Fields(row.here)
	}

	want, err := parseCommandLine(append(flags, needed...), nil)
	if err != nil {
		t.Fatal(err)
	}

	if !reflect.DeepEqual(inv.Config, want.Config) || inv.Log != want.Log {
		t.Errorf("%s: %+v, want what %q is", name, inv, flags)
	}

	got := fmt.Sprint(inv.Warnings)
	if (warnings == "") != (len(inv.Warnings) == 0) || warnings != "" && !(strings.Contains(got, warnings) && strings.Contains(got, name)) {
		t.Errorf("%s: warnings %s, want %q", name, got, warnings)
	}
}

// TestDefaultsOfDCGMExporterAreAccepted: a flag or variable with the default of dcgm-exporter is never an error.
func TestDefaultsOfDCGMExporterAreAccepted(t *testing.T) {
	for _, a := range append(unservedAliases(), harmlessAliases()...) {
		for _, value := range a.accepted {
			for _, try := range []struct{ args, env []string }{{args: []string{"--" + a.name + "=" + value}}, {env: []string{a.env + "=" + value}}} {
				inv, err := parseCommandLine(try.args, try.env)
				if err != nil || len(inv.Warnings) > 0 {
					t.Errorf("%s %s: %v, warnings %v", try.args, try.env, err, inv.Warnings)
				}
			}
		}
	}
}

// TestRefusalsAreTogether: one start names everything that has to be changed.
func TestRefusalsAreTogether(t *testing.T) {
	_, err := parseCommandLine([]string{"-m", "gpu:counters", "-o"}, []string{"DCGM_EXPORTER_USE_FAKE_GPUS=1"})
	for _, want := range []string{"-m=gpu:counters", "-o=true", "DCGM_EXPORTER_USE_FAKE_GPUS=true", "docs/migration.md"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s in it", err, want)
		}
	}
}

// TestAdviceNamesFlagsThatExist: what is advised instead can be done.
func TestAdviceNamesFlagsThatExist(t *testing.T) {
	var flags []string
	for _, f := range allFlags() {
		flags = append(flags, "--"+f.Name)
	}

	for _, a := range aliases() {
		for _, flag := range regexp.MustCompile(`--[a-z][a-z.-]*[a-z]`).FindAllString(a.advice, -1) {
			if name, _, _ := strings.Cut(flag, "="); !slices.Contains(flags, name) {
				t.Errorf("--%s: no flag %s", a.name, flag)
			}
		}
	}
}
