package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// mostFlags is how many flags all commands may have together, besides --collectors, --help and
// --version. A further one has to replace another: see CONTRIBUTING.md.
const mostFlags = 60

func TestNumberOfFlags(t *testing.T) {
	var names []string

	for _, f := range allFlags() {
		if f.Name != collectorsFlag && !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
	}

	if len(names) > mostFlags {
		t.Errorf("%d flags besides --%s, want at most %d: %v", len(names), collectorsFlag, mostFlags,
			names)
	}
}

// TestCollectors: signs change the default set, names alone are the whole set.
func TestCollectors(t *testing.T) {
	on, off := collectorNames()

	for _, tt := range []struct {
		env, args string
		want      []string // the collectors that are on
	}{
		{"", "", on},
		{"", "--collectors=", on},
		{"", "--collectors=+pipes,-ecc", append(without(on, "ecc"), "pipes")},
		{"", "--collectors -ecc,+up", without(on, "ecc")},
		{"", "--collectors=memory,pipes", []string{"memory", "pipes"}},
		{"", "--collectors=" + strings.Join(off, ","), off},
		{"MIG_EXPORTER_COLLECTORS=-ecc", "", without(on, "ecc")},
		{"MIG_EXPORTER_COLLECTORS=-ecc", "--collectors=-xid", without(on, "xid")},
		// dcgm-exporter's flag of that name
		{"MIG_EXPORTER_COLLECTORS=-ecc", "--collectors=f.csv", without(on, "ecc")},
	} {
		t.Run(tt.env+tt.args, func(t *testing.T) {
			if name, value, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(name, value)
			}

			inv, err := parseCommandLine(strings.Fields(tt.args), []string{tt.env})
			if err != nil {
				t.Fatal(err)
			}

			for _, g := range collector.Groups() {
				if is := !inv.Config.Metrics.Disabled[g.Name]; is != slices.Contains(tt.want, g.Name) {
					t.Errorf("collector %s is on: %v", g.Name, is)
				}
			}
		})
	}
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

// TestBadCollectors: the error names the item, and lists the collectors.
func TestBadCollectors(t *testing.T) {
	for args, want := range map[string]string{
		"--collectors=+gpu":              `--collectors=+gpu: there is no collector "gpu"`,
		"--collectors=info,gpu":          `there is no collector "gpu"`,
		"--collectors=counters":          `there is no collector "counters"`,
		"--collectors=++ecc":             `there is no collector "++ecc"`,
		"--collectors=+":                 `there is no collector ""`,
		"--collectors=+pipes,ecc":        `"+pipes" and "ecc" do not go together: expected +NAME and -NAME`,
		"--collectors=ecc,-pipes":        `"ecc" and "-pipes" do not go together`,
		"--collectors=+ecc,-pipes,-ecc":  `"+ecc" and "-ecc" contradict each other`,
		"--collectors=+x1 --collectors=": `there is no collector "x1"`,
	} {
		_, err := parseCommandLine(strings.Fields(args), nil)
		expectError(t, args, err, want)

		if !strings.Contains(want, "contradict") {
			expectError(t, args, err, "info, up, memory")
			expectError(t, args, err, "profile_max (off by default)")
		}
	}

	t.Setenv("MIG_EXPORTER_COLLECTORS", "+gpu")

	_, err := parseCommandLine(nil, []string{"MIG_EXPORTER_COLLECTORS=+gpu"})
	expectError(t, "variable", err,
		`MIG_EXPORTER_COLLECTORS: --collectors=+gpu: there is no collector "gpu"`)
}

// TestEveryFlagHasAGroup: --help leaves none over.
func TestEveryFlagHasAGroup(t *testing.T) {
	for _, g := range usage.Arrange(allFlags(), flagGroups()) {
		if g.Title == usage.Other {
			for _, f := range g.Flags {
				t.Errorf("--%s is in no group of flagGroups", f.Name)
			}
		}
	}
}

// TestHelpIsAnAnswer: help and version are on standard output alone, with the exit code 0.
func TestHelpIsAnAnswer(t *testing.T) {
	for args, want := range map[string][]string{
		"--help": {"usage: mig-exporter", "\nGeneral:\n", "\nPartition control:\n", "--collectors=",
			"\nSimulation:\n", "\nCollectors (+ is on by default, - is off):\n  +info ", "\n  -pipes ", "check-node"},
		"capture --help": {"usage: mig-exporter capture", "\nThis command:\n", "--capture.polls"},
		"help":           {"usage: mig-exporter"},
		"--version":      {"mig-exporter, version"},
		"-v":             {"mig-exporter, version"}, // as dcgm-exporter has it
	} {
		var out, errOut strings.Builder
		command := exec.CommandContext(t.Context(), binary, strings.Fields(args)...)
		command.Stdout = &out
		command.Stderr = &errOut

		if err := command.Run(); err != nil || errOut.Len() > 0 {
			t.Errorf("%s: %v: %s", args, err, &errOut)
		}

		cmptest.HasTexts(t, out.String(), want...)
	}
}
