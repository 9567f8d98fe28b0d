package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestManPage: the page has a summary, and each flag names its variable.
func TestManPage(t *testing.T) {
	page, _, code := runBinary(t, nil, "--help-man")
	cmptest.Equal(t, "exit code", code, exitOK)
	cmptest.HasTexts(t, page, ".SH \"NAME\"\nmig-exporter \\- export metrics of NVIDIA GPUs", ".SH \"FILES\"")

	for _, f := range allFlags() {
		if f.Envar != "" {
			cmptest.HasTexts(t, page, "($"+f.Envar+")")
		}
	}
}

// TestWhatisReadsManPages: the program that fills the database of whatis and apropos finds name and
// summary.
func TestWhatisReadsManPages(t *testing.T) {
	lexgrog, err := exec.LookPath("lexgrog")
	if err != nil {
		t.Skip("NOT TESTED: lexgrog is missing, which Debian has in man-db; TestManPage holds the form of NAME")
	}

	for program, want := range map[string]string{
		binary:       `"mig-exporter - export metrics of NVIDIA GPUs and their MIG instances to Prometheus"`,
		migctlBinary: `"migctl - show and repartition the GPUs of a node by mig-exporter"`,
	} {
		page, err := exec.Command(program, "--help-man").Output()
		if err != nil {
			t.Fatal(err)
		}

		cmd := exec.Command(lexgrog, "-")
		cmd.Stdin = strings.NewReader(string(page))

		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, %s, want %s", err, out, want)
		}
	}
}

// TestCompletion: the shells complete flags with a fixed set of values.
func TestCompletion(t *testing.T) {
	for words, want := range map[string]string{
		"--driver ":        "nvml sim",
		"--control.mode a": "plan apply", // the shell keeps apply
	} {
		out, _, code := runBinary(t, nil, append([]string{"--completion-bash"}, strings.Split(words, " ")...)...)
		cmptest.Equal(t, words+": exit code", code, exitOK)
		cmptest.HasTexts(t, strings.Join(strings.Fields(out), " "), want)
	}

	script, _, code := runBinary(t, nil, "--completion-script-fish")
	cmptest.Equal(t, "exit code", code, exitOK)
	cmptest.HasTexts(t, script, "complete --command mig-exporter ")
}
