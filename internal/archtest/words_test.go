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

// forbiddenWords are words and phrases that stand for others in this project, each with the better one. They are few,
// and none has another use here.
func forbiddenWords() []forbiddenWord {
	word := func(pattern, better string) forbiddenWord { return forbiddenWord{regexp.MustCompile(pattern), better} }
	return []forbiddenWord{
		word(`\btells whether\b`, "reports whether"),
		word(`\b[Nn]obody\b`, "the actor: no process, no client, no caller"),
		word(`\b[Ss]omebody\b`, "the actor: another client, an operator"),
		word(`\b[Ww]hoever\b`, "the actor: a caller that"),
		word(`\b[Rr]e-cuts?\b|\bcut anew\b`, "repartition, layout change"),
		word(`\b[Rr]oll-back\b`, "rollback (noun), roll back (verb)"),
		word(`\bboards?\b`, "GPU"),
		word(`\b(is|are|was|were) told\b|\bdoes not tell\b`, "reported, does not report"),
		word(`\bas (it stands|they stand)\b`, "current, as it is"),
	}
}

type forbiddenWord struct {
	pattern *regexp.Regexp
	better  string
}

// speakingCalls are the functions whose strings users read: logs, errors, problems, flags and HELP texts. Other strings
// can be NVIDIA's.
func speakingCalls() []string {
	return []string{"Log", "Errorf", "New", "Fail", "FailAt", "problemf", "problem", "addNote", "addWarning", "Flag", "Arg",
		"Command", "enumFlag", "durationFlag", "intFlag", "newFamily"}
}

// textViolations returns the forbidden words in the strings that a Go file passes to speakingCalls, and its log messages
// that begin with a capitalized word.
func textViolations(t *testing.T, name string, source []byte) []string {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !slices.Contains(speakingCalls(), calledName(call)) {
			return true
		}
		for i, arg := range call.Args {
			text := literalText(arg)
			at := files.Position(arg.Pos())
			for _, w := range forbiddenWords() {
				if got := w.pattern.FindString(text); got != "" {
					found = append(found, fmt.Sprintf("%s:%d: %q: say %s", name, at.Line, got, w.better))
				}
			}
			if i > 0 && calledName(call) == "Log" && literalText(call.Args[i-1]) == "msg" &&
				regexp.MustCompile(`^[A-Z][a-z]`).MatchString(text) {
				found = append(found, fmt.Sprintf("%s:%d: %q: log messages begin in lower case", name, at.Line, text))
			}
		}
		return true
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

// literalText returns the text of a string literal or of a sum of them, empty for any other expression.
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

// wordViolations returns the forbidden words of a file. Of Go only comments are read here: see textViolations.
func wordViolations(name, text string) []string {
	var found []string
	for number, line := range strings.Split(text, "\n") {
		if strings.HasSuffix(name, ".go") {
			at := commentStart(line)
			if at < 0 {
				continue
			}
			line = line[at:]
		}
		for _, w := range forbiddenWords() {
			if got := w.pattern.FindString(line); got != "" {
				found = append(found, fmt.Sprintf("%s:%d: %q: say %s", name, number+1, got, w.better))
			}
		}
	}
	return found
}

// commentStart returns where a line's comment begins, or -1. A URL in a string is no comment.
func commentStart(line string) int {
	if strings.HasPrefix(strings.TrimSpace(line), "//") {
		return strings.Index(line, "//")
	}
	return strings.Index(line, " // ")
}

// hasWords reports whether a file is of those that the glossary holds for. The history of changes keeps its words.
func hasWords(path string) bool {
	return slices.Contains([]string{".go", ".md", ".tmpl"}, filepath.Ext(path)) && filepath.Base(path) != "CHANGELOG.md" &&
		filepath.Base(path) != "words_test.go"
}

func TestWords(t *testing.T) {
	root, files := filepath.Join("..", ".."), 0
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
		violations := wordViolations(name, string(text))
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			violations = append(violations, textViolations(t, name, text)...)
		}
		for _, violation := range violations {
			t.Error(violation)
		}
		return nil
	})
	if err != nil || files < 500 {
		t.Fatalf("%d files read below %s: %v", files, root, err)
	}
}

func TestWordViolations(t *testing.T) {
	for line, want := range map[string]int{
		"// It tells whether nobody re-cuts a board.": 4,
		"x := \"nobody\" // a user id":                0,
		"x := \"nobody\" // that nobody has":          1,
		"// dashboards are keyboards":                 0,
		"url := \"http://nobody\"":                    0,
	} {
		if got := wordViolations("a.go", line); len(got) != want {
			t.Errorf("%s: got %q, want %d", line, got, want)
		}
	}
	if got := wordViolations("a.md", "The roll-back of\nsomebody"); len(got) != 2 ||
		!strings.HasPrefix(got[1], `a.md:2: "somebody"`) {
		t.Errorf("got %q", got)
	}
}

func TestTextViolations(t *testing.T) {
	for line, want := range map[string]int{
		`l.Log("msg", "Cannot continue")`:            1,
		`l.Log("msg", "cannot continue", "n", "No")`: 0,
		`l.Log("msg", "GPU is gone")`:                0,
		`l.Log("msg", "left "+"as it stands")`:       1,
		`fmt.Errorf("read a board: %w", err)`:        1,
		`x.Find("nobody")`:                           0,
	} {
		source := "package p\nfunc f() {\n" + line + "\n}\n"
		if got := textViolations(t, "a.go", []byte(source)); len(got) != want {
			t.Errorf("%s: got %q, want %d", line, got, want)
		}
	}
}
