package migctl

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// mostFlags is how many flags migctl may have, those of all commands together, each name once and
// without --help.
const mostFlags = 35

func flagsOfAllCommands() []*kingpin.FlagModel {
	model := newApp(&options{}).Model()
	flags := slices.Clone(model.Flags)

	for _, c := range model.Commands {
		flags = append(flags, c.Flags...)
	}

	return flags
}

func TestNumberOfFlags(t *testing.T) {
	names := []string{"version"} // of the session

	for _, f := range flagsOfAllCommands() {
		if !f.Hidden && f.Name != "help" && !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
	}

	if len(names) > mostFlags {
		t.Errorf("%d flags, want at most %d: %v", len(names), mostFlags, names)
	}
}

// TestEveryFlagHasAGroup: --help leaves none over.
func TestEveryFlagHasAGroup(t *testing.T) {
	for _, g := range usage.Arrange(flagsOfAllCommands(), new(options).flagGroups()) {
		if g.Title == usage.Other {
			for _, f := range g.Flags {
				t.Errorf("--%s is in no group of flagGroups", f.Name)
			}
		}
	}
}

// TestGoneFlags: a flag of an earlier version ends the program with code 2 and what became of it.
func TestGoneFlags(t *testing.T) {
	says := map[string]string{
		"rollback --abandon op-1": "--abandon is gone: use migctl accept OPERATION",
		"fleet --headroom=0.2": "--headroom is gone: leave it out: a slice has 0.15 of the " +
			"highest memory use free",
		"fleet --prometheus.timeout 5m --prometheus.url=http://h": "--prometheus.timeout is gone: " +
			"use --timeout; without it an answer may take 2m0s",
		"recommend --spec 3": "--spec is gone: use -o spec, of migctl recommend and of migctl fleet",
		"fleet --target-busy=0.9": "--target-busy is gone: leave it out: a slice is busy for at " +
			"most 0.8 at p99",
	}
	for args, want := range says {
		got := runner{}.run(t, defaultAddress, strings.Fields(args)...)
		if got.code != exitUsage || !strings.Contains(flat(got.err), want) || got.out != "" {
			t.Errorf("%s: %+v, want %q", args, got, want)
		}
	}

	if len(says) != len(goneFlags()) {
		t.Errorf("%d of %d flags are tested", len(says), len(goneFlags()))
	}
}
