package contract

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/sim/clibrary"
)

// nvmlHeader is the nvml.h of the go-nvml module.
func nvmlHeader(t *testing.T) string {
	t.Helper()

	path, err := clibrary.FindHeader("nvml.h")
	if err != nil {
		t.Fatal(err)
	}

	return path
}

func functions(t *testing.T) []clibrary.Function {
	t.Helper()

	list, err := clibrary.Functions(read(t, nvmlHeader(t)))
	if err != nil {
		t.Fatal(err)
	}

	if len(list) < 400 {
		t.Fatalf("only %d functions found in the header", len(list))
	}

	return list
}

func read(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// compile compiles a C program.
func compile(t *testing.T, code string, args ...string) (program string) {
	t.Helper()
	dir := t.TempDir()

	source := filepath.Join(dir, "test.c")
	program = filepath.Join(dir, "test")

	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}

	if out, err := exec.Command("cc", append([]string{"-o", program, source}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}

	return program
}

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	for name, want := range clibrary.Generate("nvml.h", functions(t)) {
		if read(t, "../"+name) != want {
			t.Errorf("%s is not what nvml.h says; run: go generate ./cmd/nvml-sim", name)
		}
	}
}

// Every function that the header declares is exported, and three that it does not declare. Nothing
// else is: neither helpers of the library nor Go's runtime, which another Go library of the process
// has under the same names. Nothing has to come from elsewhere but libc.
func TestSymbols(t *testing.T) {
	library, err := elf.Open(built("libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()

	symbols, err := library.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}

	exported := make(map[string]bool)

	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported[s.Name] = true
		} else if strings.HasPrefix(s.Name, "nvml") {
			t.Errorf("%s is undefined", s.Name)
		}
	}

	declared := regexp.MustCompile(`DECLDIR\s+(?:char\s*\*\s*)?(nvml\w+)\s*\(`).
		FindAllStringSubmatch(read(t, nvmlHeader(t)), -1)
	if len(declared) != len(functions(t))+1 { // nvmlErrorString returns a text
		t.Errorf("%d declarations, %d functions", len(declared), len(functions(t)))
	}

	expected := []string{"nvmlInternalGetExportTable", "nvmlGetBlacklistDeviceCount", "nvmlGetBlacklistDeviceInfoByIndex"}
	for _, d := range declared {
		expected = append(expected, d[1])
	}

	for _, name := range expected {
		if !exported[name] {
			t.Errorf("%s is missing", name)
		}

		delete(exported, name)
	}

	if len(exported) > 0 {
		t.Errorf("exports %v", sorted(exported))
	}

	libraries, err := library.ImportedLibraries()
	if err != nil || slices.ContainsFunc(libraries, func(name string) bool {
		return !strings.HasPrefix(name, "lib") || name != "libc.so.6" && name != "libpthread.so.0"
	}) {
		t.Errorf("needs %v, %v", libraries, err)
	}

	names, err := library.DynString(elf.DT_SONAME)
	if err != nil || !slices.Equal(names, []string{"libnvidia-ml.so.1"}) {
		t.Errorf("SONAME %v, %v", names, err)
	}
}

// Sizes, offsets and values of abi.h are those of nvml.h, checked by the compiler.
func TestABI(t *testing.T) {
	abi := read(t, "../abi.h")
	var code strings.Builder
	code.WriteString("#include <stddef.h>\n#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include \"nvml.h\"\n#include " +
		"\"abi.h\"\n")
	check := func(format string, args ...any) { fmt.Fprintf(&code, "_Static_assert("+format+", \"\");\n", args...) }

	structs := regexp.MustCompile(`(?s)typedef struct \{(.*?)\} sim_(\w+);`).FindAllStringSubmatch(abi, -1)
	for _, s := range structs {
		check("sizeof(sim_%s) == sizeof(%s)", s[2], s[2])

		body := regexp.MustCompile(`/\*.*?\*/`).ReplaceAllString(s[1], "")
		for _, field := range regexp.MustCompile(`(\w+)(?:\[\d+\])?\s*[,;]`).FindAllStringSubmatch(body, -1) {
			check("offsetof(sim_%s, %s) == offsetof(%s, %s)", s[2], field[1], s[2], field[1])
			check("sizeof(((sim_%s *)0)->%s) == sizeof(((%s *)0)->%s)", s[2], field[1], s[2], field[1])
		}
	}

	values := regexp.MustCompile(`(?m)^(?:\t|#define )SIM_(nvml\w+|NVML_\w+)\b`).FindAllStringSubmatch(abi, -1)
	for _, v := range values {
		check("(unsigned long long)SIM_%s == (unsigned long long)%s", v[1], v[1])
	}

	if len(structs) < 25 || len(values) < 60 {
		t.Fatalf("only %d structs and %d values found in abi.h", len(structs), len(values))
	}

	for _, f := range functions(t) {
		for _, p := range f.Params {
			check("sizeof(%s) == %d", p.Type,
				map[clibrary.Kind]int{clibrary.Pointer: 8, clibrary.Long: 8, clibrary.Word: 4}[p.Kind])
		}
	}

	code.WriteString("int main(void) { return 0; }\n")
	compile(t, code.String(), "-Wno-deprecated-declarations", "-I", filepath.Dir(nvmlHeader(t)), "-I", "..")
}

// A client in C that binds every symbol when it loads the library.
func TestLoadsWithEverySymbolBound(t *testing.T) {
	program := compile(t, `
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		puts(dlerror());
		return 1;
	}
	int (*init)(void) = dlsym(library, "nvmlInit_v2");
	int (*fan)(void *, unsigned *) = dlsym(library, "nvmlDeviceGetFanSpeedRPM");
	int (*count)(unsigned *) = dlsym(library, "nvmlDeviceGetCount_v2");
	const char *(*text)(int) = dlsym(library, "nvmlErrorString");
	unsigned number = 0;
	int early = count(&number), first = init(), again = init(), null = count(0), counted = count(&number);
	printf("%d %d %d %d %d %u %d %s %s\n", early, first, again, null, counted, number, fan(0, &number), text(23), text(12345));
	return 0;
}`, "-ldl")
	for _, c := range []struct {
		scenario, want, says string
	}{
		{"", "1 9 9 1 1 0 1 Insufficient Resources Unknown Error\n", "MIG_SIM_SCENARIO is not set"},
		{"/no/such.yaml", "1 9 9 1 1 0 1 Insufficient Resources Unknown Error\n", "/no/such.yaml"},
		{scenarios + "dgx-a100-mixed.yaml", "1 0 0 2 0 8 3 Insufficient Resources Unknown Error\n", ""},
	} {
		cmd := exec.Command(program, built("libnvidia-ml.so.1"))
		var stderr strings.Builder
		cmd.Stderr, cmd.Env = &stderr, append(os.Environ(), "MIG_SIM_SCENARIO="+c.scenario)

		out, err := cmd.Output()
		if err != nil || string(out) != c.want {
			t.Errorf("scenario %q: %v, output %q, want %q", c.scenario, err, out, c.want)
		}

		if strings.Count(stderr.String(), c.says) != 1 && c.says != "" || c.says == "" && stderr.Len() > 0 {
			t.Errorf("scenario %q: says %q, want once %q", c.scenario, stderr.String(), c.says)
		}
	}
}
