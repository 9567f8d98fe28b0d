package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The statements that a function may have; a test may be one long story. Blank lines and comments
// do not count: a limit on lines makes walls.
const (
	maxStatements     = 40
	maxTestStatements = 60
)

// longFileLines is how many lines a file has, blank ones and comments included, before it is
// reported.
const longFileLines = 600

// source is one Go file, parsed.
type source struct {
	name string // relative to the module's root
	text []byte
	set  *token.FileSet
	file *ast.File
}

func parseSource(name string, text []byte) (source, error) {
	set := token.NewFileSet()

	file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, fmt.Errorf("parse: %w", err)
	}

	return source{name: name, text: text, set: set, file: file}, nil
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

func (s source) line(p token.Pos) int { return s.set.Position(p).Line }

// imports lists what the file imports.
func (s source) imports() []goImport {
	var imports []goImport

	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			imports = append(imports, goImport{file: s.name, line: s.line(spec.Pos()), path: p})
		}
	}

	return imports
}

// violations holds the file against the rules that need no other file. Generated files are free of
// them.
func (s source) violations() []string {
	if ast.IsGenerated(s.file) {
		return nil
	}

	found := append(s.tooLong(), s.wrongHeads()...)
	if !s.isTest() {
		found = append(found, s.largeInterfaces()...)
		found = append(found, s.declarations()...)
		found = append(found, s.exits()...)
		found = append(found, s.sharedWithOracle()...)
		found = append(found, s.callsPastInterceptor()...)
	}

	return found
}

func (s source) at(p token.Pos, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", s.name, s.line(p), fmt.Sprintf(format, args...))
}

// longFile returns a sentence about a file that is longer than one subject usually takes, empty if it
// is not. It is a reason to think and no violation: some subjects take more.
func (s source) longFile() string {
	lines := bytes.Count(s.text, []byte("\n"))
	if lines <= longFileLines || ast.IsGenerated(s.file) {
		return ""
	}

	return fmt.Sprintf("%s has %d lines: does it have one subject?", s.name, lines)
}

// tooLong checks the lengths of the functions.
func (s source) tooLong() []string {
	var found []string

	limit := maxStatements
	if s.isTest() {
		limit = maxTestStatements
	}

	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}

		if n := countStatements(f.Body); n > limit {
			found = append(found, s.at(f.Pos(), "%s has %d statements, at most %d are allowed", f.Name.Name, n, limit))
		}
	}

	return found
}

// countStatements counts the statements of a body, those of its blocks and function literals
// included. A block itself is none.
func countStatements(body *ast.BlockStmt) int {
	count := 0

	ast.Inspect(body, func(n ast.Node) bool {
		if _, statement := n.(ast.Stmt); statement {
			if _, block := n.(*ast.BlockStmt); !block {
				count++
			}
		}

		return true
	})

	return count
}

// declarations finds init functions and package variables that could change.
func (s source) declarations() []string {
	var found []string

	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name == "init" {
				found = append(found, s.at(d.Pos(), "func init: wiring is explicit, there is no init"))
			}
		case *ast.GenDecl:
			if d.Tok == token.VAR {
				found = append(found, s.variables(d)...)
			}
		}
	}

	return found
}

func (s source) variables(d *ast.GenDecl) []string {
	var found []string

	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || s.isSentinel(v) || isAssertion(v) || isEmbedded(d.Doc) || isEmbedded(v.Doc) {
			continue
		}

		found = append(found, s.at(v.Pos(),
			"var %s: package variables are sentinel errors (errors.New), go:embed and `var _ I = ...` only", v.Names[0].Name))
	}

	return found
}

// isSentinel: every value is a call of errors.New.
func (s source) isSentinel(v *ast.ValueSpec) bool {
	return len(v.Values) > 0 && !slices.ContainsFunc(v.Values, func(e ast.Expr) bool {
		call, ok := e.(*ast.CallExpr)
		return !ok || !s.isOf(call.Fun, "errors", "New")
	})
}

func isAssertion(v *ast.ValueSpec) bool {
	return !slices.ContainsFunc(v.Names, func(n *ast.Ident) bool { return n.Name != "_" })
}

func isEmbedded(doc *ast.CommentGroup) bool {
	return doc != nil &&
		slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// exits finds what ends the process outside of package main.
func (s source) exits() []string {
	if s.file.Name.Name == "main" {
		return nil
	}

	var found []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if s.isOf(e, "os", "Exit") || s.isOf(e, "syscall", "Exit") || s.isOf(e, "log", "Fatal", "Fatalf", "Fatalln") {
				found = append(found, s.at(e.Pos(), "ends the process: only package main may"))
			}
		}

		return true
	})

	return found
}

// sharedWithOracle finds what the simulated node takes of internal/mig beyond names and tables: it
// is the oracle of the algorithms there and must not share them.
func (s source) sharedWithOracle() []string {
	if path.Dir(s.name) != "internal/sim" {
		return nil
	}

	var found []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		e, ok := n.(*ast.SelectorExpr)
		if ok && s.isOf(e, module+"internal/mig", e.Sel.Name) &&
			!slices.Contains([]string{"Model", "Models", "FindModel", "Name", "ParseName"}, e.Sel.Name) {
			found = append(found,
				s.at(e.Pos(), "mig.%s: the simulated node takes names and tables of internal/mig, no algorithm", e.Sel.Name))
		}

		return true
	})

	return found
}

// callsPastInterceptor finds what could call NVML without its Interceptor: an implementation of the
// seam beside the real driver and the simulated one, and what takes the driver's handle out of one
// that passes its calls on.
func (s source) callsPastInterceptor() []string {
	const seam = "internal/nvmlsource/driver"
	if strings.HasPrefix(s.name, seam) || s.name == "internal/nvmlsource/intercept.go" {
		return nil
	}

	var found []string

	implements := strings.HasPrefix(s.name, "internal/nvmlsource/binding") ||
		path.Dir(s.name) == "internal/sim/simnvml"

	// Every implementation has one of these: they return handles.
	handles := []string{
		"DeviceGetHandleByIndex", "EventSetCreate", "GpmSampleAlloc",
		"GetMigDeviceHandleByIndex", "GetGpuInstances", "GetComputeInstances",
	}

	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil && !implements && slices.Contains(handles, n.Name.Name) {
				found = append(found, s.at(n.Pos(),
					"%s: a second driver: be an Interceptor of nvmlsource instead", n.Name.Name))
			}
		case *ast.SelectorExpr:
			if n.Sel.Name == "raw" && path.Dir(s.name) == "internal/nvmlsource" {
				found = append(found, s.at(n.Pos(), "raw: a call of the driver past its interceptor"))
			}
		}

		return true
	})

	return found
}

// isOf reports whether an expression names something of an imported package, under whatever name
// that is imported.
func (s source) isOf(e ast.Expr, importPath string, names ...string) bool {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, selector.Sel.Name) {
		return false
	}

	x, ok := selector.X.(*ast.Ident)

	return ok && slices.ContainsFunc(s.file.Imports, func(spec *ast.ImportSpec) bool {
		local := path.Base(importPath)
		if spec.Name != nil {
			local = spec.Name.Name
		}

		p, err := strconv.Unquote(spec.Path.Value)

		return err == nil && p == importPath && local == x.Name
	})
}
