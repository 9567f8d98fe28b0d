package archtest

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
)

var (
	// identifier matches a word that is written as only names in code are: `grown`, `readFast`,
	// `PlanNode`; not `GPUs` or `NVIDIA`.
	identifier = regexp.MustCompile(`^([a-z]\w*|[A-Z]\w*[a-z0-9][A-Z]\w*)$`)

	// member matches what is written as a field or method of a type: `Snapshot.Devices`; not the end
	// of a path or an address.
	member = regexp.MustCompile(`(?:^|[^\w./-])([A-Za-z]\w*)\.([A-Za-z]\w*)\b`)

	// fileName matches what looks like a member and is a file: `state.go`.
	fileName = regexp.MustCompile(`\.(go|md|sh|json|yaml|yml|csv)$`)
)

// wrongHeads finds doc comments of functions and types that begin with a name, and it is another
// one: that of what was there before. Sentences begin in upper case, and Go's names have capitals
// inside.
func (s source) wrongHeads() []string {
	var found []string

	check := func(at token.Pos, doc *ast.CommentGroup, name string) {
		words := strings.Fields(doc.Text())
		if len(words) == 0 {
			return
		}

		first := strings.TrimSuffix(strings.TrimRight(words[0], ":,."), "'s")
		if first != name && identifier.MatchString(first) {
			found = append(found, s.at(at, "the comment of %s begins with %s", name, first))
		}
	}

	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			check(d.Pos(), d.Doc, d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				t, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}

				check(t.Pos(), t.Doc, t.Name.Name)

				if !d.Lparen.IsValid() {
					check(t.Pos(), d.Doc, t.Name.Name)
				}
			}
		}
	}

	return found
}

// members has the types of one package with what can follow their names in a comment.
type members struct {
	names   map[string]map[string]bool // fields and methods by type
	embeds  map[string][]string        // types of the package whose members these have, too
	foreign map[string]bool            // what embeds or renames a type of another package: unknown
}

func newMembers() *members {
	return &members{names: map[string]map[string]bool{}, embeds: map[string][]string{}, foreign: map[string]bool{}}
}

// add adds the types and methods that a file declares.
func (m *members) add(file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil && len(d.Recv.List) == 1 {
				m.set(typeName(d.Recv.List[0].Type), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok {
					m.addType(t)
				}
			}
		}
	}
}

func (m *members) addType(t *ast.TypeSpec) {
	name := t.Name.Name
	m.set(name, "")

	var fields []*ast.Field

	switch of := t.Type.(type) {
	case *ast.StructType:
		fields = of.Fields.List
	case *ast.InterfaceType:
		fields = of.Methods.List
	default:
		m.embed(name, t.Type)
	}

	for _, field := range fields {
		for _, n := range field.Names {
			m.set(name, n.Name)
		}

		if len(field.Names) == 0 {
			m.embed(name, field.Type)
		}
	}
}

func (m *members) set(name, member string) {
	if m.names[name] == nil {
		m.names[name] = map[string]bool{}
	}

	m.names[name][member] = true
}

// embed adds an embedded type, or one by which another is declared.
func (m *members) embed(name string, t ast.Expr) {
	of := typeName(t)
	if of == "" {
		m.foreign[name] = true
		return
	}

	m.set(name, of)
	m.embeds[name] = append(m.embeds[name], of)
}

// typeName returns the name of a type of the package, behind a pointer and without parameters;
// empty for any other type.
func typeName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.Ident:
		return t.Name
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.IndexListExpr:
		return typeName(t.X)
	}

	return ""
}

// lacks reports whether a type of the package is known to have no such field or method.
func (m *members) lacks(name, member string) bool {
	has, declared := m.names[name]
	if !declared || m.foreign[name] || has[member] {
		return false
	}

	for _, embedded := range m.embeds[name] {
		if _, own := m.names[embedded]; own && !m.lacks(embedded, member) {
			return false
		}
	}

	return true
}

// goneMembers finds what comments name as a field or method of a type of their package, and is not.
func goneMembers(files []source) []string {
	packages := map[string]*members{}

	for _, s := range files {
		dir := path.Dir(s.name)
		if packages[dir] == nil {
			packages[dir] = newMembers()
		}

		packages[dir].add(s.file)
	}

	var found []string

	for _, s := range files {
		of := packages[path.Dir(s.name)]

		for _, group := range s.file.Comments {
			for _, comment := range group.List {
				for _, match := range member.FindAllStringSubmatch(comment.Text, -1) {
					if !fileName.MatchString(match[0]) && of.lacks(match[1], match[2]) {
						found = append(found, s.at(comment.Pos(), "there is no %s.%s", match[1], match[2]))
					}
				}
			}
		}
	}

	return found
}
