package contract

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/sim/clibrary"
	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

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

// functions lists those of dcgm_agent.h.
func functions(t *testing.T) []clibrary.Function {
	t.Helper()

	list, err := clibrary.Functions(read(t, filepath.Join(headers(t), "dcgm_agent.h")))
	if err != nil {
		t.Fatal(err)
	}

	if len(list) < 90 {
		t.Fatalf("only %d functions found in the header", len(list))
	}

	return list
}

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	for name, want := range clibrary.Generate("dcgm_agent.h", functions(t)) {
		if read(t, "../"+name) != want {
			t.Errorf("%s is not what dcgm_agent.h says; run: go generate ./cmd/dcgm-sim", name)
		}
	}
}

// TestStructs compares every struct of abi.h with DCGM's: size, version, and offset and size of
// every field; and the size of every parameter with its kind.
func TestStructs(t *testing.T) {
	abi := read(t, "../abi.h")
	var code strings.Builder
	fmt.Fprintf(&code, "#include <stddef.h>\n#include \"dcgm_agent.h\"\n#include \"dcgm_structs.h\"\n#include \"abi.h\"\n")

	structs := regexp.MustCompile(`(?s)typedef struct \{(.*?)\n\} sim_(\w+);`).FindAllStringSubmatch(abi, -1)
	if len(structs) < 15 {
		t.Fatalf("%d structs found", len(structs))
	}

	for _, s := range structs {
		name := s[2]
		fmt.Fprintf(&code, "_Static_assert(sizeof(sim_%s) == sizeof(%s), \"size of %s\");\n", name, name, name)

		for _, line := range regexp.MustCompile(`(?m)^\t[^\t\n}].*;$|^\t\} \w+;$`).FindAllString(s[1], -1) {
			for _, part := range strings.Split(line, ",") {
				field := regexp.MustCompile(`(\w+)(?:\[\w+\])?;?$`).FindStringSubmatch(strings.TrimSpace(part))
				if field == nil {
					t.Fatalf("%s: no field in %q", name, part)
				}

				f := field[1]
				fmt.Fprintf(&code, "_Static_assert(offsetof(sim_%s, %s) == offsetof(%s, %s), \"offset of %s.%s\");\n", name, f,
					name, f, name, f)
				fmt.Fprintf(&code, "_Static_assert(sizeof(((sim_%s *)0)->%s) == sizeof(((%s *)0)->%s), \"size of %s.%s\");\n",
					name, f, name, f, name, f)
			}
		}
	}

	for _, v := range regexp.MustCompile(`#define SIM_(dcgm\w+) `).FindAllStringSubmatch(abi, -1) {
		fmt.Fprintf(&code, "_Static_assert(SIM_%s == %s, \"%s\");\n", v[1], v[1], v[1])
	}

	for own, theirs := range map[string]string{
		"SIM_MAX_DEVICES": "DCGM_MAX_NUM_DEVICES", "SIM_MAX_ENTITIES": "DCGM_GROUP_MAX_ENTITIES_V2",
		"SIM_MAX_HIERARCHY": "DCGM_MAX_HIERARCHY_INFO", "SIM_TEXT": "DCGM_MAX_STR_LENGTH",
	} {
		fmt.Fprintf(&code, "_Static_assert(%s == %s, \"%s\");\n", own, theirs, own)
	}

	size := map[clibrary.Kind]string{clibrary.Pointer: "== 8", clibrary.Long: "== 8", clibrary.Double: "== 8",
		clibrary.Word: "<= 4"}

	for _, f := range functions(t) {
		for _, p := range f.Params {
			fmt.Fprintf(&code, "_Static_assert(sizeof(%s) %s, \"%s of %s\");\n", p.Type, size[p.Kind], p.Type, f.Name)
		}
	}

	code.WriteString("int main(void) { return 0; }\n")
	compile(t, code.String(), "-I"+headers(t), "-I..")
}

// TestCodesAndBlanks compares the engine's numbers with DCGM's.
func TestCodesAndBlanks(t *testing.T) {
	var code strings.Builder
	code.WriteString("#include \"dcgm_agent.h\"\n#include \"dcgm_structs.h\"\n")

	for name, c := range map[string]hostengine.Code{
		"OK": hostengine.OK, "BADPARAM": hostengine.BadParam, "NOT_SUPPORTED": hostengine.NotSupported,
		"NO_DATA":    hostengine.NoData,
		"INIT_ERROR": hostengine.InitError, "VER_MISMATCH": hostengine.VersionMismatch,
		"NOT_CONFIGURED": hostengine.NotConfigured, "NOT_WATCHED": hostengine.NotWatched,
		"UNKNOWN_FIELD":        hostengine.UnknownField,
		"CONNECTION_NOT_VALID": hostengine.ConnectionNotValid, "MAX_LIMIT": hostengine.MaxLimit,
		"DUPLICATE_KEY": hostengine.DuplicateKey, "REQUIRES_ROOT": hostengine.RequiresRoot,
		"PROFILING_NOT_SUPPORTED": hostengine.ProfilingNotSupported, "NVML_ERROR": hostengine.NVMLError,
	} {
		fmt.Fprintf(&code, "_Static_assert(DCGM_ST_%s == %d, \"%s\");\n", name, int(c), name)
	}

	fmt.Fprintf(&code, "_Static_assert(DCGM_INT64_BLANK == %d && DCGM_INT64_NOT_SUPPORTED == %d, \"blanks\");\n",
		int64(hostengine.IntBlank), int64(hostengine.IntNotSupported))
	fmt.Fprintf(&code,
		"_Static_assert(DCGM_FP64_BLANK == %f && DCGM_FP64_NOT_FOUND == %f && DCGM_FP64_NOT_SUPPORTED == %f, \"blanks\");\n",
		hostengine.FloatBlank, hostengine.FloatNotFound, hostengine.FloatNotSupported)
	fmt.Fprintf(&code, "_Static_assert(DCGM_FE_GPU == %d && DCGM_FE_GPU_I == %d && DCGM_FE_GPU_CI == %d, \"levels\");\n",
		hostengine.GPU, hostengine.GPUInstance, hostengine.ComputeInstance)
	code.WriteString("int main(void) { return 0; }\n")
	compile(t, code.String(), "-I"+headers(t))
}

// TestLoadedBesideNVML: both simulated libraries work in one process that sees all their symbols, a
// call that comes too early is refused, and the texts of errors are the same as the engine's in
// process.
func TestLoadedBesideNVML(t *testing.T) {
	program := compile(t, `
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(int n, char **paths)
{
	for (int i = 1; i < 3; i++)
		if (!dlopen(paths[i], RTLD_NOW | RTLD_GLOBAL)) { puts(dlerror()); return 1; }
	int (*nvml)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "nvmlInit_v2");
	int (*init)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "dcgmInit");
	int (*begin)(int, uintptr_t *) = (int (*)(int, uintptr_t *))dlsym(RTLD_DEFAULT, "dcgmStartEmbedded");
	int (*other)(uintptr_t) = (int (*)(uintptr_t))dlsym(RTLD_DEFAULT, "dcgmJobRemoveAll");
	const char *(*text)(int) = (const char *(*)(int))dlsym(RTLD_DEFAULT, "errorString");
	uintptr_t handle = 0;
	int early = begin(0, &handle);
	int first = nvml(), second = init(), third = begin(0, &handle), null = begin(0, 0);
	printf("%d %d %d %d %d %d %d\n", early, first, second, third, handle != 0, null, other(handle));
	for (int code = 0; code > -40; code--)
		printf("%s\n", text(code));
	return 0;
}`, "-ldl")

	folder, err := testbuild.Library(testbuild.NVML)
	if err != nil {
		t.Fatal(err)
	}

	run := exec.Command(program, filepath.Join(folder, testbuild.NVML), library())
	run.Env = append(os.Environ(), "MIG_SIM_SCENARIO="+scenarios+"a30.yaml")

	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	lines := strings.Split(string(out), "\n")
	if want := "-10 0 0 0 1 -1 -6"; lines[0] != want {
		t.Errorf("results %q, want %q", lines[0], want)
	}

	for _, c := range []hostengine.Code{
		hostengine.OK, hostengine.BadParam, hostengine.NotConfigured, hostengine.NotSupported, hostengine.InitError,
		hostengine.VersionMismatch, hostengine.NoData, hostengine.NotWatched,
		hostengine.UnknownField, hostengine.ConnectionNotValid, hostengine.MaxLimit, hostengine.DuplicateKey,
		hostengine.RequiresRoot, hostengine.ProfilingNotSupported, hostengine.NVMLError,
	} {
		if got := lines[1-int(c)]; got != c.Error() {
			t.Errorf("code %d: the library says %q, the engine %q", int(c), got, c.Error())
		}
	}
}
