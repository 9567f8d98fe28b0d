package control

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestStateHasOneOwner: state.go alone sees the lock, the book in it and the entries of operations. A function that the
// book or an entry is lent to calls nothing of the Engine, whose calls can block.
func TestStateHasOneOwner(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}

	lent := 0

	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}

		fset := token.NewFileSet()

		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}

		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && name != "state.go" &&
				slices.Contains([]string{"lock", "book", "entry"}, s.Sel.Name) {
				t.Errorf("%s: .%s outside of state.go", fset.Position(s.Pos()), s.Sel.Name)
			}

			if f, ok := n.(*ast.FuncLit); ok && isLent(f.Type) {
				lent++

				for _, at := range callsOfEngine(f.Body) {
					t.Errorf("%s: a call of the Engine, while the state is locked", fset.Position(at))
				}
			}

			return true
		})
	}

	if lent < 20 {
		t.Errorf("%d functions that use the state: has it other types now?", lent)
	}
}

// isLent reports whether a function is given the book or an entry.
func isLent(f *ast.FuncType) bool {
	return slices.ContainsFunc(f.Params.List, func(p *ast.Field) bool {
		star, ok := p.Type.(*ast.StarExpr)
		if !ok {
			return false
		}

		of, ok := star.X.(*ast.Ident)

		return ok && (of.Name == "book" || of.Name == "entry")
	})
}

// callsOfEngine returns where a function calls methods of e, or of its dependencies. Functions in it are called later.
func callsOfEngine(body ast.Node) []token.Pos {
	var calls []token.Pos

	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.FuncLit); ok {
			return false
		}

		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}

		called := call.Fun
		for {
			s, ok := called.(*ast.SelectorExpr)
			if !ok {
				break
			}

			called = s.X
		}

		if root, ok := called.(*ast.Ident); ok && root.Name == "e" && root != call.Fun {
			calls = append(calls, call.Pos())
		}

		return true
	})

	return calls
}
