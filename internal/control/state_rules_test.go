package control

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestStateHasOneOwner: state.go alone sees the lock, the book in it and the entries of operations.
// A function that the book or an entry is lent to calls nothing of the Engine, whose calls can
// block.
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

// TestCopiesAreApart: what was copied does not change with the operation.
func TestCopiesAreApart(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	id := e.applied(t, second(two3g)).ID

	op, p := e.findOperation(id)
	if p != nil {
		t.Fatal(p)
	}

	copied := op.copy()
	before, _ := json.Marshal(copied.record)

	op.setStep(stepRef{}, api.StepFailed, nil, nil)
	op.setGPU(gpu1, api.Degraded, nil, nil)
	op.recordHook(api.HookResult{Argv: []string{"restart"}})
	op.setPending(gpu1, &mig.Step{})

	if after, _ := json.Marshal(copied.record); string(before) != string(after) {
		t.Errorf("the copy was %s, and is %s", before, after)
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

// callsOfEngine returns where a function calls methods of e, or of its dependencies. Functions in
// it are called later.
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
