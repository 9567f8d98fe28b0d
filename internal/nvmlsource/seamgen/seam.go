package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// seamTypes is what driver.go declares: interfaces by name, and the names of all its types.
type seamTypes struct {
	interfaces map[string]*ast.InterfaceType
	types      map[string]bool
}

// method is one method of an interface of the seam. Its last result is the return code.
type method struct {
	name    string
	params  []variable
	results []variable // without the return code
	handles bool       // a parameter or a result is an interface of the seam
}

// variable is a parameter or a result. If driver.go gives it no name, seamgen does.
type variable struct{ name, typ string }

func parseSeam(path string) (*seamTypes, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}

	s := &seamTypes{interfaces: map[string]*ast.InterfaceType{}, types: map[string]bool{}}
	ast.Inspect(file, func(n ast.Node) bool {
		if t, ok := n.(*ast.TypeSpec); ok {
			s.types[t.Name.Name] = true
			if i, ok := t.Type.(*ast.InterfaceType); ok {
				s.interfaces[t.Name.Name] = i
			}
		}

		return true
	})

	return s, nil
}

// methods returns the methods of an interface in the order of driver.go, with those of an embedded Entity; other
// embedded interfaces have receivers of their own. Types of the seam are qualified by its package.
func (s *seamTypes) methods(name string) ([]method, error) {
	i := s.interfaces[name]
	if i == nil {
		return nil, fmt.Errorf("driver.go has no interface %s", name)
	}

	var list []method

	for _, field := range i.Methods.List {
		f, isMethod := field.Type.(*ast.FuncType)
		if !isMethod {
			if embedded, ok := field.Type.(*ast.Ident); ok && embedded.Name == "Entity" {
				inherited, err := s.methods(embedded.Name)
				if err != nil {
					return nil, err
				}

				list = append(list, inherited...)
			}

			continue
		}

		m := method{name: field.Names[0].Name, params: s.variables(f.Params, "a")}
		if f.Results != nil {
			m.results = s.variables(f.Results, "v")
		}

		last := len(m.results) - 1
		if last < 0 || m.results[last].typ != "nvml.Return" {
			return nil, fmt.Errorf("%s.%s: the last result is no nvml.Return", name, m.name)
		}

		m.handles = s.hasHandles(f)
		m.results = m.results[:last]
		list = append(list, m)
	}

	return list, nil
}

func (s *seamTypes) hasHandles(f *ast.FuncType) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && s.interfaces[id.Name] != nil {
			found = true
		}

		return true
	})

	return found
}

// variables flattens a list of fields; those without a name are named by a prefix and their number.
func (s *seamTypes) variables(fields *ast.FieldList, prefix string) []variable {
	var list []variable

	for _, field := range fields.List {
		typ := s.typeText(field.Type)
		if len(field.Names) == 0 {
			list = append(list, variable{fmt.Sprintf("%s%d", prefix, len(list)), typ})
		}

		for _, n := range field.Names {
			list = append(list, variable{n.Name, typ})
		}
	}

	return list
}

// typeText returns a type as Go code, in which types of the seam are qualified by its package.
func (s *seamTypes) typeText(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.Ident:
		if s.types[t.Name] {
			return "nvmlsource." + t.Name
		}
	case *ast.ArrayType:
		if t.Len == nil {
			return "[]" + s.typeText(t.Elt)
		}
	}

	var out bytes.Buffer
	if err := printer.Fprint(&out, token.NewFileSet(), e); err != nil {
		return err.Error() // no Go, which the formatting of the file reports
	}

	return out.String()
}

// nvmlName returns the function of NVML that a method stands for, without its version.
func nvmlName(iface, method string) string {
	switch {
	case iface == "Library" || strings.HasPrefix(method, "Gpm"):
		return "nvml" + method
	case iface == "GPUInstance" || iface == "MutableInstance":
		return "nvmlGpuInstance" + method
	case iface == "EventSet":
		return "nvmlEventSet" + method
	case iface == "GPMSample":
		return "nvmlGpmSample" + method
	case iface == "ComputeInstance":
		return "nvmlComputeInstance" + method
	}

	return "nvmlDevice" + method
}

// newestVersion returns the newest version of a function that go-nvml calls if the library has it (its
// updateVersionedSymbols).
func newestVersion(function string) int {
	switch function {
	case "nvmlDeviceGetCount", "nvmlDeviceGetAttributes":
		return 2
	case "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses",
		"nvmlDeviceGetMPSComputeRunningProcesses":
		return 3
	}

	return 1
}

// handwritten returns the methods that a folder declares outside of generated files, as Type.Method; if tests, also
// those of test files.
func handwritten(dir string, tests bool) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	found := map[string]bool{}

	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") ||
			strings.HasSuffix(e.Name(), "_test.go") && !tests {
			continue
		}

		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil,
			parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}

		if ast.IsGenerated(file) {
			continue
		}

		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				found[receiverType(f)+"."+f.Name.Name] = true
			}
		}
	}

	return found, nil
}

func receiverType(f *ast.FuncDecl) string {
	t := f.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}

	if id, ok := t.(*ast.Ident); ok {
		return id.Name
	}

	return ""
}

// joined returns a part of each variable, separated by commas.
func joined(list []variable, part func(variable) string) string {
	texts := make([]string, 0, len(list))
	for _, v := range list {
		texts = append(texts, part(v))
	}

	return strings.Join(texts, ", ")
}

func names(list []variable) string {
	return joined(list, func(v variable) string { return v.name })
}

func declared(list []variable) string {
	return joined(list, func(v variable) string { return v.name + " " + v.typ })
}

// signature returns the method's signature, with all results named; the return code is ret.
func (m method) signature() string {
	return fmt.Sprintf("%s(%s) (%s)", m.name, declared(m.params),
		declared(slices.Concat(m.results, []variable{{"ret", "nvml.Return"}})))
}
