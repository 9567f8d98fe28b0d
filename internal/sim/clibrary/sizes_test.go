package clibrary

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestStructSizes holds the size of every struct of go-nvml against the header's, as the C compiler
// lays it out. The driver writes into them by the header, and refuses one whose version, of which
// the size is a part, is not the header's.
func TestStructSizes(t *testing.T) {
	header, err := FindHeader("nvml.h")
	if err != nil {
		t.Fatal(err)
	}

	sizes := structsOfGo(t, filepath.Dir(header))
	if len(sizes) < 200 {
		t.Fatalf("%d structs: expected all of go-nvml", len(sizes))
	}

	var code strings.Builder
	fmt.Fprintf(&code, "#include <stdio.h>\n#include %q\nint main(void) {\n", header)

	for name := range sizes {
		fmt.Fprintf(&code, "printf(\"%s %%zu\\n\", sizeof(%s));\n", name, nameInHeader(name))
	}

	code.WriteString("return 0;\n}\n")

	out, err := exec.Command(compile(t, code.String())).Output()
	if err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(sizes) {
		t.Fatalf("%d sizes of %d structs", len(lines), len(sizes))
	}

	for _, line := range lines {
		var name string

		var want int64
		if _, err := fmt.Sscan(line, &name, &want); err != nil {
			t.Fatalf("%q: %v", line, err)
		}

		if sizes[name] != want {
			t.Errorf("%s: %d bytes, but %s has %d in the header", name, sizes[name], nameInHeader(name), want)
		}
	}
}

// compile compiles a C program and returns its path.
func compile(t *testing.T, code string) string {
	t.Helper()
	dir := t.TempDir()

	source := filepath.Join(dir, "sizes.c")
	program := filepath.Join(dir, "sizes")

	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}

	if out, err := exec.Command("cc", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}

	return program
}

// nameInHeader returns the name in C of a struct of go-nvml.
func nameInHeader(name string) string {
	if name == "nvmlGpmMetricsGetType" {
		return "nvmlGpmMetricsGet_t"
	}

	return "nvml" + strings.TrimPrefix(name, "nvml") + "_t"
}

// structsOfGo returns the sizes of the structs that go-nvml has generated, by their names.
func structsOfGo(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := token.NewFileSet()
	var parsed []*ast.File

	for _, name := range []string{"types_gen.go", "const.go"} {
		file, err := parser.ParseFile(files, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}

		parsed = append(parsed, file)
	}

	// Of C's own types, behind pointers, we do not know what they are: only that is left out.
	config := types.Config{FakeImportC: true, Importer: importer.Default(), Error: func(err error) {
		if !strings.Contains(err.Error(), "undefined: _Ctype_struct_") {
			t.Errorf("go-nvml: %v", err)
		}
	}}
	checked, _ := config.Check("nvml", files, parsed, nil) // its errors came one by one

	sizes := map[string]int64{}
	layout := types.SizesFor("gc", runtime.GOARCH)

	for _, name := range checked.Scope().Names() {
		object, ok := checked.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}

		if _, ok := object.Type().Underlying().(*types.Struct); ok {
			sizes[name] = layout.Sizeof(object.Type())
		}
	}

	return sizes
}
