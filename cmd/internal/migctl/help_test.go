package migctl

import (
	"bytes"
	"cmp"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// mainVariable makes the test binary run migctl: kingpin writes its scripts, hints and man page to
// the real standard output.
const mainVariable = "MIGCTL_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		os.Exit(Run(os.Args[1:]))
	}

	os.Exit(m.Run())
}

// runProgram runs a program with variables that make the test binary, $MIGCTL, migctl for a server
// at address. It returns what the program writes to standard output; nothing may be on standard
// error.
func runProgram(t *testing.T, address, name string, args ...string) string {
	t.Helper()

	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	command := exec.CommandContext(t.Context(), cmp.Or(name, binary), args...)
	command.Env = append(os.Environ(), mainVariable+"=1", "MIGCTL="+binary, "MIGCTL_ADDRESS="+address)
	var errOut bytes.Buffer
	command.Stderr = &errOut

	out, err := command.Output()
	if err != nil || errOut.Len() > 0 {
		t.Errorf("%s %v: %v: %s", name, args, err, errOut.String())
	}

	return string(out)
}

func TestHelpAndManPage(t *testing.T) {
	help := runner{}.run(t, defaultAddress, "--help")
	if help.code != exitOK || strings.Count(help.out, "usage: migctl") != 1 {
		t.Errorf("help: %+v", help)
	}

	man := runProgram(t, defaultAddress, "", "--help-man")
	if head, _, _ := strings.Cut(man, "\n.SH"); head != `.TH migctl 1  ""` {
		t.Errorf("the man page begins with %s", head)
	}

	model := newApp(&options{}).Model()
	for _, c := range model.Commands {
		if c.Name != "help" {
			cmptest.HasTexts(t, help.out, c.Name)
			cmptest.HasTexts(t, man, "\n.SS\n\\fB"+c.Name)
		}
	}

	facts := []string{"0 done", "1 refused", "2 the command line", "3 the server", "4 degraded or stuck",
		"5 the layout is neither"}

	for _, f := range model.Flags {
		if f.Envar != "" {
			facts = append(facts, f.Envar)
		}
	}

	cmptest.HasTexts(t, flat(help.out), facts...)
	cmptest.HasTexts(t, man, facts...)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"--color=never"}, {"gett"}, {"get", "--none"}, {"get", "-o", "xml"},
		{"mode", "up", "0"}, {"mode", "on"}, {"rollback"}, {"accept"}, {"settled"}, {"confirm-free"}, {"man"}, {"restore", "--forgett"},
		{"get", "--timeout=soon"}} {
		got := runner{}.run(t, defaultAddress, args...)
		if got.code != exitUsage || !strings.Contains(got.err, "migctl: ") {
			t.Errorf("%v: %+v", args, got)
		}
	}

	for _, value := range []string{"30", "0s", "-1s", "soon"} {
		got := runner{}.run(t, defaultAddress, "get", "--timeout="+value)
		cmptest.HasTexts(t, flat(got.err),
			`--timeout (or MIGCTL_TIMEOUT) is "`+value+`"; expected a duration with its unit, such as 30s`)
	}

	for args, want := range map[string]string{
		"get -o nme":  `--output is "nme"; expected table, wide, name, json or yaml`,
		"mode up 0":   `the state is "up"; expected on or off`,
		"--color=foo": `--color (or MIGCTL_COLOR) is "foo"; expected auto, always or never`,
		"fleet --prometheus.url=http://h --max-stretch=x": `--max-stretch is "x"; expected a number`,
	} {
		cmptest.HasTexts(t, flat(runner{}.run(t, defaultAddress, strings.Fields(args)...).err), want)
	}

	if got := (runner{}).run(t, defaultAddress, "--version"); got.code != exitOK ||
		!strings.HasPrefix(got.out, "migctl, version") {
		t.Errorf("--version: %+v", got)
	}
}

// The lines are completed by bash, with the script that migctl prints.
func TestCompletion(t *testing.T) {
	routes := applied()
	routes["GET /node"] = file(t, "node-rtxpro.json")
	routes["GET /layouts"] = raw(`{"apiVersion":"mig-exporter/v1","layouts":[{"name":"all-balanced"},{"name":"all-disabled"}]}`)
	_, address := serve(t, routes)

	zsh := runProgram(t, address, "", "--completion-script-zsh")
	if !strings.HasPrefix(zsh, "#compdef migctl\n") {
		t.Errorf("zsh: %s", zsh)
	}

	cmptest.HasTexts(t, runProgram(t, address, "", "--completion-script-fish"), "complete --command migctl ")

	script := runProgram(t, address, "", "--completion-script-bash") + `
migctl() { "$MIGCTL" "$@"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_migctl_bash_autocomplete
printf '%s ' "${COMPREPLY[@]}"`
	for _, c := range []struct {
		words string // the last is completed
		want  string
	}{
		{"ge", "get"},
		{"o", "operations"},
		{"--col", "--color"},
		{"--color al", "always"},
		{"get --output w", "wide"},
		{"get -o w", "wide"},
		{"get -o ", "table wide name json yaml"},
		{"get --output = j", "json"},
		{"get --output ", "table wide name json yaml"},
		{"get --output =", "table wide name json yaml"},
		{"plan --output t", "text"},
		{"apply --y", "--yes"},
		{"plan --y", ""},
		{"get ", "0 1 GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a000 GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a001"},
		{"--address unix:///none get ", ""},
		{"mode o", "on off"},
		{"mode on 1", "1"},
		{"plan --gpus a", "all"},
		{"plan --gpus GPU", "GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a000 GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a001"},
		{"conf", "confirm-free"},
		// the shell shows it once
		{"confirm-free MIG-9d1a0002", "MIG-9d1a0002-6a0b-5c1d-8e2f-3a4b5c6d7e8f MIG-9d1a0002-6a0b-5c1d-8e2f-3a4b5c6d7e8f"},
		{"confirm-free 0 1", "1"},
		{"confirm-free --y", "--yes"},
		{"plan --devices 2", "2g.48gb=1"},
		{"plan --layout all-b", "all-balanced"},
		{"plan --force MIG-9d1a0002", "MIG-9d1a0002-6a0b-5c1d-8e2f-3a4b5c6d7e8f"},
		{"rollback op", "op-20260304-1 op-20260304-1"},
		{"rollback op-20260304-1 ", ""},
		{"rollback --a", "--address"},
		{"acc", "accept"}, {"restore --f", "--forget"},
		{"accept op", "op-20260304-1 op-20260304-1"},
		{"settled op", "op-20260304-1 op-20260304-1"},
		{"operations op", "op-20260304-1 op-20260304-1"},
		{"accept op-20260304-1 --y", "--yes"},
		{"rec", "recommend"},
		{"to", "top"},
		{"top --o", "--once --output"},
		{"top --output ", "text json"},
		{"recommend --output s", "spec"},
		{"recommend --explain GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a001", "GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a001"},
		{"none x", ""},
		{"--ca-file ", ""}, // files, by the shell itself
		{"get --token-file ", ""},
		{"plan -f ", ""},
	} {
		words := append([]string{"-c", script, "bash", "migctl"}, strings.Split(c.words, " ")...)
		cmptest.Equal(t, c.words, flat(runProgram(t, address, "bash", words...)), c.want)
	}

	cmptest.Equal(t, "without a server", runProgram(t, "unix:///none", "", "--completion-bash", "get", ""), "")
}

// The lines are completed by fish, with the script that migctl prints.
func TestCompletionInFish(t *testing.T) {
	if _, err := exec.LookPath("fish"); err != nil {
		t.Skipf("NOT TESTED: completion in fish: %v", err)
	}

	const none = "unix:///none"
	script := "function migctl; $MIGCTL $argv; end\n" + runProgram(t, none, "", "--completion-script-fish")

	for words, want := range map[string]string{
		"ge":                     "get",
		"get -o j":               "json",
		"get --output=j":         "--output=json",
		"--ca-file ./help_tes":   "./help_test.go",
		"--ca-file=./help_tes":   "--ca-file=./help_test.go",
		"plan -f ./help_tes":     "./help_test.go",
		"plan --demand=memory=1": "",
	} {
		got := runProgram(t, none, "fish", "--no-config", "-c", script+"\ncomplete -C 'migctl "+words+"'")
		cmptest.Equal(t, words, flat(got), want)
	}
}

// Lines are completed in zsh the first time, too, when it reads the file that a package installs.
// The functions stand for zsh's own, which work in its line editor alone.
func TestCompletionInZsh(t *testing.T) {
	if _, err := exec.LookPath("zsh"); err != nil {
		t.Skipf("NOT TESTED: completion in zsh: %v", err)
	}

	const (
		none   = "unix:///none"
		script = `
migctl() { $MIGCTL "$@" }
compadd() { for m in ${(P)2}; do [[ $m == $PREFIX* ]] && print -r -- $m && compstate[nmatches]=1; done }
compset() { PREFIX=${PREFIX#*=} }
_files() { print -r -- "files $PREFIX" }
typeset -A compstate=(nmatches 0)
fpath=($1) && shift && autoload -U _migctl
words=("$@") CURRENT=$# PREFIX=$words[-1]
_migctl`
	)

	folder := t.TempDir()
	file := runProgram(t, none, "", "--completion-script-zsh")

	if err := os.WriteFile(filepath.Join(folder, "_migctl"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}

	for words, want := range map[string]string{
		"ge":                "get",
		"get -o j":          "json",
		"get --output=j":    "json",
		"get --output=":     "table wide name json yaml",
		"get --outp":        "--output",
		"--ca-file ./a":     "files ./a",
		"--ca-file=./a":     "files ./a",
		"plan -f ":          "files",
		"get --none":        "",
		"--color=never m":   "mode",
		"top --url http:/x": "files http:/x",
	} {
		args := append([]string{"-f", "-c", script, "zsh", folder, "migctl"}, strings.Split(words, " ")...)
		cmptest.Equal(t, words, flat(runProgram(t, none, "zsh", args...)), want)
	}
}

func TestPlaceholdersOfTheServerAreQuiet(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": raw(`{"apiVersion":"mig-exporter/v1","gpus":[{"index":0}]}`)})

	got := runner{}.run(t, address, "get")
	if got.code != exitOK || !strings.Contains(got.out, "GPU 0") {
		t.Errorf("a GPU of which nothing is known: %+v", got)
	}

	fits(t, got.out)
}
