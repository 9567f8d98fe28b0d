package main

import (
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestHelpAndManPage(t *testing.T) {
	help := runner{}.run(t, defaultAddress, "--help")
	if help.code != exitOK || strings.Count(help.out, "usage: migctl") != 1 {
		t.Errorf("help: %+v", help)
	}
	man := runner{}.run(t, defaultAddress, "man")
	golden(t, "migctl.1", man.out)
	for _, c := range newApp(&options{}).Model().Commands {
		if c.Name != "help" && (!strings.Contains(help.out, c.Name) || !strings.Contains(man.out, ".SS \""+roff(c.Name))) {
			t.Errorf("%s is missing in the help or the man page", c.Name)
		}
	}
	for _, code := range []string{"0 done", "1 refused", "2 the command line", "3 the server", "4 degraded or stuck", "5 the layout is neither"} {
		if !strings.Contains(flat(help.out), code) {
			t.Errorf("the help does not tell exit code %s", code)
		}
	}
	for i, line := range strings.Split(man.out, "\n") {
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !slices.Contains([]string{"TH", "SH", "SS", "TP", "PP", "B", "I", "RS", "RE", "nf", "fi"}, strings.Trim(strings.SplitN(line, " ", 2)[0], ".")) {
			t.Errorf("line %d is an unknown request: %s", i+1, line)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"--color=never"}, {"gett"}, {"get", "--none"}, {"get", "-o", "xml"}, {"mode", "up", "0"}, {"mode", "on"}, {"rollback"}, {"accept"}, {"settled"}, {"confirm-free"}, {"completion", "csh"}, {"get", "--timeout=soon"}} {
		got := runner{}.run(t, defaultAddress, args...)
		if got.code != exitUsage || !strings.Contains(got.err, "migctl: ") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := (runner{}).run(t, defaultAddress, "--version"); got.code != exitOK || !strings.HasPrefix(got.out, "migctl, version") {
		t.Errorf("--version: %+v", got)
	}
}

func TestCompletion(t *testing.T) {
	routes := applied()
	routes["GET /node"] = file(t, "node-rtxpro.json")
	routes["GET /layouts"] = raw(`{"layouts":[{"name":"all-balanced"},{"name":"all-disabled"}]}`)
	_, address := serve(t, routes)
	for _, c := range []struct {
		words string // the last is completed
		want  string
	}{
		{"ge", "get"},
		{"o", "operations"},
		{"--col", "--color"},
		{"--color=n", "--color=never"},
		{"--color al", "always"},
		{"get -o w", "wide"},
		{"get --output=", "--output=table --output=wide --output=json --output=yaml"},
		{"plan -o t", "text"},
		{"apply --y", "--yes"},
		{"plan --y", ""},
		{"get ", "0 1 GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a000 GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a001"},
		{"mode o", "on off"},
		{"mode on 1", "1"},
		{"plan --gpus a", "all"},
		{"conf", "confirm-free"},
		{"confirm-free MIG-9d1a0002", "MIG-9d1a0002-6a0b-5c1d-8e2f-3a4b5c6d7e8f"},
		{"confirm-free 0 1", "1"},
		{"confirm-free --y", "--yes"},
		{"plan --devices 2", "2g.48gb="},
		{"plan --layout all-b", "all-balanced"},
		{"plan --force MIG-9d1a0002", "MIG-9d1a0002-6a0b-5c1d-8e2f-3a4b5c6d7e8f"},
		{"rollback op", "op-20260304-1 op-20260304-1"},
		{"rollback op-20260304-1 ", ""},
		{"rollback --a", "--address"},
		{"acc", "accept"},
		{"accept op", "op-20260304-1 op-20260304-1"},
		{"settled op", "op-20260304-1 op-20260304-1"},
		{"accept op-20260304-1 --y", "--yes"},
		{"completion b", "bash"},
		{"none x", ""},
	} {
		got := runner{}.run(t, address, append([]string{completeCommand}, strings.Split(c.words, " ")...)...)
		if have := flat(got.out); got.code != exitOK || got.err != "" || have != c.want {
			t.Errorf("%q: %q, want %q (%s)", c.words, have, c.want, got.err)
		}
	}
	if got := (runner{}).run(t, "unix:///none", completeCommand, "get", ""); got.code != exitOK || got.out != "" || got.err != "" {
		t.Errorf("without a server: %+v", got)
	}
}

// The script of bash is run by bash, with a function in place of the program that prints the words that it is asked with.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		got := runner{}.run(t, defaultAddress, "completion", shell)
		if got.code != exitOK || !strings.Contains(got.out, completeCommand) {
			t.Errorf("%s: %+v", shell, got)
		}
	}
	script := runner{}.run(t, defaultAddress, "completion", "bash").out
	for line, want := range map[string]string{
		"migctl get --output=":   "[1:get][2:--output=]|",
		"migctl plan --gpus 0 ":  "[1:plan][2:--gpus][3:0][4:]|",
		"migctl get 0000:3d:00.": "[1:get][2:0000:3d:00.]|",
	} {
		driver := script + `
migctl() { shift; local i=0 w; for w in "$@"; do i=$((i+1)); printf '[%d:%s]' "$i" "$w"; done; printf '|\n'; }
COMP_LINE=$1; COMP_POINT=${#1}; compopt() { :; }
_migctl; printf '%s' "${COMPREPLY[0]}"`
		out, err := exec.CommandContext(t.Context(), "bash", "-c", driver, "bash", line).CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%q: %q, want %q: %v", line, out, want, err)
		}
	}
}

func TestPlaceholdersOfTheServerAreQuiet(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": raw(`{"gpus":[{"index":0}]}`)})
	got := runner{}.run(t, address, "get")
	if got.code != exitOK || !strings.Contains(got.out, "GPU 0") {
		t.Errorf("a GPU of which nothing is known: %+v", got)
	}
	fits(t, got.out)
}
