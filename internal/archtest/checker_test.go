package archtest

import (
	"strings"
	"testing"
)

// The checker itself must be able to fail: every rule is broken once here, and kept once.

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
		"internal/sim: must not depend on " + goNVML,
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
		{"group of sentinels", "a/a.go",
			"import \"errors\"\nvar (\n\tErrA = errors.New(\"a\")\n\terrB = errors.New(\"b\")\n)", ""},
		{"embedded", "a/a.go", "import _ \"embed\"\n//go:embed a.json\nvar table []byte", ""},
		{"embedded, in a group", "a/a.go", "import _ \"embed\"\nvar (\n\t//go:embed a.json\n\ttable []byte\n)", ""},
		{"assertion", "a/a.go", "var _ error = (*T)(nil)", ""},
		{"constant", "a/a.go", "const a = 1", ""},
		{"variable of a function", "a/a.go", "func f() { var a int; _ = a }", ""},
		{"variable of a test", "a/a_test.go", "var a = 1", ""},
		{"variable in main", "cmd/a/a.go", "var a = 1", variable},
		{"variable", "a/a.go", "var a int", variable},
		{"variable after a sentinel", "a/a.go", "import \"errors\"\nvar (\n\tErrA = errors.New(\"a\")\n\tcount int\n)",
			variable},
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
		{"oracle, algorithm", "internal/sim/a.go", "import \"" + module +
			"internal/mig\"\nfunc f() { mig.CapacityOf(nil, nil) }", "no algorithm"},
		{"others, algorithm", "internal/poll/a.go", "import \"" + module +
			"internal/mig\"\nfunc f() { mig.CapacityOf(nil, nil) }", ""},
		{"driver", "internal/nvmlsource/binding_a.go", "func (l L) EventSetCreate() {}", ""},
		{"simulated driver", "internal/sim/simnvml/a.go", "func (l L) EventSetCreate() {}", ""},
		{"second driver", "internal/capture/a.go", "func (d D) GetGpuInstances() {}", "be an Interceptor"},
		{"second driver of a test", "internal/capture/a_test.go", "func (d D) GetGpuInstances() {}", ""},
		{"call of the seam", "internal/nvmlsource/driver_a.go", "func (d D) GetName() { d.raw.GetName() }", ""},
		{"call past the interceptor", "internal/nvmlsource/read.go", "func f(d D) { d.raw.GetName() }", "past its"},
	} {
		checkFound(t, c.about, violationsOf(t, c.file, "package a\n"+c.text+"\n"), c.file+":", c.rule)
	}

	main := "package main\nimport \"os\"\nfunc main() { os.Exit(1) }\n"
	checkFound(t, "exit of main", violationsOf(t, "cmd/a/main.go", main), "", "")
}

func TestLengthRules(t *testing.T) {
	code := func(n int) string { return "package a\n" + strings.Repeat("type _ int\n", n-1) }
	body := func(n int) string { return "package a\nfunc f() {\n" + strings.Repeat("g()\n", n) + "}\n" }
	nested := func(n int) string { return "package a\nfunc f() {\nif a {\n" + strings.Repeat("g()\n", n-1) + "}\n}\n" }

	const long, longFunc = "601 lines of code: a file has at most 600", "f has 41 statements, at most 40 are allowed"
	for _, c := range []struct{ about, file, text, rule string }{
		{"600 lines", "a/a.go", code(600), ""},
		{"601 lines", "a/a.go", code(601), long},
		{"601 lines of tests", "a/a_test.go", code(601), long},
		{"blank lines and comments", "a/a.go", code(600) + strings.Repeat("\n// about\n", 99), ""},
		{"generated", "a/a.go", "// Code generated by hand. DO NOT EDIT.\n\n" + code(999), ""},
		{"function of 40 statements", "a/a.go", body(40), ""},
		{"function of 41 statements", "a/a.go", body(41), longFunc},
		{"41 statements, 40 of them in a block", "a/a.go", nested(41), longFunc},
		{"test of 60 statements", "a/a_test.go", body(60), ""},
		{"test of 61 statements", "a/a_test.go", body(61), "f has 61 statements, at most 60 are allowed"},
		{"function without a body", "a/a.go", "package a\nfunc f()\n", ""},
	} {
		checkFound(t, c.about, violationsOf(t, c.file, c.text), c.file+":", c.rule)
	}
}

func TestInterfaceRule(t *testing.T) {
	methods := func(name string, n int) string {
		return "package a\ntype " + name + " interface {\nerror\n" + strings.Repeat("F()\n", n) + "}\n"
	}

	const large = "T has 7 methods, at most 6 are allowed"
	for _, c := range []struct{ about, file, text, rule string }{
		{"6 methods and an embedded interface", "a/a.go", methods("T", 6), ""},
		{"7 methods", "a/a.go", methods("T", 7), large},
		{"7 methods in a test", "a/a_test.go", methods("T", 7), ""},
		{"7 methods in a function", "a/a.go", "package a\nfunc f() {\n" +
			strings.TrimPrefix(methods("T", 7), "package a\n") + "}\n", large},
		{"struct", "a/a.go", "package a\ntype T struct{ a, b, c, d, e, f, g int }\n", ""},
		{"seam to the driver", "internal/nvmlsource/driver_device.go", methods("Device", 44), ""},
		{"seam that became small", "internal/nvmlsource/driver_device.go", methods("Device", 6),
			"Device is small now"},
		{"same name elsewhere", "internal/poll/a.go", methods("Device", 7), "Device has 7 methods"},
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

// checkFound wants one violation, of the rule and where it is, or none if there is no rule.
func checkFound(t *testing.T, about string, found []string, place, rule string) {
	t.Helper()

	switch {
	case rule == "" && len(found) > 0:
		t.Errorf("%s: %q, want nothing", about, found)
	case rule != "" && (len(found) != 1 || !strings.HasPrefix(found[0], place) || !strings.Contains(found[0], rule)):
		t.Errorf("%s: %q, want %q of %s", about, found, rule, place)
	}
}
