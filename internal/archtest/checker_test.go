package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The checker itself must be able to fail: every rule is broken once here, and kept once.

func TestImportRules(t *testing.T) {
	const internal = module + "internal/"
	for _, c := range []struct {
		file, path, rule string // no rule: allowed
	}{
		{"internal/gpu/a.go", "time", ""},
		{"internal/gpu/a.go", goKitLog, "internal/gpu may import nothing"},
		{"internal/gpu/a.go", internal + "mig", "internal/gpu may import nothing"},
		{"dashboards/a.go", "encoding/json", ""},
		{"dashboards/a.go", internal + "gpu", "dashboards may import nothing"},
		{"internal/mig/a.go", internal + "gpu", ""},
		{"internal/mig/a.go", yaml, "internal/mig may import nothing"},
		{"internal/sim/a.go", internal + "mig", ""},
		{"internal/strictyaml/a.go", yaml, ""},
		{"internal/strictyaml/a.go", "sigs.k8s.io/yaml", "internal/strictyaml may import " + yaml},
		{"internal/sim/a.go", internal + "nvmlsource", "internal/sim may import internal/gpu, internal/mig"},
		{"internal/sim/a.go", goNVML + "/pkg/nvml", "only internal/nvmlsource and internal/sim/simnvml and internal/capture may import " + goNVML},
		{"internal/sim/simnvml/a.go", goNVML + "/pkg/nvml", ""},
		{"internal/sim/simnvml/a.go", internal + "nvmlsource", ""},
		{"internal/sim/simnvml/a.go", internal + "poll", "internal/sim/simnvml may import"},
		{"internal/dcgmsource/a.go", goDCGM + "/pkg/dcgm", ""},
		{"internal/dcgmsource/a.go", internal + "nvmlsource", "internal/dcgmsource may import"},
		{"internal/sim/simdcgm/a.go", internal + "sim/hostengine", ""},
		{"internal/sim/simdcgm/a.go", goDCGM + "/pkg/dcgm", "only internal/dcgmsource may import " + goDCGM},
		{"internal/sim/hostengine/a.go", internal + "sim", ""},
		{"internal/sim/hostengine/a.go", internal + "dcgmsource", "internal/sim/hostengine may import"},
		{"internal/capture/a.go", goNVML + "/pkg/nvml", ""},
		{"internal/capture/a.go", internal + "nvmlsource", ""},
		{"internal/capture/a.go", internal + "sim", "internal/capture may import"},
		{"internal/sim/kubelet/a.go", internal + "sim", ""},
		{"internal/sim/kubelet/a.go", kubeletAPI + "/pkg/apis/podresources/v1", ""},
		{"internal/sim/kubelet/a.go", internal + "podresources", "internal/sim/kubelet may import"},
		{"collector/a.go", clientGolang + "/prometheus", ""},
		{"collector/a.go", goNVML + "/pkg/nvml", "only internal/nvmlsource"},
		{"collector/a.go", internal + "poll", "collector may import"},
		{"internal/web/a.go", common + "/expfmt", ""},
		{"internal/web/a.go", module + "collector", "internal/web may import internal/gpu"},
		{"internal/nvmlsource/a.go", goNVML + "/pkg/nvml", ""},
		{"internal/nvmlsource/a.go", internal + "sim", "internal/nvmlsource may import"},
		{"internal/poll/a.go", goKitLog + "/level", ""},
		{"internal/poll/a.go", internal + "podresources", "internal/poll may import"},
		{"internal/poll/a.go", clientGolang + "/prometheus", "internal/poll may import " + goKitLog},
		{"internal/podresources/a.go", grpc, ""},
		{"internal/podresources/a.go", internal + "poll", "internal/podresources may import"},
		{"internal/anew/a.go", internal + "mig", ""},
		{"internal/anew/a.go", internal + "sim", "internal/anew may import"},
		{"internal/anew/a.go", yaml, "internal/anew may import " + goKitLog},
		{"internal/web/a.go", kingpin, "only cmd may import " + kingpin},
		{"cmd/mig-exporter/a.go", kingpin, ""},
		{"cmd/mig-exporter/a.go", internal + "sim/simnvml", ""},
		{"cmd/mig-exporter/a.go", goNVML + "/pkg/nvml", "only internal/nvmlsource"},
		{"internal/podresources/a.go", goKitLog + "rus", "internal/podresources may import"},
	} {
		found := importViolations([]goImport{{file: c.file, line: 7, path: c.path}})
		// A direct import of go-nvml also counts as a dependency where not even that is allowed.
		found = slices.DeleteFunc(found, func(s string) bool { return strings.Contains(s, "not even through others") })
		checkFound(t, fmt.Sprintf("%s imports %s", c.file, c.path), found, c.file+":7: ", c.rule)
	}
}

func TestTransitiveImportsOfNVML(t *testing.T) {
	chain := []goImport{
		{file: "cmd/nvml-sim/main.go", line: 3, path: module + "internal/sim"},
		{file: "internal/sim/a.go", line: 3, path: module + "internal/gpu"},
		{file: "internal/sim/a.go", line: 4, path: module + "internal/mig"},
		{file: "internal/mig/a.go", line: 4, path: module + "internal/sim"}, // a circle must not hang the search
	}
	if found := importViolations(chain[:3]); len(found) > 0 {
		t.Errorf("%q, want nothing", found)
	}
	chain = append(chain, goImport{file: "internal/mig/b.go", line: 5, path: goNVML + "/pkg/nvml"})
	all := strings.Join(importViolations(chain), "\n")
	for _, want := range []string{
		"cmd/nvml-sim -> internal/sim -> internal/mig -> " + goNVML,
		"internal/sim: internal/sim must not depend on " + goNVML,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in:\n%s", want, all)
		}
	}
}

func TestSourceRules(t *testing.T) {
	const variable, exit = "package variables are", "only package main may"
	for _, c := range []struct{ about, file, text, rule string }{
		{"sentinel", "a/a.go", "import \"errors\"\nvar ErrA = errors.New(\"a\")", ""},
		{"group of sentinels", "a/a.go", "import \"errors\"\nvar (\n\tErrA = errors.New(\"a\")\n\terrB = errors.New(\"b\")\n)", ""},
		{"embedded", "a/a.go", "import _ \"embed\"\n//go:embed a.json\nvar table []byte", ""},
		{"embedded, in a group", "a/a.go", "import _ \"embed\"\nvar (\n\t//go:embed a.json\n\ttable []byte\n)", ""},
		{"assertion", "a/a.go", "var _ error = (*T)(nil)", ""},
		{"constant", "a/a.go", "const a = 1", ""},
		{"variable of a function", "a/a.go", "func f() { var a int; _ = a }", ""},
		{"variable of a test", "a/a_test.go", "var a = 1", ""},
		{"variable in main", "cmd/a/a.go", "var a = 1", variable},
		{"variable", "a/a.go", "var a int", variable},
		{"variable after a sentinel", "a/a.go", "import \"errors\"\nvar (\n\tErrA = errors.New(\"a\")\n\tcount int\n)", variable},
		{"formatted error", "a/a.go", "import \"fmt\"\nvar ErrA = fmt.Errorf(\"a\")", variable},
		{"New of another errors", "a/a.go", "import \"b/errors\"\nvar ErrA = errors.New(\"a\")", variable},
		{"init", "a/a.go", "func init() {}", "there is no init"},
		{"init of a test", "a/a_test.go", "func init() {}", ""},
		{"method named init", "a/a.go", "func (t T) init() {}", ""},
		{"exit", "a/a.go", "import \"os\"\nfunc f() { os.Exit(1) }", exit},
		{"exit by another name", "a/a.go", "import sys \"os\"\nfunc f() { sys.Exit(1) }", exit},
		{"exit as a value", "a/a.go", "import \"os\"\nfunc f() { g(os.Exit) }", exit},
		{"fatal log", "a/a.go", "import \"log\"\nfunc f() { log.Fatalf(\"a\") }", exit},
		{"another package's Exit", "a/a.go", "import \"a/os2\"\nfunc f(os T) { os.Exit(1) }", ""},
		{"exit of a test", "a/a_test.go", "import \"os\"\nfunc f() { os.Exit(1) }", ""},
		{"oracle, table", "internal/sim/a.go", "import \"" + module + "internal/mig\"\nfunc f() { mig.FindModel(\"\") }", ""},
		{"oracle, algorithm", "internal/sim/a.go", "import \"" + module + "internal/mig\"\nfunc f() { mig.CapacityOf(nil, nil) }", "no algorithm"},
		{"others, algorithm", "internal/poll/a.go", "import \"" + module + "internal/mig\"\nfunc f() { mig.CapacityOf(nil, nil) }", ""},
	} {
		checkFound(t, c.about, violationsOf(t, c.file, "package a\n"+c.text+"\n"), c.file+":", c.rule)
	}
	main := "package main\nimport \"os\"\nfunc main() { os.Exit(1) }\n"
	checkFound(t, "exit of main", violationsOf(t, "cmd/a/main.go", main), "", "")
}

func TestLengthRules(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("//\n", n) }
	body := func(n int) string { return "package a\nfunc f() {\n" + lines(n-2) + "}\n" }
	const long, longFunc = "lines: a file has at most 400, a test file 600", "f has 61 lines: a function has at most 60"
	for _, c := range []struct{ about, file, text, rule string }{
		{"400 lines", "a/a.go", "package a\n" + lines(399), ""},
		{"401 lines", "a/a.go", "package a\n" + lines(400), long},
		{"600 lines of tests", "a/a_test.go", "package a\n" + lines(599), ""},
		{"601 lines of tests", "a/a_test.go", "package a\n" + lines(600), long},
		{"generated", "a/a.go", "// Code generated by hand. DO NOT EDIT.\n\npackage a\nvar a int\n" + lines(999), ""},
		{"function of 60 lines", "a/a.go", body(60), ""},
		{"function of 61 lines", "a/a.go", body(61), longFunc},
		{"test function of 61 lines", "a/a_test.go", body(61), longFunc},
	} {
		checkFound(t, c.about, violationsOf(t, c.file, c.text), c.file+":", c.rule)
	}
}

func violationsOf(t *testing.T, name, text string) []string {
	t.Helper()
	s, err := parseSource(name, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s.violations()
}

// checkFound wants one violation, of the rule and where it is, or none where there is no rule.
func checkFound(t *testing.T, about string, found []string, place, rule string) {
	t.Helper()
	switch {
	case rule == "" && len(found) > 0:
		t.Errorf("%s: %q, want nothing", about, found)
	case rule != "" && (len(found) != 1 || !strings.HasPrefix(found[0], place) || !strings.Contains(found[0], rule)):
		t.Errorf("%s: %q, want %q of %s", about, found, rule, place)
	}
}
