package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func TestIsAdmin(t *testing.T) {
	for name, tc := range map[string]struct {
		users, status string
		want          bool
	}{
		"root of the host":         {hostUsers, "Name:\tx\nCapEff:\t000001ffffffffff\n", true},
		"CAP_SYS_ADMIN alone":      {hostUsers, "CapPrm:\t0\nCapEff:\t0000000000200000\nCapBnd:\t0\n", true},
		"root without it":          {hostUsers, "CapEff:\t00000000a80425fb\n", false},
		"root of a user namespace": {"user:[4026532574]", "CapEff:\t000001ffffffffff\n", false},
		"no such line":             {hostUsers, "CapPrm:\t000001ffffffffff\n", false},
		"not a number":             {hostUsers, "CapEff:\tall\n", false},
		"no namespace":             {"", "CapEff:\t000001ffffffffff\n", false},
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "self/ns"), 0o700); err != nil {
			t.Fatal(err)
		}

		if tc.users != "" {
			if err := os.Symlink(tc.users, filepath.Join(dir, "self/ns/user")); err != nil {
				t.Fatal(err)
			}
		}

		if err := os.WriteFile(filepath.Join(dir, "self/status"), []byte(tc.status), 0o600); err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, name, isAdmin(dir), tc.want)
	}
}
