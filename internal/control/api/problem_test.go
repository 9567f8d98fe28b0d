package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const urn = "urn:mig-exporter:problem:"

// problemTypes reads problem.go: the types, and the status that each one's comment begins with.
func problemTypes(t *testing.T) map[string]string {
	t.Helper()

	file, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}

	types := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		one, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}

		text, err := strconv.Unquote(one.Values[0].(*ast.BasicLit).Value)
		name, isType := strings.CutPrefix(text, urn)

		status := regexp.MustCompile(`^\d{3}`).FindString(one.Comment.Text())
		if err != nil || !isType || types[name] != "" {
			t.Errorf("%s = %q (%v): expected %s and a word of its own", one.Names[0], text, err, urn)
		}

		if status == "" {
			t.Errorf("%s: comment %q, expected one that begins with the status", one.Names[0], one.Comment.Text())
		}

		types[name] = status

		return true
	})

	if len(types) == 0 {
		t.Fatal("no types of problems")
	}

	return types
}

// TestProblemTypesAreDocumented: each is in the table of docs/partition-control.md, with its
// status, and in the OpenAPI document; and no others do.
func TestProblemTypesAreDocumented(t *testing.T) {
	types := problemTypes(t)

	page, err := os.ReadFile("../../../docs/partition-control.md")
	if err != nil {
		t.Fatal(err)
	}

	_, section, ok := strings.Cut(string(page), "\n## Problem types\n")
	section, _, _ = strings.Cut(section, "\n## ")

	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (\\d+) \\| [^|]+ \\| [^|]+ \\|$").
		FindAllStringSubmatch(section, -1) {
		rows[row[1]] = row[2]
	}

	if !ok || strings.Count(section, "\n| `") != len(rows) {
		t.Errorf("the table has rows that are not: | `type` | status | meaning | what to do |")
	}

	_, enum, _ := strings.Cut(string(OpenAPI()), "\n    ProblemType:\n      enum:\n")
	var listed []string

	for line := range strings.Lines(enum) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "- "+urn)
		if !ok {
			break
		}

		listed = append(listed, name)
	}

	for name, status := range types {
		if rows[name] != status {
			t.Errorf("%s: the table says %q, want %s", name, rows[name], status)
		}

		if !slices.Contains(listed, name) {
			t.Errorf("%s is not in the OpenAPI document", name)
		}
	}

	if len(rows) != len(types) || len(listed) != len(types) {
		t.Errorf("%d types, %d in the table, %d in the OpenAPI document", len(types), len(rows), len(listed))
	}
}
