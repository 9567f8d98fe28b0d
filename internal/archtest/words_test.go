package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// forbiddenWords are words and phrases that stand for others in this project, each with the better
// one. They are few, and none has another use here.
func forbiddenWords() glossary {
	word := func(pattern, better string) forbiddenWord { return forbiddenWord{regexp.MustCompile(pattern), better} }

	return glossary{
		word(`\btells whether\b`, "reports whether"),
		word(`\b[Nn]obody\b`, "the actor: no process, no client, no caller"),
		word(`\b[Ss]omebody\b`, "the actor: another client, an operator"),
		word(`\b[Ww]hoever\b`, "the actor: a caller that"),
		word(`\b[Rr]e-cuts?\b|\bcut anew\b`, "repartition, layout change"),
		word(`\b[Rr]oll-back\b`, "rollback (noun), roll back (verb)"),
		word(`\bboards?\b`, "GPU"),
		word(`\b(is|are|was|were) told\b|\bdoes not tell\b`, "reported, does not report"),
		word(`\bas (it stands|they stand)\b`, "current, as it is"),
		word(`\b[Gg]arbled\b`, "invalid"),
		word(`\b[Cc]ensus\b`, "usage"),
		word(`\b[Pp]atience\b`, "timeout"),
		word(`\b[Dd]oors?\b`, "authenticator, listener"),
	}
}

// glossary is what forbiddenWords returns.
type glossary []forbiddenWord

type forbiddenWord struct {
	pattern *regexp.Regexp
	better  string
}

// goViolations returns the forbidden words in the comments of a Go file and, if it is no test, in
// its strings that are phrases: single words can be names of others. Log messages begin in lower
// case.
func (g glossary) goViolations(t *testing.T, name string, source []byte) []string {
	files := token.NewFileSet()

	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}

	var found []string
	check := func(at token.Pos, text string) {
		found = append(found, g.wordViolations(name, files.Position(at).Line, text)...)
	}

	for _, group := range file.Comments {
		for _, comment := range group.List {
			check(comment.Pos(), comment.Text)
		}
	}

	if strings.HasSuffix(name, "_test.go") {
		return found
	}

	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && calledName(call) == "Log" {
			for i := 1; i < len(call.Args); i += 2 {
				text := literalText(call.Args[i])
				if literalText(call.Args[i-1]) == "msg" && regexp.MustCompile(`^[A-Z][a-z]`).MatchString(text) {
					found = append(found, fmt.Sprintf("%s:%d: %q: log messages begin in lower case", name,
						files.Position(call.Args[i].Pos()).Line, text))
				}
			}
		}

		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}

		text := literalText(e)
		if strings.Count(text, " ") >= 2 {
			check(e.Pos(), text)
		}

		return text == ""
	})

	return found
}

// calledName returns the name of a called function or method, without its package or receiver.
func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}

	return ""
}

// literalText returns the text of a string literal or of a sum of them, empty for any other
// expression.
func literalText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err != nil {
			return ""
		}

		return text
	case *ast.BinaryExpr:
		return literalText(e.X) + literalText(e.Y)
	}

	return ""
}

// wordViolations returns the forbidden words of a text that begins at a line of a file.
func (g glossary) wordViolations(name string, first int, text string) []string {
	var found []string

	for number, line := range strings.Split(text, "\n") {
		for _, w := range g {
			if got := w.pattern.FindString(line); got != "" {
				found = append(found, fmt.Sprintf("%s:%d: %q: say %s", name, first+number, got, w.better))
			}
		}
	}

	return found
}

// hasWords reports whether a file is of those that the glossary holds for. The history of changes
// keeps its words.
func hasWords(path string) bool {
	written := []string{".go", ".md", ".tmpl", ".html", ".js", ".c", ".sh", ".yaml", ".yml", ".tpl", ".service", ".socket"}

	return slices.Contains(written, filepath.Ext(path)) && filepath.Base(path) != "CHANGELOG.md" &&
		filepath.Base(path) != "words_test.go"
}

func TestWords(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	words := forbiddenWords()

	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."),
			path == filepath.Join(root, "bin"), path == filepath.Join(root, "dist"): // what was built
			return filepath.SkipDir
		case d.IsDir() || !hasWords(path):
			return nil
		}

		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		files++
		name, _ := filepath.Rel(root, path)

		violations := words.wordViolations
		if strings.HasSuffix(name, ".go") {
			violations = func(name string, _ int, text string) []string { return words.goViolations(t, name, []byte(text)) }
		}

		for _, violation := range violations(name, 1, string(text)) {
			t.Error(violation)
		}

		return nil
	})
	if err != nil || files < 500 {
		t.Fatalf("%d files read below %s: %v", files, root, err)
	}
}

func TestWordViolations(t *testing.T) {
	words := forbiddenWords()

	got := words.wordViolations("a.md", 1, "The roll-back of\nsomebody, on dashboards and keyboards")
	if len(got) != 2 || !strings.HasPrefix(got[1], `a.md:2: "somebody"`) {
		t.Errorf("got %q", got)
	}

	for line, want := range map[string]int{
		"// It tells whether nobody re-cuts a board.":   4,
		"/* It tells whether\nnobody re-cuts it. */":    3,
		`x := "nobody" // a user id`:                    0,
		`x := "nobody" // that nobody has`:              1,
		`url := "http://nobody"`:                        0,
		`l.Log("msg", "Cannot continue")`:               1,
		`l.Log("msg", "cannot continue", "n", "No")`:    0,
		`l.Log("msg", "GPU is gone")`:                   0,
		`l.Log("msg", "left there "+"as it stands")`:    1,
		`fmt.Errorf("read a board: %w", err)`:           1,
		`p.para("", plain, "what whoever asks for it")`: 1,
		`const x = "the board is full"`:                 1,
		`x := problem{Detail: "the board is full"}`:     1,
		"x := `line\nthe board is full`":                1,
		`x.Find("nobody")`:                              0,
	} {
		source := "package p\nfunc f() {\n" + line + "\n}\n"
		if got := words.goViolations(t, "a.go", []byte(source)); len(got) != want {
			t.Errorf("%s: got %q, want %d", line, got, want)
		}
	}

	if got := words.goViolations(t, "a_test.go", []byte("package p\nconst x = `the board is full` // a board\n")); len(got) != 1 {
		t.Errorf("of a test: got %q, want its comment alone", got)
	}
}
